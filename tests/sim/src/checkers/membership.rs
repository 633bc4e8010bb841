//! Members change one at a time and by the allowed steps, and only voters stand for election (Raft
//! paper, section 6; Ongaro's thesis, chapter 4; behaviour, section 7).

use ticketing_raftlog::NodeId;
use ticketing_raftlog::raft::{Config, ConfigEntry, Replacement, Role};

use super::Check;
use super::history::History;
use super::logs::Shadow;
use crate::cluster::host::{Process, node_id};

/// The last configuration of the history was committed just now.
pub fn committed(history: &History) -> Check {
    let [.., before, now] = history.configs() else {
        return Ok(());
    };
    let (old, new) = (&before.config, &now.config);
    if !matches!(new.voters().len(), 3 | 5) || new.voters().len() != old.voters().len() {
        return Err(format!("{} voters at {}", new.voters().len(), now.index));
    }
    let allowed = match (old.replacement(), new.replacement()) {
        (None, None) => old.voters() == new.voters() && differ_by_one_learner(old, new),
        (None, Some(replacement)) => begins(old, new, replacement),
        (Some(replacement), None) => ends(old, new, replacement),
        (Some(_), Some(_)) => false,
    };
    if allowed {
        return Ok(());
    }
    Err(format!(
        "the configuration at {} is not one step from that at {}: {new:?} after {old:?}",
        now.index, before.index
    ))
}

fn differ_by_one_learner(old: &Config, new: &Config) -> bool {
    let (fewer, more) = match old.learners().len() < new.learners().len() {
        true => (old.learners(), new.learners()),
        false => (new.learners(), old.learners()),
    };
    more.len() == fewer.len() + 1 && fewer.iter().all(|learner| more.contains(learner))
}

/// A learner begins to take a voter's place.
fn begins(old: &Config, new: &Config, replacement: Replacement) -> bool {
    let promoted = |learner: &NodeId| *learner != replacement.new;
    let left: Vec<NodeId> = old.learners().iter().copied().filter(promoted).collect();
    old.voters() == new.voters()
        && left == new.learners()
        && left.len() + 1 == old.learners().len()
        && usize::from(replacement.slot.0) < new.voters().len()
}

/// It has taken it.
fn ends(old: &Config, new: &Config, replacement: Replacement) -> bool {
    let mut voters = old.voters().to_vec();
    voters[usize::from(replacement.slot.0)] = replacement.new;
    voters == new.voters() && old.learners() == new.learners()
}

/// A leader has appended a configuration to its log, the last one in it: the one before must be
/// committed.
pub fn appended(node: usize, log: &Shadow, history: &History) -> Check {
    let (Some(before), Some(now)) = (log.config_before(), log.config()) else {
        return Ok(());
    };
    if history.last() >= before.index.0 {
        return Ok(());
    }
    Err(format!(
        "node {node} begins the change at {} before that at {} is committed",
        now.index, before.index
    ))
}

/// A node stands for election, or leads.
pub fn stands(node: usize, id: NodeId, role: Role, config: Option<&ConfigEntry>) -> Check {
    if role == Role::Follower || config.is_some_and(|entry| entry.config.is_voter(id)) {
        return Ok(());
    }
    Err(format!(
        "node {node} is {role:?} and has no vote in its log's configuration"
    ))
}

/// At the end: the last change has come to its end, and who belongs to the cluster no more has ended,
/// unless too few of the voters that it knows are there to tell it so
/// (`ticketing_raftlog::peers::Standing`). `knows`: whether that voter runs and knows that the node
/// left.
pub fn finish(
    processes: &[(usize, &Process)],
    history: &History,
    knows: &dyn Fn(NodeId, NodeId) -> bool,
) -> Check {
    let Some(last) = history.configs().last() else {
        return Ok(());
    };
    if let Some(replacement) = last.config.replacement() {
        return Err(format!("{replacement:?} has not come to an end"));
    }
    for (node, process) in processes {
        if last.config.is_member(node_id(*node)) {
            continue;
        }
        let config = process.role.core().config().config;
        let tells = |voter: &&NodeId| knows(**voter, node_id(*node));
        let tell = config.voters().iter().filter(tells).count();
        if tell * 2 > config.voters().len() {
            return Err(format!(
                "node {node} still runs, and left the cluster by {} at the latest",
                last.index
            ));
        }
        if process.role.is_ready() {
            return Err(format!(
                "node {node} is ready, and does not belong to the cluster"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ticketing_raftlog::LogIndex;
    use ticketing_raftlog::raft::Slot;

    use crate::node::journal::Entry;

    fn ids<const N: usize>(ids: [u8; N]) -> Vec<NodeId> {
        ids.iter().map(|n| NodeId([*n; 16])).collect()
    }

    fn joint(voters: &[NodeId], slot: u8, new: u8, learners: &[NodeId]) -> Config {
        let (slot, new) = (Slot(slot), NodeId([new; 16]));
        Config::joint(voters, Some(Replacement { slot, new }), learners).expect("valid")
    }

    fn step(from: Config, to: Config) -> Check {
        let index = crate::cluster::host::GENESIS.index;
        let mut history = History::new(ConfigEntry {
            index,
            config: from,
        });
        let entry = Entry {
            term: ticketing_raftlog::Term(1),
            kind: ticketing_raftlog::raft::AppendKind::Config(to),
            payload: crate::memlog::nothing(),
        };
        history.push(&entry, 1, 0);
        assert_eq!(history.configs()[1].index, LogIndex(index.0 + 1));
        committed(&history)
    }

    #[test]
    fn only_single_steps_are_allowed() {
        let rest =
            |voters: &[NodeId], learners: &[NodeId]| Config::new(voters, learners).expect("valid");
        let three = ids([1, 2, 3]);
        assert_eq!(step(rest(&three, &[]), rest(&three, &ids([4]))), Ok(()));
        assert_eq!(step(rest(&three, &ids([4])), rest(&three, &[])), Ok(()));
        let two_at_once = step(rest(&three, &[]), rest(&three, &ids([4, 5])));
        assert!(two_at_once.is_err());
        let learner = rest(&three, &ids([4]));
        assert_eq!(step(learner, joint(&three, 1, 4, &[])), Ok(()));
        let stranger = step(rest(&three, &[]), joint(&three, 1, 4, &[]));
        assert!(stranger.is_err(), "it was no learner");
        assert!(step(learner, rest(&ids([1, 4, 3]), &[])).is_err());
        let half_way = joint(&three, 1, 4, &[]);
        assert_eq!(step(half_way, rest(&ids([1, 4, 3]), &[])), Ok(()));
        assert!(step(half_way, rest(&ids([4, 2, 3]), &[])).is_err());
        assert!(step(half_way, joint(&three, 1, 5, &[])).is_err());
        assert!(step(half_way, rest(&three, &[])).is_err());
    }
}
