//! The consensus role's state, and the turn that moves it on.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use ticketing_raftlog::raft::{Core, Input, Output, Start};
use ticketing_raftlog::{
    BatchBuilder, Durability, Folder, HardState, HardStateStore, Log, LogIndex, NodeId,
    PendingWrite, Term,
};

use crate::counters::ConsensusCounters;
use crate::fatal::Fatal;
use crate::lanes::messages::{FromConsensus, Lead, ToConsensus};
use crate::lanes::{Doorbell, Receiver};
use crate::limits::{CONSENSUS_BYTES_WAITING, IDLE_MARK_MS, STATE_HASH_EVERY};
use crate::node_signals::NodeSignals;
use crate::runtime::Clock;

use super::Setup;
use super::cluster::Cluster;
use super::disk::Disk;
use super::fan_out::FanOut;
use super::gathering::Gathering;
use super::jobs::Job;
use super::restore::Restore;
use super::snapshots::Snapshots;
use super::stopping::Stop;
use super::tail::{Entries, Tail};

/// The consensus role of one node.
pub(super) struct Role {
    pub(super) clock: Clock,
    pub(super) durability: Durability,
    pub(super) counters: Arc<ConsensusCounters>,
    pub(super) signals: Arc<NodeSignals>,
    pub(super) doorbell: Arc<Doorbell>,
    pub(super) from_shards: Receiver<ToConsensus>,
    pub(super) shards: usize,
    pub(super) node_id: NodeId,
    pub(super) core: Core,
    pub(super) outputs: Vec<Output>,
    pub(super) inputs: VecDeque<Input>,
    // What came with the message that is being taken in.
    pub(super) received: Vec<u8>,
    // The proposals that the core is being asked to take, where peers may need them.
    pub(super) proposing: Option<Entries>,
    pub(super) accepted: bool,
    pub(super) log: Log,
    pub(super) tail: Tail,
    // The last entry that was appended, in the file or not, as far as the core's decisions are carried out.
    pub(super) last: LogIndex,
    // `None` while a job on the disk has it.
    // `None` while a job has it.
    pub(super) store: Option<HardStateStore>,
    pub(super) second_slot: Option<Job>,
    // Held for its lock.
    pub(super) _folder: Folder,
    pub(super) fan_out: FanOut,
    // The snapshot, until all of it is with the shards.
    pub(super) restore: Option<Restore>,
    pub(super) snapshots: Snapshots,
    pub(super) proposals: Gathering,
    pub(super) hard_state_due: Option<HardState>,
    // A batch that waits for a segment.
    pub(super) blocked: Option<BatchBuilder>,
    pub(super) job: Option<Job>,
    pub(super) spare_job: Option<Job>,
    // Something fits no segment that is there.
    pub(super) starved: bool,
    pub(super) spare_retry_ms: u64,
    // Since when there is no room for the next segment, and when that was said.
    pub(super) full_since_ms: Option<u64>,
    pub(super) full_told_ms: Option<u64>,
    pub(super) disk: Disk,
    // What the append thread is writing, and whether it syncs it.
    pub(super) writing: Option<(PendingWrite, bool)>,
    pub(super) buffer: Vec<u8>,
    pub(super) idle_since_ms: u64,
    // The term in which this node leads, and whether it serves in it.
    pub(super) leading: Option<Term>,
    pub(super) ready: bool,
    pub(super) reached: usize,
    // Shards that are quiet in this round of a stop, and whether one of them
    // was not all along.
    pub(super) quiet: usize,
    pub(super) quiet_anew: bool,
    pub(super) stop: Stop,
    // Shards that have nothing in the log any more, in a stop; and whether leadership is being handed over.
    pub(super) drained: usize,
    pub(super) handing_over: bool,
    // Every voter holds other locks.
    pub(super) diverged: bool,
    // With a cluster's other nodes; a single node has none.
    pub(super) cluster: Option<Cluster>,
}

