//! The lock table again, as plainly as it can be written: lists, searched from the front.

use std::collections::VecDeque;

use ticketing::locks::{Origin, TableLimits};

/// A key, by number.
pub type Key = usize;

/// An answer, without what only the real table knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reply {
    Acquired(u64),
    Released,
    NotFound,
    TimedOut,
    Busy,
    Indeterminate,
    NotActive,
}

/// A command; its key stands beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Grant { lease_ms: u64 },
    Release { token: u64 },
    Expire { token: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    InLine,
    GrantInLog,
    ReleaseInLog,
    Parked,
}

/// A request that is owed an answer.
#[derive(Clone, Debug)]
struct Owed {
    origin: Origin,
    key: Key,
    doing: Doing,
    /// When it is answered at the latest, and which came first among equals.
    deadline: (u64, u64),
    /// When Indeterminate is due, for an acquire.
    unknown_ms: u64,
    lease_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    token: u64,
    lease_end_ms: u64,
}

/// A command in the log, and the request that waits for it.
#[derive(Clone, Copy, Debug)]
struct InLog {
    key: Key,
    change: Change,
    asked_by: Option<Origin>,
}

/// What a key looks like from outside: token, length of the line, Grant in log, removal in log.
pub type Look = (Option<u64>, usize, bool, bool);

pub struct Model {
    limits: TableLimits,
    holders: Vec<Option<Holder>>,
    /// In order of arrival.
    owed: Vec<Owed>,
    log: VecDeque<InLog>,
    ready_ms: u64,
    serving: bool,
    timers_set: u64,
    /// What the last call said.
    pub replies: Vec<(Origin, Reply)>,
    /// What the last call proposed, unit by unit.
    pub units: Vec<Vec<(Key, Change)>>,
}

impl Model {
    pub fn new(limits: TableLimits, keys: usize, ready_ms: u64) -> Self {
        Self {
            limits,
            holders: vec![None; keys],
            owed: Vec::new(),
            log: VecDeque::new(),
            ready_ms,
            serving: true,
            timers_set: 0,
            replies: Vec::new(),
            units: Vec::new(),
        }
    }

    pub fn acquire(
        &mut self,
        now: u64,
        origin: Origin,
        arrived: u64,
        key: Key,
        wait_s: u64,
        lease_s: u64,
    ) {
        if !self.serving {
            return self.reply(origin, Reply::NotActive);
        }
        let hurry = if wait_s >= 2 && arrived <= self.ready_ms + 5_000 {
            1_000
        } else {
            0
        };
        let margin = self.limits.wait_margin_ms;
        let (give_up_ms, unknown_ms) = match wait_s {
            0 => (arrived + 4_500, arrived + 4_500),
            _ => (
                arrived + wait_s * 1_000 - hurry - margin,
                arrived + wait_s * 1_000 - hurry - margin / 2,
            ),
        };
        if now >= give_up_ms {
            return self.reply(
                origin,
                if wait_s == 0 {
                    Reply::Busy
                } else {
                    Reply::TimedOut
                },
            );
        }
        let held = self.holders[key].is_some();
        let (granting, removing) = (self.grant_in_log(key), self.removal_in_log(key));
        let free = !held && !granting && !removing;
        let nobody_chosen = removing && !granting;
        let mut owed = Owed {
            origin,
            key,
            doing: Doing::GrantInLog,
            deadline: (0, 0),
            unknown_ms,
            lease_ms: lease_s * 1_000,
        };
        if free || (nobody_chosen && wait_s > 0) {
            if self.locks() >= self.limits.locks_total {
                return self.reply(origin, Reply::Busy);
            }
            owed.deadline = self.timer(unknown_ms);
            let grant = self.grant(&owed);
            self.owed.push(owed);
            self.propose(vec![grant]);
        } else if wait_s == 0
            || self.line(key).len() >= self.limits.waiters_per_key
            || self
                .owed
                .iter()
                .filter(|owed| owed.doing == Doing::InLine)
                .count()
                >= self.limits.waiters_total
        {
            self.reply(origin, Reply::Busy);
        } else {
            owed.doing = Doing::InLine;
            owed.deadline = self.timer(give_up_ms);
            self.owed.push(owed);
        }
    }

