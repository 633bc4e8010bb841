//! A follower's part in replication (paper, figure 2, AppendEntries).

use super::bugs::Bug;
use super::config::Config;
use super::core::Core;
use super::message::{Body, EntryId, Run};
use super::types::{AppendKind, Output, Role, Source};
use crate::limits::{MAX_APPEND_BYTES, MAX_APPEND_ENTRIES, MAX_PEER_INDEX};
use crate::types::{LogIndex, NodeId};

impl Core {
    pub(super) fn take_entries(
        &mut self,
        from: NodeId,
        previous: EntryId,
        run: Run,
        commit: LogIndex,
        outputs: &mut Vec<Output>,
    ) {
        // While a snapshot is being installed the log is about to go; the leader asks again.
        if self.is_installing() || !self.is_sound(previous, &run) {
            return;
        }
        if *self.config_now() == Config::unknown() {
            return self.send(from, Body::NeedsSnapshot, outputs);
        }
        let end = previous.index.plus(u64::from(run.count));
        // What is committed here is the same in every leader's log.
        let known = self.commit.max(previous.index);
        if end <= self.commit {
            return self.acknowledge_asked(outputs);
        }
        if previous.index >= self.commit && !self.log.has(previous) {
            let hint = self.log.floor(previous.index, previous.term);
            let refused = previous.index;
            return self.send(from, Body::Conflict { refused, hint }, outputs);
        }
        let left = (end.0 - known.0) as u32;
        let first = self.log.first_unknown(known, left, run.term);
        if first <= end {
            if first <= self.last().index {
                // One leader's entries never conflict with each other, nor with committed ones.
                if first <= self.verified {
                    return;
                }
                self.truncate(first, outputs);
            }
            let count = (end.0 - first.0 + 1) as u32;
            let skip = run.count - count;
            let source = Source::Received { skip };
            self.append(count, run.bytes, run.term, run.kind, source, outputs);
        }
        self.verified = self.verified.max(end);
        self.commit_up_to(commit, outputs);
        self.acknowledge_asked(outputs);
    }

    /// Whether a message's entries can be: the frame says nothing of how its numbers relate.
    fn is_sound(&self, previous: EntryId, run: &Run) -> bool {
        let config_is_alone = match run.kind {
            AppendKind::Config(config) => run.count == 1 && config != Config::unknown(),
            AppendKind::Noop => run.count <= 1,
            AppendKind::Commands => true,
        };
        run.count <= MAX_APPEND_ENTRIES
            && run.bytes <= MAX_APPEND_BYTES
            && run.term <= self.hard.term
            && previous.term <= run.term
            && previous.index.0 < MAX_PEER_INDEX
            && config_is_alone
    }

    fn truncate(&mut self, from: LogIndex, outputs: &mut Vec<Output>) {
        self.tell_role(outputs);
        self.epoch.0 += 1;
        self.log.truncate(from);
        self.persisted = self.persisted.min(from.previous());
        outputs.push(Output::Truncate {
            from,
            previous_term: self.last().term,
            epoch: self.epoch,
        });
        if self.configs.truncate(from) {
            self.tell_config(outputs);
        }
    }

    /// The leader says what is committed: that counts as far as the log is known to be its log.
    pub(super) fn commit_up_to(&mut self, commit: LogIndex, outputs: &mut Vec<Output>) {
        let commit = commit.min(self.verified);
        if commit > self.commit {
            self.advance_commit(commit, outputs);
        }
    }

    fn acknowledge_asked(&mut self, outputs: &mut Vec<Output>) {
        self.acknowledgement_due = true;
        self.acknowledge(outputs);
    }

    /// Tells the leader how much of its log is persisted here, if that is more than was told or it
    /// asked.
    pub(super) fn acknowledge(&mut self, outputs: &mut Vec<Output>) {
        let Some(leader) = self.leader.filter(|_| self.role == Role::Follower) else {
            return;
        };
        let mut up_to = self.verified.min(self.persisted);
        if self.makes(Bug::AnswersBeforePersisting) {
            up_to = self.verified;
        } else if !self.hard_persisted {
            return;
        }
        let answers = self.acknowledgement_due && up_to == self.verified;
        if up_to > self.acknowledged || answers {
            self.acknowledged = up_to;
            self.acknowledgement_due = up_to < self.verified;
            self.send(leader, Body::Matched { up_to }, outputs);
        }
    }

    pub(super) fn take_heartbeat(
        &mut self,
        from: NodeId,
        round: u64,
        commit: LogIndex,
        rank: u8,
        outputs: &mut Vec<Output>,
    ) {
        self.hint.rank = rank;
        if !self.is_installing() {
            self.commit_up_to(commit, outputs);
        }
        let body = Body::HeartbeatAnswer {
            round,
            received: self.verified,
            report: self.report,
        };
        self.send(from, body, outputs);
        if commit < self.acknowledged {
            // The leader does not count all that was acknowledged: that may be lost.
            self.acknowledged = commit;
            self.acknowledge(outputs);
        }
    }
}
