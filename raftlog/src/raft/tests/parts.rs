//! One part at a time: windows, backtracking, confirmations, snapshots, sockets' hints.

use super::net::{Net, node_id};
use crate::limits::{
    MAX_CONFIRMS, MAX_PROPOSAL_BYTES, MAX_RECORDS_PER_BATCH, SNAPSHOT_CHUNK_BYTES, WINDOW_BYTES,
    WINDOW_ENTRIES,
};
use crate::raft::{
    Body, Config, ConfigEntry, Core, EntryId, Epoch, Extent, ExtentKind, Input, Message, Output,
    PeerProgress, Role, Snapshot, Start, StartError, Timing,
};
use crate::types::{HardState, LogIndex, NodeId, Term};

fn place(term: u64, index: u64) -> EntryId {
    EntryId {
        term: Term(term),
        index: LogIndex(index),
    }
}

fn steps(core: &mut Core, input: Input) -> Vec<Output> {
    let mut outputs = Vec::new();
    core.step(input, &mut outputs);
    outputs
}

fn heard(from: NodeId, term: u64, body: Body) -> Input {
    let term = Term(term);
    let message = Message { term, body };
    Input::Received { from, message }
}

/// Node 1 of three, with an empty log.
fn start() -> Start {
    let ids: Vec<NodeId> = (1..=3).map(node_id).collect();
    Start {
        node_id: node_id(1),
        hard_state: HardState::default(),
        base: EntryId::default(),
        extents: Vec::new(),
        snapshot: None,
        configs: vec![ConfigEntry {
            index: LogIndex(0),
            config: Config::new(&ids, &[]).expect("valid"),
        }],
        timing: Timing::default(),
        seed: 1,
        #[cfg(feature = "bugs")]
        bug: None,
    }
}

#[test]
fn a_newcomer_that_knows_of_no_members_answers_what_it_is_asked() {
    let mut configs = start().configs;
    configs[0].config = Config::unknown();
    let mut core = Core::new(Start { configs, ..start() }).expect("one node's state");
    assert!(!core.quorum_has_room());
    let outputs = steps(&mut core, Input::DiskRoom { has_room: true });
    assert!(!core.quorum_has_room() && outputs.is_empty());
    assert_eq!(core.next_deadline_ms(), 0);
    steps(&mut core, Input::Tick { now_ms: 10_000 });
    assert_eq!(
        (core.role(), core.next_deadline_ms()),
        (Role::Follower, u64::MAX)
    );
}

/// Node 1, leading in term 1, its no-op committed and with node 2.
fn leader() -> Core {
    let mut core = Core::new(start()).expect("one node's state");
    steps(&mut core, Input::Tick { now_ms: 0 });
    steps(&mut core, Input::Tick { now_ms: 1_000 });
    let granted = true;
    steps(
        &mut core,
        heard(node_id(2), 1, Body::PreVoteAnswer { granted }),
    );
    let vote = HardState {
        term: Term(1),
        voted_for: Some(node_id(1)),
    };
    steps(&mut core, Input::HardStatePersisted(vote));
    steps(
        &mut core,
        heard(node_id(2), 1, Body::VoteAnswer { granted }),
    );
    assert_eq!(core.role(), Role::Leader);
    persisted(&mut core, 1);
    matched(&mut core, node_id(2), 1);
    assert_eq!(core.commit(), LogIndex(1));
    let first_round = Body::HeartbeatAnswer {
        round: 1,
        received: LogIndex(1),
        report: core_report(),
    };
    steps(&mut core, heard(node_id(2), 1, first_round));
    core
}

fn persisted(core: &mut Core, up_to: u64) -> Vec<Output> {
    let (epoch, up_to) = (Epoch(0), LogIndex(up_to));
    steps(core, Input::Persisted { epoch, up_to })
}

fn matched(core: &mut Core, from: NodeId, up_to: u64) -> Vec<Output> {
    let up_to = LogIndex(up_to);
    steps(core, heard(from, 1, Body::Matched { up_to }))
}

