//! What a step of the core costs: time and allocations for a batch of 64 commands, on the leader with
//! two followers and on a follower. `make raft-step` prints it, optimised.

use std::time::Instant;

use allocation_counter::measure;
use ticketing_raftlog::raft::{
    AppendKind, Body, Config, ConfigEntry, Core, EntryId, Input, Message, Output, Role, Run,
    Snapshot, Start, Timing,
};
use ticketing_raftlog::{HardState, LogIndex, NodeId, Term};

const BATCH: u32 = 64;
const BATCH_BYTES: u64 = BATCH as u64 * 48;
const BATCHES: u64 = 20_000;
/// A snapshot is taken, and the log forgotten up to there, after so many.
const COMPACT_EVERY: u64 = 1_000;
/// Where real logs begin.
const BASE: LogIndex = LogIndex(1 << 50);
/// In all of the batches together: none for each command, nor for each batch.
const MOST_ALLOCATIONS: u64 = 64;
const MOST_NS_PER_COMMAND: f64 = 100.0;

fn node(n: u8) -> NodeId {
    NodeId([n; 16])
}

fn core(n: u8) -> Core {
    let config = Config::new(&[node(1), node(2), node(3)], &[]).expect("three voters");
    let base = EntryId {
        term: Term(0),
        index: BASE,
    };
    Core::new(Start {
        node_id: node(n),
        hard_state: HardState::default(),
        base,
        extents: Vec::new(),
        snapshot: None,
        configs: vec![ConfigEntry {
            index: BASE,
            config,
        }],
        timing: Timing::default(),
        seed: u64::from(n),
        #[cfg(feature = "bugs")]
        bug: None,
    })
    .expect("a new node")
}

fn received(from: u8, term: Term, body: Body) -> Input {
    Input::Received {
        from: node(from),
        message: Message { term, body },
    }
}

/// A leader of three, both followers streaming.
fn leader(outputs: &mut Vec<Output>) -> Core {
    let mut core = core(1);
    core.step(Input::Tick { now_ms: 0 }, outputs);
    let now_ms = core.next_deadline_ms();
    core.step(Input::Tick { now_ms }, outputs);
    let granted = true;
    core.step(
        received(2, Term(1), Body::PreVoteAnswer { granted }),
        outputs,
    );
    let hard = outputs.iter().find_map(|output| match output {
        Output::PersistHardState(hard) => Some(*hard),
        _ => None,
    });
    core.step(Input::HardStatePersisted(hard.expect("it stands")), outputs);
    core.step(received(2, Term(1), Body::VoteAnswer { granted }), outputs);
    assert_eq!(core.role(), Role::Leader);
    acknowledge(&mut core, outputs);
    core
}

/// Everything is persisted here and there.
fn acknowledge(core: &mut Core, outputs: &mut Vec<Output>) {
    let up_to = core.last_index();
    let epoch = core.epoch();
    core.step(Input::Persisted { epoch, up_to }, outputs);
    for follower in [2, 3] {
        core.step(
            received(follower, core.term(), Body::Matched { up_to }),
            outputs,
        );
    }
    assert_eq!(core.commit(), up_to);
}

fn compact(core: &mut Core, outputs: &mut Vec<Output>) {
    let index = core.commit();
    let term = core.term_at(index).expect("in the log");
    let snapshot = Snapshot {
        last: EntryId { term, index },
        bytes: 1,
        id: 1,
    };
    core.step(
        Input::Compacted {
            snapshot,
            first_index: index.next(),
        },
        outputs,
    );
}

fn check(name: &str, mut batch: impl FnMut(u64)) {
    // Buffers grow to their size first.
    (0..2 * COMPACT_EVERY).for_each(&mut batch);
    let begin = Instant::now();
    let allocated = measure(|| (0..BATCHES).for_each(&mut batch));
    let ns = begin.elapsed().as_nanos() as f64 / (BATCHES * u64::from(BATCH)) as f64;
    println!(
        "{name}: {ns:.1} ns a command in batches of {BATCH}, {} allocations in {BATCHES} batches",
        allocated.count_total
    );
    assert!(allocated.count_total <= MOST_ALLOCATIONS, "{allocated:?}");
    if !cfg!(debug_assertions) {
        assert!(ns < MOST_NS_PER_COMMAND, "{ns:.1} ns a command");
    }
}

#[test]
fn a_leaders_batch_costs_little_and_allocates_nothing() {
    let mut outputs = Vec::new();
    let mut core = leader(&mut outputs);
    check("leader, two followers", |number| {
        outputs.clear();
        let propose = Input::Propose {
            count: BATCH,
            bytes: BATCH_BYTES,
        };
        core.step(propose, &mut outputs);
        let sent = outputs.iter().filter(|output| {
            matches!(output, Output::Send { message, .. }
                if matches!(message.body, Body::Append { run, .. } if run.count == BATCH))
        });
        assert_eq!(sent.count(), 2, "to both followers, without waiting");
        acknowledge(&mut core, &mut outputs);
        if number % COMPACT_EVERY == 0 {
            compact(&mut core, &mut outputs);
        }
    });
}

#[test]
fn a_followers_batch_costs_little_and_allocates_nothing() {
    let mut outputs = Vec::new();
    let mut core = core(2);
    core.step(Input::Tick { now_ms: 0 }, &mut outputs);
    let term = Term(1);
    let heartbeat = Body::Heartbeat {
        round: 1,
        commit: BASE,
        rank: 0,
    };
    core.step(received(1, term, heartbeat), &mut outputs);
    let voted_for = None;
    core.step(
        Input::HardStatePersisted(HardState { term, voted_for }),
        &mut outputs,
    );
    let mut previous = EntryId {
        term: Term(0),
        index: BASE,
    };
    check("follower", |number| {
        outputs.clear();
        let body = Body::Append {
            previous,
            run: Run {
                term,
                count: BATCH,
                bytes: BATCH_BYTES,
                kind: AppendKind::Commands,
            },
            commit: previous.index,
        };
        core.step(received(1, term, body), &mut outputs);
        let up_to = core.last_index();
        let epoch = core.epoch();
        core.step(Input::Persisted { epoch, up_to }, &mut outputs);
        let told = outputs.iter().any(|output| {
            matches!(output, Output::Send { message, .. } if message.body == Body::Matched { up_to })
        });
        assert!(told, "acknowledged once persisted");
        previous = EntryId { term, index: up_to };
        if number % COMPACT_EVERY == 1 {
            compact(&mut core, &mut outputs);
        }
    });
}
