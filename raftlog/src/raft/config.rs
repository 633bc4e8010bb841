//! Who belongs to the cluster, and how that changes (paper, section 6).

use crate::limits::{MAX_LEARNERS, MAX_VOTERS};
use crate::types::{LogIndex, NodeId};

/// A voter's place in the clients' address list; fixed, below the number of voters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Slot(pub u8);

/// The members of a cluster.
///
/// While a voter is being replaced the configuration is *joint*: everything needs a majority of
/// the voters with the old node and another of the voters with the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Config {
    voters: [NodeId; MAX_VOTERS],
    voter_count: u8,
    replacement: Option<Replacement>,
    learners: [NodeId; MAX_LEARNERS],
    learner_count: u8,
}

/// A voter being replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replacement {
    /// The place.
    pub slot: Slot,
    /// Who takes it.
    pub new: NodeId,
}

/// A configuration, and where in the log it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigEntry {
    /// The entry's index; of the configuration that a snapshot or a new folder holds, its last
    /// index.
    pub index: LogIndex,
    /// The configuration.
    pub config: Config,
}

/// A change of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A node joins, without a vote.
    AddLearner {
        /// Which.
        node: NodeId,
    },
    /// A node without a vote leaves.
    RemoveLearner {
        /// Which.
        node: NodeId,
    },
    /// A learner takes the place of a voter, which leaves.
    Replace {
        /// The place.
        slot: Slot,
        /// Who has it.
        old: NodeId,
        /// The learner that takes it.
        new: NodeId,
    },
}

/// Why a change of members was not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeRefusal {
    /// This node does not lead.
    NotLeader,
    /// The no-op of the leader's term is not committed yet: try again in a moment.
    NotReady,
    /// Another change is on its way.
    Busy,
    /// Leadership is being handed over.
    Transferring,
    /// That node is a member already.
    AlreadyMember,
    /// That node is no learner.
    NotLearner,
    /// The place is not that voter's.
    NotInSlot,
    /// There are [`MAX_LEARNERS`] already.
    TooManyLearners,
    /// The learner is too far behind, or not heard: try again once it has caught up.
    NotCaughtUp,
    /// A single node has no members.
    SingleMode,
}

/// What is wrong with a list of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Another number than 1, 3 or 5.
    #[error("{0} voters: a cluster has 3 or 5, a single node is its only one")]
    VoterCount(usize),
    /// More than [`MAX_LEARNERS`].
    #[error("{0} learners: at most {MAX_LEARNERS}")]
    LearnerCount(usize),
    /// A member stands in it twice.
    #[error("node {0} is named twice")]
    Twice(NodeId),
    /// The replacement's place is not there.
    #[error("slot {} is not below the number of voters", .0.0)]
    NoSuchSlot(Slot),
}

impl Config {
    /// The members of a cluster at rest, or of a single node.
    ///
    /// # Errors
    /// When there are not 1, 3 or 5 voters, too many learners, or somebody twice.
    pub fn new(voters: &[NodeId], learners: &[NodeId]) -> Result<Self, ConfigError> {
        Self::joint(voters, None, learners)
    }

    /// The members of a cluster, perhaps while one is being replaced.
    ///
    /// # Errors
    /// When there are not 1, 3 or 5 voters, too many learners, somebody twice, or no such slot.
    pub fn joint(
        voters: &[NodeId],
        replacement: Option<Replacement>,
        learners: &[NodeId],
    ) -> Result<Self, ConfigError> {
        if !matches!(voters.len(), 1 | 3 | 5) {
            return Err(ConfigError::VoterCount(voters.len()));
        }
        if learners.len() > MAX_LEARNERS {
            return Err(ConfigError::LearnerCount(learners.len()));
        }
        if let Some(Replacement { slot, .. }) = replacement
            && usize::from(slot.0) >= voters.len()
        {
            return Err(ConfigError::NoSuchSlot(slot));
        }
        let mut config = Self {
            voter_count: voters.len() as u8,
            replacement,
            learner_count: learners.len() as u8,
            ..Self::default()
        };
        config.voters[..voters.len()].copy_from_slice(voters);
        config.learners[..learners.len()].copy_from_slice(learners);
        let mut members = config.members();
        while let Some(member) = members.next() {
            if members.clone().any(|other| other == member) {
                return Err(ConfigError::Twice(member));
            }
        }
        drop(members);
        Ok(config)
    }

    /// No members at all: what a node has before it has heard of the cluster it joins.
    #[must_use]
    pub fn unknown() -> Self {
        Self::default()
    }

    /// The voters by slot, the replaced one included while one is being replaced.
    #[must_use]
    pub fn voters(&self) -> &[NodeId] {
        &self.voters[..usize::from(self.voter_count)]
    }

    /// The members without a vote.
    #[must_use]
    pub fn learners(&self) -> &[NodeId] {
        &self.learners[..usize::from(self.learner_count)]
    }

    /// The voter being replaced, while one is.
    #[must_use]
    pub fn replacement(&self) -> Option<Replacement> {
        self.replacement
    }

    /// Every member once: voters, the one that replaces one, learners.
    pub fn members(&self) -> impl Iterator<Item = NodeId> + Clone + '_ {
        let new = self.replacement.map(|replacement| replacement.new);
        let voters = self.voters().iter().copied();
        voters.chain(new).chain(self.learners().iter().copied())
    }

    /// Whether the node has a vote, in either majority.
    #[must_use]
    pub fn is_voter(&self, node: NodeId) -> bool {
        self.voters().contains(&node) || self.replacement.is_some_and(|r| r.new == node)
    }

    /// Whether the node belongs to the cluster, with or without a vote.
    #[must_use]
    pub fn is_member(&self, node: NodeId) -> bool {
        self.members().any(|member| member == node)
    }

    /// The slot of a voter; both the replaced and the replacing node have the slot.
    #[must_use]
    pub fn slot_of(&self, node: NodeId) -> Option<Slot> {
        let place = self.voters().iter().position(|voter| *voter == node);
        let place = place.map(|place| Slot(place as u8));
        place.or_else(|| self.replacement.filter(|r| r.new == node).map(|r| r.slot))
    }

    /// Whether this is a single node and not a cluster.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.voter_count == 1
    }
}