/// The entries of all appends to a node.
fn sent(outputs: &[Output], wanted: NodeId) -> Vec<u32> {
    let of = |output: &Output| match output {
        Output::Send {
            to,
            message:
                Message {
                    body: Body::Append { run, .. },
                    ..
                },
        } if *to == wanted => Some(run.count),
        _ => None,
    };
    outputs.iter().filter_map(of).collect()
}

fn rounds(outputs: &[Output]) -> Vec<u64> {
    let of = |output: &Output| match output {
        Output::Send {
            to,
            message:
                Message {
                    body: Body::Heartbeat { round, .. },
                    ..
                },
        } if *to == node_id(2) => Some(*round),
        _ => None,
    };
    outputs.iter().filter_map(of).collect()
}

#[test]
fn a_leader_tells_how_far_its_peers_are_and_when_it_heard_them() {
    let mut core = leader();
    steps(&mut core, Input::Tick { now_ms: 1_020 });
    matched(&mut core, node_id(2), 1);
    let peer = |node, matched, heard_ms| PeerProgress {
        node: node_id(node),
        matched: LogIndex(matched),
        heard_ms,
    };
    let peers: Vec<PeerProgress> = core.peers().collect();
    assert_eq!(peers[0], peer(2, 1, 1_020));
    assert_eq!((peers[1].node, peers[1].matched), (node_id(3), LogIndex(0)));
    assert_eq!(peers.len(), 2);
}

#[test]
fn appends_are_pipelined_up_to_a_window_of_entries() {
    let mut core = leader();
    let most = u64::from(MAX_RECORDS_PER_BATCH);
    let propose = |core: &mut Core| {
        let count = MAX_RECORDS_PER_BATCH;
        steps(core, Input::Propose { count, bytes: 0 })
    };
    for _ in 0..WINDOW_ENTRIES / most {
        let outputs = propose(&mut core);
        assert_eq!(sent(&outputs, node_id(2)), [MAX_RECORDS_PER_BATCH]);
        assert_eq!(sent(&outputs, node_id(3)), [0_u32; 0], "a probe is out");
    }
    assert_eq!(sent(&propose(&mut core), node_id(2)), [0_u32; 0], "full");
    assert_eq!(sent(&matched(&mut core, node_id(2), 1), node_id(2)), [0; 0]);
    let outputs = matched(&mut core, node_id(2), 2);
    assert_eq!(sent(&outputs, node_id(2)), [MAX_RECORDS_PER_BATCH]);
}

#[test]
fn appends_are_pipelined_up_to_a_window_of_bytes() {
    let mut core = leader();
    let (count, bytes) = (2, MAX_PROPOSAL_BYTES);
    for _ in 0..WINDOW_BYTES / MAX_PROPOSAL_BYTES {
        let outputs = steps(&mut core, Input::Propose { count, bytes });
        assert_eq!(sent(&outputs, node_id(2)), [2]);
    }
    let outputs = steps(&mut core, Input::Propose { count, bytes });
    assert_eq!(sent(&outputs, node_id(2)), [0_u32; 0]);
    assert_eq!(sent(&matched(&mut core, node_id(2), 3), node_id(2)), [2]);
}

#[test]
fn a_lost_append_is_found_by_the_next_heartbeat_and_a_stale_refusal_is_not_believed() {
    let mut core = leader();
    let one = Input::Propose { count: 1, bytes: 1 };
    steps(&mut core, one);
    steps(&mut core, one);
    let outputs = steps(&mut core, Input::Tick { now_ms: 1_050 });
    let round = rounds(&outputs)[0];
    let answer = |received| Body::HeartbeatAnswer {
        round,
        received: LogIndex(received),
        report: core_report(),
    };
    let outputs = steps(&mut core, heard(node_id(2), 1, answer(3)));
    assert_eq!(sent(&outputs, node_id(2)), [0_u32; 0], "all has arrived");
    let outputs = steps(&mut core, heard(node_id(2), 1, answer(2)));
    assert_eq!(sent(&outputs, node_id(2)), [1], "the last has not");
    let conflict = |refused| Body::Conflict {
        refused: LogIndex(refused),
        hint: place(0, 0),
    };
    // Node 2 has the first, and is being asked behind the second.
    for stale in [0, 1, 3, 9] {
        let outputs = steps(&mut core, heard(node_id(2), 1, conflict(stale)));
        assert_eq!(sent(&outputs, node_id(2)), [0_u32; 0], "{stale}");
    }
    let outputs = steps(&mut core, heard(node_id(2), 1, conflict(2)));
    assert_eq!(sent(&outputs, node_id(2)), [2]);
}

