//! What comes back from the disk, and what does not.

use super::core::Core;
use super::types::{Epoch, Output, Role};
use crate::types::{HardState, LogIndex};

impl Core {
    /// Whether something is on its way to the disk for longer than a disk takes.
    pub(super) fn disk_hangs(&self) -> bool {
        self.writing_since_ms.is_some_and(|since_ms| {
            self.now_ms.saturating_sub(since_ms) >= self.timing.disk_hung_ms
        })
    }

    /// Something is given to the disk.
    pub(super) fn disk_works(&mut self) {
        self.writing_since_ms.get_or_insert(self.now_ms);
    }

    /// Something came back from the disk.
    pub(super) fn disk_moved(&mut self) {
        let idle = self.hard_persisted && self.persisted == self.log.last().index;
        self.writing_since_ms = (!idle).then_some(self.now_ms);
    }

    pub(super) fn hard_state_persisted(&mut self, hard: HardState, outputs: &mut Vec<Output>) {
        assert!(
            hard.term <= self.hard.term,
            "a term was persisted that was never asked for"
        );
        if hard != self.hard || self.hard_persisted {
            return;
        }
        self.hard_persisted = true;
        self.disk_moved();
        if self.role == Role::Candidate {
            self.own_vote_counts(outputs);
        }
        self.give_vote(outputs);
        self.acknowledge(outputs);
        self.begin_install(outputs);
    }

    pub(super) fn log_persisted(
        &mut self,
        epoch: Epoch,
        up_to: LogIndex,
        outputs: &mut Vec<Output>,
    ) {
        assert!(
            epoch <= self.epoch,
            "a report of an epoch that has not begun"
        );
        if epoch < self.epoch {
            return;
        }
        assert!(
            up_to <= self.log.last().index,
            "{up_to} persisted, the log ends at {}",
            self.log.last().index
        );
        assert!(
            up_to >= self.persisted,
            "{up_to} persisted, after {}",
            self.persisted
        );
        if up_to == self.persisted {
            return;
        }
        self.persisted = up_to;
        self.disk_moved();
        if self.role == Role::Leader {
            self.commit_what_a_quorum_has(outputs);
        } else {
            self.acknowledge(outputs);
        }
    }
}
