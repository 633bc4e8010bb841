//! Why a server stops: one exit code per reason, so that a service manager can
//! tell what may be restarted from what must not be.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A reason to end the process, with its exit code.
///
/// Codes 1 and 2 are the command line's own (failed; bad usage or
/// configuration). `docs/operations.md` lists all of them for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fatal {
    /// The machine lacks something the server needs: io_uring, memory that may
    /// be locked, open files.
    Environment = 10,
    /// An address could not be listened on.
    Listen = 11,
    /// The data folder is in use, unreadable, of a newer format, or not ours.
    Folder = 12,
    /// The log is damaged below what was acknowledged. Never restart on it.
    Corrupt = 13,
    /// A write or a sync failed: what is on the disk is no longer known.
    Disk = 14,
    /// A fault of the program.
    Panic = 15,
    /// An executor could not be started, or ended before it was asked to.
    Executor = 16,
    /// A mapped part of the log could not be read back from the disk (SIGBUS).
    MappedRead = 17,
    /// Another node has taken this one's place. Never restart it.
    Replaced = 18,
    /// Most of the cluster's nodes do not believe that this is the node it says: its folder is a copy, an
    /// old backup, or has lost something. Never restart on it.
    Unwelcome = 19,
    /// This node holds other locks than a majority of the cluster with its leader. Never restart on its folder.
    Diverged = 20,
}

impl Fatal {
    /// Every reason there is, for documentation and its test.
    pub const ALL: [Fatal; 11] = [
        Fatal::Environment,
        Fatal::Listen,
        Fatal::Folder,
        Fatal::Corrupt,
        Fatal::Disk,
        Fatal::Panic,
        Fatal::Executor,
        Fatal::MappedRead,
        Fatal::Replaced,
        Fatal::Unwelcome,
        Fatal::Diverged,
    ];

    /// The process exit code.
    #[must_use]
    pub fn code(self) -> i32 {
        i32::from(self as u8)
    }

    /// Ends the process as [`Fatal::exit`] does, and its data folder's use with it: no later start serves.
    pub fn retire(self, data_dir: &Path, why: impl Display) -> ! {
        let why = why.to_string();
        if let Err(error) = ticketing_raftlog::retire(data_dir, self as u8, &why) {
            tracing::error!(
                "{}: that this folder must not be started on again could not be written into it ({error}): see \
                 to it that nobody does",
                data_dir.display()
            );
        }
        self.exit(why)
    }

    /// The reason with that exit code.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|fatal| *fatal as u8 == code)
    }

    /// Ends the process at once, in one line on stderr and in the log.
    ///
    /// No destructor runs and nothing more is written: what was acknowledged
    /// is on the disk already, and what was not must not become so now.
    pub fn exit(self, why: impl Display) -> ! {
        tracing::error!(code = self.code(), reason = ?self, "stopping: {why}");
        eprintln!("ticketing: {why}");
        std::process::exit(self.code());
    }
}

/// Turns a panic on any thread into an exit of the whole process: an executor
/// that lost a task would go on serving with half of its state.
pub fn exit_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        Fatal::Panic.exit(format_args!(
            "a fault in the program ({info}); everything acknowledged is on disk: start it again and report this line"
        ));
    }));
}

/// Turns a read of the log's mapping that the disk refused into an exit with a
/// code of its own.
///
/// # Errors
/// The kernel's reason when the signal cannot be caught.
pub fn exit_on_failed_mapping() -> std::io::Result<()> {
    let always = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register_conditional_shutdown(
        signal_hook::consts::SIGBUS,
        Fatal::MappedRead.code(),
        always,
    )
    .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_apart_from_the_command_lines_own() {
        let mut codes: Vec<i32> = Fatal::ALL.iter().map(|fatal| fatal.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Fatal::ALL.len());
        assert!(codes.iter().all(|&code| code > 2 && code < 120));
    }
}