fn core_report() -> crate::raft::Report {
    crate::raft::Report {
        has_room: true,
        fit_to_lead: true,
    }
}

#[test]
fn logs_that_parted_over_many_terms_come_together_in_a_question_a_term() {
    let mut net = Net::new(3, 0);
    let long: Vec<u64> = (1..=400).map(|index| 1 + index / 100).collect();
    let other: Vec<u64> = (1..=400)
        .map(|index| if index < 50 { 1 } else { 6 })
        .collect();
    net.write_log(node_id(1), &long, 7);
    net.write_log(node_id(2), &long[..120], 7);
    net.write_log(node_id(3), &other, 6);
    for n in 1..=3 {
        net.start(node_id(n));
    }
    // Its log ends in a later term, so it would be elected: it sleeps.
    net.crash(node_id(3));
    net.elect(node_id(1));
    net.start(node_id(3));
    net.node_mut(node_id(1)).outputs.clear();
    net.run(60);
    assert_eq!(net.core(node_id(3)).last_index(), LogIndex(401));
    let appends = sent(&net.node(node_id(1)).outputs, node_id(3));
    assert!(appends.len() <= 8, "{appends:?}");
}

#[test]
fn requests_that_come_together_share_a_round() {
    let mut core = leader();
    let outputs = steps(&mut core, Input::Confirm { request: 1 });
    let first = rounds(&outputs)[0];
    for request in 2..5 {
        assert_eq!(steps(&mut core, Input::Confirm { request }), []);
    }
    let answer = |round| Body::HeartbeatAnswer {
        round,
        received: LogIndex(1),
        report: core_report(),
    };
    let stale = steps(&mut core, heard(node_id(2), 1, answer(first - 1)));
    assert_eq!(stale, [], "that round was sent before");
    let outputs = steps(&mut core, heard(node_id(2), 1, answer(first)));
    let index = LogIndex(1);
    assert_eq!(outputs[0], Output::Confirmed { request: 1, index });
    assert_eq!(rounds(&outputs), [first + 1], "the others' round");
    let outputs = steps(&mut core, heard(node_id(3), 1, answer(first + 1)));
    let confirmed: Vec<u64> = outputs.iter().filter_map(request_confirmed).collect();
    assert_eq!(confirmed, [2, 3, 4]);
}

fn request_confirmed(output: &Output) -> Option<u64> {
    match output {
        Output::Confirmed { request, .. } => Some(*request),
        _ => None,
    }
}

#[test]
fn confirmations_that_wait_are_bounded_and_all_answered() {
    let mut core = leader();
    for request in 0..MAX_CONFIRMS as u64 {
        let outputs = steps(&mut core, Input::Confirm { request });
        assert!(!outputs.contains(&Output::NotConfirmed { request }));
    }
    let request = MAX_CONFIRMS as u64;
    let outputs = steps(&mut core, Input::Confirm { request });
    assert_eq!(outputs, [Output::NotConfirmed { request }]);
    let outputs = steps(&mut core, heard(node_id(3), 2, Body::TermOver));
    let no = |output: &&Output| matches!(output, Output::NotConfirmed { .. });
    assert_eq!(outputs.iter().filter(no).count(), MAX_CONFIRMS);
}

