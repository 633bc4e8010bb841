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
    /// The entry's index, also of the configuration that a snapshot holds; of the one that a new
    /// folder was made with, its last index.
    pub index: LogIndex,
    /// The configuration.
    pub config: Config,
}

impl ConfigEntry {
    /// What [`super::Start::configs`] has: those in the log, behind the one that the snapshot holds
    /// unless that is in the log itself.
    #[must_use]
    pub fn list(snapshot: Option<Self>, in_log: &[Self]) -> Vec<Self> {
        let in_log_too = |entry: &Self| in_log.iter().any(|other| other.index == entry.index);
        let first = snapshot.filter(|entry| !in_log_too(entry));
        first.into_iter().chain(in_log.iter().copied()).collect()
    }
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
    /// The bytes are no configuration's.
    #[error("the bytes are not those of a configuration")]
    Malformed,
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

    /// No members at all: what a node has before it has heard of the cluster it joins. Its first
    /// snapshot tells it.
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

    /// Whether a majority of the voters is such; while one is being replaced, also a majority of the
    /// voters with the new node in the place of the old (section 6).
    pub fn has_majority(&self, is_such: impl Fn(NodeId) -> bool) -> bool {
        let count = usize::from(self.voter_count);
        let has = |voters: &[NodeId; MAX_VOTERS]| {
            let such = voters[..count].iter().filter(|voter| is_such(**voter));
            such.count() > count / 2
        };
        has(&self.voters) && self.incoming().is_none_or(|incoming| has(&incoming))
    }

    /// The voters with the new node in the place of the old, while one is being replaced.
    pub(super) fn incoming(&self) -> Option<[NodeId; MAX_VOTERS]> {
        let Replacement { slot, new } = self.replacement?;
        let mut voters = self.voters;
        *voters.get_mut(usize::from(slot.0))? = new;
        Some(voters)
    }

    /// What the change makes of a configuration at rest.
    pub(super) fn changed(&self, change: Change) -> Result<Self, ChangeRefusal> {
        let mut config = *self;
        match change {
            Change::AddLearner { node } => {
                if self.is_member(node) {
                    return Err(ChangeRefusal::AlreadyMember);
                }
                let Some(place) = config.learners.get_mut(usize::from(self.learner_count)) else {
                    return Err(ChangeRefusal::TooManyLearners);
                };
                *place = node;
                config.learner_count += 1;
            }
            Change::RemoveLearner { node } => config.drop_learner(node)?,
            Change::Replace { slot, old, new } => {
                if self.voters().get(usize::from(slot.0)) != Some(&old) {
                    return Err(ChangeRefusal::NotInSlot);
                }
                config.drop_learner(new)?;
                config.replacement = Some(Replacement { slot, new });
            }
        }
        Ok(config)
    }

    /// The configuration that a joint one leads to.
    pub(super) fn settled(&self) -> Self {
        Self {
            voters: self.incoming().unwrap_or(self.voters),
            replacement: None,
            ..*self
        }
    }

    fn drop_learner(&mut self, node: NodeId) -> Result<(), ChangeRefusal> {
        let place = self.learners().iter().position(|learner| *learner == node);
        let place = place.ok_or(ChangeRefusal::NotLearner)?;
        let count = usize::from(self.learner_count);
        self.learners.copy_within(place + 1..count, place);
        self.learners[count - 1] = NodeId::default();
        self.learner_count -= 1;
        Ok(())
    }
}

/// The configurations of a log, and the one in force at its start.
#[derive(Debug)]
pub(super) struct Configs {
    /// Never empty; in the log's order.
    list: Vec<ConfigEntry>,
}

impl Configs {
    /// `None` if there is none, or they are not in order.
    pub(super) fn new(list: Vec<ConfigEntry>) -> Option<Self> {
        let ordered = list.is_sorted_by(|a, b| a.index < b.index);
        (ordered && !list.is_empty()).then_some(Self { list })
    }

    /// The one in force.
    pub(super) fn current(&self) -> &ConfigEntry {
        &self.list[self.list.len() - 1]
    }

    /// Those in the log behind `index` and up to `last`.
    pub(super) fn within(
        &self,
        index: LogIndex,
        last: LogIndex,
    ) -> impl Iterator<Item = &ConfigEntry> {
        let inside = move |entry: &&ConfigEntry| entry.index > index && entry.index <= last;
        self.list.iter().filter(inside)
    }

    /// The one in force at `index`.
    pub(super) fn at(&self, index: LogIndex) -> Option<&ConfigEntry> {
        self.list.iter().rfind(|entry| entry.index <= index)
    }

    pub(super) fn push(&mut self, entry: ConfigEntry) {
        self.list.push(entry);
    }

    /// Forgets those from `from` on. True if there was one.
    pub(super) fn truncate(&mut self, from: LogIndex) -> bool {
        let kept = self.list.partition_point(|entry| entry.index < from).max(1);
        let cut = kept < self.list.len();
        self.list.truncate(kept);
        cut
    }

