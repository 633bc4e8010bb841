//! Commands that the table did not propose, in between its own: none can make it fail.

mod locks_support;

use std::collections::{BTreeSet, VecDeque};

use locks_support::Stage;
use proptest::prelude::*;
use ticketing::locks::{Applied, Command, LockTable, Origin, Outputs, TableLimits, key_hash};

fn run(script: &[(&str, &str)]) -> Stage {
    let mut stage = Stage::new(TableLimits::default());
    stage.run("script", script);
    stage
}

#[test]
fn a_rejected_grant_goes_back_to_the_head_of_the_line() {
    let mut stage = run(&[
        ("acquire a 5", "[G]"),
        ("acquire b 5", ""),
        ("foreign grant", "Granted { token: 1 }"),
        ("apply", ""),
    ]);
    assert_eq!(stage.state(), "held 1, line 2");
    assert_eq!(stage.table.stats().grants_rejected, 1);
    stage.run(
        "rest",
        &[
            ("release r 1", "[R1 G]"),
            ("apply", "r=R"),
            ("apply", "a=A4"),
            ("at 4950", "b=T"),
        ],
    );
}

#[test]
fn a_rejected_grant_that_cannot_stand_in_line_is_answered() {
    let given = |first| [(first, "[G]"), ("foreign grant", "Granted { token: 1 }")];
    run(&given("acquire a 0")).run("one try", &[("apply", "a=B"), ("at 4500", "")]);
    run(&given("acquire a 1")).run("late", &[("now 950", ""), ("apply", "a=T"), ("at 975", "")]);
    run(&given("acquire a 1")).run("stop", &[("stop", ""), ("apply", "a=X"), ("at 975", "")]);
    run(&given("acquire a 1")).run("gone", &[("gone a", ""), ("apply", ""), ("at 975", "")]);
    run(&given("acquire a 1")).run("unknown", &[("at 975", "a=I"), ("apply", "")]);
}

#[test]
fn a_removal_that_misses_leaves_the_newer_grant_and_its_lease() {
    let stage = run(&[
        ("acquire h 9 1", "[G]"),
        ("apply", "h=A1"),
        ("release a 1", "[R1]"),
        ("release b 1", ""),
        ("foreign expire 1", "Expired { existed: true } b=N"),
        ("foreign grant", "Granted { token: 3 }"),
        ("release c 3", ""),
        ("release d 3", ""),
        ("apply", "a=N [R3]"),
        ("apply", "c=R d=N"),
    ]);
    assert_eq!(stage.state(), "free");
    assert_eq!(stage.table.stats().timers, 0);

    let mut stage = run(&[
        ("acquire h 9 1", "[G]"),
        ("apply", "h=A1"),
        ("release a 1", "[R1]"),
        ("foreign expire 1", "Expired { existed: true }"),
        ("foreign grant", "Granted { token: 3 }"),
        ("at 1500", "a=I"),
        ("at 100120", ""),
        ("apply", ""),
        ("at 100120", "[E3]"),
        ("apply", ""),
    ]);
    assert_eq!(stage.state(), "free");
    stage.run(
        "late commands",
        &[
            ("foreign expire 3", "Expired { existed: false }"),
            ("foreign release 3", "NotFound"),
        ],
    );
}

#[test]
fn a_removal_by_another_leadership_hands_the_key_on() {
    run(&[
        ("acquire h 9", "[G]"),
        ("apply", "h=A1"),
        ("acquire x 9", ""),
        ("foreign release 1", "Released [G]"),
        ("apply", "x=A3"),
    ]);
}

#[test]
fn a_ghost_behind_a_foreign_grant_is_ended_by_its_lease() {
    let mut stage = run(&[
        ("acquire h 9 1", "[G]"),
        ("foreign grant", "Granted { token: 1 }"),
        ("release a 1", "[R1]"),
        ("gone h", ""),
        ("foreign expire 1", "Expired { existed: true }"),
        ("apply", ""),
    ]);
    assert_eq!(stage.state(), "releasing to nobody 3, line 0");
    stage.run(
        "rest",
        &[
            ("apply", "a=N"),
            ("at 1020", ""),
            ("at 1021", "[E3]"),
            ("apply", ""),
        ],
    );
    assert_eq!(stage.state(), "free");
}

