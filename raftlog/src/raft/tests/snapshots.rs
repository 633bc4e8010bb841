//! Snapshots that come at the wrong time: overtaken, answered late, or in each other's way.

use super::net::node_id;
use crate::raft::{
    AppendKind, Body, Config, ConfigEntry, Core, EntryId, Input, Message, Output, Run, Snapshot,
    Start, Timing,
};
use crate::types::{HardState, LogIndex, NodeId, Term};

const SIZE: u32 = 100;

fn place(index: u64) -> EntryId {
    EntryId {
        term: Term(u64::from(index > 0)),
        index: LogIndex(index),
    }
}

fn snapshot(last: u64) -> Snapshot {
    Snapshot {
        last: place(last),
        bytes: u64::from(SIZE),
        id: last,
    }
}

fn members() -> Config {
    let ids: Vec<NodeId> = (1..=3).map(node_id).collect();
    Config::new(&ids, &[]).expect("valid")
}

/// Node 1 of three, whose log is empty, and which has persisted that it is in term 1.
fn follower() -> Core {
    let hard_state = HardState {
        term: Term(1),
        voted_for: None,
    };
    let start = Start {
        node_id: node_id(1),
        hard_state,
        base: EntryId::default(),
        extents: Vec::new(),
        snapshot: None,
        configs: vec![ConfigEntry {
            index: LogIndex(0),
            config: members(),
        }],
        timing: Timing::default(),
        seed: 1,
        #[cfg(feature = "bugs")]
        bug: None,
    };
    let mut core = Core::new(start).expect("one node's state");
    assert_eq!(core.next_deadline_ms(), 0, "a tick is due at once");
    steps(&mut core, Input::Tick { now_ms: 7 });
    assert!(core.next_deadline_ms() > 7);
    core
}

fn steps(core: &mut Core, input: Input) -> Vec<Output> {
    let mut outputs = Vec::new();
    core.step(input, &mut outputs);
    outputs
}

fn from_leader(body: Body) -> Input {
    Input::Received {
        from: node_id(2),
        message: Message {
            term: Term(1),
            body,
        },
    }
}

fn chunk(snapshot: Snapshot) -> Input {
    chunk_with(snapshot, 0)
}

fn chunk_with(snapshot: Snapshot, config_index: u64) -> Input {
    from_leader(Body::SnapshotChunk {
        snapshot,
        config: ConfigEntry {
            index: LogIndex(config_index),
            config: members(),
        },
        offset: 0,
        bytes: SIZE,
    })
}

fn entries(count: u32) -> Input {
    from_leader(Body::Append {
        previous: place(0),
        run: Run {
            term: Term(1),
            count,
            bytes: 8,
            kind: AppendKind::Commands,
        },
        commit: LogIndex(0),
    })
}

fn stored(snapshot: Snapshot) -> Input {
    Input::SnapshotChunkStored {
        snapshot,
        next_offset: snapshot.bytes,
    }
}

fn installs(outputs: &[Output], wanted: Snapshot) -> bool {
    outputs
        .iter()
        .any(|o| matches!(o, Output::InstallSnapshot { snapshot, .. } if *snapshot == wanted))
}

#[test]
fn a_snapshot_that_the_log_overtook_is_not_installed() {
    let mut core = follower();
    steps(&mut core, chunk(snapshot(5)));
    steps(&mut core, entries(6));
    assert_eq!(core.last_index(), LogIndex(6));
    let outputs = steps(&mut core, stored(snapshot(5)));
    assert!(!installs(&outputs, snapshot(5)), "{outputs:?}");
    // The log goes on; nothing of the snapshot is left that another would trip over.
    steps(&mut core, chunk(snapshot(9)));
    let outputs = steps(&mut core, stored(snapshot(9)));
    assert!(installs(&outputs, snapshot(9)), "{outputs:?}");
}

#[test]
fn while_one_snapshot_is_installed_no_other_is_begun() {
    let mut core = follower();
    steps(&mut core, chunk(snapshot(5)));
    assert!(installs(
        &steps(&mut core, stored(snapshot(5))),
        snapshot(5)
    ));
    assert_eq!(steps(&mut core, chunk(snapshot(9))), []);
    let valid = true;
    let installed = Input::SnapshotInstalled {
        snapshot: snapshot(5),
        valid,
    };
    steps(&mut core, installed);
    assert_eq!(core.commit(), LogIndex(5));
    let outputs = steps(&mut core, chunk(snapshot(9)));
    assert!(
        matches!(outputs[..], [Output::StoreSnapshotChunk { .. }]),
        "{outputs:?}"
    );
}

#[test]
fn reports_of_a_snapshot_that_is_not_wanted_any_more_change_nothing() {
    let mut core = follower();
    let installed = |snapshot| Input::SnapshotInstalled {
        snapshot,
        valid: true,
    };
    assert_eq!(steps(&mut core, stored(snapshot(5))), []);
    assert_eq!(steps(&mut core, installed(snapshot(5))), []);
    // Another one took its place while its chunk was being stored.
    steps(&mut core, chunk(snapshot(5)));
    steps(&mut core, chunk(snapshot(9)));
    assert_eq!(steps(&mut core, stored(snapshot(5))), []);
    assert_eq!(
        steps(&mut core, installed(snapshot(9))),
        [],
        "it is not all there"
    );
    let nothing = LogIndex(0);
    assert_eq!((core.commit(), core.last_index()), (nothing, nothing));
}

#[test]
fn a_snapshot_that_was_being_made_when_a_newer_one_was_installed_is_ignored() {
    let mut core = follower();
    steps(&mut core, chunk(snapshot(9)));
    steps(&mut core, stored(snapshot(9)));
    let installed = Input::SnapshotInstalled {
        snapshot: snapshot(9),
        valid: true,
    };
    steps(&mut core, installed);
    let late = Input::Compacted {
        snapshot: snapshot(5),
        first_index: LogIndex(6),
    };
    assert_eq!(steps(&mut core, late), []);
    assert_eq!(core.last_index(), LogIndex(9));
    assert_eq!(
        core.term_at(LogIndex(9)),
        Some(Term(1)),
        "the log is behind the newer one"
    );
}

#[test]
fn the_configuration_of_a_snapshot_is_at_its_last_index_or_before() {
    for (config_index, is_taken) in [(0, true), (50, true), (51, false)] {
        let mut core = follower();
        let outputs = steps(&mut core, chunk_with(snapshot(50), config_index));
        let store = |output: &Output| matches!(output, Output::StoreSnapshotChunk { .. });
        assert_eq!(outputs.iter().any(store), is_taken, "at {config_index}");
    }
}
