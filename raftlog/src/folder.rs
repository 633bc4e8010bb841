//! A node's data folder: its lock, its creation, and opening it for writing.
//!
//! ```text
//! DIR/lock      held (flock) by the one process that has the folder open
//! DIR/identity  whose log this is; written once
//! DIR/state     term, vote and what else must never be forgotten
//! DIR/peers     of a cluster's node: what is remembered of the others
//! DIR/log/      segments, named by use number
//! DIR/snapshots/  what the state was at one index, named by it
//! DIR/creating  only while the folder is being created
//! ```

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::batch::Control;
use crate::disk;
use crate::error::OpenError;
use crate::hardstate::{HardStateStore, NodeState, STATE_FILE};
use crate::identity::{self, IDENTITY_FILE, Identity};
use crate::incarnation;
use crate::limits::{
    BLOCK_BYTES, DEFAULT_RETIRED_SEGMENTS, DEFAULT_SEGMENT_BYTES, INDEXES_PER_SECOND, MAX_INDEX,
    MAX_RETIRED_SEGMENTS, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES,
};
use crate::log::{Log, room_of};
use crate::peers::Incarnation;
use crate::peers_file::{PEERS_FILE, PeersFile, UNFINISHED_FILE};
use crate::raft::{Config, ConfigEntry};
use crate::recovery::{self, RecoveryReport};
use crate::retired;
use crate::segment::{self, Segment, SegmentSpec};
use crate::snapshot::{
    self, SNAPSHOT_DIR, SnapshotMeta, SnapshotReader, SnapshotSpec, SnapshotWriter,
};
use crate::types::{
    BootId, ClusterId, Durability, HardState, LogIndex, Mode, NodeId, Position, Term, UseNumber,
};
use crate::writer::{Planner, Start};

/// The folder of segments inside the data folder.
pub(crate) const LOG_DIR: &str = "log";
const LOCK_FILE: &str = "lock";
const CREATING_FILE: &str = "creating";
/// What file systems put into their root by themselves.
const LOST_AND_FOUND: &str = "lost+found";

/// How to open a folder. What the world knows comes in as values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    /// How this run keeps its log.
    pub durability: Durability,
    /// The kernel's boot id now.
    pub boot_id: BootId,
    /// The wall clock now, in seconds of Unix time; used only when the folder is created.
    pub now_unix_s: u64,
    /// Size of new segments: a multiple of 4,096 in `MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES`.
    pub segment_bytes: u32,
    /// How many recycled segments to keep for coming spares; at most
    /// [`crate::limits::MAX_RETIRED_SEGMENTS`].
    pub retired_segments: usize,
    /// 128 random bits; used only when the folder is created.
    pub new_cluster_id: ClusterId,
    /// 128 random bits; used only when the folder is created.
    pub new_node_id: NodeId,
    /// 128 random bits; used only at the first start of a cluster's node.
    pub new_incarnation: Incarnation,
}

impl Default for OpenOptions {
    /// Synced, default segments; everything that the caller must know is zero.
    fn default() -> Self {
        Self {
            durability: Durability::Sync,
            boot_id: BootId::default(),
            now_unix_s: 0,
            segment_bytes: DEFAULT_SEGMENT_BYTES,
            retired_segments: DEFAULT_RETIRED_SEGMENTS,
            new_cluster_id: ClusterId::default(),
            new_node_id: NodeId::default(),
            new_incarnation: Incarnation([0; 16]),
        }
    }
}

/// What the data folder of a cluster's node is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMember {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The node.
    pub node_id: NodeId,
    /// What the cluster begins with; `None` for a node that joins later, and learns from a snapshot who its
    /// members are.
    pub genesis: Option<Genesis>,
    /// The wall clock now, in seconds of Unix time.
    pub now_unix_s: u64,
    /// As in [`OpenOptions`].
    pub segment_bytes: u32,
}

/// What a cluster begins with, the same on each of its first nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Genesis {
    /// The first index of its log.
    pub first_index: LogIndex,
    /// Its first members.
    pub config: Config,
}

impl NewMember {
    /// The first index of the log of a cluster that is made at that time, in seconds of Unix time: above
    /// every token that a cluster made before has issued, as far as the clock can be trusted.
    #[must_use]
    pub fn first_index_at(now_unix_s: u64) -> LogIndex {
        LogIndex((now_unix_s * INDEXES_PER_SECOND).max(1))
    }
}

/// A data folder that this process has to itself until this is dropped.
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    // Held for its lock.
    _lock: File,
}

