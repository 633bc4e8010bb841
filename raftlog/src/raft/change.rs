//! Changes of members, one at a time (paper, section 6; thesis 4).

use super::config::{Change, ChangeRefusal};
use super::core::Core;
use super::progress::State;
use super::types::{AppendKind, Output, Role};
use crate::limits::{CONFIG_BYTES, PROMOTION_LAG_ENTRIES};

impl Core {
    pub(super) fn change(&mut self, change: Change, outputs: &mut Vec<Output>) {
        match self.check_change(change) {
            Ok(kind) => {
                self.append_own(1, CONFIG_BYTES, kind, outputs);
                self.send_entries_to_all(outputs);
            }
            Err(reason) => outputs.push(Output::ChangeRefused { change, reason }),
        }
    }

    fn check_change(&self, change: Change) -> Result<AppendKind, ChangeRefusal> {
        let current = self.configs.current();
        if self.role != Role::Leader {
            return Err(ChangeRefusal::NotLeader);
        }
        if current.config.is_single() {
            return Err(ChangeRefusal::SingleMode);
        }
        if self.transfer.is_some() {
            return Err(ChangeRefusal::Transferring);
        }
        if self.commit < self.term_start {
            // Until then an earlier leader's change may be about to commit elsewhere.
            return Err(ChangeRefusal::NotReady);
        }
        if current.config.replacement().is_some() || current.index > self.commit {
            return Err(ChangeRefusal::Busy);
        }
        let config = current.config.changed(change)?;
        if let Change::Replace { new, .. } = change {
            // Its vote counts from the moment the change is in the log: no majority should have to
            // wait for it to catch up (thesis 4.2.1).
            let learner = self.peers.iter().find(|peer| peer.id == new);
            let caught_up = learner.is_some_and(|peer| {
                let heard = self.now_ms.saturating_sub(peer.heard_ms) < self.timing.election_ms;
                let lag = self.last().index.0 - peer.matched.0;
                let streams = matches!(peer.state, State::Stream);
                heard && streams && lag <= PROMOTION_LAG_ENTRIES
            });
            if !caught_up {
                return Err(ChangeRefusal::NotCaughtUp);
            }
        }
        Ok(AppendKind::Config(config))
    }

    /// A leader's commit index has moved: a joint configuration that is committed is left, and so
    /// is leadership by who is in the committed configuration no more.
    ///
    /// By the time it has committed anything in its own term, a leader has committed an inherited
    /// joint configuration too, and by both majorities.
    pub(super) fn go_on_with_change(&mut self, outputs: &mut Vec<Output>) {
        let current = *self.configs.current();
        if current.index > self.commit || self.commit < self.term_start {
            return;
        }
        if current.config.replacement().is_some() {
            let kind = AppendKind::Config(current.config.settled());
            self.append_own(1, CONFIG_BYTES, kind, outputs);
            self.send_entries_to_all(outputs);
        } else if !current.config.is_voter(self.node_id) && self.transfer.is_none() {
            self.leave_leadership(outputs);
        }
    }
}
