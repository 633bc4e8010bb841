//! The real server as a process that believes in another boot of the machine each time.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::PATIENCE;
use crate::rng::Rng;

/// Shows a file of ours as the kernel's boot id to what runs behind it.
const WITH_BOOT_ID: &str =
    "mount --bind \"$1\" /proc/sys/kernel/random/boot_id && shift && exec \"$@\"";
const READY: &str = "ticketing ready: listening on ";

/// What a process of the server needs to know.
#[derive(Debug)]
pub struct Machine {
    /// The server's binary.
    pub binary: PathBuf,
    /// A folder on a disk that nobody cuts: config and boot id.
    pub folder: PathBuf,
}

/// A running server. Dropped, it is killed and reaped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Where its clients connect.
    pub address: SocketAddr,
    stderr: PathBuf,
}

impl Machine {
    /// The machine starts again: another boot id from now on.
    pub fn boot(&self, rng: &mut Rng) {
        let mut part = |bits: u32| rng.below(1 << bits);
        let id = format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}\n",
            part(32),
            part(16),
            part(16),
            part(16),
            part(48)
        );
        fs::write(self.folder.join("boot_id"), id).expect("the boot id is written");
    }

    /// Writes the config file.
    pub fn configure(&self, data: &Path, durability: &str, log: &str) {
        let text = format!(
            "mode = \"single\"\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
             data_dir = \"{}\"\nshards = 2\ndurability = \"{durability}\"\n[log]\n{log}",
            data.display()
        );
        fs::write(self.folder.join("ticketing.toml"), text).expect("the config is written");
    }

    /// Starts the server and does not wait for it.
    pub fn spawn(&self) -> Child {
        let stderr = fs::File::create(self.folder.join("stderr")).expect("a file for stderr");
        let config = self.folder.join("ticketing.toml");
        self.command(&["serve".as_ref(), "--config".as_ref(), config.as_os_str()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("unshare starts")
    }

    /// Starts the server and waits until it serves.
    ///
    /// # Errors
    /// What it said on stderr when it did not.
    pub fn start(&self) -> Result<Server, String> {
        let mut child = self.spawn();
        let stdout = child.stdout.take().expect("piped");
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = tell.send(line);
        });
        let line = told.recv_timeout(PATIENCE).unwrap_or_default();
        let address = line
            .strip_prefix(READY)
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|address| address.parse().ok());
        let stderr = self.folder.join("stderr");
        match address {
            Some(address) => Ok(Server {
                child,
                address,
                stderr,
            }),
            None => {
                kill9(&mut child);
                Err(fs::read_to_string(stderr).unwrap_or_default())
            }
        }
    }

    /// The report of `log verify`, whatever it is.
    pub fn verify(&self, data: &Path) -> Result<Value, String> {
        let output = self.run(&["verify".as_ref(), data.as_os_str(), "--json".as_ref()]);
        serde_json::from_slice(&output.stdout).map_err(|_| format!("log verify: {output:?}"))
    }

    /// The lines of `log dump`: what the snapshot holds, and what came behind it.
    pub fn dump(&self, data: &Path) -> Result<Vec<Value>, String> {
        let output = self.run(&["dump".as_ref(), data.as_os_str(), "--json".as_ref()]);
        if !output.status.success() {
            return Err(format!(
                "log dump: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|line| serde_json::from_str(line).map_err(|error| format!("{line}: {error}")))
            .collect()
    }

    fn run(&self, args: &[&std::ffi::OsStr]) -> Output {
        let args = [&["log".as_ref()], args].concat();
        self.command(&args).output().expect("unshare starts")
    }

    fn command(&self, args: &[&std::ffi::OsStr]) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", WITH_BOOT_ID, "sh"])
            .arg(self.folder.join("boot_id"))
            .arg(&self.binary)
            .args(args);
        command
    }
}

impl Server {
    /// Asks it to stop, and does not wait.
    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    }

    /// The exit code it ends with by itself.
    ///
    /// # Errors
    /// When it does not end, or by a signal.
    pub fn exit_code(&mut self) -> Result<i32, String> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("its status") {
                return status.code().ok_or_else(|| format!("it ended by {status}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(format!("it did not end within {PATIENCE:?}"))
    }

    /// What it said on stderr so far.
    pub fn stderr(&self) -> String {
        let mut text = String::new();
        if let Ok(mut file) = fs::File::open(&self.stderr) {
            let _ = file.read_to_string(&mut text);
        }
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        kill9(&mut self.child);
    }
}

/// Kills a process and reaps it.
pub fn kill9(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