/// A folder opened for writing.
#[derive(Debug)]
pub struct Opened {
    /// Keep it for as long as anything else of these is used: it holds the lock.
    pub folder: Folder,
    /// Whose log it is.
    pub identity: Identity,
    /// Term and vote.
    pub hard_state: HardState,
    /// Where term and vote are written.
    pub store: HardStateStore,
    /// The log.
    pub log: Log,
    /// What the log goes on from, if it does not begin at its first index: load it, then apply
    /// the log's entries.
    pub snapshot: Option<SnapshotReader>,
    /// What was found, and done about it.
    pub recovery: RecoveryReport,
}

/// The folder of a cluster's node, opened for writing.
#[derive(Debug)]
pub struct OpenedMember {
    /// As of a single node.
    pub opened: Opened,
    /// Drawn at the folder's first start.
    pub incarnation: Incarnation,
    /// What is remembered of other nodes.
    pub peers: PeersFile,
    /// The configurations that the Raft core starts from.
    pub configs: Vec<ConfigEntry>,
}

impl Folder {
    /// Opens a single node's folder, creating it where there is none, and recovers its log.
    ///
    /// # Errors
    /// Every [`OpenError`]; each names its remedy.
    pub fn open_single(dir: &Path, options: &OpenOptions) -> Result<Opened, OpenError> {
        options.check()?;
        make_dir(dir).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => OpenError::NoParent {
                dir: dir.to_path_buf(),
            },
            _ => OpenError::io(dir, "create the folder", error),
        })?;
        // Before anything is put into it.
        refuse_foreign(dir)?;
        let folder = Self::lock(dir)?;
        let new = Identity {
            mode: Mode::Single,
            cluster_id: options.new_cluster_id,
            node_id: options.new_node_id,
            // Never 0, which is no token.
            first_index: NewMember::first_index_at(options.now_unix_s),
            created_unix_s: options.now_unix_s,
        };
        let created = folder.create_unless_there(&new, None, options.segment_bytes)?;
        let Some(identity) = identity::load(dir)? else {
            return Err(foreign(dir, "its identity file has just vanished"));
        };
        if identity.mode != Mode::Single {
            return Err(OpenError::WrongMode {
                dir: dir.to_path_buf(),
                found: identity.mode,
            });
        }
        let mut store = HardStateStore::open(dir)?;
        let (log, snapshot, mut recovery) = recovery::recover(dir, &identity, &mut store, options)?;
        recovery.created = created;
        Ok(Opened {
            folder,
            identity,
            hard_state: store.state().hard,
            store,
            log,
            snapshot,
            recovery,
        })
    }

    fn lock(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(LOCK_FILE);
        // Not emptied before it is ours: it names its holder.
        let mut file = disk::open_or_create(&path)
            .map_err(|e| OpenError::io(&path, "open the lock file", e))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // Only for the message; an unreadable holder is left out.
                let _ = file.read_to_string(&mut text);
                let holder = text.trim().parse().ok();
                return Err(OpenError::Locked {
                    dir: dir.to_path_buf(),
                    holder,
                });
            }
            Err(error) => return Err(OpenError::io(&path, "lock the folder", error.into())),
        }
        let holder = format!("{}\n", std::process::id());
        file.set_len(0)
            .and_then(|()| disk::write_at(&file, holder.as_bytes(), 0))
            .map_err(|e| OpenError::io(&path, "write the lock file", e))?;
        Ok(Self {
            dir: dir.to_path_buf(),
            _lock: file,
        })
    }

    /// Makes the data folder of a cluster's node. Blocks.
    ///
    /// # Errors
    /// Every [`OpenError`]; a folder that has anything in it is refused.
    pub fn create_member(dir: &Path, member: &NewMember) -> Result<(), OpenError> {
        let options = OpenOptions {
            segment_bytes: member.segment_bytes,
            now_unix_s: member.now_unix_s,
            ..OpenOptions::default()
        };
        options.check()?;
        make_dir(dir).map_err(|error| OpenError::io(dir, "create the folder", error))?;
        refuse_foreign(dir)?;
        let folder = Self::lock(dir)?;
        let identity = Identity {
            mode: Mode::Cluster,
            cluster_id: member.cluster_id,
            node_id: member.node_id,
            // Below every cluster's log, so that whatever snapshot comes is news.
            first_index: member
                .genesis
                .map_or(LogIndex(1), |genesis| genesis.first_index),
            created_unix_s: member.now_unix_s,
        };
        let config = member.genesis.map(|genesis| genesis.config);
        let made = folder.create_unless_there(&identity, config, member.segment_bytes)?;
        match made {
            true => Ok(()),
            false => Err(foreign(dir, "it is a node's data folder already")),
        }
    }

    /// Opens the folder of a cluster's node, which [`Folder::create_member`] made, and recovers its log.
    ///
    /// # Errors
    /// Every [`OpenError`]; each names its remedy.
    pub fn open_member(dir: &Path, options: &OpenOptions) -> Result<OpenedMember, OpenError> {
        options.check()?;
        let absent = |dir: &Path| OpenError::NoMember {
            dir: dir.to_path_buf(),
        };
        if !dir.is_dir() || !disk::exists(&dir.join(IDENTITY_FILE)).unwrap_or(true) {
            return Err(absent(dir));
        }
        let folder = Self::lock(dir)?;
        let unfinished = disk::exists(&dir.join(CREATING_FILE))
            .map_err(|e| OpenError::io(dir, "look into the folder", e))?;
        if unfinished {
            return Err(absent(dir));
        }
        let Some(identity) = identity::load(dir)? else {
            return Err(absent(dir));
        };
        if identity.mode != Mode::Cluster {
            return Err(OpenError::WrongMode {
                dir: dir.to_path_buf(),
                found: identity.mode,
            });
        }
        retired::check(dir)?;
        let mut store = HardStateStore::open(dir)?;
        let peers = PeersFile::open(dir, identity.cluster_id, identity.node_id)?;
        if recovery::has_lost_memory(&store, options) {
            return Err(OpenError::LostMemory {
                dir: dir.to_path_buf(),
            });
        }
        let (log, snapshot, recovery) = recovery::recover(dir, &identity, &mut store, options)?;
        let incarnation = incarnation::load_or_draw(dir, &identity, &recovery, options)?;
        let unknown = ConfigEntry {
            index: log.index().base(),
            config: Config::unknown(),
        };
        let begins = snapshot.as_ref().map_or(unknown, SnapshotReader::config);
        let configs = ConfigEntry::list(Some(begins), &recovery.configs);
        Ok(OpenedMember {
            opened: Opened {
                folder,
                identity,
                hard_state: store.state().hard,
                store,
                log,
                snapshot,
                recovery,
            },
            incarnation,
            peers,
            configs,
        })
    }

    /// Creates what belongs into a new folder; `false` when it is there already.
    ///
    /// The marker file tells a creation that was cut short, and served nobody, from a folder that
    /// has lost its identity.
    fn create_unless_there(
        &self,
        identity: &Identity,
        config: Option<Config>,
        segment_bytes: u32,
    ) -> Result<bool, OpenError> {
        let dir = &self.dir;
        let io_error = |e| OpenError::io(dir, "create the data folder", e);
        let marker = dir.join(CREATING_FILE);
        if disk::exists(&marker).map_err(io_error)? {
            self.wipe().map_err(io_error)?;
        } else if identity::load(dir)?.is_some() {
            return Ok(false);
        } else {
            refuse_foreign(dir)?;
        }
        disk::write_synced(&marker, b"").map_err(io_error)?;
        disk::sync_dir(dir).map_err(io_error)?;
        let log_dir = dir.join(LOG_DIR);
        let snapshot_dir = dir.join(SNAPSHOT_DIR);
        make_dir(&log_dir).map_err(io_error)?;
        make_dir(&snapshot_dir).map_err(io_error)?;
        let spec = SegmentSpec {
            dir: log_dir,
            cluster_id: identity.cluster_id,
            use_number: UseNumber(1),
            segment_bytes,
            surplus: Vec::new(),
            reuse: None,
        };
        begin_log(&spec, identity.first_index, Term(0)).map_err(io_error)?;
        if let Some(config) = config {
            begin_cluster(&snapshot_dir, identity, config).map_err(io_error)?;
        }
        if identity.mode == Mode::Cluster {
            PeersFile::create(dir, identity.cluster_id, identity.node_id).map_err(io_error)?;
        }
        HardStateStore::create(dir, NodeState::default()).map_err(io_error)?;
        identity::create(dir, identity).map_err(io_error)?;
        disk::sync_dir(dir).map_err(io_error)?;
        disk::remove_if_present(&marker).map_err(io_error)?;
        disk::sync_dir(dir).map_err(io_error)?;
        Ok(true)
    }

    /// Removes what a creation that was cut short has left.
    fn wipe(&self) -> io::Result<()> {
        for file in [IDENTITY_FILE, STATE_FILE, PEERS_FILE, UNFINISHED_FILE] {
            disk::remove_if_present(&self.dir.join(file))?;
        }
        let log_dir = self.dir.join(LOG_DIR);
        if disk::exists(&log_dir)? {
            sweep_unfinished(&log_dir)?;
            for use_number in segment::list(&log_dir)? {
                disk::remove_if_present(&log_dir.join(segment::file_name(use_number)))?;
            }
        }
        let snapshot_dir = self.dir.join(SNAPSHOT_DIR);
        if disk::exists(&snapshot_dir)? {
            snapshot::sweep_unfinished(&snapshot_dir)?;
            snapshot::remove_all(&snapshot_dir)?;
        }
        Ok(())
    }
}

