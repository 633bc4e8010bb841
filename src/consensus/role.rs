//! The consensus role's state, and the turn that moves it on.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use ticketing_raftlog::raft::{
    AppendKind, Core, Epoch, Input, Output, Role as RaftRole, Source, Start,
};
use ticketing_raftlog::{
    BatchBuilder, Durability, EntryKind, Folder, HardState, HardStateStore, Log, LogIndex,
    NeedSegment, NodeId, PendingWrite, Term,
};

use crate::counters::ConsensusCounters;
use crate::fatal::Fatal;
use crate::lanes::messages::{FromConsensus, ToConsensus};
use crate::lanes::{Doorbell, Receiver};
use crate::limits::{CONSENSUS_BYTES_WAITING, FULL_REMINDER_MS, IDLE_MARK_MS, SPARE_RETRY_MS};
use crate::node_signals::NodeSignals;
use crate::runtime::Clock;

use super::Setup;
use super::disk::{Append, Appended, Disk};
use super::fan_out::FanOut;
use super::gathering::Gathering;
use super::jobs::{self, Done, Job};
use super::restore::Restore;
use super::snapshots::Snapshots;

/// Batches appended in one turn when none of them has to be waited for.
const APPENDS_PER_TURN: usize = 8;

/// Where a planned stop stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// Not every shard is quiet yet, if a stop was asked for at all.
    Serving,
    /// Every shard is quiet: nothing more is taken in, and what is here goes into
    /// the log.
    Closing,
    /// Everything written is being synced.
    Syncing,
    /// The last mark is on its way.
    Marking,
    /// The clean stop is being recorded.
    Recording,
    /// Done.
    Ended,
}

/// The consensus role of one node.
pub(super) struct Role {
    clock: Clock,
    durability: Durability,
    counters: Arc<ConsensusCounters>,
    signals: Arc<NodeSignals>,
    doorbell: Arc<Doorbell>,
    from_shards: Receiver<ToConsensus>,
    shards: usize,
    core: Core,
    outputs: Vec<Output>,
    log: Log,
    // `None` while a job on the disk has it.
    store: Option<HardStateStore>,
    // Held for its lock.
    _folder: Folder,
    fan_out: FanOut,
    // The snapshot, until all of it is with the shards.
    restore: Option<Restore>,
    snapshots: Snapshots,
    proposals: Gathering,
    hard_state_due: Option<HardState>,
    noop_due: Option<Term>,
    // A sealed batch's worth of entries that waits for a segment.
    blocked: Option<BatchBuilder>,
    job: Option<Job>,
    spare_job: Option<Job>,
    // Something fits no segment that is there.
    starved: bool,
    spare_retry_ms: u64,
    // Since when there is no room for the next segment, and when that was said.
    full_since_ms: Option<u64>,
    full_told_ms: Option<u64>,
    disk: Disk,
    // What the append thread is writing, and whether it syncs it.
    writing: Option<(PendingWrite, bool)>,
    buffer: Vec<u8>,
    idle_since_ms: u64,
    reached: usize,
    // Shards that are quiet in this round of a stop, and whether one of them
    // was not all along.
    quiet: usize,
    quiet_anew: bool,
    stop: Stop,
}

impl Role {
    pub(super) fn new(setup: Setup) -> Self {
        let first = setup
            .log
            .batches()
            .next()
            .map_or(setup.log.next_index(), |location| location.first_index);
        let shards = setup.to_shards.len();
        Self {
            restore: setup.snapshot.map(Restore::new),
            snapshots: Snapshots::new(setup.snapshots, setup.snapshot_chunks, shards, &setup.log),
            disk: Disk::start(&setup.doorbell),
            clock: setup.clock,
            durability: setup.durability,
            counters: setup.counters,
            signals: setup.signals,
            doorbell: setup.doorbell,
            from_shards: setup.from_shards,
            shards,
            core: single_core(setup.node_id, setup.hard_state, setup.last),
            outputs: Vec::new(),
            log: setup.log,
            store: Some(setup.hard_state_store),
            _folder: setup.folder,
            fan_out: FanOut::new(setup.key_seed, setup.to_shards, first),
            proposals: Gathering::default(),
            hard_state_due: None,
            noop_due: None,
            blocked: None,
            job: None,
            spare_job: None,
            starved: false,
            spare_retry_ms: 0,
            full_since_ms: None,
            full_told_ms: None,
            writing: None,
            buffer: Vec::new(),
            idle_since_ms: setup.clock.now_ms(),
            reached: 0,
            quiet: 0,
            quiet_anew: false,
            stop: Stop::Serving,
        }
    }

