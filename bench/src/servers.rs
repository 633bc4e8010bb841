//! Servers as child processes: started on a port of their own, stopped whatever happens.

use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A server must say that it is ready within this.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// A stopped process must be gone within this; past it, it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// How often to look whether a process is gone.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How much of a failed child's stderr is shown.
const STDERR_SHOWN_BYTES: usize = 2_000;

const READY_MARK: &str = " ready: listening on ";

/// Which server, in which durability mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// The responder that bounds them all.
    Ceiling,
    /// Ticketing, every answer on disk first.
    Sync,
    /// Ticketing, page cache only.
    Memory,
    /// A cluster of three, every answer on two disks first.
    ClusterSync,
    /// A cluster of three, page caches only.
    ClusterMemory,
}

impl System {
    /// Its name in tables, with the durability mode.
    pub fn name(self) -> &'static str {
        match self {
            System::Ceiling => "ceiling (nothing kept)",
            System::Sync => "ticketing --durability sync",
            System::Memory => "ticketing --durability memory",
            System::ClusterSync => "cluster of 3, sync",
            System::ClusterMemory => "cluster of 3, memory",
        }
    }

    /// Whether it is a cluster ([`crate::cluster::RunningCluster`]).
    pub fn is_cluster(self) -> bool {
        matches!(self, System::ClusterSync | System::ClusterMemory)
    }

    /// The command that serves it on a free loopback port; not of a cluster.
    pub fn command(self, programs: &Programs, data_dir: &Path) -> Command {
        let durability = match self {
            System::Ceiling => {
                let mut command = Command::new(&programs.ceiling);
                command.args(["--listen", "127.0.0.1:0"]);
                return command;
            }
            System::Sync | System::ClusterSync => "sync",
            System::Memory | System::ClusterMemory => "memory",
        };
        let mut command = Command::new(&programs.server);
        command.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--durability",
            durability,
        ]);
        command
            .arg("--data-dir")
            .arg(data_dir)
            .args(&programs.server_args);
        command
    }
}

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The `ceiling` program.
    pub ceiling: PathBuf,
    /// The `ticketing` program.
    pub server: PathBuf,
    /// Further arguments to `ticketing serve`.
    pub server_args: Vec<String>,
}

/// Why a server is of no use.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// It did not start.
    #[error("cannot start {program}: {error} (build it first: cargo build --release)")]
    Start {
        /// The program.
        program: String,
        /// What the kernel said.
        error: io::Error,
    },
    /// It ended before it was ready.
    #[error("{program} ended before it was ready; its stderr ends with:\n{stderr}")]
    Ended {
        /// The program.
        program: String,
        /// The end of its stderr.
        stderr: String,
    },
    /// It took too long.
    #[error("{program} was not ready within {READY_WITHIN:?}; its stderr ends with:\n{stderr}")]
    Slow {
        /// The program.
        program: String,
        /// The end of its stderr.
        stderr: String,
    },
    /// It would not stop.
    #[error("{program} was not gone {STOP_WITHIN:?} after SIGTERM, and was killed")]
    WouldNotStop {
        /// The program.
        program: String,
    },
    /// It stopped, but not well.
    #[error("{program} stopped with {status}; its stderr ends with:\n{stderr}")]
    StoppedBadly {
        /// The program.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of its stderr.
        stderr: String,
    },
    /// Anything else.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A child process that never outlives this value.
pub struct Guarded {
    child: Child,
}

impl Guarded {
    /// Starts `command`.
    ///
    /// # Errors
    /// There is no such program, or it may not be run.
    pub fn start(command: &mut Command) -> Result<Guarded, ServerError> {
        let program = command.get_program().to_string_lossy().into_owned();
        match command.spawn() {
            Ok(child) => Ok(Guarded { child }),
            Err(error) => Err(ServerError::Start { program, error }),
        }
    }

