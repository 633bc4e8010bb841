//! Random runs: everything that can go wrong, in any order, while the checks of [`super::net`]
//! look on; then calm, in which the cluster must find together again.

use super::net::{Net, node_id};
use crate::raft::jitter::Jitter;
use crate::raft::{Change, Input, Role, Slot};
use crate::types::NodeId;

/// Voters, then two nodes that may become some.
fn cluster(voters: u8) -> Net {
    let mut net = Net::new(voters, 0);
    net.timing.heartbeat_ms = 10;
    net.timing.election_ms = 60;
    net.timing.disk_hung_ms = 400;
    // Real logs begin far above any window.
    net.begin_at(1 << 40);
    for n in voters + 1..=voters + 2 {
        net.add(node_id(n), crate::raft::Config::unknown());
    }
    net
}

/// Something happens.
fn disturb(net: &mut Net, dice: &mut Jitter) {
    let nodes = net.nodes.len() as u64;
    let any = |dice: &mut Jitter| node_id(dice.between(1, nodes + 1) as u8);
    let node = any(dice);
    let other = any(dice);
    match dice.between(0, 100) {
        0..30 => {
            let ms = dice.between(0, 15);
            net.tick(node, ms);
        }
        30..60 => {
            let place = dice.between(0, net.queue.len().max(1) as u64) as usize;
            // Mostly in order, sometimes not.
            let place = if dice.between(0, 4) > 0 { 0 } else { place };
            if place < net.queue.len() {
                let envelope = net.queue.remove(place).expect("it is there");
                match dice.between(0, 20) {
                    0 => {}
                    1 => {
                        net.hand_over(envelope.clone());
                        net.queue.push_back(envelope);
                    }
                    _ => net.hand_over(envelope),
                }
            }
        }
        60..75 => {
            let to = net.leader().filter(|_| dice.between(0, 5) > 0);
            net.propose(to.unwrap_or(node), dice.between(1, 4) as u32);
        }
        75..80 => net.persist(node),
        80 => net.crash(node),
        81 | 82 if !net.core_is_up(node) => net.start(node),
        83 => net.node_mut(node).held ^= true,
        84 => net.cut_both(node, other),
        85 => net.cut.clear(),
        86 => net.confirm(node),
        87 => net.step(node, Input::Transfer { to: Some(other) }),
        88 => net.step(node, Input::PeerLost { peer: other }),
        89 => net.step(node, Input::PeerRefused { peer: other }),
        90 | 91 => net.step(node, Input::PeerConnected { peer: other }),
        92 => {
            let has_room = dice.between(0, 2) == 0;
            net.step(node, Input::DiskRoom { has_room });
        }
        93 => {
            net.persist(node);
            if net.core_is_up(node) && net.core(node).commit().0 > net.node(node).log.base.index.0 {
                net.compact(node, dice.between(0, 5));
            }
        }
        94..97 => change(net, dice, other),
        97 => net.step(node, Input::FitToLead { fit: true }),
        _ => {
            net.deliver_one(|envelope| envelope.to == node);
        }
    }
}

fn change(net: &mut Net, dice: &mut Jitter, node: NodeId) {
    let Some(leader) = net.leader() else {
        return;
    };
    let config = net.core(leader).config().config;
    let place = dice.between(0, config.voters().len() as u64) as usize;
    let change = match dice.between(0, 3) {
        0 => Change::AddLearner { node },
        1 if dice.between(0, 4) == 0 => Change::RemoveLearner { node },
        _ => Change::Replace {
            slot: Slot(place as u8),
            old: config.voters()[place],
            new: config.learners().first().copied().unwrap_or(node),
        },
    };
    net.change(leader, change);
}

