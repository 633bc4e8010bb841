//! A cluster at work: elections, replication, and what a leader's death costs.

use super::net::{Net, node_id};
use crate::raft::{Body, Input, Output, RefusalReason, Role};
use crate::types::{LogIndex, NodeId};

#[test]
fn three_voters_elect_one_and_all_apply_what_it_commits() {
    let mut net = Net::new(3, 0);
    net.run(2_000);
    let leader = net.leader().expect("somebody leads");
    net.propose(leader, 5);
    net.propose(leader, 2);
    net.run(100);
    for node in &net.nodes {
        let core = node.core.as_ref().expect("up");
        assert_eq!(core.commit(), LogIndex(8));
        assert_eq!(core.leader(), Some(leader));
        assert_eq!(core.persisted(), core.last_index());
    }
}

#[test]
fn a_five_voter_cluster_goes_on_without_two() {
    let mut net = Net::new(5, 0);
    net.elect(node_id(3));
    net.crash(node_id(1));
    net.crash(node_id(2));
    net.propose(node_id(3), 4);
    net.run(100);
    assert_eq!(net.core(node_id(5)).commit(), LogIndex(5));
    net.crash(node_id(4));
    net.propose(node_id(3), 4);
    net.run(100);
    assert_eq!(net.core(node_id(3)).commit(), LogIndex(5), "two of five");
}

#[test]
fn a_dead_leader_is_replaced_and_follows_when_it_is_back() {
    let mut net = Net::new(3, 0);
    net.elect(node_id(1));
    net.propose(node_id(1), 3);
    net.settle();
    net.crash(node_id(1));
    net.run(2 * net.timing.election_ms + 500);
    let leader = net.leader().expect("another leads");
    assert_ne!(leader, node_id(1));
    net.propose(leader, 1);
    net.settle();
    net.start(node_id(1));
    net.run(200);
    assert_eq!(net.core(node_id(1)).leader(), Some(leader));
    assert_eq!(net.core(node_id(1)).commit(), net.core(leader).commit());
}

#[test]
fn a_first_append_that_is_lost_is_sent_again_wherever_the_log_begins() {
    for base in [0, 1 << 20, 1 << 50] {
        let mut net = Net::new(5, 0);
        net.begin_at(base);
        net.elect(node_id(2));
        net.run(3 * net.timing.heartbeat_ms);
        net.isolate(node_id(3));
        net.crash(node_id(2));
        net.run(4 * net.timing.election_ms);
        let leader = net.leader().expect("three of five elect one");
        net.propose(leader, 2);
        net.run(20);
        net.cut.clear();
        // What it says of its own when it hears of the new term.
        net.loses = |e| e.from == node_id(3) && matches!(e.message.body, Body::Matched { .. });
        net.run(2 * net.timing.heartbeat_ms);
        net.loses = |_| false;
        net.run(3 * net.timing.heartbeat_ms);
        let (ahead, behind) = (net.core(leader), net.core(node_id(3)));
        assert_eq!(behind.leader(), Some(leader), "{base}");
        assert_eq!(behind.commit(), ahead.last_index(), "{base}");
    }
}

#[test]
fn a_connection_that_comes_back_before_anything_matched_asks_for_no_snapshot() {
    let mut net = Net::new(3, 0);
    net.begin_at(1 << 40);
    net.cut_both(node_id(1), node_id(3));
    net.elect(node_id(1));
    for input in [
        Input::PeerLost { peer: node_id(3) },
        Input::PeerConnected { peer: node_id(3) },
    ] {
        net.step(node_id(1), input);
        let asked = net
            .node(node_id(1))
            .outputs
            .contains(&Output::SnapshotWanted);
        assert!(!asked, "the log has all that it may need");
    }
    net.cut.clear();
    net.run(3 * net.timing.heartbeat_ms);
    assert_eq!(net.core(node_id(3)).commit(), LogIndex((1 << 40) + 1));
}

#[test]
fn a_follower_takes_no_proposals() {
    let mut net = Net::new(3, 0);
    net.elect(node_id(1));
    net.propose(node_id(2), 3);
    let refused = Output::ProposalRefused {
        count: 3,
        reason: RefusalReason::NotLeader,
    };
    assert_eq!(net.node(node_id(2)).outputs.last(), Some(&refused));
}

#[test]
fn a_leader_without_a_quorum_steps_down() {
    let mut net = Net::new(3, 0);
    net.elect(node_id(1));
    net.isolate(node_id(1));
    net.tick(node_id(1), net.timing.election_ms - 1);
    assert_eq!(net.core(node_id(1)).role(), Role::Leader);
    net.tick(node_id(1), 1);
    assert_eq!(net.core(node_id(1)).role(), Role::Follower);
}