    /// Moves everything on that can move without waiting. True once the node
    /// has stopped.
    pub(super) fn turn(&mut self) -> bool {
        let now_ms = self.clock.now_ms();
        let appended = self.disk.take_done();
        let has_appended = appended.is_some();
        if let Some(appended) = appended {
            self.appended(appended);
        }
        self.take_in();
        self.step(Input::Tick { now_ms });
        if has_appended {
            // The next append begins in a turn of its own, behind the answers to
            // this one: the append thread may take this core from them.
            self.doorbell.ring();
        } else {
            self.next_work(now_ms);
        }
        if self.proposals.bytes < CONSENSUS_BYTES_WAITING && self.from_shards.depth() > 0 {
            // Taken in no further than the bound, and there is room again: what
            // is in the lane has rung already.
            self.doorbell.ring();
        }
        self.want_spare(now_ms);
        match &mut self.restore {
            _ if self.stop == Stop::Ended => self.fan_out.unpark(),
            Some(restore) => restore.turn(&mut self.fan_out),
            None => {
                self.fan_out.run(&self.log, self.core.commit());
            }
        }
        if self.reached == self.shards && self.stop == Stop::Serving {
            let persisted = self.core.persisted();
            self.snapshots
                .turn(now_ms, persisted, &self.log, &self.core, &mut self.fan_out);
        }
        self.publish();
        self.stop == Stop::Ended && !self.fan_out.is_parked() && !self.snapshots.is_busy()
    }