#[test]
fn reports_of_writes_from_before_a_truncation_are_ignored() {
    let mut net = Net::new(3, 0);
    net.write_log(node_id(2), &[1, 1, 1], 1);
    net.start(node_id(2));
    net.elect(node_id(2));
    // Node 3 is given an entry that it writes, and that another leader takes away.
    net.node_mut(node_id(3)).held = true;
    net.isolate(node_id(2));
    let append = Body::Append {
        previous: place(2, 4),
        run: crate::raft::Run {
            term: Term(2),
            count: 2,
            bytes: 1,
            kind: crate::raft::AppendKind::Commands,
        },
        commit: LogIndex(0),
    };
    let core = net.node_mut(node_id(3)).core.as_mut().expect("up");
    steps(core, heard(node_id(2), 2, append));
    assert_eq!((core.last_index(), core.epoch()), (LogIndex(6), Epoch(0)));
    let next = Body::Append {
        previous: place(2, 4),
        run: crate::raft::Run {
            term: Term(3),
            count: 1,
            bytes: 1,
            kind: crate::raft::AppendKind::Noop,
        },
        commit: LogIndex(0),
    };
    let outputs = steps(core, heard(node_id(1), 3, next));
    let truncate = Output::Truncate {
        from: LogIndex(5),
        previous_term: Term(2),
        epoch: Epoch(1),
    };
    assert!(outputs.contains(&truncate), "{outputs:?}");
    let report = |epoch, up_to| Input::Persisted {
        epoch: Epoch(epoch),
        up_to: LogIndex(up_to),
    };
    let hard = HardState {
        term: Term(3),
        voted_for: None,
    };
    steps(core, Input::HardStatePersisted(hard));
    assert_eq!(steps(core, report(0, 6)), []);
    assert_eq!(core.persisted(), LogIndex(4));
    let outputs = steps(core, report(1, 5));
    let up_to = LogIndex(5);
    let body = Body::Matched { up_to };
    let to = node_id(1);
    let message = Message {
        term: Term(3),
        body,
    };
    assert_eq!(outputs, [Output::Send { to, message }]);
}

#[test]
fn a_snapshot_goes_in_chunks_and_again_if_it_was_damaged() {
    let mut core = Core::new(start()).expect("one node's state");
    steps(&mut core, Input::Tick { now_ms: 0 });
    let snapshot = Snapshot {
        last: place(1, 50),
        bytes: u64::from(SNAPSHOT_CHUNK_BYTES) + 1,
        id: 9,
    };
    let config = ConfigEntry {
        index: LogIndex(30),
        config: core.config().config,
    };
    let chunk = |offset, bytes| {
        let body = Body::SnapshotChunk {
            snapshot,
            config,
            offset,
            bytes,
        };
        heard(node_id(2), 1, body)
    };
    let whole = SNAPSHOT_CHUNK_BYTES;
    let answers = |outputs: &[Output]| -> Vec<u64> {
        let of = |output: &Output| match output {
            Output::Send { message, .. } => match message.body {
                Body::SnapshotAnswer { next_offset, .. } => Some(next_offset),
                _ => None,
            },
            _ => None,
        };
        outputs.iter().filter_map(of).collect()
    };
    let stored = |next_offset| Input::SnapshotChunkStored {
        snapshot,
        next_offset,
    };
    let too_long = steps(&mut core, chunk(0, whole + 1));
    assert_eq!(answers(&too_long), [0_u64; 0], "no such message");
    let outputs = steps(&mut core, chunk(7, 10));
    assert_eq!(answers(&outputs), [0], "it begins at the beginning");
    for damaged in [true, false] {
        let outputs = steps(&mut core, chunk(0, whole));
        let store = Output::StoreSnapshotChunk {
            snapshot,
            offset: 0,
            bytes: whole,
        };
        assert!(outputs.contains(&store));
        assert_eq!(steps(&mut core, chunk(0, whole)), [], "it is being stored");
        let outputs = steps(&mut core, stored(u64::from(whole)));
        assert_eq!(answers(&outputs), [u64::from(whole)]);
        let outputs = steps(&mut core, chunk(3, 5));
        assert_eq!(answers(&outputs), [u64::from(whole)], "it resumes there");
        steps(&mut core, chunk(u64::from(whole), 1));
        let mut outputs = steps(&mut core, stored(snapshot.bytes));
        let install = Output::InstallSnapshot { snapshot, config };
        if damaged {
            // The first time: the term that it came in is not on the disk yet.
            assert!(!outputs.contains(&install));
            let hard = HardState {
                term: Term(1),
                voted_for: None,
            };
            outputs = steps(&mut core, Input::HardStatePersisted(hard));
        }
        assert_eq!(outputs.last(), Some(&install));
        let append = Body::Append {
            previous: place(0, 0),
            run: crate::raft::Run {
                term: Term(1),
                count: 1,
                bytes: 1,
                kind: crate::raft::AppendKind::Noop,
            },
            commit: LogIndex(1),
        };
        let outputs = steps(&mut core, heard(node_id(2), 1, append));
        assert_eq!(outputs, [], "the log is about to go");
        let valid = !damaged;
        let outputs = steps(&mut core, Input::SnapshotInstalled { snapshot, valid });
        if damaged {
            assert_eq!(answers(&outputs), [0]);
            continue;
        }
        let reset = Output::Reset {
            index: LogIndex(50),
            term: Term(1),
            epoch: Epoch(1),
        };
        assert_eq!(outputs[0], reset);
        assert_eq!(core.commit(), LogIndex(50));
        assert_eq!(core.config(), config, "as the leader has it");
        assert_eq!(core.config_at(LogIndex(50)), Some(config));
    }
}

