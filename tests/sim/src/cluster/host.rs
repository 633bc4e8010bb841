//! One machine: its disk, its clock, and the process that runs on it, if one does.

use std::collections::{BTreeMap, VecDeque};

use ticketing::locks::TableLimits;
use ticketing_raftlog::peers::{Incarnation, Memories, Standing};
#[cfg(feature = "bugs")]
use ticketing_raftlog::raft::Bug;
use ticketing_raftlog::raft::{Config, ConfigEntry, EntryId, Epoch, Input, Start, Timing};
use ticketing_raftlog::{
    BatchSummary, ClusterId, HardState, LogIndex, NodeId, Position, Scan, SegmentBytes,
    SnapshotMeta, Term, UseNumber, Verdict,
};

use crate::memlog::{CLUSTER, MemLog, RecoveryBugs, Write};
use crate::node::bugs::ShellBug;
use crate::node::journal::Journal;
use crate::node::messages::{Effect, PeerFrame, SnapshotFile, ToRole, ToShard};
use crate::node::role::{Consensus, RoleSetup};
use crate::node::shard::{Shard, ShardSetup};
use crate::world::clock::Clock;
use crate::world::disk::{Disk, Sync};
use crate::world::events::Us;
use crate::world::rng::Rng;

/// What every node's log begins behind: `cluster init` made it so.
pub const GENESIS: EntryId = EntryId {
    term: Term(0),
    index: LogIndex(1 << 20),
};

/// The name of a machine's node.
#[must_use]
pub fn node_id(host: usize) -> NodeId {
    NodeId([host as u8 + 1; 16])
}

/// The machine of a node.
#[must_use]
pub fn host_of(node: NodeId) -> usize {
    usize::from(node.0[0]) - 1
}

/// The configuration that a cluster of so many voters begins with.
///
/// # Panics
/// When there are neither 3 nor 5.
#[must_use]
pub fn genesis(voters: usize) -> ConfigEntry {
    let ids: Vec<NodeId> = (0..voters).map(node_id).collect();
    match Config::new(&ids, &[]) {
        Ok(config) => ConfigEntry {
            index: GENESIS.index,
            config,
        },
        Err(error) => panic!("{error}"),
    }
}

/// Bytes at the start of every batch that its checksum covers.
const HEADER_BYTES: u64 = 64;

/// The state at each multiple of this index is compared.
pub const HASH_EVERY: u64 = 16;

/// To the consensus role.
#[derive(Debug)]
pub enum RoleIn {
    /// From a shard.
    Shard(ToRole),
    /// From a peer.
    Frame(usize, PeerFrame),
    /// For the core.
    Core(Input),
    /// A snapshot is saved.
    Saved(SnapshotFile, bool),
    /// There was no room for a snapshot.
    NotSaved(SnapshotFile, bool),
}

/// Something for the disk.
#[derive(Debug)]
pub enum Job {
    /// Term and vote.
    Hard(HardState),
    /// A batch.
    Write(Write),
}

/// What the disk is doing.
#[derive(Debug)]
pub enum Working {
    /// Term and vote are being synced.
    Hard(HardState),
    /// Batches are being synced: what becomes durable, and what to report.
    Sync(Sync, Vec<Reported>),
}

/// A batch, once it is synced.
#[derive(Debug)]
pub struct Reported {
    /// What it holds.
    pub summary: BatchSummary,
    /// For the report.
    pub epoch: Epoch,
    /// For the report.
    pub up_to: LogIndex,
    /// A reset to a snapshot.
    pub reset: Option<LogIndex>,
}

/// A process.
pub struct Process {
    /// The consensus role.
    pub role: Consensus,
    /// The log.
    pub log: MemLog,
    /// The shards.
    pub shards: Vec<Shard>,
    /// What waits for the role.
    pub role_inbox: VecDeque<RoleIn>,
    /// The role is going to look.
    pub role_due: bool,
    /// What waits for each shard.
    pub shard_inbox: Vec<VecDeque<ToShard>>,
    /// The shard is going to look.
    pub shard_due: Vec<bool>,
    /// When each shard's timer rings; the last is the role's.
    pub timers_us: Vec<Us>,
    /// What waits for the disk.
    pub jobs: VecDeque<Job>,
    /// What the disk does.
    pub working: Option<Working>,
    /// The next segment is being made, or will be tried again.
    pub spare_due: bool,
    /// There was no room for it.
    pub full: bool,
    /// Clients' connections, with the shard that has each.
    pub connections: BTreeMap<u32, u16>,
    /// It serves no new connections.
    pub stopping: bool,
    /// Its port is open to clients.
    pub open: bool,
    /// It was told that it was replaced, and has heard no leader since: its port stays closed.
    pub shut: bool,
    /// Another process still has the port, which is tried again.
    pub opening: bool,
    /// Who has refused this process.
    pub standing: Standing,
}