#[test]
fn a_hung_disk_ends_a_leadership_and_keeps_from_standing_again() {
    let mut net = Net::new(3, 0);
    net.timing.disk_hung_ms = 200;
    for n in 1..=3 {
        net.start(node_id(n));
    }
    net.elect(node_id(1));
    net.node_mut(node_id(1)).held = true;
    net.propose(node_id(1), 1);
    net.run(199);
    assert_eq!(net.leader(), Some(node_id(1)));
    net.run(1);
    assert_ne!(net.core(node_id(1)).role(), Role::Leader);
    net.run(60);
    let next = net.leader().expect("told, the others need no timeout");
    net.crash(next);
    net.run(2_000);
    assert_eq!(net.leader(), None, "two are not there");
    let hung = net.core(node_id(1));
    assert_eq!(hung.role(), Role::Follower, "the hung one does not stand");
    net.node_mut(node_id(1)).held = false;
    net.persist(node_id(1));
    net.run(2_000);
    assert!(net.leader().is_some());
}

#[test]
fn messages_from_strangers_and_liars_change_nothing() {
    use crate::raft::{AppendKind, Body, EntryId, Message, Report, Run};
    use crate::types::Term;
    let mut net = Net::new(3, 0);
    net.elect(node_id(1));
    net.propose(node_id(1), 3);
    net.run(100);
    let place = |term, index| EntryId {
        term: Term(term),
        index: LogIndex(index),
    };
    let run = |term, count| Run {
        term: Term(term),
        count,
        bytes: 1,
        kind: AppendKind::Commands,
    };
    let append = |previous, run| Body::Append {
        previous,
        run,
        commit: LogIndex(u64::MAX),
    };
    let report = Report {
        has_room: true,
        fit_to_lead: true,
    };
    let bodies = [
        append(place(0, 0), run(9, 1)),
        append(place(0, 0), run(1, u32::MAX)),
        append(place(1, u64::MAX), run(1, 2)),
        append(place(9, 1), run(1, 1)),
        Body::Matched {
            up_to: LogIndex(u64::MAX),
        },
        Body::Conflict {
            refused: LogIndex(u64::MAX),
            hint: place(u64::MAX, u64::MAX),
        },
        Body::Conflict {
            refused: LogIndex(0),
            hint: place(0, 0),
        },
        Body::HeartbeatAnswer {
            round: u64::MAX,
            received: LogIndex(u64::MAX),
            report,
        },
        Body::VoteAnswer { granted: true },
        Body::PreVoteAnswer { granted: true },
        Body::TimeoutNow,
        Body::NotLeading,
        Body::TermOver,
        Body::DoYouLead,
    ];
    let before: Vec<LogIndex> = net.nodes.iter().map(|n| LogIndex(n.log.last())).collect();
    for body in bodies {
        for from in [node_id(2), node_id(3), node_id(77)] {
            for (to, term) in [(1, 1), (1, 0), (2, 1), (3, 0), (2, u64::MAX), (1, 1 << 61)] {
                let term = Term(term);
                let message = Message { term, body };
                net.step(node_id(to), Input::Received { from, message });
                net.queue.clear();
            }
        }
    }
    let after: Vec<LogIndex> = net.nodes.iter().map(|n| LogIndex(n.log.last())).collect();
    assert_eq!(before, after);
    net.run(100);
    assert_eq!(net.leader(), Some(node_id(1)));
    assert_eq!(net.core(node_id(1)).term(), Term(1));
}

#[test]
fn a_leader_knows_whether_a_majority_has_room() {
    let mut net = Net::new(3, 0);
    let [a, b, c] = [1, 2, 3].map(node_id);
    net.elect(a);
    assert!(
        net.core(a).quorum_has_room(),
        "nobody has told the opposite"
    );
    net.run(100);
    let mut room = |full: &[NodeId]| {
        for id in [a, b, c] {
            let has_room = !full.contains(&id);
            net.step(id, Input::DiskRoom { has_room });
        }
        net.run(100);
        assert_eq!(net.leader(), Some(a), "nobody is fit to take over");
        net.core(a).quorum_has_room()
    };
    assert!(room(&[]));
    assert!(room(&[b]) && room(&[a]));
    assert!(!room(&[b, c]) && !room(&[a, c]));
    assert!(room(&[]), "room again");
}
