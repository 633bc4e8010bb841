//! Verdicts, and what is remembered.

use super::*;
use crate::limits::{MAX_LEFT_NODES, MAX_REMEMBERED_NODES};

const CLUSTER: ClusterId = ClusterId([7; 16]);
const NODE: NodeId = node(1);

const fn node(n: u8) -> NodeId {
    NodeId([n; 16])
}

fn numbered(n: u16) -> NodeId {
    let mut id = [0xee; 16];
    id[..2].copy_from_slice(&n.to_le_bytes());
    NodeId(id)
}

fn config(voters: [u8; 3], learners: &[u8]) -> Config {
    let learners: Vec<NodeId> = learners.iter().map(|n| node(*n)).collect();
    Config::new(&voters.map(node), &learners).expect("valid")
}

fn claim(folder: u8, starts: u64, process: u8, term: u64, last_index: u64) -> Claim {
    Claim {
        cluster_id: CLUSTER,
        node_id: NODE,
        incarnation: Incarnation([folder; 16]),
        starts,
        process: ProcessId([process; 16]),
        term: Term(term),
        last_index: LogIndex(last_index),
    }
}

/// Folder 1, third start, process 30; acknowledged 50 in term 4, of which 40 is committed.
fn memory() -> Memory {
    let mut memory = Memory::first(&claim(1, 3, 30, 4, 20));
    memory.acknowledges(Term(4), LogIndex(50));
    memory.commits(Term(4), LogIndex(40));
    memory
}

fn judged(memories: &Memories, live: Option<&Live>, claim: &Claim) -> Result<Memory, Refusal> {
    let known = Known {
        cluster_id: CLUSTER,
        config: &config([1, 2, 3], &[]),
        leads: true,
        memories,
    };
    known.judge(live, claim)
}

fn remembered() -> Memories {
    let mut memories = Memories::default();
    memories.remember(&config([1, 2, 3], &[]), NODE, memory());
    memories
}

fn verdict(claim: &Claim) -> Result<(), Refusal> {
    judged(&remembered(), None, claim).map(|_| ())
}

#[test]
fn who_was_never_seen_is_believed_and_remembered() {
    let first = claim(1, 1, 10, 0, 0);
    let mut memories = Memories::default();
    let memory = judged(&memories, None, &first).expect("nobody remembers anything");
    assert_eq!(memory, Memory::first(&first));
    memories.remember(&config([1, 2, 3], &[]), NODE, memory);
    assert_eq!(
        judged(&memories, None, &first),
        Ok(memory),
        "it connects again"
    );
}

#[test]
fn an_ordinary_restart_is_let_in() {
    assert_eq!(verdict(&claim(1, 4, 40, 4, 50)), Ok(()));
    assert_eq!(verdict(&claim(1, 3, 30, 4, 50)), Ok(()), "the same process");
    let next = judged(&remembered(), None, &claim(1, 9, 90, 5, 40)).expect("truncated since");
    assert_eq!((next.starts, next.process), (9, ProcessId([90; 16])));
    assert_eq!(next.committed, LogIndex(40));
}

#[test]
fn an_empty_folder_is_refused() {
    let wiped = claim(2, 1, 40, 0, 0);
    assert_eq!(verdict(&wiped), Err(Refusal::AnotherFolder(NODE)));
}

#[test]
fn copies_and_old_folders_are_refused() {
    let seen_before = |claimed| Refusal::SeenBefore {
        node: NODE,
        claimed,
        seen: 3,
    };
    assert_eq!(
        verdict(&claim(1, 3, 40, 4, 50)),
        Err(seen_before(3)),
        "another process"
    );
    assert_eq!(verdict(&claim(1, 2, 20, 4, 50)), Err(seen_before(2)));
    assert_eq!(
        verdict(&claim(1, 4, 30, 4, 50)),
        Err(seen_before(4)),
        "a process starts once"
    );
}

#[test]
fn while_a_process_answers_no_other_takes_its_name() {
    let memories = remembered();
    let live = |silent_ms| Live {
        process: ProcessId([30; 16]),
        silent_ms,
    };
    for silent_ms in [0, PEER_SILENT_MS - 1] {
        // A copy that was started in its turn raised the counter as a restart does.
        for starts in [2, 3, 4, 400] {
            let second = claim(1, starts, 40, 4, 50);
            assert_eq!(
                judged(&memories, Some(&live(silent_ms)), &second),
                Err(Refusal::RunsTwice(NODE)),
                "start {starts}"
            );
        }
        let same = claim(1, 3, 30, 4, 50);
        assert!(
            judged(&memories, Some(&live(silent_ms)), &same).is_ok(),
            "it connects again"
        );
    }
}

