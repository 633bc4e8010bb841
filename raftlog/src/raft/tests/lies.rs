//! Nothing that a peer sends makes a core panic: any message, from anybody, in any state.

use proptest::prelude::*;

use super::net::node_id;
use crate::limits::{MAX_PEER_INDEX, MAX_TERM};
use crate::raft::jitter::Jitter;
use crate::raft::{
    AppendKind, Body, Change, Config, ConfigEntry, Core, EntryId, Input, Message, Output,
    Replacement, Report, Run, Slot, Snapshot, Start, Timing,
};
use crate::types::{HardState, LogIndex, Term};

/// Small numbers, and those at every bound.
fn number(dice: &mut Jitter, bound: u64) -> u64 {
    match dice.between(0, 12) {
        0 => bound,
        1 => bound.saturating_add(1),
        2 => bound - 1,
        3 => u64::MAX,
        _ => dice.between(0, 12),
    }
}

fn place(dice: &mut Jitter) -> EntryId {
    EntryId {
        term: Term(number(dice, MAX_TERM)),
        index: LogIndex(number(dice, MAX_PEER_INDEX)),
    }
}

fn config(dice: &mut Jitter) -> Config {
    let ids: Vec<_> = (1..=5).map(node_id).collect();
    let replacement = (dice.between(0, 2) == 0).then_some(Replacement {
        slot: Slot(dice.between(0, 3) as u8),
        new: node_id(6),
    });
    match dice.between(0, 8) {
        0 => Config::unknown(),
        1 => Config::new(&ids[..1], &[]).expect("valid"),
        2 => Config::joint(&ids, replacement, &[]).expect("valid"),
        _ => Config::joint(&ids[..3], replacement, &ids[3..4]).expect("valid"),
    }
}

fn body(dice: &mut Jitter) -> Body {
    let snapshot = Snapshot {
        last: place(dice),
        bytes: number(dice, 20),
        id: dice.between(0, 2),
    };
    let flag = dice.between(0, 2) == 0;
    match dice.between(0, 20) {
        0 => Body::PreVote { last: place(dice) },
        1 => Body::PreVoteAnswer { granted: flag },
        2 => Body::Vote {
            last: place(dice),
            transfer: flag,
        },
        3 => Body::VoteAnswer { granted: flag },
        4..8 => Body::Append {
            previous: place(dice),
            run: Run {
                term: Term(number(dice, MAX_TERM)),
                count: number(dice, 1 << 14) as u32,
                bytes: number(dice, 1 << 20),
                kind: match dice.between(0, 4) {
                    0 => AppendKind::Noop,
                    1 => AppendKind::Config(config(dice)),
                    _ => AppendKind::Commands,
                },
            },
            commit: LogIndex(number(dice, MAX_PEER_INDEX)),
        },
        8 | 9 => Body::Matched {
            up_to: LogIndex(number(dice, MAX_PEER_INDEX)),
        },
        10 => Body::Conflict {
            refused: LogIndex(number(dice, MAX_PEER_INDEX)),
            hint: place(dice),
        },
        11 => Body::Heartbeat {
            round: number(dice, 1 << 40),
            commit: LogIndex(number(dice, MAX_PEER_INDEX)),
            rank: number(dice, 255) as u8,
        },
        12 => Body::HeartbeatAnswer {
            round: number(dice, 1 << 40),
            received: LogIndex(number(dice, MAX_PEER_INDEX)),
            report: Report {
                has_room: flag,
                fit_to_lead: true,
            },
        },
        13 | 14 => Body::SnapshotChunk {
            snapshot,
            config: config(dice),
            offset: number(dice, 20),
            bytes: number(dice, 20) as u32,
        },
        15 => Body::SnapshotAnswer {
            snapshot,
            next_offset: number(dice, 20),
        },
        16 => Body::TimeoutNow,
        17 => Body::NotLeading,
        18 => Body::DoYouLead,
        _ => match flag {
            true => Body::NeedsSnapshot,
            false => Body::TermOver,
        },
    }
}

/// A core whose shell is honest and at once done with everything.
struct Shell {
    core: Core,
    now_ms: u64,
}

impl Shell {
    fn step(&mut self, input: Input, dice: &mut Jitter) {
        let mut outputs = Vec::new();
        self.core.step(input, &mut outputs);
        for output in outputs {
            let report = match output {
                Output::PersistHardState(hard) => Input::HardStatePersisted(hard),
                Output::Append { .. } => Input::Persisted {
                    epoch: self.core.epoch(),
                    up_to: self.core.last_index(),
                },
                Output::StoreSnapshotChunk {
                    snapshot,
                    offset,
                    bytes,
                } => Input::SnapshotChunkStored {
                    snapshot,
                    next_offset: offset + u64::from(bytes),
                },
                Output::InstallSnapshot { snapshot, .. } => Input::SnapshotInstalled {
                    snapshot,
                    valid: dice.between(0, 3) > 0,
                },
                _ => continue,
            };
            // Sometimes the report is never made.
            if dice.between(0, 20) > 0 {
                self.step(report, dice);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn no_message_makes_a_core_panic(seed in any::<u64>()) {
        let mut dice = Jitter::new(seed);
        let ids: Vec<_> = (1..=3).map(node_id).collect();
        let start = Start {
            node_id: node_id(1),
            hard_state: HardState::default(),
            base: EntryId::default(),
            extents: Vec::new(),
            snapshot: None,
            configs: vec![ConfigEntry {
                index: LogIndex(0),
                config: Config::new(&ids, &[node_id(4)]).expect("valid"),
            }],
            timing: Timing { heartbeat_ms: 5, election_ms: 20, disk_hung_ms: 100 },
            seed,
            #[cfg(feature = "bugs")]
            bug: None,
        };
        let core = Core::new(start).expect("one node's state");
        let mut shell = Shell { core, now_ms: 0 };
        for _ in 0..300 {
            let peer = node_id(dice.between(1, 8) as u8);
            let input = match dice.between(0, 12) {
                0 | 1 => {
                    shell.now_ms += dice.between(0, 30);
                    Input::Tick { now_ms: shell.now_ms }
                }
                2 => Input::Propose { count: 3, bytes: 30 },
                3 => match dice.between(0, 7) {
                    6 if shell.core.commit() > LogIndex(0) => {
                        let index = shell.core.commit();
                        let term = shell.core.term_at(index).expect("in the log");
                        let last = EntryId { term, index };
                        let snapshot = Snapshot { last, bytes: 10, id: 3 };
                        Input::Compacted { snapshot, first_index: index.next() }
                    }
                    0 => Input::Confirm { request: 1 },
                    1 => Input::Transfer { to: None },
                    2 => Input::PeerLost { peer },
                    3 => Input::PeerRefused { peer },
                    4 => Input::Change(Change::Replace {
                        slot: Slot(1),
                        old: node_id(2),
                        new: node_id(4),
                    }),
                    _ => Input::PeerConnected { peer },
                },
                _ => {
                    // Mostly of the current term, so that it gets somewhere.
                    let term = match dice.between(0, 4) {
                        0 => Term(number(&mut dice, MAX_TERM)),
                        near => Term(shell.core.term().0 + near / 3),
                    };
                    let message = Message { term, body: body(&mut dice) };
                    Input::Received { from: peer, message }
                }
            };
            shell.step(input, &mut dice);
        }
    }
}
