//! What a peer may say at most, at the bound and one past it.

use super::net::{Net, node_id};
use crate::limits::{
    LEARNER_APPEND_ENTRIES, LEARNER_WINDOW_ENTRIES, MAX_APPEND_BYTES, MAX_APPEND_ENTRIES,
    MAX_PEER_INDEX, MAX_RECORDS_PER_BATCH, MAX_TERM, PROMOTION_LAG_ENTRIES,
};
use crate::raft::{
    AppendKind, Body, Change, ChangeRefusal, EntryId, Input, Message, Output, Run, Slot, Snapshot,
};
use crate::types::{LogIndex, Term};

/// How long node 2's log is after it was sent this by node 1.
fn last_after(term: u64, count: u32, bytes: u64) -> u64 {
    let mut net = Net::new(3, 0);
    let run = Run {
        term: Term(1),
        count,
        bytes,
        kind: AppendKind::Commands,
    };
    let body = Body::Append {
        previous: EntryId::default(),
        run,
        commit: LogIndex(0),
    };
    let core = net.node_mut(node_id(2)).core.as_mut().expect("up");
    let term = Term(term);
    let message = Message { term, body };
    let from = node_id(1);
    core.step(Input::Received { from, message }, &mut Vec::new());
    core.last_index().0
}

#[test]
fn appends_are_taken_within_their_bounds() {
    let most = MAX_APPEND_ENTRIES;
    assert_eq!(last_after(1, most, MAX_APPEND_BYTES), u64::from(most));
    assert_eq!(last_after(1, most + 1, 0), 0);
    assert_eq!(last_after(1, 1, MAX_APPEND_BYTES + 1), 0);
    assert_eq!(last_after(MAX_TERM, 1, 0), 1);
    assert_eq!(last_after(MAX_TERM + 1, 1, 0), 0);
}

#[test]
fn a_snapshot_is_taken_only_if_the_log_can_go_on_behind_it() {
    for (index, taken) in [(MAX_PEER_INDEX - 1, true), (MAX_PEER_INDEX, false)] {
        let mut net = Net::new(3, 0);
        let config = net.core(node_id(2)).config();
        let last = EntryId {
            term: Term(1),
            index: LogIndex(index),
        };
        let snapshot = Snapshot {
            last,
            bytes: 10,
            id: 1,
        };
        let body = Body::SnapshotChunk {
            snapshot,
            config,
            offset: 0,
            bytes: 10,
        };
        let term = Term(1);
        let message = Message { term, body };
        let from = node_id(1);
        net.step(node_id(2), Input::Received { from, message });
        let stored = |output: &Output| matches!(output, Output::StoreSnapshotChunk { .. });
        assert_eq!(net.node(node_id(2)).outputs.iter().any(stored), taken);
    }
}

#[test]
fn a_learner_becomes_a_voter_within_the_lag_that_is_allowed() {
    for (behind, refused) in [
        (PROMOTION_LAG_ENTRIES, false),
        (PROMOTION_LAG_ENTRIES + 1, true),
    ] {
        let mut net = Net::new(3, 1);
        net.elect(node_id(1));
        net.run(100);
        net.cut_both(node_id(1), node_id(4));
        let mut left = behind;
        while left > 0 {
            let count = left.min(u64::from(MAX_RECORDS_PER_BATCH));
            net.propose(node_id(1), count as u32);
            left -= count;
        }
        net.settle();
        let change = Change::Replace {
            slot: Slot(2),
            old: node_id(3),
            new: node_id(4),
        };
        net.node_mut(node_id(1)).outputs.clear();
        net.change(node_id(1), change);
        let reason = ChangeRefusal::NotCaughtUp;
        let no = Output::ChangeRefused { change, reason };
        assert_eq!(net.node(node_id(1)).outputs.contains(&no), refused);
    }
}

#[test]
fn a_learner_gets_what_it_lacks_in_small_pieces() {
    let mut net = Net::new(3, 1);
    net.elect(node_id(1));
    net.run(100);
    net.cut_both(node_id(1), node_id(4));
    net.node_mut(node_id(1)).outputs.clear();
    for _ in 0..32 {
        net.propose(node_id(1), 1 << 10);
        net.settle();
    }
    let sent_to = |net: &Net, node| {
        let sizes = net.node(node_id(1)).outputs.iter().filter_map(|o| match o {
            Output::Send { to, message } if *to == node => match message.body {
                Body::Append { run, .. } => Some(u64::from(run.count)),
                _ => None,
            },
            _ => None,
        });
        sizes.collect::<Vec<u64>>()
    };
    let sent = sent_to(&net, node_id(4));
    let total: u64 = sent.iter().sum();
    assert!(total >= LEARNER_WINDOW_ENTRIES, "{sent:?}");
    assert!(total < LEARNER_WINDOW_ENTRIES + LEARNER_APPEND_ENTRIES);
    // Whatever it lacks then comes piece by piece, as fast as it takes them in.
    net.cut.clear();
    net.node_mut(node_id(1)).outputs.clear();
    net.run(1_000);
    let sent = sent_to(&net, node_id(4));
    assert!(sent.iter().all(|count| *count <= LEARNER_APPEND_ENTRIES));
    assert!(sent.contains(&LEARNER_APPEND_ENTRIES), "{sent:?}");
    let last = net.core(node_id(1)).last_index();
    assert_eq!(net.core(node_id(4)).persisted(), last);
}
