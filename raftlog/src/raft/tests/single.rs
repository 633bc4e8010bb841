//! The single voter's core, step by step and against a naive model.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use crate::limits::{
    MAX_PROPOSAL_BYTES, MAX_RECORDS_PER_BATCH, MAX_UNCOMMITTED_BYTES, MAX_UNCOMMITTED_ENTRIES,
};
use crate::raft::{
    AppendKind, Change, ChangeRefusal, Core, Epoch, Input, Output, RefusalReason, Role, Source,
    Start,
};
use crate::types::{HardState, LogIndex, NodeId, Term};

const NODE: NodeId = NodeId([5; 16]);

fn start(last_index: u64, last_term: u64, term: u64) -> Core {
    let hard = HardState {
        term: Term(term),
        voted_for: None,
    };
    let start = Start::single(NODE, hard, LogIndex(last_index), Term(last_term));
    Core::new(start).expect("one node's state")
}

fn step(core: &mut Core, input: Input) -> Vec<Output> {
    let mut outputs = Vec::new();
    core.step(input, &mut outputs);
    outputs
}

fn voted(term: u64) -> HardState {
    HardState {
        term: Term(term),
        voted_for: Some(NODE),
    }
}

/// A leader in term 8 whose no-op, at 101, is not persisted yet.
fn leader() -> Core {
    let mut core = start(100, 6, 7);
    step(&mut core, Input::Tick { now_ms: 1 });
    step(&mut core, Input::HardStatePersisted(voted(8)));
    core
}

fn refused(core: &mut Core, input: Input) {
    assert!(
        catch_unwind(AssertUnwindSafe(|| step(core, input))).is_err(),
        "{input:?} passed"
    );
}

#[test]
fn a_single_voter_persists_its_vote_before_it_leads() {
    let mut core = start(100, 6, 7);
    assert_eq!(
        step(&mut core, Input::Tick { now_ms: 1 }),
        [
            Output::PersistHardState(voted(8)),
            Output::RoleChanged {
                role: Role::Candidate,
                term: Term(8),
                leader: None
            },
        ]
    );
    assert_eq!(step(&mut core, Input::Tick { now_ms: 2 }), [], "it waits");
    assert_eq!(core.term_start(), None);
    assert_eq!(
        step(&mut core, Input::HardStatePersisted(voted(8))),
        [
            Output::RoleChanged {
                role: Role::Leader,
                term: Term(8),
                leader: Some(NODE)
            },
            Output::Append {
                first: LogIndex(101),
                count: 1,
                term: Term(8),
                kind: AppendKind::Noop,
                source: Source::Own,
            },
        ]
    );
    assert_eq!(core.term_start(), Some(LogIndex(101)));
    assert_eq!(
        step(&mut core, Input::HardStatePersisted(voted(8))),
        [],
        "once"
    );
}

#[test]
fn an_older_vote_persisted_elects_nobody() {
    let mut core = start(100, 6, 7);
    step(&mut core, Input::Tick { now_ms: 1 });
    let older = HardState {
        term: Term(7),
        voted_for: None,
    };
    assert_eq!(step(&mut core, Input::HardStatePersisted(older)), []);
    assert_eq!(core.role(), Role::Candidate);
    refused(&mut core, Input::HardStatePersisted(voted(9)));
}

#[test]
fn entries_of_earlier_terms_commit_only_with_the_no_op() {
    let mut core = leader();
    assert_eq!(
        step(
            &mut core,
            Input::Persisted {
                epoch: Epoch(0),
                up_to: LogIndex(100)
            }
        ),
        []
    );
    assert_eq!(core.commit(), LogIndex(0));
    let commit = Output::Commit {
        up_to: LogIndex(101),
    };
    assert_eq!(
        step(
            &mut core,
            Input::Persisted {
                epoch: Epoch(0),
                up_to: LogIndex(101)
            }
        ),
        [commit]
    );
    assert_eq!(
        step(
            &mut core,
            Input::Persisted {
                epoch: Epoch(0),
                up_to: LogIndex(101)
            }
        ),
        [],
        "once"
    );
}

