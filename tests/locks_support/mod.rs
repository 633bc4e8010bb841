//! Scripts for the lock table: each step is a line of text with the outputs it must have.
//!
//! | step | does |
//! |---|---|
//! | `acquire NAME[@KEY] WAIT_S [LEASE_S]` | an acquire by NAME; lease 100 s unless told |
//! | `release NAME[@KEY] TOKEN` | a release by NAME |
//! | `apply` | applies the oldest command in the log that is not applied yet, as the table's own |
//! | `foreign grant`, `foreign release T`, `foreign expire T` | applies another leadership's command |
//! | `gone NAME`, `undelivered NAME` | NAME disconnects; NAME's Acquired could not be delivered |
//! | `now MS`, `at MS` | sets the clock; and advances the table |
//! | `ready`, `stop` | begins to serve; stops to |
//!
//! Outputs: `a=A5` (Acquired, token 5), `a=R`, `a=N`, `a=T`, `a=B`, `a=I`, `a=X` (NotActive), then
//! the units proposed: `[G]`, `[R5 G]`, `[E5]`. The log gives its entries indexes from 1.

use std::collections::{BTreeMap, VecDeque};

use ticketing::locks::{
    Answer, Applied, Command, GrantRef, LockState, LockTable, Origin, Outputs, TableLimits,
    key_hash,
};

/// When a script begins; the table became ready long before, at 0.
pub const START_MS: u64 = 1_000_000;

const SEED: u64 = 7;

/// A table, its log and its clock.
pub struct Stage {
    pub table: LockTable,
    now_ms: u64,
    next_index: u64,
    log: VecDeque<Vec<u8>>,
    names: Vec<String>,
    grants: BTreeMap<String, GrantRef>,
    out: Outputs,
}

impl Stage {
    /// A table that has been ready for long.
    pub fn new(limits: TableLimits) -> Self {
        let mut stage = Self::not_ready(limits);
        stage.table.set_ready(0);
        stage
    }

    /// A table that is not ready.
    pub fn not_ready(limits: TableLimits) -> Self {
        Self {
            table: LockTable::new(limits, 0),
            now_ms: START_MS,
            next_index: 1,
            log: VecDeque::new(),
            names: Vec::new(),
            grants: BTreeMap::new(),
            out: Outputs::default(),
        }
    }

    /// Runs a script; `case` names it in a failure.
    pub fn run(&mut self, case: &str, script: &[(&str, &str)]) {
        for (number, (step, expected)) in script.iter().enumerate() {
            let actual = self.step(step);
            assert_eq!(actual, *expected, "{case}: step {number}: {step}");
        }
    }

    /// Runs one step and gives its outputs.
    pub fn step(&mut self, step: &str) -> String {
        let words: Vec<&str> = step.split_whitespace().collect();
        let mut applied = String::new();
        match words[..] {
            ["acquire", who, wait_s] => self.acquire(who, wait_s, "100"),
            ["acquire", who, wait_s, lease_s] => self.acquire(who, wait_s, lease_s),
            ["release", who, token] => {
                let (origin, key) = self.who(who);
                let (now_ms, token, hash) = (self.now_ms, number(token), hash(&key));
                self.table
                    .release(now_ms, origin, now_ms, hash, &key, token, &mut self.out);
            }
            ["apply"] => {
                let payload = self.log.pop_front().expect("something to apply");
                let command = Command::decode(&payload).expect("a proposal decodes");
                self.apply(command, true);
            }
            ["foreign", "grant"] => {
                applied = self.foreign(Command::Grant {
                    key: b"k",
                    lease_ms: 100_000,
                });
            }
            ["foreign", "release", token] => {
                applied = self.foreign(Command::Release {
                    key: b"k",
                    token: number(token),
                });
            }
            ["foreign", "expire", token] => {
                applied = self.foreign(Command::Expire {
                    key: b"k",
                    token: number(token),
                });
            }
            ["gone", who] => {
                let (origin, _) = self.who(who);
                self.table.disconnect(self.now_ms, origin);
            }
            ["undelivered", who] => {
                let grant = self.grants[who];
                self.table.undelivered(self.now_ms, grant, &mut self.out);
            }
            ["now", ms] => self.now_ms = START_MS + number(ms),
            ["at", ms] => {
                self.now_ms = START_MS + number(ms);
                self.table.advance(self.now_ms, &mut self.out);
            }
            ["ready"] => self.table.set_ready(self.now_ms),
            ["stop"] => self.table.stop_acquires(self.now_ms, &mut self.out),
            _ => panic!("unknown step {step}"),
        }
        self.drain(applied)
    }

