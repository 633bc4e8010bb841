//! When a node that is refused has to exit.

use super::{Consequence, Reason};
use crate::limits::SECOND_PROCESS_RETRY_MS;
use crate::raft::Config;
use crate::types::NodeId;

/// What a node does about the refusals it has heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It goes on, and tries again where it was refused.
    GoOn,
    /// It exits with that reason: nothing that it does can help.
    Exit(Reason),
}

/// What each voter said last of this node, in one life of its process.
///
/// One voter that lies, or has forgotten, must not end a healthy node, and neither must a node of
/// another cluster at a mistaken address: only refusals by a majority of the voters do, of both
/// majorities while one is being replaced.
#[derive(Debug, Clone)]
pub struct Standing {
    node_id: NodeId,
    /// At most one for each voter.
    refusals: Vec<Told>,
}

#[derive(Debug, Clone, Copy)]
struct Told {
    by: NodeId,
    reason: Reason,
    since_ms: u64,
    last_ms: u64,
}

impl Standing {
    /// Nothing heard yet by that node.
    #[must_use]
    pub fn new(node_id: NodeId) -> Self {
        Self {
            node_id,
            refusals: Vec::new(),
        }
    }

    /// `by` lets this node in.
    pub fn let_in(&mut self, by: NodeId) {
        self.refusals.retain(|told| told.by != by);
    }

    /// `by`, which proved that it is of this cluster, refuses this node. `config` is what this node
    /// knows of the members; only its voters are heard. `now_ms`: a monotonic clock.
    pub fn refused(&mut self, config: &Config, by: NodeId, reason: Reason, now_ms: u64) {
        self.refusals.retain(|told| config.is_voter(told.by));
        if by == self.node_id || !config.is_voter(by) {
            return;
        }
        let told = Told {
            by,
            reason,
            since_ms: now_ms,
            last_ms: now_ms,
        };
        match self.refusals.iter_mut().find(|told| told.by == by) {
            Some(known) if known.reason == reason => known.last_ms = now_ms,
            Some(known) => *known = told,
            None => self.refusals.push(told),
        }
    }

    /// Whether to go on. Of several reasons the one that most voters of the majority give counts, and
    /// of those the one that [`Reason`] has first.
    #[must_use]
    pub fn outcome(&self, config: &Config) -> Outcome {
        let is_final = |node| self.final_reason(node).is_some();
        if !config.has_majority(is_final) {
            return Outcome::GoOn;
        }
        let given = || config.members().filter_map(|node| self.final_reason(node));
        let times = |reason| given().filter(|other| *other == reason).count();
        let most = given().max_by_key(|reason| (times(*reason), std::cmp::Reverse(*reason as u8)));
        most.map_or(Outcome::GoOn, Outcome::Exit)
    }

