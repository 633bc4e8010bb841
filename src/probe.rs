//! What the machine must offer, checked before anything is touched, with the
//! remedy in the message.

use std::fs;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::limits::{
    CONNECTIONS_DEFAULT, CONNECTIONS_LEAST, MEMLOCK_PER_EXECUTOR_BYTES, OPEN_FILES_RESERVE,
};

/// The oldest kernel whose io_uring has what the executors use.
const KERNEL_LEAST: (u32, u32) = (6, 1);

/// What the probe found room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Client connections that the open-files limit allows, and the
    /// configuration asks for.
    pub connections: u32,
}

/// What the checks look at; gathered once, judged purely.
#[derive(Clone, Debug)]
struct Machine {
    kernel_release: String,
    io_uring_disabled: Option<String>,
    privileged: bool,
    memlock_bytes: Option<u64>,
    open_files_hard: Option<u64>,
}

/// Checks the machine for a node of `executors` executors, and raises the
/// open-files limit as far as it goes.
///
/// # Errors
/// What is missing and what to set, in one line.
pub fn machine(executors: usize, connections: Option<u32>) -> Result<Room, String> {
    let machine = Machine::look();
    let room = judge(&machine, executors, connections)?;
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files)
        .map_err(|error| format!("the open-files limit could not be raised: {error}"))?;
    Ok(room)
}

/// Says why an executor could not be made, from the kernel's reason.
#[must_use]
pub fn explain_executor_failure(reason: &str) -> String {
    format!(
        "io_uring cannot be used here ({reason}): if a container or a sandbox runs this, allow the \
         system calls io_uring_setup, io_uring_enter and io_uring_register; if the reason is memory, \
         raise LimitMEMLOCK (ulimit -l)"
    )
}

impl Machine {
    fn look() -> Self {
        let uname = rustix::system::uname();
        Self {
            kernel_release: uname.release().to_string_lossy().into_owned(),
            io_uring_disabled: fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok(),
            privileged: rustix::process::geteuid().is_root(),
            memlock_bytes: getrlimit(Resource::Memlock).current,
            open_files_hard: getrlimit(Resource::Nofile).maximum,
        }
    }
}

fn judge(machine: &Machine, executors: usize, connections: Option<u32>) -> Result<Room, String> {
    if let Some(version) = kernel_version(&machine.kernel_release)
        && version < KERNEL_LEAST
    {
        return Err(format!(
            "Linux {} is too old: io_uring as used here needs {}.{} or later",
            machine.kernel_release, KERNEL_LEAST.0, KERNEL_LEAST.1
        ));
    }
    match machine.io_uring_disabled.as_deref().map(str::trim) {
        Some("2") => {
            return Err(
                "io_uring is switched off on this machine: sysctl -w kernel.io_uring_disabled=0"
                    .into(),
            );
        }
        Some("1") if !machine.privileged => {
            return Err(
                "io_uring is switched off for ordinary users: sysctl -w kernel.io_uring_disabled=0, \
                 or add this user to the group in kernel.io_uring_group"
                    .into(),
            );
        }
        _ => {}
    }
    let needed_bytes = MEMLOCK_PER_EXECUTOR_BYTES * executors as u64;
    if let Some(memlock_bytes) = machine.memlock_bytes
        && !machine.privileged
        && memlock_bytes < needed_bytes
    {
        return Err(format!(
            "only {} KiB of memory may be locked, and {executors} executors need {} KiB: raise \
             LimitMEMLOCK in the service, or ulimit -l (counted for all processes of one user)",
            memlock_bytes / 1024,
            needed_bytes / 1024
        ));
    }
    let open_files = machine.open_files_hard.unwrap_or(u64::MAX);
    let fit = u32::try_from(open_files.saturating_sub(OPEN_FILES_RESERVE)).unwrap_or(u32::MAX);
    let wanted = connections.unwrap_or(CONNECTIONS_DEFAULT);
    if fit >= wanted {
        return Ok(Room {
            connections: wanted,
        });
    }
    if connections.is_none() && fit >= CONNECTIONS_LEAST {
        return Ok(Room { connections: fit });
    }
    let least = connections.unwrap_or(CONNECTIONS_LEAST);
    Err(format!(
        "at most {open_files} files may be open, and {least} connections need {}: raise LimitNOFILE \
         in the service (ulimit -Hn), or lower limits.connections",
        u64::from(least) + OPEN_FILES_RESERVE
    ))
}

fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Machine {
        Machine {
            kernel_release: "6.1.0-9-amd64".into(),
            io_uring_disabled: Some("0\n".into()),
            privileged: false,
            memlock_bytes: Some(8 * 1024 * 1024),
            open_files_hard: Some(1_048_576),
        }
    }

    #[test]
    fn a_good_machine_has_room_for_what_is_asked() {
        assert_eq!(judge(&good(), 3, Some(500)), Ok(Room { connections: 500 }));
        assert_eq!(
            judge(&good(), 3, None),
            Ok(Room {
                connections: CONNECTIONS_DEFAULT
            })
        );
    }

    #[test]
    fn an_old_kernel_is_refused() {
        let mut machine = good();
        machine.kernel_release = "6.0.19".into();
        let refused = judge(&machine, 1, None).expect_err("too old");
        assert!(refused.contains("6.1"), "{refused}");
        machine.kernel_release = "6.1.0".into();
        assert!(judge(&machine, 1, None).is_ok());
    }

    #[test]
    fn io_uring_switched_off_is_refused_with_the_switch() {
        let mut machine = good();
        machine.io_uring_disabled = Some("2\n".into());
        machine.privileged = true;
        let refused = judge(&machine, 1, None).expect_err("off for all");
        assert!(refused.contains("kernel.io_uring_disabled=0"), "{refused}");
        machine.io_uring_disabled = Some("1\n".into());
        assert!(judge(&machine, 1, None).is_ok(), "root may");
        machine.privileged = false;
        assert!(judge(&machine, 1, None).is_err());
        machine.io_uring_disabled = None;
        assert!(
            judge(&machine, 1, None).is_ok(),
            "kernels without the switch"
        );
    }

    #[test]
    fn locked_memory_is_counted_per_executor_and_root_is_exempt() {
        let mut machine = good();
        machine.memlock_bytes = Some(2 * MEMLOCK_PER_EXECUTOR_BYTES);
        assert!(judge(&machine, 2, None).is_ok());
        let refused = judge(&machine, 3, None).expect_err("too little");
        assert!(refused.contains("LimitMEMLOCK"), "{refused}");
        machine.privileged = true;
        assert!(judge(&machine, 3, None).is_ok());
        machine.privileged = false;
        machine.memlock_bytes = None;
        assert!(judge(&machine, 3, None).is_ok(), "unlimited");
    }

    #[test]
    fn open_files_bound_the_connections() {
        let mut machine = good();
        machine.open_files_hard = Some(OPEN_FILES_RESERVE + 1_000);
        assert_eq!(
            judge(&machine, 1, None),
            Ok(Room { connections: 1_000 }),
            "nothing was asked for, so take what there is"
        );
        assert!(judge(&machine, 1, Some(1_000)).is_ok());
        let refused = judge(&machine, 1, Some(1_001)).expect_err("one too many");
        assert!(refused.contains("LimitNOFILE"), "{refused}");
        machine.open_files_hard = Some(OPEN_FILES_RESERVE + u64::from(CONNECTIONS_LEAST) - 1);
        assert!(judge(&machine, 1, None).is_err());
    }
}