#[test]
fn who_fell_silent_loses_its_name_and_is_refused_when_it_wakes_up() {
    let mut memories = remembered();
    let silent = Live {
        process: ProcessId([30; 16]),
        silent_ms: PEER_SILENT_MS,
    };
    let behind = claim(1, 3, 40, 4, 50);
    assert!(
        matches!(
            judged(&memories, Some(&silent), &behind),
            Err(Refusal::SeenBefore { .. })
        ),
        "silence does not help a copy that did not raise its counter"
    );
    let newcomer = claim(1, 4, 40, 4, 50);
    let next = judged(&memories, Some(&silent), &newcomer).expect("a restart");
    memories.remember(&config([1, 2, 3], &[]), NODE, next);
    let earlier = claim(1, 3, 30, 4, 50);
    let seen_before = Refusal::SeenBefore {
        node: NODE,
        claimed: 3,
        seen: 4,
    };
    assert_eq!(judged(&memories, None, &earlier), Err(seen_before));
    let live = Live {
        process: ProcessId([40; 16]),
        silent_ms: 0,
    };
    assert_eq!(
        judged(&memories, Some(&live), &earlier),
        Err(Refusal::RunsTwice(NODE)),
        "and told that the other one lives while that does"
    );
}

#[test]
fn a_quiet_connection_is_asked_before_it_counts_as_dead() {
    let live = |silent_ms| Live {
        process: ProcessId([30; 16]),
        silent_ms,
    };
    assert!(!live(PEER_ASK_MS - 1).is_to_be_asked() && live(PEER_ASK_MS).is_to_be_asked());
    assert!(live(PEER_SILENT_MS - 1).is_alive() && !live(PEER_SILENT_MS).is_alive());
}

#[test]
fn a_log_that_lost_what_it_acknowledged_is_refused() {
    let lost = |has, needs| {
        Err(Refusal::LogLost {
            node: NODE,
            has: LogIndex(has),
            needs: LogIndex(needs),
        })
    };
    assert_eq!(
        verdict(&claim(1, 4, 40, 4, 49)),
        lost(49, 50),
        "in the same term"
    );
    assert_eq!(verdict(&claim(1, 4, 40, 5, 39)), lost(39, 40), "committed");
    assert_eq!(
        verdict(&claim(1, 4, 40, 5, 40)),
        Ok(()),
        "a later leader may have truncated"
    );
    assert_eq!(
        verdict(&claim(1, 4, 40, 3, 60)),
        lost(60, 40),
        "its term went back"
    );
}

#[test]
fn what_is_remembered_only_grows() {
    let mut memory = memory();
    let before = memory;
    memory.acknowledges(Term(3), LogIndex(90));
    memory.acknowledges(Term(4), LogIndex(45));
    memory.commits(Term(3), LogIndex(90));
    memory.commits(Term(4), LogIndex(30));
    assert_eq!(memory, before);
    memory.acknowledges(Term(6), LogIndex(42));
    memory.commits(Term(6), LogIndex(60));
    assert_eq!(
        (memory.acknowledged.1, memory.committed),
        (LogIndex(42), LogIndex(42))
    );
}

#[test]
fn another_cluster_is_refused_before_anything_else() {
    let foreign = Claim {
        cluster_id: ClusterId([8; 16]),
        ..claim(2, 1, 40, 0, 0)
    };
    assert_eq!(verdict(&foreign), Err(Refusal::OtherCluster(NODE)));
}

#[test]
fn who_left_is_told_so_and_who_was_never_there_by_the_leader_only() {
    let (before, now) = (config([1, 2, 3], &[5]), config([4, 2, 3], &[]));
    let mut memories = remembered();
    assert!(memories.committed(&before, &now));
    assert!(!memories.committed(&now, &now), "nobody left");
    assert_eq!(memories.of(NODE), None, "its folder is of no interest now");
    let asked = |config: &Config, leads, node_id| {
        let known = Known {
            cluster_id: CLUSTER,
            config,
            leads,
            memories: &memories,
        };
        let claim = Claim {
            node_id,
            ..claim(1, 4, 40, 4, 50)
        };
        known.judge(None, &claim).map(|_| ())
    };
    for leads in [false, true] {
        for left in [1, 5] {
            let told = asked(&now, leads, node(left));
            assert_eq!(told, Err(Refusal::Replaced(node(left))));
        }
        assert_eq!(asked(&now, leads, node(4)), Ok(()));
        let unknown = Config::unknown();
        assert_eq!(
            asked(&unknown, false, node(6)),
            Ok(()),
            "it knows no members"
        );
    }
    let stranger = node(6);
    assert_eq!(
        asked(&now, true, stranger),
        Err(Refusal::NotAMember(stranger))
    );
    assert_eq!(
        asked(&now, false, stranger),
        Ok(()),
        "it may have come while this node was away"
    );
    assert_eq!(
        asked(&before, true, NODE),
        Ok(()),
        "a member, whatever is remembered"
    );
}

