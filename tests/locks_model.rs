//! Random histories: the table against the model, call by call, and properties checked aside.

#[path = "locks_support/model.rs"]
mod model;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{Change, Key, Model, Reply};
use proptest::prelude::*;
use ticketing::locks::{
    Answer, Applied, Command, GrantRef, LockState, LockTable, Origin, Outputs, TableLimits,
    held_locks, key_hash,
};

const KEYS: usize = 4;
const READY_MS: u64 = 1_000;

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        key: Key,
        wait_s: u8,
        lease_s: u8,
        ago_ms: u64,
    },
    /// Of the current token, or of one that is some way off.
    Release {
        key: Key,
        off: u64,
        ago_ms: u64,
    },
    Disconnect {
        pick: usize,
    },
    Undelivered {
        pick: usize,
    },
    Apply {
        count: usize,
        gap: u64,
    },
    Pass {
        ms: u64,
    },
    Advance {
        ms: u64,
    },
    AdvanceToNext,
    Stop,
    Ready,
    /// Begins a cut, unless one is being written.
    Cut,
    /// Takes some of it.
    Chunk {
        max_locks: u32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let key = || prop_oneof![3 => Just(0), 1 => 0..KEYS];
    let wait_s = prop_oneof![1 => Just(0_u8), 3 => 1..4_u8, 2 => Just(30)];
    let ago_ms = || prop_oneof![3 => Just(0_u64), 1 => 0..300_u64, 1 => 0..1_400_u64];
    prop_oneof![
        12 => (key(), wait_s, 1..4_u8, ago_ms()).prop_map(|(key, wait_s, lease_s, ago_ms)| {
            Step::Acquire { key, wait_s, lease_s, ago_ms }
        }),
        6 => (key(), prop_oneof![4 => Just(0), 1 => 1..3_u64], ago_ms())
            .prop_map(|(key, off, ago_ms)| Step::Release { key, off, ago_ms }),
        2 => any::<usize>().prop_map(|pick| Step::Disconnect { pick }),
        2 => any::<usize>().prop_map(|pick| Step::Undelivered { pick }),
        10 => (1..5_usize, 1..4_u64).prop_map(|(count, gap)| Step::Apply { count, gap }),
        2 => (0..1_500_u64).prop_map(|ms| Step::Pass { ms }),
        4 => prop_oneof![0..20_u64, 0..1_500_u64].prop_map(|ms| Step::Advance { ms }),
        3 => Just(Step::AdvanceToNext),
        1 => Just(Step::Stop),
        2 => Just(Step::Ready),
        3 => Just(Step::Cut),
        4 => (1..3_u32).prop_map(|max_locks| Step::Chunk { max_locks }),
    ]
}

fn limits() -> impl Strategy<Value = TableLimits> {
    (
        1..6_usize,
        1..8_usize,
        1..=KEYS,
        0..3_usize,
        prop_oneof![Just(50), 0..=500_u64],
    )
        .prop_map(
            |(waiters_per_key, waiters_total, locks_total, parked_releases, wait_margin_ms)| {
                TableLimits {
                    waiters_per_key,
                    waiters_total,
                    locks_total,
                    parked_releases,
                    wait_margin_ms,
                    origin_seed: 9,
                }
            },
        )
}

/// Table and model side by side, and what an onlooker can check without knowing either.
struct World {
    table: LockTable,
    model: Model,
    out: Outputs,
    now_ms: u64,
    index: u64,
    requests: u64,
    log: VecDeque<Vec<u8>>,
    /// Every grant that was answered, by token: reference and key.
    answered: Vec<(GrantRef, Key)>,
    owed: BTreeSet<Origin>,
    /// Acquires with a wait that are owed an answer.
    standing: BTreeMap<Origin, Key>,
    held: BTreeMap<Key, u64>,
    /// By token: when its lease has run out by any clock.
    lease_over_ms: BTreeMap<u64, u64>,
    lease_ms: BTreeMap<u64, u32>,
    /// What was held at the cut that is being written: key, token, lease, left.
    at_cut: Option<Vec<Held>>,
    written: Vec<u8>,
}