    /// When a turn is due even if nobody asks for one.
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        let now_ms = self.clock.now_ms();
        // A full lane rings nobody when it has room again, so look.
        let lane_ms = self.fan_out.is_parked().then_some(now_ms + 1);
        let mark_due = self.log.needs_mark() && !self.starved;
        let mark_ms = (self.job.is_none() && !self.disk.is_busy() && mark_due)
            .then_some(self.idle_since_ms + IDLE_MARK_MS);
        let spare_ms = (self.spare_retry_ms > now_ms).then_some(self.spare_retry_ms);
        let snapshot_ms = self.snapshots.next_deadline_ms(now_ms);
        [lane_ms, mark_ms, spare_ms, snapshot_ms]
            .into_iter()
            .flatten()
            .min()
    }

    /// Polls what was given to helper threads; ready when something is done.
    pub(super) fn poll_jobs(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut any = Poll::Pending;
        if let Some(restore) = &mut self.restore
            && let Poll::Ready(all) = restore.poll_job(cx, &mut self.fan_out)
        {
            if all {
                self.restore = None;
            }
            any = Poll::Ready(());
        }
        let now_ms = self.clock.now_ms();
        let snapshots = &mut self.snapshots;
        if snapshots
            .poll_job(cx, now_ms, &mut self.log, &self.counters)
            .is_ready()
        {
            any = Poll::Ready(());
        }
        if let Some(job) = &mut self.spare_job
            && let Poll::Ready(done) = job.as_mut().poll(cx)
        {
            self.spare_job = None;
            self.done(done);
            any = Poll::Ready(());
        }
        if let Some(job) = &mut self.job
            && let Poll::Ready(done) = job.as_mut().poll(cx)
        {
            self.job = None;
            self.done(done);
            any = Poll::Ready(());
        }
        any
    }

    /// True when the next turn may begin an append.
    pub(super) fn may_append(&self) -> bool {
        let has_some = !self.proposals.is_empty() || self.from_shards.depth() > 0;
        has_some && self.job.is_none() && !self.disk.is_busy()
    }

    fn take_in(&mut self) {
        // What is not taken stays in the lane, and the shards tighten
        // admission when that is full. A stop must hear of the shards' ends even
        // behind what a full disk keeps from being appended.
        let stuck_in_stop = self.blocked.is_some() && self.signals.stop_asked();
        while stuck_in_stop || self.proposals.bytes < CONSENSUS_BYTES_WAITING {
            match self.from_shards.try_recv() {
                // Only after waiting as long as a stop waits at most: nobody is
                // connected any more who could be told what became of it.
                Some(ToConsensus::Proposals(_)) if self.stop != Stop::Serving => {}
                Some(ToConsensus::Proposals(proposals)) => self.proposals.add(proposals),
                Some(ToConsensus::Reached { index }) => {
                    tracing::debug!(index = index.0, "a shard has reached the barrier");
                    self.reached += 1;
                    if self.reached == self.shards {
                        self.fan_out.tell_all(|| FromConsensus::Ready);
                    }
                }
                Some(ToConsensus::Quiet { active }) => self.quiet(active),
                None => break,
            }
        }
    }

    /// One more shard is quiet.
    fn quiet(&mut self, active: bool) {
        self.quiet += 1;
        self.quiet_anew |= active;
        if self.quiet < self.shards {
            return;
        }
        if self.quiet_anew {
            self.quiet = 0;
            self.quiet_anew = false;
            self.fan_out.tell_all(|| FromConsensus::StillQuiet);
        } else {
            self.stop = Stop::Closing;
        }
    }

    fn step(&mut self, input: Input) {
        self.core.step(input, &mut self.outputs);
        let mut outputs = std::mem::take(&mut self.outputs);
        for output in outputs.drain(..) {
            match output {
                Output::PersistHardState(state) => self.hard_state_due = Some(state),
                Output::Append {
                    kind: AppendKind::Noop,
                    term,
                    first,
                    ..
                } => {
                    self.noop_due = Some(term);
                    self.fan_out.lead_from(first);
                }
                Output::RoleChanged { role, term, .. } => {
                    self.counters.term.set(term.0);
                    tracing::info!(term = term.0, ?role, "role");
                }
                // The proposals' batch is built before the core is asked, and
                // the commit index is read from the core.
                Output::Append { .. } | Output::Commit { .. } => {}
                Output::ConfigChanged { .. } => {}
                Output::ProposalRefused { count, reason } => {
                    unreachable!("{count} proposals refused by the only voter: {reason:?}")
                }
                other => unreachable!("{other:?} from the only voter"),
            }
        }
        self.outputs = outputs;
    }

    /// Starts work on the disk as long as nothing is with it and there is some.
    fn next_work(&mut self, now_ms: u64) {
        let mut appends = 0;
        while self.job.is_none() && !self.disk.is_busy() && appends < APPENDS_PER_TURN {
            appends += 1;
            match self.next_job(now_ms) {
                Some(job) => self.job = Some(job),
                None if self.proposals.is_empty() || self.blocked.is_some() => return,
                None => {}
            }
        }
        if self.job.is_none() && !self.disk.is_busy() {
            // More waits: let the shards have what is committed first.
            self.doorbell.ring();
        }
    }

    fn next_job(&mut self, now_ms: u64) -> Option<Job> {
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

    /// The next entries to append: the term's no-op, alone, or what the shards
    /// propose, as much as fits.
    fn gather(&mut self) -> Option<BatchBuilder> {
        if let Some(term) = self.noop_due.take() {
            let mut batch = self.log.begin(Vec::new());
            let pushed = batch.push(EntryKind::Noop, term, &[]);
            assert!(pushed.is_ok(), "an empty batch has room for a no-op");
            return Some(batch);
        }
        if self.proposals.is_empty() || self.core.role() != RaftRole::Leader {
            return None;
        }
        let term = self.core.term();
        let mut batch = self.log.begin(std::mem::take(&mut self.buffer));
        self.proposals.fill(&mut batch, term);
        let (count, first) = (batch.entries(), batch.first_index());
        self.core.step(
            Input::Propose {
                count,
                bytes: batch.byte_len() as u64,
            },
            &mut self.outputs,
        );
        let ordered = self.outputs.drain(..).any(|output| {
            output
                == Output::Append {
                    first,
                    count,
                    term,
                    kind: AppendKind::Commands,
                    source: Source::Own,
                }
        });
        assert!(ordered, "the core orders entries as the log numbers them");
        Some(batch)
    }

    fn write(&mut self, sealed: Result<PendingWrite, NeedSegment>, durability: Durability) {
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

    /// The steps of an ordered end, one job after the other.
    fn close(&mut self) -> Option<Job> {
        match self.stop {
            Stop::Serving | Stop::Ended => None,
            Stop::Closing => {
                self.stop = Stop::Syncing;
                Some(jobs::sync_all(self.log.segments().cloned().collect()))
            }
            Stop::Syncing => {
                self.stop = Stop::Marking;
                let mark = self.log.clean_stop_mark(Vec::new());
                self.write(mark, Durability::Sync);
                if self.writing.is_none() {
                    tracing::warn!("no room for the last mark: stopping without it");
                    self.end();
                }
                None
            }
            Stop::Marking => {
                self.stop = Stop::Recording;
                let store = self.take_store();
                Some(jobs::clean_stop(store))
            }
            Stop::Recording => {
                self.end();
                None
            }
        }
    }

    fn end(&mut self) {
        self.stop = Stop::Ended;
        self.fan_out.end();
    }

    fn take_store(&mut self) -> HardStateStore {
        match self.store.take() {
            Some(store) => store,
            None => unreachable!("one job on the disk at a time"),
        }
    }

    fn appended(&mut self, appended: Appended) {
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
        if write.entries > 0 {
            self.idle_since_ms = self.clock.now_ms();
            self.step(Input::Persisted {
                // A single voter's log is never cut.
                epoch: Epoch(0),
                up_to: write.last_index,
            });
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::HardState {
                store,
                state,
                result,
            } => {
                fatal_unless(result, "keeping term and vote");
                self.store = Some(store);
                self.step(Input::HardStatePersisted(state));
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
                    self.signals.set_log_full(false);
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
        self.signals.set_log_full(true);
        let since_ms = *self.full_since_ms.get_or_insert(now_ms);
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

    fn want_spare(&mut self, now_ms: u64) {
        if self.spare_job.is_none()
            && now_ms >= self.spare_retry_ms
            && !self.snapshots.is_making_room()
            && let Some(spec) = self.log.wants_spare()
        {
            // The reserve is for a snapshot, unless none can help: then it is for
            // what cannot even be appended any more.
            let no_snapshot = self.reached < self.shards || self.snapshots.are_no_help(&self.log);
            let use_reserve = self.starved && self.full_since_ms.is_some() && no_snapshot;
            self.spare_job = Some(jobs::spare(spec, self.log.reserve(), use_reserve));
        }
    }

    fn publish(&self) {
        let counters = &self.counters;
        counters.rounds.add(1);
        counters.last_index.set(self.log.next_index().previous().0);
        counters.persisted_index.set(self.core.persisted().0);
        counters.commit_index.set(self.core.commit().0);
        counters.waiting_bytes.set(self.proposals.bytes as u64);
        counters.segments.set(self.log.segment_files() as u64);
        counters
            .log_full
            .set(u64::from(self.full_since_ms.is_some()));
    }
}

fn single_core(node_id: NodeId, hard_state: HardState, last: (LogIndex, Term)) -> Core {
    match Core::new(Start::single(node_id, hard_state, last.0, last.1)) {
        Ok(core) => core,
        Err(error) => Fatal::Corrupt.exit(format_args!("{error}")),
    }
}

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

pub(super) fn fatal_unless(result: io::Result<()>, doing: &str) {
    if let Err(error) = result {
        Fatal::Disk.exit(format_args!(
            "{doing} failed: {error}; what is on the disk is not known any more, so nothing is \
             served from it: check the disk, then start again"
        ));
    }
}