    /// The process itself.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How it ended, if it does so within `limit`.
    ///
    /// # Errors
    /// The kernel does not know the process.
    pub fn wait_at_most(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Both fail only if the process is gone already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that is ready, with a folder that goes when it goes.
pub struct Running {
    process: Guarded,
    system: System,
    program: String,
    addr: SocketAddr,
    folder: tempfile::TempDir,
}

impl Running {
    /// Starts `system` with an empty data folder under `data_root`, and waits until it serves.
    ///
    /// # Errors
    /// It does not start, or ends, or takes too long.
    pub fn start(
        system: System,
        programs: &Programs,
        data_root: &Path,
    ) -> Result<Running, ServerError> {
        let folder = tempfile::Builder::new()
            .prefix("ticketing-bench-")
            .tempdir_in(data_root)?;
        let mut command = system.command(programs, &folder.path().join("data"));
        let program = command.get_program().to_string_lossy().into_owned();
        let stderr = std::fs::File::create(stderr_path(&folder))?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr);
        let mut process = Guarded::start(&mut command)?;
        let stdout = process.child().stdout.take();
        match first_address(stdout) {
            Ok(addr) => Ok(Running {
                process,
                system,
                program,
                addr,
                folder,
            }),
            Err(RecvTimeoutError::Disconnected) => Err(ServerError::Ended {
                program,
                stderr: stderr_end(&folder),
            }),
            Err(RecvTimeoutError::Timeout) => Err(ServerError::Slow {
                program,
                stderr: stderr_end(&folder),
            }),
        }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// The end of what it wrote to stderr.
    pub fn stderr_end(&self) -> String {
        stderr_end(&self.folder)
    }

    /// Asks it to stop with SIGTERM, and waits until it is gone.
    ///
    /// # Errors
    /// It had to be killed, or ended with a failure. (The ceiling has no handler: SIGTERM ends it.)
    pub fn stop(mut self) -> Result<(), ServerError> {
        kill_process(Pid::from_child(&self.process.child), Signal::TERM)
            .map_err(io::Error::from)?;
        let program = self.program.clone();
        match self.process.wait_at_most(STOP_WITHIN)? {
            None => Err(ServerError::WouldNotStop { program }),
            Some(status) if status.success() || self.system == System::Ceiling => Ok(()),
            Some(status) => {
                let stderr = self.stderr_end();
                Err(ServerError::StoppedBadly {
                    program,
                    status,
                    stderr,
                })
            }
        }
    }
}

/// The address in a ready line: `NAME ready: listening on ADDR`, whatever follows it.
fn ready_address(line: &str) -> Option<SocketAddr> {
    let (_, behind) = line.split_once(READY_MARK)?;
    behind.split_ascii_whitespace().next()?.parse().ok()
}

/// Waits for the ready line; what follows it is read and thrown away, so the child never blocks.
fn first_address(
    stdout: Option<impl Read + Send + 'static>,
) -> Result<SocketAddr, RecvTimeoutError> {
    let (sender, receiver) = mpsc::channel();
    let stdout = stdout.ok_or(RecvTimeoutError::Disconnected)?;
    thread::spawn(move || {
        let mut sender = Some(sender);
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(addr) = ready_address(&line)
                && let Some(sender) = sender.take()
            {
                // Nobody listens any more only if the wait has timed out.
                let _ = sender.send(addr);
            }
        }
    });
    receiver.recv_timeout(READY_WITHIN)
}

fn stderr_path(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("stderr.log")
}

fn stderr_end(folder: &tempfile::TempDir) -> String {
    let bytes = std::fs::read(stderr_path(folder)).unwrap_or_default();
    let from = bytes.len().saturating_sub(STDERR_SHOWN_BYTES);
    String::from_utf8_lossy(&bytes[from..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_lines_of_both_programs_are_understood() {
        let addr: SocketAddr = "127.0.0.1:4711".parse().unwrap();
        let line = "ticketing ready: listening on 127.0.0.1:4711 (single, sync)";
        assert_eq!(ready_address(line), Some(addr));
        assert_eq!(
            ready_address("ceiling ready: listening on 127.0.0.1:4711"),
            Some(addr)
        );
        assert_eq!(ready_address("ticketing ready: listening on nothing"), None);
        assert_eq!(ready_address("starting"), None);
    }

    #[test]
    fn a_program_that_ends_at_once_is_told_with_its_stderr() {
        let programs = Programs {
            ceiling: "/bin/sh".into(),
            server: "/bin/sh".into(),
            server_args: Vec::new(),
        };
        // A shell given a script called "serve" that is not there.
        let root = tempfile::tempdir().unwrap();
        let Err(ServerError::Ended { stderr, .. }) =
            Running::start(System::Sync, &programs, root.path())
        else {
            panic!("a shell is no server");
        };
        assert!(stderr.contains("serve"), "{stderr}");
    }

    #[test]
    fn a_guarded_child_dies_with_its_guard() {
        let guarded = Guarded::start(Command::new("sleep").arg("60")).unwrap();
        let pid = guarded.child.id();
        assert!(Path::new(&format!("/proc/{pid}")).exists());
        drop(guarded);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
