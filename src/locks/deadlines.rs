//! What happens because time passes.

use super::entry::Removal;
use super::limits::ADVANCE_BUDGET;
use super::requests::Phase;
use super::table::{LockTable, Role};
use super::types::{Answer, Outputs};
use super::wheel::NIL;

impl LockTable {
    /// Moves time on: requests whose time is up are answered, then leases that ended are expired.
    ///
    /// At most [`ADVANCE_BUDGET`] of each are handled; while more are due,
    /// [`LockTable::next_deadline_ms`] says so.
    pub fn advance(&mut self, now_ms: u64, out: &mut Outputs) {
        self.observe(now_ms);
        for _ in 0..ADVANCE_BUDGET {
            let Some(request) = self.waits.pop_due(&mut self.requests) else {
                break;
            };
            self.time_up(request, out);
        }
        // Only a leader expires. What ended before the table became ready stays due until then.
        if self.role != Role::Serving {
            return;
        }
        for _ in 0..ADVANCE_BUDGET {
            let Some(lock) = self.leases.pop_due(&mut self.locks) else {
                break;
            };
            self.lease_up(lock, out);
        }
    }

    /// When to call [`LockTable::advance`] next: the earliest deadline, or the latest time seen if
    /// one was passed already. `None` if nothing waits for the clock.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let waits_ms = self.waits.next_deadline_ms();
        let leases_ms = self
            .leases
            .next_deadline_ms()
            .filter(|_| self.role == Role::Serving);
        waits_ms.into_iter().chain(leases_ms).min()
    }

    fn time_up(&mut self, request: u32, out: &mut Outputs) {
        let answer = match self.requests.get(request).phase {
            Phase::Queued => Answer::TimedOut,
            Phase::Granting | Phase::Releasing | Phase::Parked => Answer::Indeterminate,
        };
        self.detach(request);
        self.answer_and_forget(request, answer, out);
    }

    fn lease_up(&mut self, lock: u32, out: &mut Outputs) {
        // Its timer is off while a removal is in the log, unless another leadership's Grant came
        // in between; that lease is set again when the removal turns out to have missed it.
        if self.locks.get(lock).removal == Removal::None {
            self.propose_removal(lock, Removal::Expire, NIL, out);
        }
    }
}
