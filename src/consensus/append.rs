//! Appending: what goes into the next batch, and what becomes of it.

use std::io;
use std::sync::Arc;

use ticketing_raftlog::raft::{Input, Role as RaftRole};
use ticketing_raftlog::{BatchBuilder, Durability, HardStateStore, NeedSegment, PendingWrite};

use crate::lanes::messages::FromConsensus;
use crate::limits::{FULL_REMINDER_MS, IDLE_MARK_MS, SPARE_RETRY_MS};
use crate::locks::Fate;

use super::disk::{Append, Appended};
use super::gathering::Gathering;
use super::jobs::{self, Done, Job};
use super::role::{Role, fatal_unless, is_full};
use super::stopping::Stop;
use super::tail::Entries;

/// Batches appended in one turn when none of them has to be waited for.
const APPENDS_PER_TURN: usize = 8;

impl Role {
    /// Starts work on the disk as long as nothing is with it and there is some.
    pub(super) fn next_work(&mut self, now_ms: u64) {
        let mut appends = 0;
        while self.job.is_none() && !self.disk.is_busy() && appends < APPENDS_PER_TURN {
            appends += 1;
            match self.next_job(now_ms) {
                Some(job) => self.job = Some(job),
                None if self.is_idle() || self.blocked.is_some() || self.waits_for_store() => {
                    return;
                }
                None => {}
            }
        }
        if self.job.is_none() && !self.disk.is_busy() {
            // More waits: let the shards have what is committed first.
            self.doorbell.ring();
        }
    }

    /// Nothing waits to be appended that could be.
    fn is_idle(&self) -> bool {
        let may_propose = self.leading.is_some() && !self.diverged;
        self.tail.is_empty() && (self.proposals.is_empty() || !may_propose)
    }

    /// Whether what is to be done next needs the state file, whose second slot is being written.
    fn waits_for_store(&self) -> bool {
        let needed = self.hard_state_due.is_some()
            || self.log.ceiling_due().is_some()
            || self.stop != Stop::Serving;
        self.store.is_none() && needed
    }

    fn next_job(&mut self, now_ms: u64) -> Option<Job> {
        if self.waits_for_store() {
            return None;
        }
        if let Some(state) = self.hard_state_due.take() {
            let store = self.take_store();
            return Some(jobs::hard_state(store, state));
        }
        if let Some(ceiling) = self.log.ceiling_due() {
            let store = self.take_store();
            return Some(jobs::ceiling(store, ceiling));
        }
        if self.stop == Stop::Closing && !self.log.has_spare() {
            // Nobody waits for what found no segment any more: it never was in
            // the log, and a stop must not wait for room on the disk.
            if let Some(batch) = self.blocked.take() {
                tracing::warn!(
                    entries = batch.entries(),
                    "stopping without what the log had no room for"
                );
                self.proposals = Gathering::default();
                return self.close();
            }
        }
        if let Some(batch) = self.blocked.take().or_else(|| self.gather()) {
            let sealed = self.log.finish(batch);
            self.write(sealed, self.durability);
            return None;
        }
        if self.stop != Stop::Serving {
            return self.close();
        }
        if self.log.needs_mark() && !self.starved && now_ms >= self.idle_since_ms + IDLE_MARK_MS {
            let mark = self.log.mark(Vec::new());
            self.write(mark, self.durability);
        }
        None
    }

    /// The next entries to append: what the core has asked for, or what the shards propose, as much as
    /// fits.
    fn gather(&mut self) -> Option<BatchBuilder> {
        if let Some(batch) = self.tail.next_batch(&self.log, &mut self.buffer) {
            return Some(batch);
        }
        if self.proposals.is_empty() || self.core.role() != RaftRole::Leader || self.diverged {
            return None;
        }
        let term = self.core.term();
        let mut batch = self.log.begin(std::mem::take(&mut self.buffer));
        let filled = self.proposals.fill(&mut batch, term);
        if batch.is_empty() {
            return None;
        }
        let count = batch.entries();
        let entries = self.cluster.is_some().then(|| Entries {
            first: batch.first_index(),
            count,
            records: batch.record_bytes().to_vec(),
        });
        self.proposing = entries;
        self.accepted = false;
        self.step(Input::Propose {
            count,
            bytes: batch.byte_len() as u64,
        });
        if !self.accepted {
            // Too much is on its way, or leadership is: it stays where it is.
            self.proposing = None;
            return None;
        }
        self.proposals.taken(filled);
        Some(batch)
    }

    /// Gives back to the shards what they proposed in a leadership that is over.
    pub(super) fn hand_back_stale(&mut self) {
        if self.proposals.is_empty() {
            return;
        }
        for (shard, stale) in self.proposals.drop_stale(self.leading) {
            let commands = stale.payloads().map(<[u8]>::to_vec).collect();
            self.fan_out.tell(
                shard,
                FromConsensus::Dropped {
                    commands,
                    fate: Fate::Dropped,
                },
            );
        }
    }