/// What a cluster begins with, as a snapshot in front of its log: nobody holds anything, and these are
/// its members.
fn begin_cluster(dir: &Path, identity: &Identity, config: Config) -> io::Result<()> {
    let index = identity.first_index.previous();
    let writer = SnapshotWriter::create(&SnapshotSpec {
        dir: dir.to_path_buf(),
        cluster_id: identity.cluster_id,
        meta: SnapshotMeta {
            index,
            term: Term(0),
            position: Position::ZERO,
        },
        config: ConfigEntry { index, config },
    })?;
    writer.finish().map(drop)
}

/// Refuses a folder that has something in it and is neither a data folder nor one that is being
/// created: what another process has just begun to create has its marker from then on until it has
/// its identity.
fn refuse_foreign(dir: &Path) -> Result<(), OpenError> {
    let io_error = |e| OpenError::io(dir, "look into the folder", e);
    let Some(name) = stranger(dir).map_err(io_error)? else {
        return Ok(());
    };
    for file in [CREATING_FILE, IDENTITY_FILE] {
        if disk::exists(&dir.join(file)).map_err(io_error)? {
            return Ok(());
        }
    }
    Err(foreign(
        dir,
        &format!("it holds {name:?} but no identity file"),
    ))
}

/// The name of something in the folder that a new one does not have.
fn stranger(dir: &Path) -> io::Result<Option<String>> {
    let names = disk::list(dir)?;
    let mut names = names.iter().filter_map(|path| path.file_name());
    let strange = names.find(|name| ![LOCK_FILE, LOST_AND_FOUND].map(OsStr::new).contains(name));
    Ok(strange.map(|name| name.to_string_lossy().into_owned()))
}

