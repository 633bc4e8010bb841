//! Why a data folder cannot be opened, each reason with its remedy.

use std::io;
use std::path::{Path, PathBuf};

use crate::format::{BlockFault, FORMAT_VERSION};
use crate::types::Mode;

/// Why a data folder cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the folder open.
    #[error(
        "{}: in use by another process{}; stop that one first, or give this one a data folder of its own",
        dir.display(), .holder.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    Locked {
        /// The folder.
        dir: PathBuf,
        /// The process that wrote itself into the lock file, if readable.
        holder: Option<u32>,
    },
    /// A file was written by a later version.
    #[error(
        "{}: format version {found}, but this program knows versions up to {supported}; start the newer program that wrote it, or restore the folder it was upgraded from",
        file.display()
    )]
    NewerFormat {
        /// The file.
        file: PathBuf,
        /// The version it has.
        found: u32,
        /// The newest version known here.
        supported: u32,
    },
    /// A file is not what its name says.
    #[error(
        "{}: not a Ticketing file (its first bytes are wrong); check that the data folder is the right one, and if it is, replace this node",
        file.display()
    )]
    WrongMagic {
        /// The file.
        file: PathBuf,
    },
    /// The folder has something in it, but is no data folder.
    #[error(
        "{}: not a Ticketing data folder ({why}); name an empty or absent folder for a new node, or restore the missing file's folder as a whole",
        dir.display()
    )]
    Foreign {
        /// The folder.
        dir: PathBuf,
        /// What was found or missed.
        why: String,
    },
    /// The folder belongs to a node of the other mode.
    #[error(
        "{}: {}", dir.display(), match found {
            Mode::Cluster => "the folder of a cluster's node, opened as a single node; start it with that node's config file, or name another folder",
            Mode::Single => "the folder of a single node, opened as a cluster's; start it in single mode, or name the folder that `ticketing cluster init` or `cluster add-node` made",
        }
    )]
    WrongMode {
        /// The folder.
        dir: PathBuf,
        /// Whose it is.
        found: Mode,
    },
    /// There is no data folder of a cluster's node.
    #[error(
        "{}: no data folder of a cluster's node, and a start makes none: a node whose folder is lost must not come back under its id; make a new one with `ticketing cluster add-node` and put it in the lost one's place, or correct data_dir",
        dir.display()
    )]
    NoMember {
        /// The folder.
        dir: PathBuf,
    },
    /// The log was kept in memory only, and the machine went down under it.
    #[error(
        "{}: the machine went down while this node kept its log in memory only: what it acknowledged is lost, so it must not come back under its id; make a new node with `ticketing cluster add-node` and put it in this one's place",
        dir.display()
    )]
    LostMemory {
        /// The folder.
        dir: PathBuf,
    },
    /// The node that the folder is of has ended for good ([`crate::retire`]).
    #[error(
        "{}: this folder is not used any more: {why}; replace this node (`ticketing cluster add-node`), and keep or remove the folder (the file `retired` in it says this; without that file it could be started on, which can break the cluster's promises)",
        dir.display()
    )]
    Retired {
        /// The folder.
        dir: PathBuf,
        /// The exit code with which the node ended.
        code: Option<u8>,
        /// Why it ended.
        why: String,
    },
    /// Data that had been acknowledged is damaged.
    #[error(
        "{}: corrupt at offset {offset}: {why}; this folder can't be trusted any more: keep it for inspection and replace this node",
        file.display()
    )]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
        /// What is wrong there.
        why: String,
    },
    /// What was named is no folder, or what should be above it is none.
    #[error(
        "{}: not a folder, or below something that is none; name a folder for the data: a new node makes it",
        path.display()
    )]
    NotAFolder {
        /// What was named.
        path: PathBuf,
    },
    /// The folder that the data folder should be made in does not exist.
    #[error(
        "{}: the folder that it should be made in does not exist; make that one first, or correct the path",
        dir.display()
    )]
    NoParent {
        /// The data folder.
        dir: PathBuf,
    },
    /// The process may not read or write there.
    #[error(
        "{}: {source}; give the user that runs this program read and write access to the data folder and all in it, on a file system mounted read-write",
        path.display()
    )]
    NoAccess {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The disk is full.
    #[error(
        "{}: {source}; free some space on that file system, at least two segments' worth, and start again",
        path.display()
    )]
    NoSpace {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// An option is outside its bounds.
    #[error("invalid log option: {why}; change the configuration")]
    BadOption {
        /// Which, and its bounds.
        why: String,
    },
    /// Anything else the system reported.
    #[error("{}: cannot {action}: {source}; check the disk and the kernel's log, then start again", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl OpenError {
    /// Sorts an I/O error on `path`, which happened while doing `action`.
    pub(crate) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::NoAccess { path, source }
            }
            io::ErrorKind::NotADirectory => Self::NotAFolder { path },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { path, source }
            }
            _ => Self::Io {
                path,
                action,
                source,
            },
        }
    }

    pub(crate) fn corrupt(file: &Path, offset: u64, why: impl Into<String>) -> Self {
        Self::Corrupt {
            file: file.to_path_buf(),
            offset,
            why: why.into(),
        }
    }

    /// Says which file a header block's fault is in.
    pub(crate) fn block(file: &Path, fault: BlockFault) -> Self {
        let file = file.to_path_buf();
        match fault {
            BlockFault::WrongMagic => Self::WrongMagic { file },
            BlockFault::Damaged => Self::Corrupt {
                file,
                offset: 0,
                why: "its first block's checksum is wrong".into(),
            },
            BlockFault::Newer(found) => Self::NewerFormat {
                file,
                found,
                supported: FORMAT_VERSION,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_answers_are_sorted_by_their_remedy() {
        let sorted = |kind| OpenError::io(Path::new("/d/log"), "write", io::Error::from(kind));
        for kind in [
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::ReadOnlyFilesystem,
        ] {
            assert!(matches!(sorted(kind), OpenError::NoAccess { .. }));
        }
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let error = sorted(kind);
            assert!(matches!(error, OpenError::NoSpace { .. }));
            assert!(error.to_string().contains("free some space"));
        }
        let error = sorted(io::ErrorKind::NotADirectory);
        assert!(matches!(error, OpenError::NotAFolder { .. }));
        let error = sorted(io::ErrorKind::TimedOut);
        assert!(matches!(error, OpenError::Io { .. }));
        assert!(error.to_string().starts_with("/d/log: cannot write"));
    }

    #[test]
    fn every_message_is_one_line() {
        let file = PathBuf::from("/d/log/00000001.seg");
        let messages = [
            OpenError::corrupt(&file, 4096, "damage").to_string(),
            OpenError::block(&file, BlockFault::Newer(9)).to_string(),
            OpenError::block(&file, BlockFault::WrongMagic).to_string(),
            OpenError::Locked {
                dir: file.clone(),
                holder: None,
            }
            .to_string(),
        ];
        for message in messages {
            assert!(
                !message.contains('\n') && message.contains("00000001.seg"),
                "{message}"
            );
        }
    }
}
