//! A folder that is not the node's gets nobody's ear: who remembers better refuses it with the right
//! reason, so that none of its votes and acknowledgements counts, and it never stands for election; the
//! node's own folder is never refused for good (behaviour, section 7).

use std::collections::BTreeMap;

use ticketing_raftlog::NodeId;
use ticketing_raftlog::peers::{Claim, Incarnation, Reason};
use ticketing_raftlog::raft::Role;

use super::Check;
use crate::cluster::folders::Kind;

/// What was let in, by whom.
#[derive(Debug, Default)]
pub struct Folders {
    seen: BTreeMap<(usize, NodeId), (Incarnation, u64)>,
    /// Folders that were out, refusals, and processes that ended because of them.
    counts: [u64; 3],
}

impl Folders {
    /// A folder is put where it does not belong.
    pub fn out(&mut self) {
        self.counts[0] += 1;
    }

    /// How many folders were out, were refused, and ended their process.
    #[must_use]
    pub fn counts(&self) -> [u64; 3] {
        self.counts
    }

    /// Whether `judge` has let `node` in with that folder, at that start or a later one.
    #[must_use]
    pub fn remembers(
        &self,
        judge: usize,
        node: NodeId,
        incarnation: Option<Incarnation>,
        starts: u64,
    ) -> bool {
        let seen = self.seen.get(&(judge, node));
        seen.is_some_and(|seen| Some(seen.0) == incarnation && seen.1 >= starts)
    }

    /// A machine judges the claim of another, whose folder is `kind`, or its node's own.
    pub fn judged(
        &mut self,
        (judge, node): (usize, usize),
        claim: &Claim,
        kind: Option<Kind>,
        verdict: Result<(), Reason>,
    ) -> Check {
        let expected: &[Reason] = match kind {
            None => &[Reason::RunsTwice, Reason::NotAMember, Reason::Replaced],
            Some(Kind::Empty) => &[Reason::AnotherFolder],
            // For a moment the process before may seem to be there. What its log lacks does not matter: it
            // would go unseen by who has never led.
            Some(Kind::Old) => &[Reason::SeenBefore, Reason::RunsTwice],
            Some(Kind::Copy) => &[Reason::RunsTwice],
            Some(Kind::Foreign) => &[Reason::OtherCluster],
        };
        match verdict {
            Ok(()) if kind.is_none() => {
                let known = (claim.incarnation, claim.starts);
                self.seen.insert((judge, claim.node_id), known);
                Ok(())
            }
            Err(reason) if expected.contains(&reason) => {
                self.counts[1] += u64::from(kind.is_some());
                Ok(())
            }
            verdict => Err(format!(
                "node {judge} judges machine {node}, with a folder that is {kind:?}: {verdict:?}"
            )),
        }
    }

    /// A process ends because a majority told it so.
    pub fn exits(&mut self, node: usize, kind: Option<Kind>) -> Check {
        self.counts[2] += 1;
        match kind {
            Some(_) => Ok(()),
            None => Err(format!("node {node} exits, and its folder is its own")),
        }
    }
}

/// A frame of `from`, whose folder is `kind`, gets to the core of `to`.
pub fn heard(from: usize, to: usize, kind: Option<Kind>) -> Check {
    match kind {
        None => Ok(()),
        Some(kind) => Err(format!(
            "node {to} hears machine {from}, whose folder is {kind:?}"
        )),
    }
}

/// A process with a folder that is not its node's has come to that role.
pub fn stands(machine: usize, role: Role, kind: Kind) -> Check {
    match role {
        Role::Follower | Role::PreCandidate => Ok(()),
        Role::Candidate | Role::Leader => Err(format!(
            "machine {machine}, whose folder is {kind:?}, is {role:?}"
        )),
    }
}