    pub(super) fn write(
        &mut self,
        sealed: Result<PendingWrite, NeedSegment>,
        durability: Durability,
    ) {
        match sealed {
            Ok(mut write) => {
                let sync = durability == Durability::Sync;
                let done = self.disk.append(Append {
                    segment: Arc::clone(&write.segment),
                    offset: write.offset,
                    bytes: std::mem::take(&mut write.bytes),
                    sync,
                });
                self.writing = Some((write, sync));
                if let Some(appended) = done {
                    self.appended(appended);
                }
            }
            Err(NeedSegment { batch }) => {
                self.starved = true;
                // An empty batch is a mark, which is made anew.
                self.blocked = (!batch.is_empty()).then_some(batch);
            }
        }
    }

    pub(super) fn take_store(&mut self) -> HardStateStore {
        match self.store.take() {
            Some(store) => store,
            None => unreachable!("one job on the disk at a time"),
        }
    }

    pub(super) fn appended(&mut self, appended: Appended) {
        fatal_unless(appended.result, "appending to the log");
        let Some((write, synced)) = self.writing.take() else {
            unreachable!("what is done was being written");
        };
        self.buffer = appended.bytes;
        self.log.written(&write);
        if synced {
            self.log.synced(write.position_end);
            self.counters.syncs.add(1);
        }
        let bytes = u64::from(write.position_end.offset()) - write.offset;
        self.snapshots.appended(bytes, u64::from(write.entries));
        self.counters.batches.add(1);
        self.counters.commands.add(u64::from(write.entries));
        self.counters.persist_us.add(appended.took_us);
        let epoch = self.tail.written();
        if write.entries > 0 {
            self.idle_since_ms = self.clock.now_ms();
            self.step(Input::Persisted {
                epoch,
                up_to: write.last_index,
            });
        }
    }

    pub(super) fn done(&mut self, done: Done) {
        match done {
            Done::HardState {
                store,
                state,
                result,
            } => {
                fatal_unless(result, "keeping term and vote");
                self.second_slot = Some(jobs::second_slot(store));
                self.step(Input::HardStatePersisted(state));
            }
            Done::SecondSlot { store, result } => {
                fatal_unless(result, "keeping term and vote a second time");
                self.store = Some(store);
            }
            Done::Ceiling {
                store,
                ceiling,
                result,
            } => {
                fatal_unless(result, "raising the ceiling of the log");
                self.store = Some(store);
                self.log.ceiling_raised(ceiling);
            }
            Done::AllSynced(result) => {
                fatal_unless(result, "syncing the log");
                self.log.synced(self.log.written_end());
            }
            Done::CleanStop { store, result } => {
                fatal_unless(result, "recording the stop");
                self.store = Some(store);
            }
            Done::Spare(Ok(segment)) => {
                self.log.give_spare(segment);
                self.starved = false;
                if let Some(since_ms) = self.full_since_ms.take() {
                    self.step(Input::DiskRoom { has_room: true });
                    self.tell_room();
                    if self.full_told_ms.is_some_and(|told_ms| told_ms >= since_ms) {
                        tracing::warn!("there is room for the log again: acquires are served");
                    }
                }
            }
            Done::Spare(Err(error)) if is_full(&error) => {
                self.log.spare_failed();
                self.snapshots.press();
                let now_ms = self.clock.now_ms();
                self.spare_retry_ms = now_ms + SPARE_RETRY_MS;
                self.disk_full(now_ms, &error);
            }
            Done::Spare(Err(error)) => fatal_unless(Err(error), "making a log segment"),
        }
    }

    /// Has acquires refused until there is room: what is left of the log is for
    /// releases, expiries, and whoever stands in line already.
    fn disk_full(&mut self, now_ms: u64, error: &io::Error) {
        let since_ms = *self.full_since_ms.get_or_insert(now_ms);
        self.step(Input::DiskRoom { has_room: false });
        self.tell_room();
        // A snapshot may make room for a moment, again and again.
        let told_ms = self.full_told_ms;
        if told_ms.is_none_or(|told_ms| now_ms >= told_ms + FULL_REMINDER_MS) {
            self.full_told_ms = Some(now_ms);
            tracing::warn!(
                full_ms = now_ms - since_ms,
                "no room for the next log segment ({error}): acquires are answered Busy, releases \
                 and expiries go on in the last segment; make room on the disk of the data folder"
            );
        }
    }

    /// Has acquires refused while this disk, or most of the others', have no room.
    pub(super) fn tell_room(&self) {
        let room = self.full_since_ms.is_none()
            && (self.cluster.is_none() || self.core.quorum_has_room())
            && !self.diverged;
        self.signals.set_log_full(!room);
    }

    pub(super) fn want_spare(&mut self, now_ms: u64) {
        if self.spare_job.is_none()
            && now_ms >= self.spare_retry_ms
            && !self.snapshots.is_making_room()
            && let Some(spec) = self.log.wants_spare()
        {
            // The reserve is for a snapshot, unless none can help: then it is for
            // what cannot even be appended any more.
            let no_snapshot =
                !self.ready && self.cluster.is_none() || self.snapshots.are_no_help(&self.log);
            let use_reserve = self.starved && self.full_since_ms.is_some() && no_snapshot;
            self.spare_job = Some(jobs::spare(spec, self.log.reserve(), use_reserve));
        }
    }
}