    /// Forgets those that were not in force any more at `index`.
    pub(super) fn compact(&mut self, index: LogIndex) {
        let kept = self.list.partition_point(|entry| entry.index <= index);
        self.list.drain(..kept.saturating_sub(1));
    }

    pub(super) fn reset(&mut self, entry: ConfigEntry) {
        self.list.clear();
        self.list.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId([n; 16])
    }

    fn nodes<const N: usize>(ids: [u8; N]) -> [NodeId; N] {
        ids.map(node)
    }

    #[test]
    fn a_cluster_has_three_or_five_voters() {
        for count in 0..8 {
            let ids: Vec<NodeId> = (1..=count).map(node).collect();
            let made = Config::new(&ids, &[]);
            assert_eq!(made.is_ok(), [1, 3, 5].contains(&count), "{count}");
        }
    }

    #[test]
    fn learners_are_bounded_and_nobody_is_a_member_twice() {
        let voters = nodes([1, 2, 3]);
        let most: Vec<NodeId> = (10..10 + MAX_LEARNERS as u8).map(node).collect();
        let full = Config::new(&voters, &most).expect("at the bound");
        let one_more = Change::AddLearner { node: node(99) };
        assert_eq!(full.changed(one_more), Err(ChangeRefusal::TooManyLearners));
        let beyond: Vec<NodeId> = (10..=10 + MAX_LEARNERS as u8).map(node).collect();
        assert_eq!(
            Config::new(&voters, &beyond),
            Err(ConfigError::LearnerCount(MAX_LEARNERS + 1))
        );
        let twice = Err(ConfigError::Twice(node(2)));
        assert_eq!(Config::new(&nodes([1, 2, 2]), &[]), twice);
        assert_eq!(Config::new(&voters, &[node(2)]), twice);
        let slot = Slot(0);
        let joint = |slot, new| Config::joint(&voters, Some(Replacement { slot, new }), &[]);
        assert_eq!(joint(slot, node(2)), twice);
        assert!(joint(Slot(2), node(4)).is_ok());
        assert_eq!(
            joint(Slot(3), node(4)),
            Err(ConfigError::NoSuchSlot(Slot(3)))
        );
    }

    #[test]
    fn a_learner_takes_a_voters_slot_by_way_of_a_joint_configuration() {
        let rest = Config::new(&nodes([1, 2, 3]), &nodes([8, 9])).expect("valid");
        let replace = |slot, old, new| {
            let (slot, old, new) = (Slot(slot), node(old), node(new));
            rest.changed(Change::Replace { slot, old, new })
        };
        assert_eq!(replace(1, 1, 9), Err(ChangeRefusal::NotInSlot));
        assert_eq!(replace(3, 1, 9), Err(ChangeRefusal::NotInSlot));
        assert_eq!(replace(1, 2, 4), Err(ChangeRefusal::NotLearner));
        let joint = replace(1, 2, 8).expect("a learner");
        assert_eq!(joint.learners(), nodes([9]));
        assert!(joint.is_voter(node(2)) && joint.is_voter(node(8)) && !joint.is_voter(node(9)));
        assert_eq!(joint.slot_of(node(8)), Some(Slot(1)));
        assert_eq!(joint.slot_of(node(2)), Some(Slot(1)));
        assert_eq!(joint.members().count(), 5);
        let settled = joint.settled();
        assert_eq!(settled.voters(), nodes([1, 8, 3]));
        assert!(!settled.is_member(node(2)) && settled.replacement().is_none());
        assert_eq!(settled.slot_of(node(2)), None);
    }

    #[test]
    fn a_snapshots_configuration_is_not_listed_twice() {
        let entry = |index| ConfigEntry {
            index: LogIndex(index),
            config: Config::new(&nodes([1, 2, 3]), &[]).expect("valid"),
        };
        let in_log = [entry(20), entry(30)];
        let indexes = |snapshot| -> Vec<u64> {
            let list = ConfigEntry::list(snapshot, &in_log);
            list.iter().map(|entry| entry.index.0).collect()
        };
        assert_eq!(indexes(None), [20, 30]);
        assert_eq!(indexes(Some(entry(10))), [10, 20, 30]);
        assert_eq!(indexes(Some(entry(20))), [20, 30]);
        assert_eq!(indexes(Some(entry(30))), [20, 30]);
    }

    #[test]
    fn learners_come_and_go() {
        let rest = Config::new(&nodes([1, 2, 3]), &nodes([7, 8, 9])).expect("valid");
        let add = |node| rest.changed(Change::AddLearner { node });
        assert_eq!(add(node(1)), Err(ChangeRefusal::AlreadyMember));
        assert_eq!(add(node(8)), Err(ChangeRefusal::AlreadyMember));
        assert!(add(node(4)).expect("new").is_member(node(4)));
        let remove = |node| rest.changed(Change::RemoveLearner { node });
        assert_eq!(remove(node(1)), Err(ChangeRefusal::NotLearner));
        assert_eq!(remove(node(7)).expect("one").learners(), nodes([8, 9]));
        let same = Config::new(&nodes([1, 2, 3]), &nodes([8, 9])).expect("valid");
        assert_eq!(remove(node(7)), Ok(same), "nothing is left of it");
    }
}