    pub fn release(&mut self, now: u64, origin: Origin, arrived: u64, key: Key, token: u64) {
        if self.holders[key].is_none_or(|holder| holder.token != token) {
            return self.reply(origin, Reply::NotFound);
        }
        let parked = self
            .owed
            .iter()
            .filter(|owed| owed.doing == Doing::Parked)
            .count();
        let first = !self.removal_in_log(key);
        if !first && parked >= self.limits.parked_releases {
            return self.reply(origin, Reply::Indeterminate);
        }
        let doing = if first {
            Doing::ReleaseInLog
        } else {
            Doing::Parked
        };
        let deadline = self.timer(arrived + 1_500);
        self.owed.push(Owed {
            origin,
            key,
            doing,
            deadline,
            unknown_ms: 0,
            lease_ms: 0,
        });
        if first {
            self.remove(now, key, Change::Release { token }, Some(origin));
        }
    }

    pub fn disconnect(&mut self, origin: Origin) {
        self.owed.retain(|owed| owed.origin != origin);
        self.nobody_asks(origin);
    }

    pub fn undelivered(&mut self, now: u64, key: Key, token: u64) {
        let current = self.holders[key].is_some_and(|holder| holder.token == token);
        if current && !self.removal_in_log(key) {
            self.remove(now, key, Change::Release { token }, None);
        }
    }

    /// Applies the oldest command in the log.
    pub fn apply(&mut self, now: u64, index: u64) {
        let Some(InLog {
            key,
            change,
            asked_by,
        }) = self.log.pop_front()
        else {
            return;
        };
        match change {
            Change::Grant { lease_ms } => {
                assert!(self.holders[key].is_none(), "granted while held");
                let lease_end_ms = now + (lease_ms * 1_001).div_ceil(1_000) + 20;
                self.holders[key] = Some(Holder {
                    token: index,
                    lease_end_ms,
                });
                let in_time = asked_by.map(|origin| (origin, self.take(origin)));
                if let Some((origin, owed)) = in_time {
                    if now < owed.deadline.0 {
                        return self.reply(origin, Reply::Acquired(index));
                    }
                    self.reply(origin, Reply::Indeterminate);
                }
                self.remove(now, key, Change::Release { token: index }, None);
            }
            Change::Release { token } | Change::Expire { token } => {
                let gone = self.holders[key].take();
                assert_eq!(
                    gone.map(|holder| holder.token),
                    Some(token),
                    "removed what was not held"
                );
                if let Some(origin) = asked_by {
                    self.take(origin);
                    self.reply(origin, Reply::Released);
                }
                while let Some(at) = self
                    .owed
                    .iter()
                    .position(|owed| owed.key == key && owed.doing == Doing::Parked)
                {
                    let owed = self.owed.remove(at);
                    self.reply(owed.origin, Reply::NotFound);
                }
                assert!(
                    self.grant_in_log(key) || self.line(key).is_empty(),
                    "a line with nobody chosen"
                );
            }
        }
    }

    pub fn advance(&mut self, now: u64) {
        let mut late: Vec<Owed> = self
            .owed
            .iter()
            .filter(|owed| owed.deadline.0 <= now)
            .cloned()
            .collect();
        late.sort_by_key(|owed| owed.deadline);
        for owed in late {
            self.take(owed.origin);
            self.nobody_asks(owed.origin);
            let in_line = owed.doing == Doing::InLine;
            self.reply(
                owed.origin,
                if in_line {
                    Reply::TimedOut
                } else {
                    Reply::Indeterminate
                },
            );
        }
        if !self.serving {
            return;
        }
        let mut ended: Vec<(u64, u64, Key)> = self
            .running_leases()
            .filter(|lease| lease.0 <= now)
            .collect();
        ended.sort_unstable();
        for (_, token, key) in ended {
            self.remove(now, key, Change::Expire { token }, None);
        }
    }

    pub fn stop(&mut self) {
        self.serving = false;
        let (in_line, rest) = std::mem::take(&mut self.owed)
            .into_iter()
            .partition(|owed| owed.doing == Doing::InLine);
        self.owed = rest;
        let in_line: Vec<Owed> = in_line;
        for owed in in_line {
            self.reply(owed.origin, Reply::NotActive);
        }
    }