type Held = (Key, u64, u32, u64);

impl World {
    fn new(limits: TableLimits) -> Self {
        let mut table = LockTable::new(limits.clone(), 0);
        table.set_ready(READY_MS);
        Self {
            table,
            model: Model::new(limits, KEYS, READY_MS),
            out: Outputs::default(),
            now_ms: READY_MS,
            index: 0,
            requests: 0,
            log: VecDeque::new(),
            answered: Vec::new(),
            owed: BTreeSet::new(),
            standing: BTreeMap::new(),
            held: BTreeMap::new(),
            lease_over_ms: BTreeMap::new(),
            lease_ms: BTreeMap::new(),
            at_cut: None,
            written: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        let now = self.now_ms;
        match *step {
            Step::Acquire {
                key,
                wait_s,
                lease_s,
                ago_ms,
            } => {
                let (origin, arrived) = (self.origin(), now.saturating_sub(ago_ms));
                if wait_s > 0 {
                    self.standing.insert(origin, key);
                }
                let (name, hash) = name(key);
                self.table.acquire(
                    now,
                    origin,
                    arrived,
                    hash,
                    &name,
                    wait_s,
                    lease_s,
                    &mut self.out,
                );
                self.model
                    .acquire(now, origin, arrived, key, wait_s.into(), lease_s.into());
            }
            Step::Release { key, off, ago_ms } => {
                let (origin, arrived) = (self.origin(), now.saturating_sub(ago_ms));
                let token = self.model.holder(key).unwrap_or(1) + off;
                let (name, hash) = name(key);
                self.table
                    .release(now, origin, arrived, hash, &name, token, &mut self.out);
                self.model.release(now, origin, arrived, key, token);
            }
            Step::Disconnect { pick } => {
                let owed = self.model.owed();
                if !owed.is_empty() {
                    let origin = owed[pick % owed.len()].0;
                    self.table.disconnect(now, origin);
                    self.model.disconnect(origin);
                    assert!(self.owed.remove(&origin));
                    self.standing.remove(&origin);
                }
            }
            Step::Undelivered { pick } => {
                if !self.answered.is_empty() {
                    // One of the last few: an older one is rarely current.
                    let at = self.answered.len() - 1 - pick % self.answered.len().min(KEYS);
                    let (grant, key) = self.answered[at];
                    self.table.undelivered(now, grant, &mut self.out);
                    self.model.undelivered(now, key, grant.token());
                }
            }
            Step::Apply { count, gap } => {
                for _ in 0..count.min(self.log.len()) {
                    self.apply(gap);
                    self.compare(false);
                }
            }
            Step::Pass { ms } => self.now_ms += ms,
            Step::Advance { ms } => self.advance(now + ms),
            Step::AdvanceToNext => {
                self.advance(self.table.next_deadline_ms().unwrap_or(now).max(now))
            }
            Step::Stop => {
                self.table.stop_acquires(now, &mut self.out);
                self.model.stop();
            }
            Step::Ready => {
                self.table.set_ready(now);
                self.model.set_ready(now);
            }
            Step::Cut => self.cut(),
            Step::Chunk { max_locks } => self.chunk(max_locks),
        }
        self.compare(matches!(step, Step::Stop));
    }

    fn cut(&mut self) {
        if self.at_cut.is_some() {
            return;
        }
        let held = self.held.iter().map(|(&key, &token)| {
            let left_ms = self.lease_over_ms[&token].saturating_sub(self.now_ms);
            (key, token, self.lease_ms[&token], left_ms)
        });
        self.at_cut = Some(held.collect());
        self.table.begin_snapshot(self.now_ms);
    }

    fn chunk(&mut self, max_locks: u32) {
        let before = self.written.len();
        let chunk = self.table.snapshot_chunk(max_locks, &mut self.written);
        assert!(chunk.locks <= max_locks);
        let locks = held_locks(&self.written[before..]).count();
        assert_eq!(locks, chunk.locks as usize);
        if self.at_cut.is_none() {
            assert_eq!((chunk.locks, chunk.more), (0, false));
        } else if !chunk.more {
            self.check_cut();
        }
    }

    /// What was written is what was held at the cut; and it can be loaded.
    fn check_cut(&mut self) {
        let mut expected = self.at_cut.take().expect("a cut");
        let mut restored = LockTable::new(TableLimits::default(), 0);
        let mut written: Vec<Held> = held_locks(&self.written)
            .map(|lock| {
                let lock = lock.expect("it decodes");
                let hash = key_hash(0, lock.key);
                assert!(restored.restore_lock(5, hash, &lock));
                assert!(!restored.restore_lock(5, hash, &lock), "not twice");
                let view = restored.lock(5, hash, lock.key).expect("it is there");
                assert_eq!(
                    (view.token, view.lease_ms),
                    (Some(lock.token), lock.lease_ms)
                );
                (
                    number(lock.key),
                    lock.token,
                    lock.lease_ms,
                    lock.left_ms.into(),
                )
            })
            .collect();
        written.sort_unstable();
        expected.sort_unstable();
        assert_eq!(written, expected);
        assert_eq!(restored.stats().held as usize, expected.len());
        self.written.clear();
    }

    fn origin(&mut self) -> Origin {
        self.requests += 1;
        let origin = Origin {
            shard: 0,
            connection: 0,
            generation: 0,
            request_id: self.requests,
        };
        self.owed.insert(origin);
        origin
    }

    fn advance(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.table.advance(now_ms, &mut self.out);
        self.model.advance(now_ms);
    }

    fn apply(&mut self, gap: u64) {
        let Some(payload) = self.log.pop_front() else {
            return;
        };
        let command = Command::decode(&payload).expect("a proposal decodes");
        let key = number(command.key());
        self.index += gap;
        let (now, index) = (self.now_ms, self.index);
        let applied = self
            .table
            .apply(now, index, name(key).1, command, true, &mut self.out);
        self.model.apply(now, index);
        // One holder at a time, and only its own token removes it.
        match (command, applied) {
            (Command::Grant { lease_ms, .. }, Applied::Granted { token }) => {
                assert_eq!(token, index);
                assert_eq!(self.held.insert(key, token), None);
                self.lease_ms.insert(token, lease_ms);
                let lease_ms = u64::from(lease_ms);
                self.lease_over_ms
                    .insert(token, now + (lease_ms * 1_001).div_ceil(1_000) + 20);
            }
            (Command::Release { token, .. }, Applied::Released)
            | (Command::Expire { token, .. }, Applied::Expired { existed: true }) => {
                assert_eq!(self.held.remove(&key), Some(token));
            }
            other => panic!("never in normal flow: {other:?}"),
        }
    }

    /// The last call's outputs are the model's; and they break no rule.
    fn compare(&mut self, any_order: bool) {
        let mut replies = Vec::new();
        for (origin, answer) in std::mem::take(&mut self.out.answers) {
            assert!(
                self.owed.remove(&origin),
                "answered twice, or after it was gone"
            );
            let key = self.standing.remove(&origin);
            replies.push((origin, self.reply(answer)));
            if let (Answer::Acquired { grant, token }, Some(key)) = (answer, key) {
                self.answered.push((grant, key));
                assert_eq!(self.held.get(&key), Some(&token));
                // First come, first served: nobody who came before still stands there.
                let before = self
                    .standing
                    .range(..origin)
                    .find(|(_, other)| **other == key);
                assert_eq!(before, None, "{origin:?} overtook");
            }
        }
        let mut expected = std::mem::take(&mut self.model.replies);
        if any_order {
            replies.sort_unstable();
            expected.sort_unstable();
        }
        assert_eq!(replies, expected);

        let units: Vec<Vec<(Key, Change)>> = self
            .out
            .proposals
            .units()
            .map(|unit| unit.payloads().map(change).collect())
            .collect();
        for &(_, change) in units.iter().flatten() {
            if let Change::Expire { token } = change {
                assert!(self.now_ms >= self.lease_over_ms[&token], "expired early");
            }
        }
        assert_eq!(units, std::mem::take(&mut self.model.units));
        self.log
            .extend(self.out.proposals.payloads().map(<[u8]>::to_vec));
        self.out.clear();
        self.compare_state();
    }

    fn compare_state(&self) {
        for key in 0..KEYS {
            let (name, hash) = name(key);
            let look = self.table.lock(self.now_ms, hash, &name).map(|lock| {
                let (granting, removing) = match lock.state {
                    LockState::Granting => (true, false),
                    LockState::Held => (false, false),
                    LockState::Releasing { next } | LockState::Expiring { next } => (next, true),
                };
                (lock.token, lock.waiters, granting, removing)
            });
            assert_eq!(look, self.model.look(key), "key {key}");
        }
        let stats = self.table.stats();
        assert_eq!(stats.in_flight as usize, self.model.log_len());
        assert_eq!(stats.requests as usize, self.model.owed().len());
        // Exact, unless it was passed: then at once.
        let next_ms = self
            .table
            .next_deadline_ms()
            .map(|next_ms| next_ms.max(self.now_ms));
        let earliest_ms = self
            .model
            .earliest_ms()
            .map(|earliest_ms| earliest_ms.max(self.now_ms));
        assert_eq!(next_ms, earliest_ms);
    }

    fn reply(&self, answer: Answer) -> Reply {
        match answer {
            Answer::Acquired { token, .. } => Reply::Acquired(token),
            Answer::Released => Reply::Released,
            Answer::NotFound => Reply::NotFound,
            Answer::TimedOut => Reply::TimedOut,
            Answer::Busy => Reply::Busy,
            Answer::Indeterminate => Reply::Indeterminate,
            Answer::NotActive => Reply::NotActive,
        }
    }

    /// Lets everything come to its end: every request answered, every lease over, nothing left.
    fn come_to_rest(&mut self) {
        self.step(&Step::Ready);
        while self.at_cut.is_some() {
            self.step(&Step::Chunk { max_locks: 1 });
        }
        for _ in 0..10_000 {
            match (self.log.is_empty(), self.table.next_deadline_ms()) {
                (false, _) => self.step(&Step::Apply { count: 1, gap: 1 }),
                (true, Some(_)) => self.step(&Step::AdvanceToNext),
                (true, None) => break,
            }
        }
        assert_eq!(self.owed, BTreeSet::new());
        assert_eq!(self.held, BTreeMap::new());
        let stats = self.table.stats();
        let gauges = [
            stats.held,
            stats.locks,
            stats.waiting,
            stats.requests,
            stats.parked_releases,
            stats.in_flight,
            stats.timers,
        ];
        assert_eq!(gauges, [0; 7]);
        assert_eq!((stats.grants_rejected, stats.unexpected), (0, 0));
        assert_eq!((stats.releases_missed, stats.expires_missed), (0, 0));
        assert_eq!(stats.grants, stats.releases + stats.expires);
    }
}

fn name(key: Key) -> (Vec<u8>, u64) {
    let name = format!("key-{key}").into_bytes();
    let hash = key_hash(0, &name);
    (name, hash)
}

fn number(name: &[u8]) -> Key {
    (0..KEYS)
        .find(|&key| self::name(key).0 == name)
        .expect("a key of this test")
}

fn change(payload: &[u8]) -> (Key, Change) {
    let command = Command::decode(payload).expect("a proposal decodes");
    let change = match command {
        Command::Grant { lease_ms, .. } => Change::Grant {
            lease_ms: lease_ms.into(),
        },
        Command::Release { token, .. } => Change::Release { token },
        Command::Expire { token, .. } => Change::Expire { token },
    };
    (number(command.key()), change)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_does_what_the_model_does(
        limits in limits(),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut world = World::new(limits);
        for step in &steps {
            world.step(step);
        }
        world.come_to_rest();
    }
}