    /// The key `k`, in words.
    pub fn state(&self) -> String {
        let Some(lock) = self.table.lock(self.now_ms, hash(b"k"), b"k") else {
            return "free".into();
        };
        let token = lock
            .token
            .map(|token| format!(" {token}"))
            .unwrap_or_default();
        let state = match lock.state {
            LockState::Granting => "granting",
            LockState::Held => "held",
            LockState::Releasing { next: true } => "releasing to next",
            LockState::Releasing { next: false } => "releasing to nobody",
            LockState::Expiring { next: true } => "expiring to next",
            LockState::Expiring { next: false } => "expiring to nobody",
        };
        format!("{state}{token}, line {}", lock.waiters)
    }

    fn acquire(&mut self, who: &str, wait_s: &str, lease_s: &str) {
        let (origin, key) = self.who(who);
        let (wait_s, lease_s) = (number(wait_s) as u8, number(lease_s) as u8);
        let now_ms = self.now_ms;
        let out = &mut self.out;
        self.table.acquire(
            now_ms,
            origin,
            now_ms,
            hash(&key),
            &key,
            wait_s,
            lease_s,
            out,
        );
    }

    fn apply(&mut self, command: Command<'_>, own: bool) -> Applied {
        let hash = hash(command.key());
        let index = self.next_index;
        self.next_index += 1;
        self.table
            .apply(self.now_ms, index, hash, command, own, &mut self.out)
    }

    fn foreign(&mut self, command: Command<'_>) -> String {
        format!("{:?}", self.apply(command, false))
    }

    /// The origin of a name, and the key that goes with it.
    fn who(&mut self, who: &str) -> (Origin, Vec<u8>) {
        let (name, key) = who.split_once('@').unwrap_or((who, "k"));
        let place = self
            .names
            .iter()
            .position(|known| known == name)
            .unwrap_or_else(|| {
                self.names.push(name.into());
                self.names.len() - 1
            });
        let origin = Origin {
            shard: 0,
            connection: 1,
            generation: 0,
            request_id: place as u64 + 1,
        };
        (origin, key.as_bytes().to_vec())
    }

    fn drain(&mut self, applied: String) -> String {
        let mut words = Vec::new();
        if !applied.is_empty() {
            words.push(applied);
        }
        for (origin, answer) in self.out.answers.drain(..) {
            let name = &self.names[origin.request_id as usize - 1];
            let answer = match answer {
                Answer::Acquired { token, grant } => {
                    assert_eq!(grant.token(), token);
                    self.grants.insert(name.clone(), grant);
                    format!("A{token}")
                }
                Answer::Released => "R".into(),
                Answer::NotFound => "N".into(),
                Answer::TimedOut => "T".into(),
                Answer::Busy => "B".into(),
                Answer::Indeterminate => "I".into(),
                Answer::NotActive => "X".into(),
            };
            words.push(format!("{name}={answer}"));
        }
        for unit in self.out.proposals.units() {
            let commands: Vec<String> = unit
                .payloads()
                .map(|payload| {
                    self.log.push_back(payload.to_vec());
                    match Command::decode(payload).expect("a proposal decodes") {
                        Command::Grant { .. } => "G".into(),
                        Command::Release { token, .. } => format!("R{token}"),
                        Command::Expire { token, .. } => format!("E{token}"),
                    }
                })
                .collect();
            words.push(format!("[{}]", commands.join(" ")));
        }
        self.out.clear();
        words.join(" ")
    }
}

fn hash(key: &[u8]) -> u64 {
    key_hash(SEED, key)
}

fn number(word: &str) -> u64 {
    word.parse().expect("a number")
}