impl Role {
    pub(super) fn new(setup: Setup) -> Self {
        // What the snapshot covers is handed out with it.
        let first = setup.log.index().base().next();
        let shards = setup.to_shards.len();
        let core = match &setup.cluster {
            Some(cluster) => core(cluster.start(&setup)),
            None => core(Start::single(
                setup.node_id,
                setup.hard_state,
                setup.last.0,
                setup.last.1,
            )),
        };
        let cluster = setup
            .cluster
            .map(|cluster| Cluster::start_with(cluster, &core, setup.snapshot.as_ref()));
        let mut fan_out = FanOut::new(setup.key_seed, setup.to_shards, first);
        if cluster.is_some() {
            fan_out.hash_every(STATE_HASH_EVERY);
        }
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
            node_id: setup.node_id,
            core,
            outputs: Vec::new(),
            inputs: VecDeque::new(),
            received: Vec::new(),
            proposing: None,
            accepted: false,
            log: setup.log,
            tail: Tail::default(),
            last: setup.last.0,
            store: Some(setup.hard_state_store),
            second_slot: None,
            _folder: setup.folder,
            fan_out,
            proposals: Gathering::default(),
            hard_state_due: None,
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
            leading: None,
            ready: false,
            reached: 0,
            quiet: 0,
            quiet_anew: false,
            stop: Stop::Serving,
            drained: 0,
            handing_over: false,
            diverged: false,
            cluster,
        }
    }

    /// Moves everything on that can move without waiting. True once the node
    /// has stopped.
    pub(super) fn turn(&mut self) -> bool {
        let now_ms = self.clock.now_ms();
        self.step(Input::Tick { now_ms });
        let appended = self.disk.take_done();
        let has_appended = appended.is_some();
        if let Some(appended) = appended {
            self.appended(appended);
        }
        self.take_in();
        self.take_events(now_ms);
        self.hand_back_stale();
        if has_appended && self.cluster.is_none() {
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
                let fates = self.cluster.as_mut().map(|cluster| &mut cluster.fates);
                // A snapshot ends with what this node has on its disk.
                let ahead = !self.snapshots.is_waiting(now_ms, &self.log);
                let from = (&self.log, &self.tail);
                self.fan_out.run(from, self.core.commit(), ahead, fates);
            }
        }
        let replayed = self.restore.is_none()
            && (self.cluster.is_some() || self.reached == self.shards && self.ready);
        // A segment that is being made would take the room that the snapshot's reserve gives up.
        let has_room_to_itself = !self.snapshots.is_pressed() || self.spare_job.is_none();
        if replayed && self.stop == Stop::Serving && has_room_to_itself {
            let persisted = self.core.persisted();
            self.snapshots
                .turn(now_ms, persisted, &self.log, &self.core, &mut self.fan_out);
        }
        self.pump_cluster(now_ms);
        self.publish_cluster(now_ms);
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
        let cluster_ms = self.cluster.as_ref().map(|_| self.core.next_deadline_ms());
        [lane_ms, mark_ms, spare_ms, snapshot_ms, cluster_ms]
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
        if let Poll::Ready(written) = snapshots.poll_job(cx, now_ms, &self.counters) {
            if let Some(meta) = written {
                self.snapshot_written(&meta);
            }
            any = Poll::Ready(());
        }
        if let Some(job) = &mut self.spare_job
            && let Poll::Ready(done) = job.as_mut().poll(cx)
        {
            self.spare_job = None;
            self.done(done);
            any = Poll::Ready(());
        }
        if let Some(job) = &mut self.second_slot
            && let Poll::Ready(done) = job.as_mut().poll(cx)
        {
            self.second_slot = None;
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
        if self.poll_install(cx).is_ready() {
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
                Some(ToConsensus::Proposals { .. }) if self.stop != Stop::Serving => {}
                Some(ToConsensus::Proposals {
                    shard,
                    term,
                    proposals,
                }) => self.proposals.add(shard, term, proposals),
                Some(ToConsensus::Reached { index }) => {
                    tracing::debug!(index = index.0, "a shard has reached the barrier");
                    if self.fan_out.barrier_sent() == Some(index) {
                        self.reached += 1;
                    }
                    self.become_ready();
                }
                Some(ToConsensus::Quiet { active }) => self.quiet(active),
                Some(ToConsensus::Drained) => self.drained(),
                Some(ToConsensus::Confirm { shard, request }) => self.confirm(shard, request),
                Some(ToConsensus::Orphan { key, token }) => self.ask_to_release(&key, token),
                Some(ToConsensus::StateSum { index, sum }) => self.state_sum(index, sum),
                Some(ToConsensus::Operator(slip)) => self.take_order(slip),
                Some(ToConsensus::PeerReleased { peer, number }) => {
                    self.tell_released(peer, number);
                }
                None => break,
            }
        }
    }

    /// Serves once every shard has applied the first entry of this node's term.
    fn become_ready(&mut self) {
        let Some(term) = self.leading else {
            return;
        };
        if self.ready || self.reached < self.shards {
            return;
        }
        self.ready = true;
        self.fan_out
            .tell_all(|| FromConsensus::Lead(Lead::Ready(term)));
        self.tell_ready(term);
    }

    fn publish(&self) {
        let counters = &self.counters;
        counters.rounds.add(1);
        counters.last_index.set(self.core.last_index().0);
        counters.persisted_index.set(self.core.persisted().0);
        counters.commit_index.set(self.core.commit().0);
        counters.waiting_bytes.set(self.proposals.bytes as u64);
        counters.segments.set(self.log.segment_files() as u64);
        counters
            .log_full
            .set(u64::from(self.full_since_ms.is_some()));
    }
}

fn core(start: Start) -> Core {
    match Core::new(start) {
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

pub(crate) fn fatal_unless(result: io::Result<()>, doing: &str) {
    if let Err(error) = result {
        Fatal::Disk.exit(format_args!(
            "{doing} failed: {error}; what is on the disk is not known any more, so nothing is \
             served from it: check the disk, then start again"
        ));
    }
}