#[test]
fn every_refusal_has_a_consequence() {
    let expect = [
        (Refusal::OtherCluster(NODE), Consequence::Retry),
        (Refusal::NotAMember(NODE), Consequence::Retry),
        (Refusal::RunsTwice(NODE), Consequence::RetryForAWhile),
        (Refusal::Replaced(NODE), Consequence::Exit),
        (Refusal::AnotherFolder(NODE), Consequence::Exit),
        (
            Refusal::SeenBefore {
                node: NODE,
                claimed: 1,
                seen: 2,
            },
            Consequence::Exit,
        ),
        (
            Refusal::LogLost {
                node: NODE,
                has: LogIndex(1),
                needs: LogIndex(2),
            },
            Consequence::Exit,
        ),
    ];
    for (refusal, consequence) in expect {
        assert_eq!(refusal.reason().consequence(), consequence, "{refusal}");
    }
}

#[test]
fn members_are_remembered_and_others_forgotten_first() {
    let (members, memory) = (config([1, 2, 3], &[]), memory());
    let mut memories = Memories::default();
    memories.remember(&members, NODE, memory);
    for n in 1..MAX_REMEMBERED_NODES as u16 {
        memories.remember(&members, numbered(n), memory);
    }
    assert_eq!(memories.counts().0, MAX_REMEMBERED_NODES);
    memories.remember(&members, numbered(2), memory);
    assert!(
        memories.of(numbered(1)).is_some(),
        "there is room at the bound"
    );
    memories.remember(&members, numbered(900), memory);
    assert_eq!(memories.counts().0, MAX_REMEMBERED_NODES);
    assert!(memories.of(numbered(1)).is_none() && memories.of(numbered(2)).is_some());
    assert!(memories.of(NODE).is_some());
}

#[test]
fn the_last_to_leave_are_remembered() {
    let mut memories = Memories::default();
    let with = |n| Config::new(&[1, 2, 3].map(node), &[numbered(n)]).expect("valid");
    let without = config([1, 2, 3], &[]);
    for n in 0..MAX_LEFT_NODES as u16 {
        assert!(memories.committed(&with(n), &without));
    }
    assert!(memories.has_left(numbered(0)));
    assert!(memories.committed(&with(900), &without));
    assert_eq!(memories.counts().1, MAX_LEFT_NODES);
    assert!(!memories.has_left(numbered(0)) && memories.has_left(numbered(1)));
    assert!(memories.committed(&with(1), &without));
    assert_eq!(
        memories.counts().1,
        MAX_LEFT_NODES,
        "it stands in it only once"
    );
    assert!(memories.committed(&with(901), &without));
    assert!(memories.has_left(numbered(1)) && !memories.has_left(numbered(2)));
}

#[test]
fn memories_come_back_from_their_bytes_and_from_no_others() {
    let members = config([1, 2, 3], &[]);
    let mut memories = remembered();
    memories.remember(&members, node(2), Memory::first(&claim(5, 1, 2, 3, 4)));
    memories.committed(&config([1, 2, 3], &[8, 9]), &members);
    let bytes = memories.encode();
    let (nodes, left) = memories.counts();
    assert_eq!((nodes, left), (2, 2));
    assert_eq!(
        Memories::decode(nodes, left, &bytes),
        Some(memories.clone())
    );
    for length in 0..bytes.len() {
        assert_eq!(Memories::decode(nodes, left, &bytes[..length]), None);
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(Memories::decode(nodes, left, &longer), None);
    let twice = bytes[..80].repeat(2);
    assert_eq!(Memories::decode(2, 0, &twice), None, "one node twice");
    assert_eq!(
        Memories::decode(0, 2, &[1; 32]),
        None,
        "one that left twice"
    );

    let mut full = Memories::default();
    for n in 0..MAX_REMEMBERED_NODES as u16 {
        full.remember(&members, numbered(n), memory());
    }
    for n in 0..MAX_LEFT_NODES as u16 {
        let with = Config::new(&[1, 2, 3].map(node), &[numbered(1_000 + n)]).expect("valid");
        full.committed(&with, &members);
    }
    let (nodes, left) = full.counts();
    assert_eq!((nodes, left), (MAX_REMEMBERED_NODES, MAX_LEFT_NODES));
    let bytes = full.encode();
    assert_eq!(Memories::decode(nodes, left, &bytes), Some(full));
    let one_more = [&bytes[..80], &bytes[..]].concat();
    assert_eq!(Memories::decode(nodes + 1, left, &one_more), None);
    let one_more = [&bytes[..], &[1; 16]].concat();
    assert_eq!(Memories::decode(nodes, left + 1, &one_more), None);
}