/// What is fixed about a machine in a run.
#[derive(Clone, Debug)]
pub struct HostSetup {
    /// A core's timing.
    pub timing: Timing,
    /// See [`RoleSetup::snapshot_every`].
    pub snapshot_every: u64,
    /// A mistake of the core's.
    #[cfg(feature = "bugs")]
    pub bug: Option<Bug>,
    /// A mistake of the lock tables'.
    #[cfg(feature = "bugs")]
    pub table_bug: Option<ticketing::locks::TableBug>,
    /// A mistake of the shell's.
    pub shell_bug: Option<ShellBug>,
    /// A mistake of the disk's or of recovery's.
    pub disk_bug: Option<DiskBug>,
}

/// A mistake of the disk's or of recovery's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskBug {
    /// Recovery trims what is damaged below the mark as if it were a torn tail.
    TrimsBelowMark,
    /// A sync reports success and syncs nothing.
    SyncsNothing,
    /// A truncation is not written down.
    TruncatesWithoutRecord,
    /// Recovery takes what an earlier use left in a file for part of the log.
    #[cfg(feature = "bugs")]
    TakesStaleBytes,
}

/// One machine.
pub struct Host {
    /// Who it is.
    pub id: NodeId,
    /// Its clock.
    pub clock: Clock,
    /// How often a process was started; events of an earlier life are void.
    pub life: u64,
    /// The process.
    pub process: Option<Process>,
    /// The process stands still.
    pub frozen: bool,
    /// The log's disk.
    pub disk: Disk,
    /// Term and vote on it.
    pub hard: HardState,
    /// The newest snapshot.
    pub snapshot: Option<SnapshotFile>,
    /// A snapshot from a peer whose reset of the log is not durable yet.
    pub installing: Option<SnapshotFile>,
    /// The machine has not lost its power since the process last ran.
    pub same_boot: bool,
    /// Syncs take that long until then.
    pub hung_until_us: Us,
    /// Lanes take longer until then.
    pub slow_until_us: Us,
    /// It is broken for good: recovery refused its disk.
    pub broken: bool,
    /// What `cluster init` or `cluster add-node` has put into the data folder.
    pub first_config: ConfigEntry,
    /// A spare machine is not, until the operator wants it.
    pub in_use: bool,
    /// Its node was replaced or removed, and has ended for good.
    pub gone: bool,
    /// What it remembers of its peers: synced before anything follows from it.
    pub memories: Memories,
    /// What of that is on the disk.
    pub memories_saved: Memories,
    /// When it was saved last.
    pub saved_us: Us,
    /// The cluster that the folder belongs to.
    pub cluster_id: ClusterId,
    /// Drawn at the folder's first start.
    pub incarnation: Option<Incarnation>,
    /// How often the folder was started.
    pub starts: u64,
}

impl Host {
    /// A machine with a new data folder: that of a voter of the cluster's first configuration, or of a
    /// newcomer, whose log begins at 0 and which knows of no members.
    #[must_use]
    pub fn new(id: NodeId, clock: Clock, first: Option<ConfigEntry>) -> Self {
        let mut disk = Disk::default();
        let base = first.map_or(EntryId::default(), |_| GENESIS);
        let mut log = MemLog::create(&mut disk, base);
        while let Some(write) = log.take_write() {
            disk.write(write.use_number, write.offset, &write.bytes);
        }
        let sync = disk.begin_sync();
        disk.end_sync(&sync);
        Self {
            id,
            clock,
            life: 0,
            process: None,
            frozen: false,
            disk,
            hard: HardState::default(),
            snapshot: None,
            installing: None,
            same_boot: true,
            hung_until_us: 0,
            slow_until_us: 0,
            broken: false,
            first_config: first.unwrap_or(ConfigEntry {
                index: base.index,
                config: Config::unknown(),
            }),
            in_use: first.is_some(),
            gone: false,
            memories: Memories::default(),
            memories_saved: Memories::default(),
            saved_us: 0,
            cluster_id: CLUSTER,
            incarnation: None,
            starts: 0,
        }
    }

    /// Whether it has to do with the cluster: a process runs on it, or may run again.
    #[must_use]
    pub fn takes_part(&self) -> bool {
        self.in_use && !self.gone
    }

