//! Losing leadership, and what becomes of commands that were proposed before.

use super::command::Command;
use super::entry::{PendingGrant, Removal};
use super::table::{LockTable, Role};
use super::types::{Answer, Outputs};
use super::wheel::NIL;

/// What became of a proposed command that will not be applied here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It never was in the log, or an entry of another term is committed in its place.
    Dropped,
    /// A snapshot was installed over its index, so nobody can tell here.
    Unknown,
}

impl LockTable {
    /// Leadership is lost: the table only applies from now on.
    ///
    /// Who stands in line is answered NotActive; a release in the log Indeterminate, as repeating
    /// it is harmless. An acquire whose Grant is in the log waits for its fate: an
    /// [`LockTable::apply`] with `own`, a [`LockTable::dropped`], or the end of its time. Nothing
    /// happens if the table does not serve.
    pub fn step_down(&mut self, now_ms: u64, out: &mut Outputs) {
        self.observe(now_ms);
        if self.role == Role::Following {
            return;
        }
        self.role = Role::Following;
        // An index cannot be walked while its locks change, and leadership is lost rarely.
        let locks: Vec<u32> = self.locks.ids().collect();
        for lock in locks {
            while let Some(waiter) = self.locks.get(lock).waiters.head() {
                self.leave_line(lock, waiter);
                self.answer_and_forget(waiter, Answer::NotActive, out);
            }
            let releaser = self.locks.get(lock).releaser;
            if releaser != NIL {
                self.detach(releaser);
                self.answer_and_forget(releaser, Answer::Indeterminate, out);
            }
            while let Some(request) = self.locks.get(lock).parked.head() {
                self.detach(request);
                self.answer_and_forget(request, Answer::Indeterminate, out);
            }
        }
    }

    /// `command`, which this table proposed while it served, will not be applied as its own.
    ///
    /// It is the oldest of that kind that the table has in flight for its key, as with
    /// [`LockTable::apply`]. A grant whose Release is dropped becomes an orphan.
    pub fn dropped(
        &mut self,
        now_ms: u64,
        key_hash: u64,
        command: Command<'_>,
        fate: Fate,
        out: &mut Outputs,
    ) {
        self.observe(now_ms);
        let Some(lock) = self.locks.find(key_hash, command.key()) else {
            self.stats.unexpected += 1;
            return;
        };
        match command {
            Command::Grant { .. } => match self.take_grant(lock) {
                PendingGrant::For(request) => {
                    self.waits.cancel(&mut self.requests, request);
                    let answer = match fate {
                        Fate::Dropped => Answer::NotActive,
                        Fate::Unknown => Answer::Indeterminate,
                    };
                    self.answer_and_forget(request, answer, out);
                }
                PendingGrant::Ghost => {}
                PendingGrant::None => self.stats.unexpected += 1,
            },
            Command::Release { token, .. } => {
                self.dropped_removal(lock, Removal::Release, token, out)
            }
            Command::Expire { token, .. } => {
                self.dropped_removal(lock, Removal::Expire, token, out)
            }
        }
        self.settle(lock, out);
    }

    fn dropped_removal(&mut self, lock: u32, kind: Removal, token: u64, out: &mut Outputs) {
        let releaser = self.take_removal(lock, kind, token);
        if releaser != NIL {
            self.waits.cancel(&mut self.requests, releaser);
            self.answer_and_forget(releaser, Answer::Indeterminate, out);
        }
        let entry = self.locks.get(lock);
        if kind == Removal::Release && entry.is_held() && entry.token == token {
            // Whoever wanted it released, client or table, has no other grant to use.
            self.orphan(lock, out);
        }
    }
}