#[test]
fn entries_that_were_applied_already_change_nothing() {
    let mut table = LockTable::new(TableLimits::default(), 0);
    let mut out = Outputs::default();
    let hash = key_hash(0, b"k");
    let mut apply = |index, command| table.apply(0, index, hash, command, false, &mut out);
    let grant = Command::Grant {
        key: b"k",
        lease_ms: 5,
    };
    assert_eq!(apply(0, grant), Applied::Noop);
    assert_eq!(apply(7, grant), Applied::Granted { token: 7 });
    assert_eq!(
        apply(
            7,
            Command::Release {
                key: b"k",
                token: 7
            }
        ),
        Applied::Noop
    );
    assert_eq!(
        apply(
            8,
            Command::Grant {
                key: &[b'x'; 129],
                lease_ms: 5
            }
        ),
        Applied::Noop
    );
    assert_eq!(
        apply(
            9,
            Command::Grant {
                key: b"",
                lease_ms: 5
            }
        ),
        Applied::Noop
    );
    assert_eq!(
        apply(
            10,
            Command::Release {
                key: b"k",
                token: 7
            }
        ),
        Applied::Released
    );
    assert_eq!(table.applied_index(), 10);
    assert_eq!(table.stats().locks, 0);
}

#[test]
fn own_commands_that_the_table_does_not_know_are_applied_and_counted() {
    let mut table = LockTable::new(TableLimits::default(), 0);
    let mut out = Outputs::default();
    table.set_ready(0);
    let hash = key_hash(0, b"k");
    let mut apply = |index, command| table.apply(0, index, hash, command, true, &mut out);
    assert_eq!(
        apply(
            1,
            Command::Grant {
                key: b"k",
                lease_ms: 5
            }
        ),
        Applied::Granted { token: 1 }
    );
    assert_eq!(
        apply(
            2,
            Command::Expire {
                key: b"k",
                token: 1
            }
        ),
        Applied::Expired { existed: true }
    );
    assert_eq!(
        apply(
            3,
            Command::Release {
                key: b"k",
                token: 1
            }
        ),
        Applied::NotFound
    );
    assert_eq!(table.stats().unexpected, 3);
    assert!(table.is_quiet() && out.is_empty());
}

#[test]
fn an_own_removal_of_another_token_does_not_pass_for_the_one_in_flight() {
    let mut table = LockTable::new(TableLimits::default(), 0);
    let mut out = Outputs::default();
    table.set_ready(0);
    let hash = key_hash(0, b"k");
    let release = |token| Command::Release { key: b"k", token };
    table.apply(
        0,
        5,
        hash,
        Command::Grant {
            key: b"k",
            lease_ms: 5,
        },
        false,
        &mut out,
    );
    table.release(0, origin(1), 0, hash, b"k", 5, &mut out);
    assert_eq!(
        table.apply(0, 6, hash, release(4), true, &mut out),
        Applied::NotFound
    );
    assert_eq!((table.stats().unexpected, table.stats().in_flight), (1, 1));
    assert!(out.answers.is_empty());
    assert_eq!(
        table.apply(0, 7, hash, release(5), true, &mut out),
        Applied::Released
    );
    assert_eq!(
        (
            out.answers.len(),
            table.stats().in_flight,
            table.stats().locks
        ),
        (1, 0, 0)
    );
}

fn origin(request_id: u64) -> Origin {
    Origin {
        shard: 0,
        connection: 0,
        generation: 0,
        request_id,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        key: u8,
        wait_s: u8,
    },
    Release {
        key: u8,
        back: u64,
    },
    Disconnect {
        back: u64,
    },
    ApplyOwn,
    /// A command that is not the next of the table's own; `own` passes it off as such.
    Strange {
        kind: u8,
        key: u8,
        back: u64,
        own: bool,
    },
    Advance {
        ms: u64,
    },
    Stop,
    Ready,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..2_u8;
    prop_oneof![
        6 => (key(), 0..4_u8).prop_map(|(key, wait_s)| Step::Acquire { key, wait_s }),
        6 => (key(), 0..4_u64).prop_map(|(key, back)| Step::Release { key, back }),
        2 => (0..4_u64).prop_map(|back| Step::Disconnect { back }),
        8 => Just(Step::ApplyOwn),
        6 => (0..3_u8, key(), 0..4_u64, prop::bool::weighted(0.2))
            .prop_map(|(kind, key, back, own)| Step::Strange { kind, key, back, own }),
        3 => (0..1_500_u64).prop_map(|ms| Step::Advance { ms }),
        1 => Just(Step::Stop),
        2 => Just(Step::Ready),
    ]
}