#[test]
fn a_leader_keeps_what_a_peer_that_is_heard_still_needs() {
    let mut core = leader();
    let bytes = 1;
    steps(&mut core, Input::Propose { count: 9, bytes });
    persisted(&mut core, 10);
    matched(&mut core, node_id(2), 10);
    assert_eq!(core.needed_from(), LogIndex(1), "node 3 has nothing yet");
    matched(&mut core, node_id(3), 4);
    assert_eq!(core.needed_from(), LogIndex(5));
    let silent = Timing::default().election_ms;
    let now_ms = 1_000 + silent - 1;
    steps(&mut core, Input::Tick { now_ms });
    matched(&mut core, node_id(2), 10);
    steps(&mut core, Input::Tick { now_ms: now_ms + 1 });
    assert_eq!(core.needed_from(), LogIndex(11), "node 3 is silent");
    let snapshot = Snapshot {
        last: place(1, 10),
        bytes: 1,
        id: 1,
    };
    let first_index = LogIndex(8);
    steps(
        &mut core,
        Input::Compacted {
            snapshot,
            first_index,
        },
    );
    let peer = node_id(3);
    steps(&mut core, Input::PeerConnected { peer });
    assert!(core.sends_snapshot(&snapshot));
    assert_eq!(core.needed_from(), LogIndex(11), "what is behind it");
    matched(&mut core, node_id(3), 10);
    assert!(!core.sends_snapshot(&snapshot));
}

#[test]
fn followers_that_see_the_leader_die_go_one_after_the_other() {
    let mut firsts = [0; 2];
    for seed in 0..20 {
        let mut waits = Vec::new();
        for rank in 0..2 {
            let mut core = Core::new(Start { seed, ..start() }).expect("one node's state");
            steps(&mut core, Input::Tick { now_ms: 0 });
            let heartbeat = Body::Heartbeat {
                round: 1,
                commit: LogIndex(0),
                rank,
            };
            let peer = node_id(2);
            steps(&mut core, heard(peer, 1, heartbeat));
            assert!(core.next_deadline_ms() >= 500);
            steps(&mut core, Input::PeerRefused { peer });
            assert_eq!(core.leader(), Some(peer), "nothing was lost yet");
            steps(&mut core, Input::PeerLost { peer });
            assert_eq!(core.leader(), Some(peer), "perhaps only the connection");
            steps(&mut core, Input::PeerRefused { peer });
            assert_eq!(core.leader(), None);
            waits.push(core.next_deadline_ms());
        }
        assert!(waits[0] < 5 && (5..10).contains(&waits[1]), "{waits:?}");
        firsts[usize::from(waits[1] < waits[0])] += 1;
    }
    assert_eq!(firsts, [20, 0]);
}

