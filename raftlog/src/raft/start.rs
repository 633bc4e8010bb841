//! What a core starts from.

use super::config::{Config, ConfigEntry, Configs};
use super::message::{EntryId, Snapshot};
use crate::types::{HardState, LogIndex, NodeId, Term};

/// What a core starts from, all of it persisted.
#[derive(Debug, Clone)]
pub struct Start {
    /// This node.
    pub node_id: NodeId,
    /// Term and vote.
    pub hard_state: HardState,
    /// What the log goes on behind: the last entry that it has no more, or never had.
    pub base: EntryId,
    /// The log's entries behind `base`, as runs in their order; one for each batch, say.
    pub extents: Vec<Extent>,
    /// The newest snapshot, if there is one. Its last entry is at or behind `base`, and in the log
    /// or its `base`: a log without it is to be dropped, so that `base` is that entry.
    pub snapshot: Option<Snapshot>,
    /// The configurations in their order: the one that the snapshot or the new folder has, unless
    /// it is in the log too, and every one in the log ([`ConfigEntry::list`]).
    pub configs: Vec<ConfigEntry>,
    /// How long things take.
    pub timing: Timing,
    /// Where this run's jitter comes from; another one on each node and for each run.
    pub seed: u64,
    /// A mistake to make, so that a test can prove that it would be caught.
    #[cfg(feature = "bugs")]
    pub bug: Option<super::Bug>,
}

/// Consecutive entries of a log, of one term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The last one's index; the first is behind the extent before.
    pub last_index: LogIndex,
    /// Their term.
    pub term: Term,
    /// The bytes of their payloads together; at most [`crate::limits::MAX_APPEND_BYTES`].
    pub bytes: u64,
    /// What they are.
    pub kind: ExtentKind,
}

/// What the entries of an extent are. A configuration is alone in its extent, and in
/// [`Start::configs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// The first of a leader's term.
    Noop,
    /// Commands of the state machine.
    Commands,
    /// A configuration.
    Config,
}

/// How long things take, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Between two rounds of a leader's heartbeats.
    pub heartbeat_ms: u64,
    /// How long a follower waits for a leader, at least; it waits up to twice that. Also how long
    /// a voter that has heard a leader refuses others, how long a leader goes on without a
    /// quorum, and how long a transfer may take.
    pub election_ms: u64,
    /// How long a write may be on its way to the disk before the disk counts as hung.
    pub disk_hung_ms: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat_ms: 50,
            election_ms: 500,
            disk_hung_ms: 1_000,
        }
    }
}

/// Why a core was not started: what it was given is not one node's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The log has entries of a term that the node has never been in.
    #[error(
        "the log has entries of term {log}, the hard state is in term {state}: they are not of one \
         node's history; replace the node"
    )]
    LogAheadOfTerm {
        /// The log's last term.
        log: Term,
        /// The state's term.
        state: Term,
    },
    /// A vote in term 0, in which nobody stands.
    #[error(
        "the hard state has a vote in term 0, in which there was no election; replace the node"
    )]
    VoteInTermZero,
    /// The log's indexes or terms do not rise.
    #[error("the log's entries at {0} do not follow the ones before; replace the node")]
    LogOutOfOrder(LogIndex),
    /// The snapshot's last entry is not in the log.
    #[error("the log does not go on from the snapshot at {0}; replace the node")]
    SnapshotNotInLog(LogIndex),
    /// The configurations do not fit the log.
    #[error("the configuration at {0} is not where the log has one; replace the node")]
    ConfigNotInLog(LogIndex),
    /// There is no configuration.
    #[error("there is no configuration to start with; replace the node")]
    NoConfig,
    /// The election timeout leaves no room for heartbeats, or something takes no time.
    #[error("the election timeout must be at least twice the heartbeat interval, and none 0")]
    Timing,
}

impl Start {
    /// The start of a single node: its only voter, with nobody to send its log to, so that only
    /// the log's end matters.
    #[must_use]
    pub fn single(
        node_id: NodeId,
        hard_state: HardState,
        last_index: LogIndex,
        last_term: Term,
    ) -> Self {
        let base = EntryId {
            term: last_term,
            index: last_index,
        };
        let config = match Config::new(&[node_id], &[]) {
            Ok(config) => config,
            Err(error) => unreachable!("{error}"),
        };
        Self {
            node_id,
            hard_state,
            base,
            extents: Vec::new(),
            snapshot: None,
            // In force since before the log began.
            configs: vec![ConfigEntry {
                index: LogIndex(0),
                config,
            }],
            timing: Timing::default(),
            seed: 0,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }
}

impl Timing {
    pub(super) fn check(&self) -> Result<(), StartError> {
        let fits = self.heartbeat_ms > 0
            && self.disk_hung_ms > 0
            && self.election_ms / 2 >= self.heartbeat_ms;
        fits.then_some(()).ok_or(StartError::Timing)
    }
}

/// The configurations, if each is where the log has one, and all that it has are there.
pub(super) fn check_configs(
    list: Vec<ConfigEntry>,
    extents: &[Extent],
    base: LogIndex,
    covered: LogIndex,
) -> Result<Configs, StartError> {
    let first = list.first().map(|entry| entry.index);
    if let Some(first) = first
        && first > base.max(covered)
    {
        return Err(StartError::ConfigNotInLog(first));
    }
    let is_config = |index: LogIndex| {
        let at = extents.binary_search_by_key(&index, |extent| extent.last_index);
        at.is_ok_and(|place| extents[place].kind == ExtentKind::Config)
    };
    if let Some(stray) = list.iter().find(|c| c.index > base && !is_config(c.index)) {
        return Err(StartError::ConfigNotInLog(stray.index));
    }
    for extent in extents.iter().filter(|e| e.kind == ExtentKind::Config) {
        if !list.iter().any(|entry| entry.index == extent.last_index) {
            return Err(StartError::ConfigNotInLog(extent.last_index));
        }
    }
    Configs::new(list).ok_or(StartError::NoConfig)
}