    /// Whether a process runs, frozen or not.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Starts a process: recovery, then the role and the shards.
    ///
    /// # Errors
    /// The verdict on a log that is damaged.
    pub fn start(
        &mut self,
        now_us: Us,
        setup: &HostSetup,
        rng: &mut Rng,
        effects: &mut Vec<Effect>,
    ) -> Result<bool, Verdict> {
        self.life += 1;
        self.frozen = false;
        self.starts += 1;
        let bugs = RecoveryBugs {
            trims_below_mark: setup.disk_bug == Some(DiskBug::TrimsBelowMark),
            #[cfg(feature = "bugs")]
            takes_stale: setup.disk_bug == Some(DiskBug::TakesStaleBytes),
        };
        let same_boot = self.same_boot;
        let old = self.snapshot.as_ref().map(|file| file.snapshot.last);
        let mut recovered = MemLog::recover(&mut self.disk, old, same_boot, bugs)?;
        if let Some(file) = self.installing.take() {
            let last = file.snapshot.last;
            if recovered.log.term_at(last.index) != Some(last.term) {
                // The reset is not in the log: it is made up for.
                let mut log = MemLog::create(&mut self.disk, last);
                while let Some(write) = log.take_write() {
                    self.disk
                        .write(write.use_number, write.offset, &write.bytes);
                }
                let sync = self.disk.begin_sync();
                self.disk.end_sync(&sync);
            }
            self.snapshot = Some(file);
            recovered = MemLog::recover(&mut self.disk, Some(last), same_boot, bugs)?;
        }
        self.same_boot = true;
        let snapshot = self.snapshot.clone();
        let shards = rng.range(1, 4) as usize;
        let key_seed = rng.draw();
        let base = recovered.log.base();
        let first = snapshot
            .as_ref()
            .map_or(self.first_config, |file| file.config);
        let configs = ConfigEntry::list(Some(first), &recovered.configs);
        let role_setup = RoleSetup {
            start: Start {
                node_id: self.id,
                hard_state: self.hard,
                base,
                extents: recovered.extents,
                snapshot: snapshot.as_ref().map(|file| file.snapshot),
                configs,
                timing: setup.timing,
                seed: rng.draw(),
                #[cfg(feature = "bugs")]
                bug: setup.bug,
            },
            shards,
            key_seed,
            snapshot_every: setup.snapshot_every,
            hash_every: HASH_EVERY,
            snapshot,
            bug: setup.shell_bug,
        };
        let role = match Consensus::new(role_setup, effects) {
            Ok(role) => role,
            Err(error) => panic!("a node's own state is refused: {error}"),
        };
        let now_ms = self.clock.shown_ms(now_us);
        let shard = |id: usize| {
            let setup = ShardSetup {
                id: id as u16,
                shards,
                key_seed,
                limits: table_limits(),
                bug: setup.shell_bug,
                #[cfg(feature = "bugs")]
                table_bug: setup.table_bug,
            };
            Shard::new(setup, now_ms)
        };
        let mut log = recovered.log;
        log.forgets_truncations(setup.disk_bug == Some(DiskBug::TruncatesWithoutRecord));
        self.process = Some(Process {
            role,
            log,
            shards: (0..shards).map(shard).collect(),
            role_inbox: VecDeque::new(),
            role_due: false,
            shard_inbox: (0..shards).map(|_| VecDeque::new()).collect(),
            shard_due: vec![false; shards],
            timers_us: vec![Us::MAX; shards + 1],
            jobs: VecDeque::new(),
            working: None,
            spare_due: false,
            full: false,
            connections: BTreeMap::new(),
            stopping: false,
            open: false,
            shut: false,
            opening: false,
            standing: Standing::new(self.id),
        });
        Ok(recovered.trimmed)
    }

    /// The process ends at once. What was on its way to the disk may or may not have got there.
    pub fn kill(&mut self, rng: &mut Rng) {
        if let Some(process) = self.process.take()
            && let Some(Working::Hard(hard)) = process.working
            && rng.chance(500)
        {
            self.hard = hard;
        }
        self.frozen = false;
    }

    /// A batch was synced: whether the reset to an installed snapshot is durable now.
    pub fn reset_is_durable(&mut self, index: LogIndex) {
        if self
            .installing
            .as_ref()
            .is_some_and(|file| file.snapshot.last.index == index)
        {
            self.snapshot = self.installing.take();
        }
    }

    /// A byte of a batch that the log itself proves to have been synced.
    #[must_use]
    pub fn acknowledged_byte(&self, rng: &mut Rng) -> Option<(UseNumber, u32)> {
        let mut scan = match &self.snapshot {
            Some(file) => Scan::behind(
                CLUSTER,
                SnapshotMeta {
                    index: file.snapshot.last.index,
                    term: file.snapshot.last.term,
                    position: Position::ZERO,
                },
            ),
            None => Scan::new(CLUSTER),
        };
        let mut batches = Vec::new();
        for file in self.disk.segments() {
            let segment = SegmentBytes {
                use_number: file.use_number,
                prior_use: file.prior_use,
                bytes: file.durable(),
            };
            scan.segment(&segment, |batch| {
                let end = batch.position().offset() + batch.padded_bytes();
                batches.push((batch.position(), Position::new(file.use_number, end)));
            });
        }
        batches.retain(|(_, end)| *end < scan.mark());
        if batches.is_empty() || self.installing.is_some() {
            return None;
        }
        let (start, _) = *rng.pick(&batches);
        Some((
            start.use_number(),
            start.offset() + rng.below(HEADER_BYTES) as u32,
        ))
    }
}

/// Bounds small enough that runs reach them.
fn table_limits() -> TableLimits {
    TableLimits {
        waiters_per_key: 40,
        waiters_total: 120,
        locks_total: 64,
        parked_releases: 16,
        ..TableLimits::default()
    }
}