#[test]
fn a_single_node_has_no_members_to_change() {
    let change = Change::AddLearner {
        node: NodeId([9; 16]),
    };
    let reason = ChangeRefusal::SingleMode;
    let no = Output::ChangeRefused { change, reason };
    assert_eq!(step(&mut leader(), Input::Change(change)), [no]);
}

#[test]
fn only_a_leader_takes_proposals() {
    let proposal = Input::Propose {
        count: 3,
        bytes: 10,
    };
    let no = Output::ProposalRefused {
        count: 3,
        reason: RefusalReason::NotLeader,
    };
    let mut core = start(100, 6, 7);
    assert_eq!(step(&mut core, proposal), [no]);
    step(&mut core, Input::Tick { now_ms: 1 });
    assert_eq!(step(&mut core, proposal), [no]);
    step(&mut core, Input::HardStatePersisted(voted(8)));
    let append = Output::Append {
        first: LogIndex(102),
        count: 3,
        term: Term(8),
        kind: AppendKind::Commands,
        source: Source::Own,
    };
    assert_eq!(step(&mut core, proposal), [append]);
    assert_eq!(core.last_index(), LogIndex(104));
}

#[test]
fn uncommitted_entries_are_bounded() {
    let mut core = leader();
    step(
        &mut core,
        Input::Persisted {
            epoch: Epoch(0),
            up_to: LogIndex(101),
        },
    );
    let count = MAX_RECORDS_PER_BATCH;
    for _ in 0..MAX_UNCOMMITTED_ENTRIES / u64::from(count) {
        let outputs = step(&mut core, Input::Propose { count, bytes: 0 });
        assert!(matches!(outputs[..], [Output::Append { .. }]));
    }
    let one = Input::Propose { count: 1, bytes: 0 };
    let full = Output::ProposalRefused {
        count: 1,
        reason: RefusalReason::Full,
    };
    assert_eq!(step(&mut core, one), [full]);
    step(
        &mut core,
        Input::Persisted {
            epoch: Epoch(0),
            up_to: LogIndex(102),
        },
    );
    assert!(matches!(step(&mut core, one)[..], [Output::Append { .. }]));
    assert_eq!(step(&mut core, one), [full]);
}

#[test]
fn uncommitted_bytes_are_bounded() {
    let mut core = leader();
    let most = Input::Propose {
        count: 1,
        bytes: MAX_PROPOSAL_BYTES,
    };
    let one = Input::Propose { count: 1, bytes: 1 };
    let full = Output::ProposalRefused {
        count: 1,
        reason: RefusalReason::Full,
    };
    let fit = MAX_UNCOMMITTED_BYTES / MAX_PROPOSAL_BYTES;
    for _ in 0..fit {
        assert!(matches!(step(&mut core, most)[..], [Output::Append { .. }]));
    }
    assert_eq!(step(&mut core, one), [full]);
    let persisted = |up_to| Input::Persisted {
        epoch: Epoch(0),
        up_to: LogIndex(up_to),
    };
    step(&mut core, persisted(102));
    assert_eq!(step(&mut core, most).len(), 1);
    assert_eq!(step(&mut core, one), [full]);
}

#[test]
fn what_cannot_be_true_is_not_believed() {
    refused(
        &mut leader(),
        Input::Persisted {
            epoch: Epoch(0),
            up_to: LogIndex(102),
        },
    );
    refused(
        &mut leader(),
        Input::Persisted {
            epoch: Epoch(0),
            up_to: LogIndex(99),
        },
    );
    refused(&mut leader(), Input::Tick { now_ms: 0 });
    refused(&mut leader(), Input::Propose { count: 0, bytes: 0 });
    refused(
        &mut leader(),
        Input::Propose {
            count: MAX_RECORDS_PER_BATCH + 1,
            bytes: 0,
        },
    );
    let beyond = Input::Propose {
        count: 1,
        bytes: MAX_PROPOSAL_BYTES + 1,
    };
    refused(&mut leader(), beyond);
    assert!(
        catch_unwind(|| start(100, 8, 7)).is_err(),
        "a log ahead of its state"
    );
}