#[test]
fn pre_votes_are_repeated_in_a_hurry_for_one_election_timeout() {
    let mut core = Core::new(start()).expect("one node's state");
    steps(&mut core, Input::Tick { now_ms: 0 });
    let heartbeat = Body::Heartbeat {
        round: 1,
        commit: LogIndex(0),
        rank: 0,
    };
    let peer = node_id(2);
    steps(&mut core, heard(peer, 1, heartbeat));
    steps(&mut core, Input::PeerLost { peer });
    steps(&mut core, heard(peer, 1, Body::NotLeading));
    let mut asked_at = Vec::new();
    for now_ms in 1..1_000 {
        let outputs = steps(&mut core, Input::Tick { now_ms });
        let asks = |output: &Output| {
            matches!(output, Output::Send { message, .. }
                if matches!(message.body, Body::PreVote { .. }))
        };
        if outputs.iter().any(asks) {
            asked_at.push(now_ms);
        }
    }
    let gap = |pair: &[u64]| (pair[0], pair[1] - pair[0]);
    for (at, gap) in asked_at.windows(2).map(gap) {
        match at < 500 {
            true => assert!((5..=10).contains(&gap), "{gap} ms at {at}"),
            false => assert!((50..=100).contains(&gap), "{gap} ms at {at}"),
        }
    }
    assert_eq!(core.term(), Term(1), "asking raises no term");
}

#[test]
fn a_voter_refuses_who_has_less_of_the_log() {
    let voter = || {
        let extents = [(2, 1), (5, 3)].map(|(last_index, term)| Extent {
            last_index: LogIndex(last_index),
            term: Term(term),
            bytes: 1,
            kind: ExtentKind::Commands,
        });
        let hard_state = HardState {
            term: Term(3),
            voted_for: None,
        };
        let start = Start {
            extents: extents.to_vec(),
            hard_state,
            ..start()
        };
        let mut core = Core::new(start).expect("one node's state");
        steps(&mut core, Input::Tick { now_ms: 0 });
        core
    };
    let answer = |outputs: &[Output]| {
        outputs.iter().find_map(|output| match output {
            Output::Send { message, .. } => match message.body {
                Body::VoteAnswer { granted } | Body::PreVoteAnswer { granted } => Some(granted),
                _ => None,
            },
            _ => None,
        })
    };
    for (term, index, granted) in [
        (3, 5, true),
        (3, 6, true),
        (4, 1, true),
        (3, 4, false),
        (2, 9, false),
    ] {
        let last = place(term, index);
        let mut core = voter();
        let outputs = steps(&mut core, heard(node_id(2), 4, Body::PreVote { last }));
        assert_eq!(answer(&outputs), Some(granted), "{last:?}");
        assert_eq!(core.term(), Term(3), "a question raises no term");
        let transfer = false;
        let asked = heard(node_id(2), 4, Body::Vote { last, transfer });
        let mut outputs = steps(&mut core, asked);
        let voted_for = granted.then_some(node_id(2));
        let term = Term(4);
        let hard = HardState { term, voted_for };
        assert!(outputs.contains(&Output::PersistHardState(hard)));
        outputs.extend(steps(&mut core, Input::HardStatePersisted(hard)));
        assert_eq!(answer(&outputs), Some(granted), "{last:?}");
    }
}

#[test]
fn who_asks_in_a_term_that_is_over_gets_no_vote_and_learns_the_term() {
    let mut core = leader();
    let later = heard(node_id(3), 7, Body::TermOver);
    assert!(!steps(&mut core, later).is_empty());
    assert_eq!((core.role(), core.term()), (Role::Follower, Term(7)));
    let (last, transfer) = (place(6, 1_000), true);
    let outputs = steps(
        &mut core,
        heard(node_id(2), 6, Body::Vote { last, transfer }),
    );
    let refused = Message {
        term: Term(7),
        body: Body::VoteAnswer { granted: false },
    };
    let answers = outputs.iter().filter_map(|output| match output {
        Output::Send { to, message } => Some((*to, *message)),
        _ => None,
    });
    assert_eq!(answers.collect::<Vec<_>>(), [(node_id(2), refused)]);
    assert_eq!(core.term(), Term(7));
}