/// Everything works again: one leads, and all members come to have what it has.
fn calm(net: &mut Net) {
    net.cut.clear();
    let ids: Vec<NodeId> = net.nodes.iter().map(|node| node.id).collect();
    for id in &ids {
        net.node_mut(*id).held = false;
        match net.core_is_up(*id) {
            true => net.persist(*id),
            false => net.start(*id),
        }
        let has_room = true;
        net.step(*id, Input::DiskRoom { has_room });
    }
    net.run(2_000);
    // Nothing is proposed any more: what was lost must not wait for that.
    let leader = net.leader().expect("one leads");
    let core = net.core(leader);
    assert_eq!(core.commit(), core.last_index(), "{leader} is stuck");
    assert!(core.config().config.replacement().is_none());
    for _ in 0..100 {
        // What a peer needs of a log that is gone comes by a snapshot, once there is one.
        if let Some(leader) = net.leader() {
            net.propose(leader, 1);
            net.settle();
            net.compact(leader, 3);
        }
        net.run(50);
        if is_together(net) {
            return have_the_same_config(net);
        }
    }
    for node in &net.nodes {
        let core = node.core.as_ref().expect("up");
        println!(
            "{} {:?} term {} leader {:?} commit {} last {} config {:?}",
            node.id,
            core.role(),
            core.term(),
            core.leader(),
            core.commit(),
            core.last_index(),
            core.config()
        );
    }
    panic!("the cluster did not come together");
}

/// The same members, known to be at the same place: whether a node has them from its log or from a
/// snapshot makes no difference.
fn have_the_same_config(net: &Net) {
    let expected = net.core(net.leader().expect("one leads")).config();
    for member in expected.config.members() {
        assert_eq!(net.core(member).config(), expected, "{member}");
    }
}

fn is_together(net: &Net) -> bool {
    let Some(leader) = net.leader() else {
        return false;
    };
    let core = net.core(leader);
    let config = core.config();
    if core.role() != Role::Leader
        || core.commit() != core.last_index()
        || config.config.replacement().is_some()
    {
        return false;
    }
    let mut members = config.config.members();
    members.all(|member| {
        let member = net.core(member);
        member.commit() == core.commit() && member.leader() == Some(leader)
    })
}

fn run(seed: u64, steps: u32) {
    let mut dice = Jitter::new(seed);
    let mut net = cluster(if dice.between(0, 3) == 0 { 5 } else { 3 });
    for _ in 0..steps {
        disturb(&mut net, &mut dice);
    }
    calm(&mut net);
}

/// `RAFT_SEED=n` runs that seed alone, `RAFT_RUNS=n` as many as that.
#[test]
fn nothing_committed_is_lost_and_the_cluster_finds_together() {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().expect("a number"))
    };
    let seeds = match number("RAFT_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("RAFT_RUNS").unwrap_or(100),
    };
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| run(seed, 3_000));
        assert!(outcome.is_ok(), "RAFT_SEED={seed} failed, as above");
    }
}

#[cfg(feature = "bugs")]
mod bugs {
    use super::*;
    use crate::raft::Bug;

    /// Each mistake that a core can be told to make breaks a check within so many runs.
    const RUNS: u64 = 3_000;

    fn is_caught(bug: Bug) -> bool {
        (0..RUNS).any(|seed| {
            let run = || {
                let mut dice = Jitter::new(seed);
                let mut net = cluster(if dice.between(0, 3) == 0 { 5 } else { 3 });
                net.bug = Some(bug);
                for n in 1..=net.nodes.len() as u8 {
                    net.start(node_id(n));
                }
                for _ in 0..3_000 {
                    disturb(&mut net, &mut dice);
                }
            };
            let caught = std::panic::catch_unwind(run).is_err();
            if caught {
                println!("{bug:?}: RAFT_SEED={seed}");
            }
            caught
        })
    }

    #[test]
    fn every_mistake_is_caught() {
        for bug in [
            Bug::CommitsEarlierTermByCounting,
            Bug::VotesTwice,
            Bug::AnswersBeforePersisting,
            Bug::LeaderCountsUnpersisted,
            Bug::NoNoop,
            Bug::JointCountsOneMajority,
            Bug::LearnersVote,
        ] {
            assert!(is_caught(bug), "{bug:?} went unnoticed");
        }
    }
}
