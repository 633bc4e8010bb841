//! When to take a snapshot, and taking it: a barrier goes down every lane in log
//! order, the shards send what they held there in chunks, a helper thread
//! writes them, and then the segments that are covered become spares again.
//!
//! One at a time. Nothing waits for it: the shards cut without stopping, and
//! their chunks wait in a bounded lane of their own.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use ticketing_raftlog::raft::Core;
use ticketing_raftlog::{Log, LogIndex, Reserve, SnapshotMeta, SnapshotSpec, SnapshotWriter};

use crate::counters::ConsensusCounters;
use crate::lanes::Receiver;
use crate::lanes::messages::{FromConsensus, SnapshotChunk};
use crate::limits::{SNAPSHOT_CHUNKS_WAITING, SNAPSHOT_RETRY_MS, SNAPSHOT_SEGMENT_FILES};
use crate::runtime;

use super::fan_out::FanOut;
use super::role::{fatal_unless, is_full};

/// When a snapshot is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// After so many bytes of log since the last one.
    pub log_bytes: u64,
    /// After so many entries since the last one.
    pub log_entries: u64,
}

/// The snapshots of one node's log.
pub(super) struct Snapshots {
    policy: SnapshotPolicy,
    from_shards: Receiver<SnapshotChunk>,
    shards: usize,
    // Since the last snapshot's cut.
    log_bytes: u64,
    log_entries: u64,
    // Room on the disk that only a snapshot may use, and only when pressed.
    reserve: Reserve,
    // There is no room on the disk for the next segment.
    pressed: bool,
    // Nor was there for the last snapshot that was tried.
    no_room: bool,
    retry_ms: u64,
    // A peer needs one.
    wanted: bool,
    // Another one was installed: the one that is being taken is of a state that is gone.
    is_void: bool,
    state: State,
    job: Option<Job>,
}

enum State {
    Idle,
    Taking(Taking),
    /// One failed; so many shards have not sent all of theirs yet.
    Discarding(usize),
}

struct Taking {
    meta: SnapshotMeta,
    // `None` while a job has it.
    writer: Option<SnapshotWriter>,
    shards_left: usize,
    log_bytes: u64,
    log_entries: u64,
}

type Job = Pin<Box<dyn Future<Output = Done>>>;

enum Done {
    Written(io::Result<SnapshotWriter>),
    Finished(io::Result<u64>),
}

impl Snapshots {
    pub(super) fn new(
        policy: SnapshotPolicy,
        from_shards: Receiver<SnapshotChunk>,
        shards: usize,
        log: &Log,
    ) -> Self {
        Self {
            policy,
            from_shards,
            shards,
            log_bytes: log.bytes_behind(log.index().base()),
            log_entries: log.index().entries(),
            reserve: log.reserve(),
            pressed: false,
            no_room: false,
            retry_ms: 0,
            wanted: false,
            is_void: false,
            state: State::Idle,
            job: None,
        }
    }

    /// So much was appended.
    pub(super) fn appended(&mut self, bytes: u64, entries: u64) {
        self.log_bytes += bytes;
        self.log_entries += entries;
    }

    /// The disk is full: what a snapshot covers can be used again.
    pub(super) fn press(&mut self) {
        self.pressed = true;
    }

    /// True while the disk is full, and no snapshot has made room since.
    pub(super) fn is_pressed(&self) -> bool {
        self.pressed
    }

    /// A peer needs one, as soon as there is anything new to put in.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// The state is another node's snapshot from here on.
    pub(super) fn forget(&mut self) {
        self.is_void = matches!(self.state, State::Taking(_));
        self.wanted = false;
        self.log_bytes = 0;
        self.log_entries = 0;
    }

    /// True while a snapshot is being taken because the disk is full: the room
    /// that there is, is for it.
    pub(super) fn is_making_room(&self) -> bool {
        self.pressed && matches!(self.state, State::Taking(_))
    }

    /// True when no snapshot would help a full disk: it finds no room itself, or
    /// would free no segment.
    pub(super) fn are_no_help(&self, log: &Log) -> bool {
        self.no_room || !log.could_recycle()
    }

    /// True while a helper thread has something of it.
    pub(super) fn is_busy(&self) -> bool {
        self.job.is_some()
    }

    /// When a turn is due even if nobody asks for one.
    pub(super) fn next_deadline_ms(&self, now_ms: u64) -> Option<u64> {
        (self.retry_ms > now_ms).then_some(self.retry_ms)
    }

    /// True when one is to be begun, and only waits for where it can end.
    pub(super) fn is_waiting(&self, now_ms: u64, log: &Log) -> bool {
        matches!(self.state, State::Idle) && now_ms >= self.retry_ms && self.is_due(log)
    }