#[test]
fn a_later_term_makes_a_follower_of_whoever_hears_of_it() {
    let mut candidate = Core::new(start()).expect("one node's state");
    steps(&mut candidate, Input::Tick { now_ms: 0 });
    steps(&mut candidate, Input::Tick { now_ms: 10_000 });
    let granted = Body::PreVoteAnswer { granted: true };
    steps(&mut candidate, heard(node_id(2), 1, granted));
    for (mut core, role, term) in [(candidate, Role::Candidate, 1), (leader(), Role::Leader, 1)] {
        assert_eq!((core.role(), core.term()), (role, Term(term)));
        steps(&mut core, heard(node_id(3), term, Body::TermOver));
        assert_eq!(core.role(), role, "its own term is none");
        let outputs = steps(&mut core, heard(node_id(3), 9, Body::TermOver));
        assert_eq!((core.role(), core.term()), (Role::Follower, Term(9)));
        let hard = HardState {
            term: Term(9),
            voted_for: None,
        };
        assert!(outputs.contains(&Output::PersistHardState(hard)));
    }
}

#[test]
fn nothing_is_committed_beyond_what_is_known_to_be_the_leaders() {
    let extents = [(2, 1), (5, 2)].map(|(last_index, term)| Extent {
        last_index: LogIndex(last_index),
        term: Term(term),
        bytes: 1,
        kind: ExtentKind::Commands,
    });
    let hard_state = HardState {
        term: Term(3),
        voted_for: None,
    };
    let start = Start {
        extents: extents.to_vec(),
        hard_state,
        ..start()
    };
    let mut core = Core::new(start).expect("one node's state");
    steps(&mut core, Input::Tick { now_ms: 0 });
    let commit = LogIndex(9);
    let heartbeat = Body::Heartbeat {
        round: 1,
        commit,
        rank: 0,
    };
    steps(&mut core, heard(node_id(2), 3, heartbeat));
    assert_eq!(core.commit(), LogIndex(0), "nothing is known to match");
    let append = |previous, count| Body::Append {
        previous,
        run: crate::raft::Run {
            term: Term(1),
            count,
            bytes: 1,
            kind: crate::raft::AppendKind::Commands,
        },
        commit,
    };
    // What is behind these may be another leader's.
    steps(&mut core, heard(node_id(2), 3, append(place(1, 1), 0)));
    assert_eq!(core.commit(), LogIndex(1));
    steps(&mut core, heard(node_id(2), 3, append(place(1, 1), 1)));
    assert_eq!(core.commit(), LogIndex(2));
    assert_eq!(core.last_index(), LogIndex(5), "no conflict was seen");
}

#[test]
fn a_voter_that_hears_a_leader_is_disturbed_only_by_its_wish() {
    let mut core = Core::new(start()).expect("one node's state");
    steps(&mut core, Input::Tick { now_ms: 0 });
    let heartbeat = Body::Heartbeat {
        round: 1,
        commit: LogIndex(0),
        rank: 0,
    };
    let election_ms = Timing::default().election_ms;
    let vote = |transfer| {
        let last = place(9, 9);
        heard(node_id(3), 5, Body::Vote { last, transfer })
    };
    steps(&mut core, heard(node_id(2), 1, heartbeat));
    let now_ms = election_ms - 1;
    steps(&mut core, Input::Tick { now_ms });
    assert_eq!(steps(&mut core, vote(false)), []);
    assert_eq!(core.leader(), Some(node_id(2)));
    steps(&mut core, vote(true));
    assert_eq!(core.term(), Term(5));
    let mut core = Core::new(start()).expect("one node's state");
    steps(&mut core, Input::Tick { now_ms: 0 });
    steps(&mut core, heard(node_id(2), 1, heartbeat));
    let now_ms = election_ms;
    steps(&mut core, Input::Tick { now_ms });
    steps(&mut core, vote(false));
    assert_eq!(core.term(), Term(5), "it is not heard any more");
}