impl OpenOptions {
    fn check(&self) -> Result<(), OpenError> {
        let bytes = self.segment_bytes;
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes)
            || !(bytes as usize).is_multiple_of(BLOCK_BYTES)
        {
            return Err(OpenError::BadOption {
                why: format!(
                    "segments of {bytes} bytes: must be a multiple of {BLOCK_BYTES} between {MIN_SEGMENT_BYTES} and {MAX_SEGMENT_BYTES}"
                ),
            });
        }
        if self.retired_segments > MAX_RETIRED_SEGMENTS {
            return Err(OpenError::BadOption {
                why: format!(
                    "{} recycled segments to keep: must be at most {MAX_RETIRED_SEGMENTS}",
                    self.retired_segments
                ),
            });
        }
        if self.now_unix_s >= MAX_INDEX / INDEXES_PER_SECOND / 2 {
            return Err(OpenError::BadOption {
                why: format!("a clock at {} s: it is centuries ahead", self.now_unix_s),
            });
        }
        Ok(())
    }
}

/// Creates a segment whose first batch begins a log at `first_index`, synced.
pub(crate) fn begin_log(spec: &SegmentSpec, first_index: LogIndex, term: Term) -> io::Result<()> {
    let segment = Segment::create(spec)?;
    let index = first_index.previous();
    let mut planner = Planner::new(Start {
        cluster_id: spec.cluster_id,
        active: room_of(&segment),
        offset: segment.written_bytes(),
        previous_crc: 0,
        next_index: first_index,
        last_term: term,
        carried: Position::ZERO,
        ceiling: None,
    });
    let batch = planner.begin(Vec::new(), Some(Control::Reset { index, term }));
    let Ok(planned) = planner.plan(batch, None, false) else {
        unreachable!("one record fits an empty segment of the smallest size");
    };
    let offset = u64::from(planned.summary.position.offset());
    disk::write_at(segment.file(), &planned.bytes, offset)?;
    disk::sync(segment.file())
}

/// Removes segments whose creation was cut short.
pub(crate) fn sweep_unfinished(log_dir: &Path) -> io::Result<()> {
    for path in disk::list(log_dir)? {
        if path.extension() == Some(OsStr::new("new")) {
            disk::remove_if_present(&path)?;
        }
    }
    Ok(())
}

pub(crate) fn foreign(dir: &Path, why: &str) -> OpenError {
    OpenError::Foreign {
        dir: dir.to_path_buf(),
        why: why.to_owned(),
    }
}

pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    match disk::create_dir(dir) {
        Ok(()) => match dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => disk::sync_dir(parent),
            None => disk::sync_dir(Path::new(".")),
        },
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if dir.is_dir() {
                Ok(())
            } else {
                Err(io::ErrorKind::NotADirectory.into())
            }
        }
        Err(error) => Err(error),
    }
}
