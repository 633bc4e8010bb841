//! Mistakes that a shell can be told to make, so that a test can prove that they would be caught.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShellBug {
    /// A leader serves before the no-op of its term is applied on every shard.
    ServesBeforeApplied,
    /// An acquire is told "not granted" when its entry is truncated, not when another is committed.
    MovedAtTruncation,
    /// An acquire is told Acquired because a snapshot covers its index.
    AcquiredFromSnapshot,
    /// An Expire removes whatever grant is current.
    ExpireWithoutToken,
    /// NotFound without leadership confirmed and without having applied so far.
    NotFoundUnapplied,
    /// The two halves of a hand-over are proposed apart, the second after what came meanwhile.
    HandOverInTwo,
    /// Grants that an ex-leader's clients do not want are forgotten.
    OrphansForgotten,
    /// Leases start again in full at each election.
    LeaseRestarted,
    /// A newcomer serves once the configuration with its vote is in its log, committed or not.
    NewcomerServesEarly,
    /// A node that was replaced goes on.
    ReplacedStays,
    /// Where the leader is is looked up at a change of role only, not of the configuration.
    LeaderLookedUpOnce,
    /// A process is let in beside another of its name that answers.
    LetsCopyIn,
    /// A folder is let in that was started less often than was seen.
    OldFolderVotes,
}