    /// Why that voter refuses this node for good, if it does.
    fn final_reason(&self, voter: NodeId) -> Option<Reason> {
        let told = self.refusals.iter().find(|told| told.by == voter)?;
        let is_final = match told.reason.consequence() {
            Consequence::Retry => false,
            // From when it was first told so to when it was last: silence proves nothing.
            Consequence::RetryForAWhile => told.last_ms - told.since_ms >= SECOND_PROCESS_RETRY_MS,
            Consequence::Exit => true,
        };
        is_final.then_some(told.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::{Replacement, Slot};

    const SELF: NodeId = node(9);

    const fn node(n: u8) -> NodeId {
        NodeId([n; 16])
    }

    /// Voters 1 to `others`, and this node last.
    fn cluster(others: u8) -> Config {
        let voters: Vec<NodeId> = (1..=others).map(node).chain([SELF]).collect();
        Config::new(&voters, &[]).expect("valid")
    }

    fn refused_by(config: &Config, voters: &[u8], reason: Reason) -> Standing {
        let mut standing = Standing::new(SELF);
        for voter in voters {
            standing.refused(config, node(*voter), reason, 0);
        }
        standing
    }

    #[test]
    fn a_majority_of_the_voters_ends_a_node_and_one_less_does_not() {
        for (others, majority) in [(2, 2), (4, 3)] {
            let config = cluster(others);
            let voters: Vec<u8> = (1..=majority).collect();
            for reason in [
                Reason::Replaced,
                Reason::AnotherFolder,
                Reason::SeenBefore,
                Reason::LogLost,
            ] {
                let all = refused_by(&config, &voters, reason);
                assert_eq!(all.outcome(&config), Outcome::Exit(reason));
                let one_less = refused_by(&config, &voters[1..], reason);
                assert_eq!(one_less.outcome(&config), Outcome::GoOn);
                let mut changed = all.clone();
                changed.let_in(node(1));
                assert_eq!(changed.outcome(&config), Outcome::GoOn, "one thinks again");
            }
        }
    }

    #[test]
    fn what_passes_ends_nobody() {
        let config = cluster(2);
        for reason in [Reason::OtherCluster, Reason::NotAMember] {
            let mut all = refused_by(&config, &[1, 2], reason);
            for voter in [1, 2] {
                all.refused(&config, node(voter), reason, u64::MAX);
            }
            assert_eq!(all.outcome(&config), Outcome::GoOn);
        }
    }

    #[test]
    fn only_voters_that_are_known_are_heard_each_once_and_never_oneself() {
        let config = cluster(4);
        let mut standing = refused_by(&config, &[1, 2, 2, 1, 9, 50, 51], Reason::Replaced);
        assert_eq!(standing.refusals.len(), 2);
        assert_eq!(standing.outcome(&config), Outcome::GoOn);
        standing.refused(&config, node(3), Reason::Replaced, 0);
        assert_eq!(standing.outcome(&config), Outcome::Exit(Reason::Replaced));
        // Two of them are no voters any more.
        let later = Config::new(&[1, 6, 7, 8, 9].map(node), &[]).expect("valid");
        assert_eq!(standing.outcome(&later), Outcome::GoOn);
        let nobody = Config::unknown();
        assert_eq!(standing.outcome(&nobody), Outcome::GoOn);
        standing.refused(&later, node(6), Reason::Replaced, 0);
        assert_eq!(standing.refusals.len(), 2, "who is no voter is forgotten");
    }

    #[test]
    fn while_a_voter_is_replaced_both_majorities_have_to_say_so() {
        let replacement = Some(Replacement {
            slot: Slot(1),
            new: node(4),
        });
        let voters = [node(1), node(2), SELF];
        let joint = Config::joint(&voters, replacement, &[]).expect("valid");
        let outcome = |voters: &[u8]| refused_by(&joint, voters, Reason::LogLost).outcome(&joint);
        assert_eq!(outcome(&[1, 2]), Outcome::GoOn, "1 alone of the new voters");
        assert_eq!(outcome(&[2, 4]), Outcome::GoOn);
        assert_eq!(outcome(&[1, 2, 4]), Outcome::Exit(Reason::LogLost));
        // Who is being replaced hears it from the others.
        let replacement = replacement.map(|r| Replacement { slot: Slot(2), ..r });
        let leaving = Config::joint(&voters, replacement, &[]).expect("valid");
        let both = refused_by(&leaving, &[1, 2], Reason::Replaced);
        assert_eq!(both.outcome(&leaving), Outcome::Exit(Reason::Replaced));
    }

    #[test]
    fn who_is_told_for_long_enough_that_another_process_lives_is_the_second_one() {
        let config = cluster(2);
        let told_until = |last_ms| {
            let mut standing = refused_by(&config, &[1, 2], Reason::RunsTwice);
            for voter in [1, 2] {
                standing.refused(&config, node(voter), Reason::RunsTwice, last_ms);
            }
            standing
        };
        let before = told_until(SECOND_PROCESS_RETRY_MS - 1);
        assert_eq!(before.outcome(&config), Outcome::GoOn);
        let after = told_until(SECOND_PROCESS_RETRY_MS);
        assert_eq!(after.outcome(&config), Outcome::Exit(Reason::RunsTwice));
        let mut again = after;
        again.let_in(node(2));
        again.refused(&config, node(2), Reason::RunsTwice, SECOND_PROCESS_RETRY_MS);
        assert_eq!(again.outcome(&config), Outcome::GoOn, "counted anew");
    }

    #[test]
    fn of_several_reasons_the_one_given_most_counts() {
        let config = cluster(4);
        let mut standing = refused_by(&config, &[1, 2], Reason::LogLost);
        standing.refused(&config, node(3), Reason::Replaced, 0);
        assert_eq!(standing.outcome(&config), Outcome::Exit(Reason::LogLost));
        standing.refused(&config, node(4), Reason::Replaced, 0);
        assert_eq!(standing.outcome(&config), Outcome::Exit(Reason::Replaced));
    }
}