    pub fn set_ready(&mut self, now: u64) {
        self.serving = true;
        self.ready_ms = now;
    }

    pub fn earliest_ms(&self) -> Option<u64> {
        let waits = self.owed.iter().map(|owed| owed.deadline.0);
        let leases = self
            .running_leases()
            .map(|lease| lease.0)
            .filter(|_| self.serving);
        waits.chain(leases).min()
    }

    /// Origins that are owed an answer, and the keys they asked for, in order of arrival.
    pub fn owed(&self) -> Vec<(Origin, Key)> {
        self.owed
            .iter()
            .map(|owed| (owed.origin, owed.key))
            .collect()
    }

    pub fn holder(&self, key: Key) -> Option<u64> {
        self.holders[key].map(|holder| holder.token)
    }

    /// `None` for a free key.
    pub fn look(&self, key: Key) -> Option<Look> {
        let look = (
            self.holder(key),
            self.line(key).len(),
            self.grant_in_log(key),
            self.removal_in_log(key),
        );
        (look != (None, 0, false, false)).then_some(look)
    }

    pub fn log_len(&self) -> usize {
        self.log.len()
    }

    fn remove(&mut self, now: u64, key: Key, change: Change, asked_by: Option<Origin>) {
        let mut unit = vec![InLog {
            key,
            change,
            asked_by,
        }];
        while !self.grant_in_log(key) && unit.len() == 1 {
            let Some(&origin) = self.line(key).first() else {
                break;
            };
            let at = self
                .owed
                .iter()
                .position(|owed| owed.origin == origin)
                .unwrap_or_default();
            if now >= self.owed[at].deadline.0 {
                self.owed.remove(at);
                self.reply(origin, Reply::TimedOut);
            } else {
                self.owed[at].doing = Doing::GrantInLog;
                self.owed[at].deadline = self.timer(self.owed[at].unknown_ms);
                unit.push(self.grant(&self.owed[at]));
            }
        }
        self.propose(unit);
    }

    fn grant(&self, owed: &Owed) -> InLog {
        let change = Change::Grant {
            lease_ms: owed.lease_ms,
        };
        InLog {
            key: owed.key,
            change,
            asked_by: Some(owed.origin),
        }
    }

    fn propose(&mut self, unit: Vec<InLog>) {
        self.units.push(
            unit.iter()
                .map(|in_log| (in_log.key, in_log.change))
                .collect(),
        );
        self.log.extend(unit);
    }

    fn reply(&mut self, origin: Origin, reply: Reply) {
        self.replies.push((origin, reply));
    }

    fn take(&mut self, origin: Origin) -> Owed {
        let at = self
            .owed
            .iter()
            .position(|owed| owed.origin == origin)
            .expect("is owed an answer");
        self.owed.remove(at)
    }

    fn nobody_asks(&mut self, origin: Origin) {
        for in_log in self
            .log
            .iter_mut()
            .filter(|in_log| in_log.asked_by == Some(origin))
        {
            in_log.asked_by = None;
        }
    }

    fn line(&self, key: Key) -> Vec<Origin> {
        let in_line = self
            .owed
            .iter()
            .filter(|owed| owed.key == key && owed.doing == Doing::InLine);
        in_line.map(|owed| owed.origin).collect()
    }

    fn grant_in_log(&self, key: Key) -> bool {
        self.log
            .iter()
            .any(|in_log| in_log.key == key && matches!(in_log.change, Change::Grant { .. }))
    }

    fn removal_in_log(&self, key: Key) -> bool {
        self.log
            .iter()
            .any(|in_log| in_log.key == key && !matches!(in_log.change, Change::Grant { .. }))
    }

    fn locks(&self) -> usize {
        (0..self.holders.len())
            .filter(|&key| self.look(key).is_some())
            .count()
    }

    /// End, token and key of each lease that is counted down.
    fn running_leases(&self) -> impl Iterator<Item = (u64, u64, Key)> + '_ {
        self.holders.iter().enumerate().filter_map(|(key, holder)| {
            let holder = holder.filter(|_| !self.removal_in_log(key))?;
            Some((holder.lease_end_ms, holder.token, key))
        })
    }

    fn timer(&mut self, deadline_ms: u64) -> (u64, u64) {
        self.timers_set += 1;
        (deadline_ms, self.timers_set)
    }
}
