//! The disk as a file system that the kernel mounts.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};

use crate::disk::{Disk, File, Folder, Node};

/// Every change goes through the kernel, so what it remembers stays true.
const TTL: Duration = Duration::from_secs(3600);
/// How long a sync takes, so that cuts meet writes that are not durable yet.
const SYNC_TAKES: Duration = Duration::from_millis(1);
/// Requests that are served at once: a sync that takes its time must not stop reads.
const THREADS: usize = 4;
const BLOCK_BYTES: u32 = 4096;
const FREE_BLOCKS: u64 = 1 << 20;

/// A disk that several mounts, one after the other, show.
pub type SharedDisk = Arc<Mutex<Powered>>;

/// A disk, and whether it still has power: without, every request fails.
#[derive(Debug)]
pub struct Powered {
    pub disk: Disk,
    pub is_on: bool,
    pub syncs: Syncs,
    /// Syncs that were asked for since they stopped working.
    pub syncs_met: usize,
}

/// What becomes of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncs {
    Work,
    /// It is not answered before that changes.
    Hang,
    /// EIO, and nothing has become durable.
    Fail,
}

impl Powered {
    /// An empty disk that works.
    pub fn new() -> Self {
        Self {
            disk: Disk::new(),
            is_on: true,
            syncs: Syncs::Work,
            syncs_met: 0,
        }
    }
}

/// Mounts the disk on a folder; unmounted with `umount_and_join`.
///
/// # Errors
/// The kernel's, when it does not let us.
pub fn mount(disk: &SharedDisk, at: &Path) -> std::io::Result<BackgroundSession> {
    let mut config = fuser::Config::default();
    config.mount_options = vec![MountOption::FSName("powercut".to_owned())];
    config.n_threads = Some(THREADS);
    let served = Served {
        disk: Arc::clone(disk),
    };
    fuser::spawn_mount(served, at, &config)
}

/// Locks a disk.
pub fn locked(disk: &SharedDisk) -> MutexGuard<'_, Powered> {
    disk.lock().expect("nobody panics holding it")
}

struct Served {
    disk: SharedDisk,
}

impl Served {
    /// Runs `f` on the disk if it has power; what `f` does not find is ENOENT.
    fn with<T>(&self, f: impl FnOnce(&mut Disk) -> Option<T>) -> Result<T, Errno> {
        let mut powered = locked(&self.disk);
        if !powered.is_on {
            return Err(Errno::EIO);
        }
        f(&mut powered.disk).ok_or(Errno::ENOENT)
    }

    fn sync(&self, ino: INodeNo, reply: ReplyEmpty) {
        std::thread::sleep(SYNC_TAKES);
        if self.may_sync() {
            answer(self.with(|disk| disk.sync(ino.0)), reply);
        } else {
            reply.error(Errno::EIO);
        }
    }

    /// Waits for as long as syncs hang; false when they fail.
    fn may_sync(&self) -> bool {
        let mut is_met = false;
        loop {
            let mut powered = locked(&self.disk);
            if powered.syncs != Syncs::Work && !is_met {
                is_met = true;
                powered.syncs_met += 1;
            }
            match powered.syncs {
                Syncs::Hang if powered.is_on => {}
                syncs => return syncs == Syncs::Work,
            }
            drop(powered);
            std::thread::sleep(SYNC_TAKES);
        }
    }

    fn entry(&self, attr: Result<FileAttr, Errno>, reply: ReplyEntry) {
        match attr {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(error),
        }
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let attr = self.with(|disk| attr_of(disk, disk.lookup(parent.0, name)?));
        self.entry(attr, reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        answer_attr(self.with(|disk| attr_of(disk, ino.0)), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let attr = self.with(|disk| {
            if let Some(size) = size {
                disk.file(ino.0)?.resize(usize::try_from(size).ok()?);
            }
            attr_of(disk, ino.0)
        });
        answer_attr(attr, reply);
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let attr = self.with(|disk| {
            let ino = disk.create(parent.0, name, Node::Folder(Folder::default()))?;
            attr_of(disk, ino)
        });
        self.entry(attr, reply);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let attr = self.with(|disk| {
            let ino = disk.create(parent.0, name, Node::File(File::default()))?;
            attr_of(disk, ino)
        });
        match attr {
            Ok(attr) => reply.created(
                &TTL,
                &attr,
                Generation(0),
                FileHandle(0),
                FopenFlags::empty(),
            ),
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.with(|disk| disk.remove(parent.0, name)), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if parent != newparent {
            reply.error(Errno::EXDEV);
            return;
        }
        answer(
            self.with(|disk| disk.rename(parent.0, name, newname)),
            reply,
        );
    }

    fn open(&self, _: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = self.with(|disk| {
            let offset = usize::try_from(offset).ok()?;
            Some(disk.file(ino.0)?.read(offset, size as usize).to_vec())
        });
        match bytes {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.with(|disk| {
            disk.file(ino.0)?.write(usize::try_from(offset).ok()?, data);
            u32::try_from(data.len()).ok()
        });
        match written {
            Ok(bytes) => reply.written(bytes),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.sync(ino, reply);
    }

    fn fsyncdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.sync(ino, reply);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let names = self.with(|disk| match disk.node(ino.0)? {
            Node::Folder(folder) => folder
                .names()
                .iter()
                .map(|(name, ino)| Some((name.clone(), attr_of(disk, *ino)?)))
                .collect::<Option<Vec<_>>>(),
            Node::File(_) => None,
        });
        match names {
            Ok(names) => {
                let first = usize::try_from(offset).unwrap_or(usize::MAX);
                for (at, (name, attr)) in names.into_iter().enumerate().skip(first) {
                    if reply.add(attr.ino, at as u64 + 1, attr.kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = FREE_BLOCKS;
        reply.statfs(
            blocks,
            blocks,
            blocks,
            blocks,
            blocks,
            BLOCK_BYTES,
            255,
            BLOCK_BYTES,
        );
    }
}

fn answer(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn answer_attr(attr: Result<FileAttr, Errno>, reply: ReplyAttr) {
    match attr {
        Ok(attr) => reply.attr(&TTL, &attr),
        Err(error) => reply.error(error),
    }
}

fn attr_of(disk: &Disk, ino: u64) -> Option<FileAttr> {
    let (kind, perm, size) = match disk.node(ino)? {
        Node::File(file) => (FileType::RegularFile, 0o600, file.size() as u64),
        Node::Folder(_) => (FileType::Directory, 0o700, 0),
    };
    Some(FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    })
}