#[derive(Debug, Clone)]
enum Event {
    Tick,
    Propose(u32),
    PersistSome(u8),
    PersistVote,
    Crash,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => Just(Event::Tick),
        4 => (1..20_u32).prop_map(Event::Propose),
        4 => any::<u8>().prop_map(Event::PersistSome),
        2 => Just(Event::PersistVote),
        1 => Just(Event::Crash),
    ]
}

/// A disk, and what was promised about it.
#[derive(Debug, Default)]
struct World {
    now_ms: u64,
    /// The term of each appended entry; entry n has index n + 1.
    log: Vec<u64>,
    persisted: usize,
    hard: HardState,
    asked: Option<HardState>,
    /// Entries that were ever committed. They never change.
    committed: Vec<u64>,
    terms_led: Vec<u64>,
}

impl World {
    fn reboot(&mut self) -> Core {
        self.log.truncate(self.persisted);
        self.asked = None;
        let last_term = Term(self.log.last().copied().unwrap_or(0));
        let last_index = LogIndex(self.log.len() as u64);
        let start = Start::single(NODE, self.hard, last_index, last_term);
        Core::new(start).expect("one node's state")
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::PersistHardState(hard) => self.asked = Some(hard),
            Output::Append {
                first, count, term, ..
            } => {
                assert_eq!(first.0, self.log.len() as u64 + 1);
                assert!(
                    self.terms_led.last() == Some(&term.0),
                    "it leads before it appends"
                );
                self.log.extend((0..count).map(|_| term.0));
            }
            Output::Commit { up_to } => {
                let up_to = up_to.0 as usize;
                assert!(up_to <= self.persisted, "committed and not persisted");
                assert!(self.terms_led.contains(&self.log[up_to - 1]));
                assert_eq!(
                    self.log[up_to - 1],
                    self.hard.term.0,
                    "of the leader's own term"
                );
                let known = self.committed.len().min(up_to);
                assert_eq!(
                    self.log[..known],
                    self.committed[..known],
                    "a committed entry changed"
                );
                self.committed = self.log[..self.committed.len().max(up_to)].to_vec();
            }
            Output::RoleChanged {
                role: Role::Leader,
                term,
                ..
            } => {
                assert_eq!(self.hard, voted(term.0), "it leads on a persisted vote");
                assert!(
                    self.terms_led.iter().all(|led| *led < term.0),
                    "one leadership a term"
                );
                self.terms_led.push(term.0);
            }
            Output::RoleChanged { .. }
            | Output::ProposalRefused { .. }
            | Output::ConfigChanged { .. } => {}
            other => panic!("a single voter has nobody to ask for {other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn crashes_lose_nothing_that_was_committed(events in prop::collection::vec(event(), 1..120)) {
        let mut world = World::default();
        let mut core = world.reboot();
        for event in events {
            let input = match event {
                Event::Tick => {
                    world.now_ms += 7;
                    Input::Tick { now_ms: world.now_ms }
                }
                Event::Propose(count) => Input::Propose { count, bytes: 30 },
                Event::PersistSome(part) => {
                    let unsynced = world.log.len() - world.persisted;
                    world.persisted += unsynced * usize::from(part) / 255;
                    Input::Persisted { epoch: Epoch(0), up_to: LogIndex(world.persisted as u64) }
                }
                Event::PersistVote => {
                    world.hard = world.asked.take().unwrap_or(world.hard);
                    Input::HardStatePersisted(world.hard)
                }
                Event::Crash => {
                    core = world.reboot();
                    continue;
                }
            };
            let before = (core.role(), core.commit());
            for output in step(&mut core, input) {
                world.carry_out(output);
            }
            prop_assert!(core.commit() >= before.1);
            prop_assert!(before.0 != Role::Leader || core.role() == Role::Leader);
            prop_assert_eq!(core.last_index().0, world.log.len() as u64);
            if let Some(noop) = core.term_start()
                && core.persisted() >= noop
            {
                prop_assert_eq!(core.commit(), core.persisted());
            }
        }
        prop_assert!(world.log.starts_with(&world.committed));
    }
}