/// A table whose log other leaderships write to as well.
struct Mixed {
    table: LockTable,
    out: Outputs,
    now_ms: u64,
    index: u64,
    log: VecDeque<Vec<u8>>,
    requests: u64,
    owed: BTreeSet<Origin>,
}

impl Mixed {
    fn step(&mut self, step: &Step) {
        let (now, out) = (self.now_ms, &mut self.out);
        match *step {
            Step::Acquire { key, wait_s } => {
                self.requests += 1;
                self.owed.insert(origin(self.requests));
                let (key, hash) = ([key], key_hash(0, &[key]));
                self.table
                    .acquire(now, origin(self.requests), now, hash, &key, wait_s, 1, out);
            }
            Step::Release { key, back } => {
                self.requests += 1;
                self.owed.insert(origin(self.requests));
                let token = self.index.saturating_sub(back).max(1);
                let (key, hash) = ([key], key_hash(0, &[key]));
                self.table
                    .release(now, origin(self.requests), now, hash, &key, token, out);
            }
            Step::Disconnect { back } => {
                let origin = origin(self.requests.saturating_sub(back));
                self.table.disconnect(now, origin);
                self.owed.remove(&origin);
            }
            Step::ApplyOwn => {
                if let Some(payload) = self.log.pop_front() {
                    self.apply(Command::decode(&payload).expect("a proposal decodes"), true);
                }
            }
            Step::Strange {
                kind,
                key,
                back,
                own,
            } => {
                let (key, token) = ([key], self.index.saturating_sub(back).max(1));
                let command = match kind {
                    0 => Command::Grant {
                        key: &key,
                        lease_ms: 1_000,
                    },
                    1 => Command::Release { key: &key, token },
                    _ => Command::Expire { key: &key, token },
                };
                self.apply(command, own);
            }
            Step::Advance { ms } => {
                self.now_ms += ms;
                self.table.advance(self.now_ms, out);
            }
            Step::Stop => self.table.stop_acquires(now, out),
            Step::Ready => self.table.set_ready(now),
        }
        for (origin, _) in self.out.answers.drain(..) {
            assert!(
                self.owed.remove(&origin),
                "answered twice, or after it was gone"
            );
        }
        self.log
            .extend(self.out.proposals.payloads().map(<[u8]>::to_vec));
        self.out.clear();
    }

    fn apply(&mut self, command: Command<'_>, own: bool) {
        self.index += 1;
        let hash = key_hash(0, command.key());
        self.table
            .apply(self.now_ms, self.index, hash, command, own, &mut self.out);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is committed in between, nothing fails, nobody is answered twice or never, and
    /// everything comes to rest.
    #[test]
    fn any_mixture_of_commands_is_survived(steps in prop::collection::vec(step(), 1..120)) {
        let mut mixed = Mixed {
            table: LockTable::new(TableLimits { locks_total: 8, ..TableLimits::default() }, 0),
            out: Outputs::default(),
            now_ms: 10_000,
            index: 0,
            log: VecDeque::new(),
            requests: 0,
            owed: BTreeSet::new(),
        };
        mixed.step(&Step::Ready);
        for step in &steps {
            mixed.step(step);
        }
        mixed.step(&Step::Ready);
        for _ in 0..1_000 {
            if mixed.log.is_empty() {
                mixed.step(&Step::Advance { ms: 1_500 });
            }
            mixed.step(&Step::ApplyOwn);
        }
        prop_assert_eq!(&mixed.owed, &BTreeSet::new());
        let stats = mixed.table.stats();
        let gauges = [
            stats.held, stats.locks, stats.waiting, stats.requests, stats.parked_releases,
            stats.in_flight, stats.timers,
        ];
        prop_assert_eq!(gauges, [0; 7]);
    }
}