    /// Moves on what can move without waiting. `persisted` is how far the log
    /// is.
    pub(super) fn turn(
        &mut self,
        now_ms: u64,
        persisted: LogIndex,
        log: &Log,
        core: &Core,
        fan_out: &mut FanOut,
    ) {
        if self.job.is_some() {
            return;
        }
        match &mut self.state {
            State::Idle => {
                if self.is_waiting(now_ms, log)
                    && let Some(index) = fan_out.handed_out()
                    && index <= persisted
                    && index > log.index().base()
                    && let Some(config) = core.config_at(index)
                {
                    let spec = log.snapshot_spec(index, config);
                    fan_out.tell_all(|| FromConsensus::Snapshot { index });
                    self.begin(spec);
                }
            }
            State::Taking(taking) if self.is_void => {
                if let Some(writer) = taking.writer.take() {
                    fatal_unless(writer.abandon(), "dropping a snapshot");
                }
                self.is_void = false;
                self.state = State::Discarding(taking.shards_left);
            }
            State::Taking(taking) => {
                let chunks = take_in(
                    &self.from_shards,
                    taking.meta.index,
                    &mut taking.shards_left,
                );
                if let Some(writer) = taking.writer.take() {
                    if !chunks.is_empty() {
                        self.job = Some(write(writer, chunks, self.reserve.clone()));
                    } else if taking.shards_left == 0 {
                        self.job = Some(finish(writer, self.reserve.clone()));
                    } else {
                        taking.writer = Some(writer);
                    }
                }
            }
            State::Discarding(shards_left) => {
                while let Some(chunk) = self.from_shards.try_recv() {
                    *shards_left -= usize::from(!chunk.more);
                }
                if *shards_left == 0 {
                    self.state = State::Idle;
                }
            }
        }
    }

    /// Polls the helper thread; ready when it is done, with the snapshot if one is written.
    pub(super) fn poll_job(
        &mut self,
        cx: &mut Context<'_>,
        now_ms: u64,
        counters: &ConsensusCounters,
    ) -> Poll<Option<SnapshotMeta>> {
        let Some(job) = &mut self.job else {
            return Poll::Pending;
        };
        let Poll::Ready(done) = job.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.job = None;
        let State::Taking(taking) = &mut self.state else {
            unreachable!("only a snapshot being taken has jobs");
        };
        match done {
            Done::Written(Ok(writer)) => taking.writer = Some(writer),
            Done::Finished(Ok(bytes)) => {
                let meta = taking.meta;
                if std::mem::take(&mut self.is_void) {
                    self.state = State::Idle;
                    return Poll::Ready(None);
                }
                tracing::info!(index = meta.index.0, bytes, "snapshot written");
                counters.snapshots.add(1);
                counters.snapshot_index.set(taking.meta.index.0);
                counters.snapshot_bytes.set(bytes);
                self.log_bytes = self.log_bytes.saturating_sub(taking.log_bytes);
                self.log_entries = self.log_entries.saturating_sub(taking.log_entries);
                self.pressed = false;
                self.no_room = false;
                self.wanted = false;
                self.state = State::Idle;
                return Poll::Ready(Some(meta));
            }
            Done::Written(Err(error)) | Done::Finished(Err(error)) if is_full(&error) => {
                tracing::warn!("no room for a snapshot: {error}; trying again later");
                self.retry_ms = now_ms + SNAPSHOT_RETRY_MS;
                self.no_room = true;
                self.state = State::Discarding(taking.shards_left);
            }
            Done::Written(Err(error)) | Done::Finished(Err(error)) => {
                fatal_unless(Err(error), "writing a snapshot");
            }
        }
        Poll::Ready(None)
    }

    fn is_due(&self, log: &Log) -> bool {
        self.log_entries > 0
            && (self.log_bytes >= self.policy.log_bytes
                || self.log_entries >= self.policy.log_entries
                || log.segment_files() >= SNAPSHOT_SEGMENT_FILES
                || self.wanted
                || self.pressed && log.could_recycle())
    }

    fn begin(&mut self, spec: SnapshotSpec) {
        self.state = State::Taking(Taking {
            meta: spec.meta,
            writer: None,
            shards_left: self.shards,
            log_bytes: self.log_bytes,
            log_entries: self.log_entries,
        });
        let reserve = self.reserve.clone();
        let release = self.pressed;
        self.job = Some(Box::pin(async move {
            Done::Written(
                runtime::blocking(move || {
                    if release {
                        reserve.release()?;
                    }
                    SnapshotWriter::create(&spec).inspect_err(|_| hold_again(&reserve))
                })
                .await,
            )
        }));
    }
}

/// The chunks that wait, as many as one job writes.
fn take_in(
    from_shards: &Receiver<SnapshotChunk>,
    index: LogIndex,
    shards_left: &mut usize,
) -> Vec<SnapshotChunk> {
    let mut chunks = Vec::new();
    while chunks.len() < SNAPSHOT_CHUNKS_WAITING
        && let Some(chunk) = from_shards.try_recv()
    {
        assert_eq!(chunk.index, index, "a chunk of another snapshot");
        *shards_left -= usize::from(!chunk.more);
        chunks.push(chunk);
    }
    chunks
}

/// Keeps the room for the next attempt. A failure is no news: the disk is full
/// or failing, which whoever called this reports.
fn hold_again(reserve: &Reserve) {
    let _ = reserve.hold();
}

fn write(mut writer: SnapshotWriter, chunks: Vec<SnapshotChunk>, reserve: Reserve) -> Job {
    Box::pin(async move {
        Done::Written(
            runtime::blocking(move || {
                let written = chunks
                    .iter()
                    .filter(|chunk| chunk.locks > 0)
                    .try_for_each(|chunk| writer.chunk(chunk.locks, &chunk.bytes));
                match written {
                    Ok(()) => Ok(writer),
                    Err(error) => {
                        // The first error is the one to report; a leftover is swept later.
                        let _ = writer.abandon();
                        hold_again(&reserve);
                        Err(error)
                    }
                }
            })
            .await,
        )
    })
}

fn finish(writer: SnapshotWriter, reserve: Reserve) -> Job {
    Box::pin(async move {
        Done::Finished(
            runtime::blocking(move || writer.finish().inspect_err(|_| hold_again(&reserve))).await,
        )
    })
}
