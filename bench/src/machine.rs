//! What the kernel says about the machine and its processes.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

/// CPU time, user and system together.
pub type Cpu = Duration;

/// Field 14 of `/proc/PID/stat`, counted from 1, is utime; 15 is stime. Behind the name, which
/// ends with the last `)`, the first field is number 3.
const UTIME_BEHIND_NAME: usize = 14 - 3;

/// The machine a figure was measured on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// CPUs this process may use.
    pub cores: usize,
    /// The CPU's name.
    pub cpu: String,
    /// Kernel name, release and architecture.
    pub kernel: String,
    /// Kind of file system that holds the data folders.
    pub data_file_system: String,
}

impl Machine {
    /// This machine, with the file system of `data_root`.
    ///
    /// # Errors
    /// `data_root` does not exist, or the number of CPUs is unknown.
    pub fn look(data_root: &Path) -> io::Result<Machine> {
        let uname = rustix::system::uname();
        let parts = [uname.sysname(), uname.release(), uname.machine()];
        Ok(Machine {
            cores: std::thread::available_parallelism()?.get(),
            cpu: cpu_name().unwrap_or_else(|| "unknown CPU".to_owned()),
            kernel: parts
                .map(|part| part.to_string_lossy().into_owned())
                .join(" "),
            data_file_system: file_system_name(rustix::fs::statfs(data_root)?.f_type as u64),
        })
    }
}

/// CPU time of a process so far, all its threads.
///
/// # Errors
/// No such process, or the kernel's format is not the known one.
pub fn cpu_of(pid: u32) -> io::Result<Cpu> {
    cpu_from_stat(&format!("/proc/{pid}/stat"))
}

/// CPU time of this process so far, all its threads.
///
/// # Errors
/// As [`cpu_of`].
pub fn cpu_of_self() -> io::Result<Cpu> {
    cpu_from_stat("/proc/self/stat")
}

fn cpu_from_stat(path: &str) -> io::Result<Cpu> {
    let ticks = ticks_in_stat(&fs::read_to_string(path)?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("unknown {path}")))?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_micros(
        ticks.saturating_mul(1_000_000) / per_second,
    ))
}

/// utime + stime, in clock ticks.
fn ticks_in_stat(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_ascii_whitespace().skip(UTIME_BEHIND_NAME);
    let utime: u64 = fields.next()?.parse().ok()?;
    let stime: u64 = fields.next()?.parse().ok()?;
    utime.checked_add(stime)
}

fn cpu_name() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn file_system_name(magic: u64) -> String {
    match magic {
        0xef53 => "ext4".to_owned(),
        0x5846_5342 => "xfs".to_owned(),
        0x9123_683e => "btrfs".to_owned(),
        0x794c_7630 => "overlay".to_owned(),
        0x0102_1994 => "tmpfs (memory: a sync costs nothing here)".to_owned(),
        other => format!("0x{other:x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_behind_a_name_with_blanks_and_brackets() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194304 100 0 0 0 31 11 0 0 20 0 4 0 99 0";
        assert_eq!(ticks_in_stat(stat), Some(42));
        assert_eq!(ticks_in_stat("7 (x) S 1 2"), None);
        assert_eq!(ticks_in_stat("nothing"), None);
    }

    #[test]
    fn this_process_has_a_cpu_time_and_no_process_has_none() {
        assert!(cpu_of_self().is_ok());
        assert!(cpu_of(u32::MAX).is_err());
    }
}
