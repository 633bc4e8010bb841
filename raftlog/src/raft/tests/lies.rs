//! Nothing that a peer sends makes a core panic: any message, from anybody, in any state.

use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::net::node_id;
use crate::limits::{MAX_PEER_INDEX, MAX_TERM};
use crate::raft::jitter::Jitter;
use crate::raft::{
    AppendKind, Body, Change, Config, ConfigEntry, Core, EntryId, Input, Message, Output,
    Replacement, Report, Role, Run, Slot, Snapshot, Start, Timing,
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
            config: ConfigEntry {
                index: LogIndex(number(dice, 60)),
                config: config(dice),
            },
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
            if dice.between(0, 40) > 0 {
                self.step(report, dice);
            }
        }
    }

    fn hear(&mut self, term: Term, body: Body, dice: &mut Jitter) {
        let from = node_id(2);
        let message = Message { term, body };
        self.step(Input::Received { from, message }, dice);
    }

    /// Helps the core to lead, and to commit what it has.
    fn help(&mut self, dice: &mut Jitter) {
        if self.core.role() != Role::Leader {
            self.now_ms += 50;
            let now_ms = self.now_ms;
            self.step(Input::Tick { now_ms }, dice);
            let term = Term(self.core.term().0.saturating_add(1));
            let granted = true;
            self.hear(term, Body::PreVoteAnswer { granted }, dice);
            self.hear(self.core.term(), Body::VoteAnswer { granted }, dice);
        }
        let up_to = self.core.last_index();
        self.hear(self.core.term(), Body::Matched { up_to }, dice);
    }
}

/// How many messages a leader was told, over all runs.
static LED: AtomicU32 = AtomicU32::new(0);

#[test]
fn no_message_makes_a_core_panic() {
    any_message();
    let led = LED.load(Ordering::Relaxed);
    assert!(led > 100_000, "leaders were lied to only {led} times");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    fn any_message(seed in any::<u64>()) {
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
        let helped = seed % 2 == 0;
        let mut led = 0;
        for _ in 0..300 {
            if helped && dice.between(0, 10) == 0 {
                shell.help(&mut dice);
            }
            led += u32::from(shell.core.role() == Role::Leader);
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
                    let term = match dice.between(0, 40) {
                        0 => Term(number(&mut dice, MAX_TERM)),
                        1 | 2 => Term(shell.core.term().0 + 1),
                        _ => shell.core.term(),
                    };
                    let message = Message { term, body: body(&mut dice) };
                    Input::Received { from: peer, message }
                }
            };
            shell.step(input, &mut dice);
        }
        LED.fetch_add(led, Ordering::Relaxed);
    }
}