#[test]
fn a_split_vote_is_tried_again_in_a_hurry_if_the_leader_is_known_to_be_gone() {
    let mut core = Core::new(start()).expect("one node's state");
    steps(&mut core, Input::Tick { now_ms: 0 });
    let heartbeat = Body::Heartbeat {
        round: 1,
        commit: LogIndex(0),
        rank: 0,
    };
    steps(&mut core, heard(node_id(2), 1, heartbeat));
    steps(&mut core, heard(node_id(2), 1, Body::NotLeading));
    steps(&mut core, Input::Tick { now_ms: 5 });
    let granted = true;
    let yes = heard(node_id(3), 2, Body::PreVoteAnswer { granted });
    steps(&mut core, yes);
    assert_eq!(core.role(), Role::Candidate);
    let vote = HardState {
        term: Term(2),
        voted_for: Some(node_id(1)),
    };
    steps(&mut core, Input::HardStatePersisted(vote));
    assert!(core.next_deadline_ms() >= 505, "votes take a sync");
    let granted = false;
    steps(
        &mut core,
        heard(node_id(3), 2, Body::VoteAnswer { granted }),
    );
    assert!((15..=35).contains(&core.next_deadline_ms()));
}

#[test]
fn who_would_vote_for_another_holds_back_for_a_moment() {
    let mut core = Core::new(start()).expect("one node's state");
    steps(&mut core, Input::Tick { now_ms: 0 });
    let now_ms = core.next_deadline_ms() - 1;
    steps(&mut core, Input::Tick { now_ms });
    let last = place(0, 0);
    steps(&mut core, heard(node_id(2), 1, Body::PreVote { last }));
    let wait_ms = core.next_deadline_ms() - now_ms;
    assert!((10..=30).contains(&wait_ms), "{wait_ms}");
}

#[test]
fn a_start_from_what_is_not_one_nodes_state_is_refused() {
    let error = |start| Core::new(start).map(|core| core.last_index()).unwrap_err();
    let extent = |last_index, term, kind| Extent {
        last_index: LogIndex(last_index),
        term: Term(term),
        bytes: 1,
        kind,
    };
    let commands = ExtentKind::Commands;
    let ahead = Start {
        extents: vec![extent(3, 1, commands)],
        ..start()
    };
    let (log, state) = (Term(1), Term(0));
    assert_eq!(error(ahead), StartError::LogAheadOfTerm { log, state });
    let voted = HardState {
        term: Term(0),
        voted_for: Some(node_id(2)),
    };
    let vote = Start {
        hard_state: voted,
        ..start()
    };
    assert_eq!(error(vote), StartError::VoteInTermZero);
    let last = place(0, 7);
    let snapshot = Some(Snapshot {
        last,
        bytes: 1,
        id: 1,
    });
    let elsewhere = Start {
        snapshot,
        ..start()
    };
    assert_eq!(error(elsewhere), StartError::SnapshotNotInLog(LogIndex(7)));
    let nobody = Start {
        configs: Vec::new(),
        ..start()
    };
    assert_eq!(error(nobody), StartError::NoConfig);
    let mut configs = start().configs;
    configs[0].index = LogIndex(1);
    let beyond = Start { configs, ..start() };
    assert_eq!(error(beyond), StartError::ConfigNotInLog(LogIndex(1)));
    let mut configs = start().configs;
    configs.push(ConfigEntry {
        index: LogIndex(1),
        config: configs[0].config,
    });
    let stray = Start {
        extents: vec![extent(1, 0, commands)],
        configs,
        ..start()
    };
    assert_eq!(error(stray), StartError::ConfigNotInLog(LogIndex(1)));
    let backwards = Start {
        extents: vec![extent(2, 0, commands), extent(1, 0, commands)],
        ..start()
    };
    assert_eq!(error(backwards), StartError::LogOutOfOrder(LogIndex(1)));
    let unknown = Start {
        extents: vec![extent(1, 0, ExtentKind::Config)],
        ..start()
    };
    assert_eq!(error(unknown), StartError::ConfigNotInLog(LogIndex(1)));
    for timing in [
        Timing {
            heartbeat_ms: 0,
            ..Timing::default()
        },
        Timing {
            election_ms: 99,
            ..Timing::default()
        },
        Timing {
            disk_hung_ms: 0,
            ..Timing::default()
        },
    ] {
        assert_eq!(error(Start { timing, ..start() }), StartError::Timing);
    }
}
