//! Cutting a process, or its machine's power, between any two steps on the disk.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

thread_local! {
    static ARMED: RefCell<Option<Faults>> = const { RefCell::new(None) };
}

/// What happened since it was armed, and is not durable yet.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    left: usize,
    /// Steps that were taken.
    pub steps: usize,
    names: Vec<Name>,
    contents: Vec<Content>,
}

#[derive(Debug)]
enum Name {
    Renamed {
        from: PathBuf,
        to: PathBuf,
        replaced: Option<Vec<u8>>,
    },
    Removed {
        path: PathBuf,
        bytes: Vec<u8>,
    },
}

#[derive(Debug)]
struct Content {
    file: File,
    offset: u64,
    old: Vec<u8>,
    old_size: u64,
}

/// From now on this thread's steps on the disk are counted, and fail once `steps` were taken.
pub(crate) fn arm(steps: usize) {
    let faults = Faults {
        left: steps,
        ..Faults::default()
    };
    ARMED.with_borrow_mut(|armed| *armed = Some(faults));
}

/// Ends that.
pub(crate) fn disarm() -> Faults {
    ARMED
        .with_borrow_mut(Option::take)
        .expect("it was armed before")
}

impl Faults {
    /// Takes back what was not durable: all contents, and the names that `keep` does not keep, of
    /// which it gets the number and how many there are.
    pub fn cut_power(mut self, keep: impl Fn(usize, usize) -> bool) {
        while let Some(content) = self.contents.pop() {
            content
                .file
                .write_all_at(&content.old, content.offset)
                .expect("undone");
            content.file.set_len(content.old_size).expect("undone");
        }
        let all = self.names.len();
        for (number, name) in self.names.into_iter().enumerate().rev() {
            if keep(number, all) {
                continue;
            }
            match name {
                Name::Renamed { from, to, replaced } => {
                    fs::rename(&to, from).expect("undone");
                    if let Some(bytes) = replaced {
                        fs::write(to, bytes).expect("undone");
                    }
                }
                Name::Removed { path, bytes } => fs::write(path, bytes).expect("undone"),
            }
        }
    }
}

pub(super) fn step() -> io::Result<()> {
    ARMED.with_borrow_mut(|armed| match armed {
        Some(faults) if faults.steps == faults.left => Err(io::Error::other("cut short")),
        Some(faults) => {
            faults.steps += 1;
            Ok(())
        }
        None => Ok(()),
    })
}

pub(super) fn will_write(file: &File, bytes: usize, offset: u64) {
    ARMED.with_borrow_mut(|armed| {
        let Some(faults) = armed else { return };
        let old_size = file.metadata().expect("its size").len();
        let kept = (old_size.saturating_sub(offset) as usize).min(bytes);
        let mut old = vec![0; kept];
        file.read_exact_at(&mut old, offset).expect("readable");
        faults.contents.push(Content {
            file: file.try_clone().expect("a handle"),
            offset,
            old,
            old_size,
        });
    });
}

pub(super) fn content_is_durable(file: &File) {
    ARMED.with_borrow_mut(|armed| {
        let Some(faults) = armed else { return };
        let inode = file.metadata().expect("its inode").ino();
        faults
            .contents
            .retain(|content| content.file.metadata().expect("its inode").ino() != inode);
    });
}

pub(super) fn renamed(from: &Path, to: &Path, replaced: Option<Vec<u8>>) {
    ARMED.with_borrow_mut(|armed| {
        let Some(faults) = armed else { return };
        faults.names.push(Name::Renamed {
            from: from.to_path_buf(),
            to: to.to_path_buf(),
            replaced,
        });
    });
}

pub(super) fn will_remove(path: &Path) {
    ARMED.with_borrow_mut(|armed| {
        let Some(faults) = armed else { return };
        if let Ok(bytes) = fs::read(path) {
            let path = path.to_path_buf();
            faults.names.push(Name::Removed { path, bytes });
        }
    });
}

pub(super) fn names_are_durable(dir: &Path) {
    ARMED.with_borrow_mut(|armed| {
        let Some(faults) = armed else { return };
        faults.names.retain(|name| {
            let (Name::Renamed { from: path, .. } | Name::Removed { path, .. }) = name;
            path.parent() != Some(dir)
        });
    });
}
