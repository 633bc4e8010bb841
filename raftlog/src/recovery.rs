//! Carrying out recovery's verdict: the I/O around [`crate::scan`].

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::batch::Control;
use crate::blocking;
use crate::disk;
use crate::error::OpenError;
use crate::folder::{LOG_DIR, OpenOptions, begin_log, make_dir, sweep_unfinished};
use crate::format::crc_seed;
use crate::hardstate::{HardStateStore, NodeState};
use crate::identity::Identity;
use crate::limits::{
    CEILING_MARGIN, CEILING_STEP, GAP_INDEXES, MAX_SEGMENTS, SEGMENT_HEADER_BYTES,
};
use crate::log::{Log, Parts, room_of};
use crate::parse::{Block, inspect};
use crate::raft::ConfigEntry;
use crate::scan::{Scan, SegmentBytes, Verdict};
use crate::segment::{self, Segment, SegmentSpec};
use crate::snapshot::{self, SNAPSHOT_DIR, SnapshotMeta, SnapshotReader};
use crate::types::{ClusterId, Durability, LogIndex, Mode, Position, Term, UseNumber};
use crate::writer::{Planner, Start};

/// Bytes that recovery reads and writes at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// What opening a folder found, and did about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The folder is new.
    pub created: bool,
    /// Whether only the process, not the machine, can have died since the last run.
    pub same_boot: bool,
    /// The last run stopped in good order.
    pub clean_stop: bool,
    /// The last run kept its log in memory only and the machine went down under it: the log was
    /// lost, and starts empty at this index, above every token that was ever issued. Say so loudly.
    pub lost_memory_log: Option<LogIndex>,
    /// A tail that was never acknowledged was removed.
    pub trimmed: Option<Trimmed>,
    /// Indexes skipped, so that no token in lost bytes is issued again: from the first, up to and
    /// not including the second.
    pub gap: Option<(LogIndex, LogIndex)>,
    /// Bytes written again and synced, because nothing proved that they had been.
    pub rewritten_bytes: u64,
    /// Batches that count.
    pub batches: u64,
    /// Entries that count.
    pub entries: u64,
    /// The first index the log can hold.
    pub first_index: LogIndex,
    /// The log's last index, skipped ones included.
    pub last_index: LogIndex,
    /// The term of its last entry.
    pub last_term: Term,
    /// The configurations in the log, in their order.
    pub configs: Vec<ConfigEntry>,
    /// The synced ceiling of this run, if it keeps its log in memory.
    pub ceiling: Option<LogIndex>,
    /// How often the folder was opened for writing, this time included.
    pub starts: u64,
    /// What the log goes on from.
    pub snapshot: Option<SnapshotMeta>,
    /// The newest snapshot is damaged, as told here, and an older one with the log behind it, or
    /// the whole log, still has everything. Say so loudly.
    pub damaged_snapshot: Option<String>,
}

/// What was trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trimmed {
    /// Where the remains began.
    pub at: Position,
    /// What they were.
    pub why: &'static str,
    /// How many later segments were dropped.
    pub segments_dropped: usize,
}

fn scan_behind(covered: Option<SnapshotMeta>, identity: &Identity, segments: &[Segment]) -> Scan {
    let mut scan = match covered {
        Some(covered) => Scan::behind(identity.cluster_id, covered),
        None => Scan::new(identity.cluster_id),
    };
    for segment in segments {
        scan.segment(&bytes_of(segment), |_| {});
    }
    scan
}

/// Whether a start was cut short that dropped the log and began a new one: that one's first batch follows on
/// none, and nobody has written behind it, or the older segments would be gone.
fn was_cut_short(covered: &SnapshotMeta, identity: &Identity, segments: &[Segment]) -> bool {
    let begins = |segment: &Segment| {
        let position = Position::new(segment.use_number(), SEGMENT_HEADER_BYTES as u32);
        let seed = crc_seed(identity.cluster_id, segment.use_number());
        let bytes = &segment.whole()[SEGMENT_HEADER_BYTES..];
        let Block::Batch(batch) = inspect(bytes, position, seed) else {
            return false;
        };
        let reset = Control::Reset {
            index: covered.index,
            term: covered.term,
        };
        let summary = batch.summarize(Term(0));
        batch.header().previous_crc == 0
            && summary.is_ok_and(|summary| summary.control == Some(reset))
    };
    covered.position == Position::ZERO && segments.iter().skip(1).any(begins)
}

/// Drops the log and begins a new one behind a snapshot.
fn restart_log(
    log_dir: &Path,
    identity: &Identity,
    covered: &SnapshotMeta,
    options: &OpenOptions,
) -> Result<(), OpenError> {
    let io_error = |e| OpenError::io(log_dir, "begin the log behind a snapshot", e);
    let old = segment::list(log_dir).map_err(io_error)?;
    let spec = SegmentSpec {
        dir: log_dir.to_path_buf(),
        cluster_id: identity.cluster_id,
        use_number: use_after(log_dir, &old)?,
        segment_bytes: options.segment_bytes,
        surplus: Vec::new(),
        reuse: None,
    };
    begin_log(&spec, covered.index.next(), covered.term).map_err(io_error)?;
    segment::remove_oldest_first(log_dir, &old).map_err(io_error)
}

/// Whether the last run kept its log in memory only, and the machine went down under it.
pub(crate) fn has_lost_memory(store: &HardStateStore, options: &OpenOptions) -> bool {
    let before = store.state();
    is_lost(before, before.boot_id == options.boot_id)
}

/// Recovers the log, and records that it is good under this boot.
pub(crate) fn recover(
    dir: &Path,
    identity: &Identity,
    store: &mut HardStateStore,
    options: &OpenOptions,
) -> Result<(Log, Option<SnapshotReader>, RecoveryReport), OpenError> {
    let (log_dir, snapshot_dir) = (&dir.join(LOG_DIR), &dir.join(SNAPSHOT_DIR));
    let io_error = |e| OpenError::io(log_dir, "recover the log", e);
    let before = *store.state();
    let same_boot = before.boot_id == options.boot_id;
    sweep_unfinished(log_dir).map_err(io_error)?;
    make_dir(snapshot_dir)
        .and_then(|()| snapshot::sweep_unfinished(snapshot_dir))
        .and_then(|()| disk::remove_if_present(&snapshot::received_path(snapshot_dir)))
        .map_err(|e| OpenError::io(snapshot_dir, "look for snapshots", e))?;
    let lost_memory_log = if is_lost(&before, same_boot) {
        let first_index = replace_log(log_dir, identity, store, options)?;
        // What it covers is as lost as the log.
        snapshot::remove_all(snapshot_dir)
            .map_err(|e| OpenError::io(snapshot_dir, "drop the lost log's snapshots", e))?;
        Some(first_index)
    } else {
        None
    };

    let (snapshot, damaged_snapshot) = newest_whole(snapshot_dir, identity.cluster_id)?;
    let covered = snapshot.as_ref().map(SnapshotReader::meta);
    let mut segments = open_segments(log_dir, identity)?;
    let mut scan = scan_behind(covered, identity, &segments);
    if let Some(covered) = covered
        && identity.mode == Mode::Cluster
        && (scan.was_overtaken(same_boot) || was_cut_short(&covered, identity, &segments))
    {
        restart_log(log_dir, identity, &covered, options)?;
        segments = open_segments(log_dir, identity)?;
        scan = scan_behind(Some(covered), identity, &segments);
    }
    let trimmed = match scan.verdict(same_boot) {
        Verdict::Clean => None,
        // Without the damaged snapshot there is not enough.
        Verdict::Corrupt { at, why } => {
            return Err(damaged_snapshot.unwrap_or_else(|| corrupt(log_dir, at, why)));
        }
        Verdict::TornTail { at, why } => {
            // First of all, so that a start cut short in what follows still skips them. In a
            // cluster a majority has what was acknowledged.
            if identity.mode == Mode::Single {
                let floor = scan.index().next_index().plus(GAP_INDEXES);
                store
                    .update(|state| state.next_index_floor = state.next_index_floor.max(floor))
                    .map_err(io_error)?;
            }
            let segments_dropped = trim(log_dir, &segments, scan.end()).map_err(io_error)?;
            segments.retain(|segment| segment.use_number() <= scan.end().use_number());
            Some(Trimmed {
                at,
                why,
                segments_dropped,
            })
        }
    };
    let rewritten_bytes = rewrite_above_mark(&segments, &scan).map_err(io_error)?;

    let next = scan
        .index()
        .next_index()
        .max(store.state().next_index_floor);
    let ceiling = ceiling_for(options.durability, store.state().ceiling, next);
    store
        .update(|state| {
            state.boot_id = options.boot_id;
            state.durability = options.durability;
            state.clean_stop = false;
            state.starts += 1;
            state.ceiling = ceiling.unwrap_or(state.ceiling);
        })
        .map_err(io_error)?;

    let batches = scan.batches();
    let mut configs = scan.configs().to_vec();
    let mut log = assemble(dir, identity, options, segments, scan, ceiling)?;
    if let Some(covered) = &covered {
        log.recycle(covered);
    }
    let gap = write_gap(&mut log, store.state().next_index_floor).map_err(io_error)?;
    let index = log.index();
    configs.retain(|entry| entry.index > index.base());
    let report = RecoveryReport {
        created: false,
        same_boot,
        clean_stop: before.clean_stop,
        lost_memory_log,
        trimmed,
        gap,
        rewritten_bytes,
        batches,
        entries: index.entries(),
        first_index: index.base().next(),
        last_index: index.next_index().previous(),
        last_term: index.last_term(),
        configs,
        ceiling,
        starts: store.state().starts,
        snapshot: covered,
        damaged_snapshot: damaged_snapshot.map(|error| error.to_string()),
    };
    Ok((log, snapshot, report))
}

/// The newest snapshot that is whole, and what is wrong with the newest one of all if that is
/// another.
pub(crate) fn newest_whole(
    dir: &Path,
    cluster_id: ClusterId,
) -> Result<(Option<SnapshotReader>, Option<OpenError>), OpenError> {
    let mut damaged = None;
    let all = snapshot::list(dir).map_err(|e| OpenError::io(dir, "list the snapshots", e))?;
    for index in all.into_iter().rev() {
        match SnapshotReader::open(dir, cluster_id, index) {
            Ok(reader) => return Ok((Some(reader), damaged)),
            Err(error @ (OpenError::Corrupt { .. } | OpenError::WrongMagic { .. })) => {
                damaged.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Ok((None, damaged))
}

/// Whether the machine went down under a log that was kept in memory only.
fn is_lost(before: &NodeState, same_boot: bool) -> bool {
    before.durability == Durability::Memory && !same_boot && !before.clean_stop
}

/// The ceiling for this run: present one if the log is far enough below it, else a raised one.
fn ceiling_for(durability: Durability, present: LogIndex, next: LogIndex) -> Option<LogIndex> {
    match durability {
        Durability::Sync => None,
        Durability::Memory if next.plus(CEILING_MARGIN) < present => Some(present),
        Durability::Memory => Some(present.max(next).plus(CEILING_STEP)),
    }
}

/// Puts an empty log above the ceiling in the place of one that was lost.
fn replace_log(
    log_dir: &Path,
    identity: &Identity,
    store: &mut HardStateStore,
    options: &OpenOptions,
) -> Result<LogIndex, OpenError> {
    let io_error = |e| OpenError::io(log_dir, "begin an empty log", e);
    let state = *store.state();
    let first_index = state.ceiling.max(identity.first_index);
    // Before anything else: were this start cut short, the next one begins above it again.
    store
        .update(|state| state.ceiling = first_index.plus(CEILING_STEP))
        .map_err(io_error)?;
    let old = segment::list(log_dir).map_err(io_error)?;
    let spec = SegmentSpec {
        dir: log_dir.to_path_buf(),
        cluster_id: identity.cluster_id,
        use_number: use_after(log_dir, &old)?,
        segment_bytes: options.segment_bytes,
        surplus: Vec::new(),
        reuse: None,
    };
    begin_log(&spec, first_index, state.hard.term).map_err(io_error)?;
    segment::remove_oldest_first(log_dir, &old).map_err(io_error)?;
    Ok(first_index)
}

fn open_segments(log_dir: &Path, identity: &Identity) -> Result<Vec<Segment>, OpenError> {
    let uses = segment::list(log_dir).map_err(|e| OpenError::io(log_dir, "list the log", e))?;
    if uses.is_empty() {
        return Err(OpenError::corrupt(log_dir, 0, "it holds no segment"));
    }
    if uses.len() > MAX_SEGMENTS {
        let why = format!("{} segments, more than {MAX_SEGMENTS}", uses.len());
        return Err(OpenError::corrupt(log_dir, 0, why));
    }
    uses.into_iter()
        .map(|number| Segment::open(log_dir, identity.cluster_id, number))
        .collect()
}

fn bytes_of(segment: &Segment) -> SegmentBytes<'_> {
    SegmentBytes {
        use_number: segment.use_number(),
        prior_use: segment.prior_use(),
        bytes: segment.whole(),
    }
}

/// Zeroes what lies behind `end` in its segment, drops later segments, and syncs both.
fn trim(log_dir: &Path, segments: &[Segment], end: Position) -> io::Result<usize> {
    let zeroes = vec![0; CHUNK_BYTES];
    let mut dropped = 0;
    for segment in segments {
        if segment.use_number() > end.use_number() {
            disk::remove_if_present(segment.path())?;
            dropped += 1;
        } else if segment.use_number() == end.use_number() {
            let size = u64::from(segment.segment_bytes());
            let mut at = u64::from(end.offset());
            while at < size {
                let chunk = zeroes.len().min((size - at) as usize);
                disk::write_at(segment.file(), &zeroes[..chunk], at)?;
                at += chunk as u64;
            }
            disk::sync(segment.file())?;
        }
    }
    disk::sync_dir(log_dir)?;
    Ok(dropped)
}

/// Writes again, byte for byte, what no mark proves to be on the disk, and syncs it: a page that
/// the kernel failed to write may look clean, and the process that learned of it is gone.
fn rewrite_above_mark(segments: &[Segment], scan: &Scan) -> io::Result<u64> {
    let mark = scan.mark();
    let mut rewritten = 0;
    for kept in scan
        .kept()
        .iter()
        .filter(|kept| kept.use_number >= mark.use_number())
    {
        let Some(segment) = segments.iter().find(|s| s.use_number() == kept.use_number) else {
            unreachable!("segments that count were read, and are not dropped");
        };
        let mut at = SEGMENT_HEADER_BYTES as u32;
        if kept.use_number == mark.use_number() {
            at = at.max(mark.offset());
        }
        while at < kept.end {
            let chunk_end = kept.end.min(at + CHUNK_BYTES as u32);
            // A copy: the mapping shows the very pages that are being written.
            let copy = segment.whole()[at as usize..chunk_end as usize].to_vec();
            disk::write_at(segment.file(), &copy, u64::from(at))?;
            rewritten += copy.len() as u64;
            at = chunk_end;
        }
        disk::sync(segment.file())?;
    }
    Ok(rewritten)
}

fn assemble(
    dir: &Path,
    identity: &Identity,
    options: &OpenOptions,
    segments: Vec<Segment>,
    scan: Scan,
    ceiling: Option<LogIndex>,
) -> Result<Log, OpenError> {
    let log_dir = &dir.join(LOG_DIR);
    let uses: Vec<UseNumber> = segments.iter().map(Segment::use_number).collect();
    let next_use = use_after(log_dir, &uses)?;
    let (mut used, mut spare) = (VecDeque::new(), None);
    for segment in segments {
        if let Some(kept) = scan
            .kept()
            .iter()
            .find(|k| k.use_number == segment.use_number())
        {
            segment.set_written(kept.end);
            used.push_back(Arc::new(segment));
        } else if spare.is_none()
            && segment.use_number() > scan.end().use_number()
            && segment.segment_bytes() == options.segment_bytes
        {
            spare = Some(segment);
        } else {
            disk::remove_if_present(segment.path())
                .map_err(|e| OpenError::io(segment.path(), "remove an empty segment", e))?;
        }
    }
    let Some(active) = used.back() else {
        unreachable!("a log without a batch that counts is corrupt");
    };
    let planner = Planner::new(Start {
        cluster_id: identity.cluster_id,
        active: room_of(active),
        offset: scan.end().offset(),
        previous_crc: scan.last_crc(),
        next_index: scan.index().next_index(),
        last_term: scan.index().last_term(),
        carried: scan.mark(),
        ceiling,
    });
    Ok(Log::new(Parts {
        dir: log_dir.clone(),
        snapshot_dir: dir.join(SNAPSHOT_DIR),
        cluster_id: identity.cluster_id,
        segment_bytes: options.segment_bytes,
        retired_max: options.retired_segments,
        segments: used,
        spare,
        next_use,
        planner,
        index: scan.into_index(),
    }))
}

/// Skips to the floor that an earlier trim has set, unless the log is there already.
fn write_gap(log: &mut Log, floor: LogIndex) -> io::Result<Option<(LogIndex, LogIndex)>> {
    let from = log.next_index();
    if from >= floor {
        return Ok(None);
    }
    let last_term = log.index().last_term();
    let mut batch = log.begin_with(
        Vec::new(),
        Control::Gap {
            next: floor,
            last_term,
        },
    );
    let write = loop {
        match log.finish(batch) {
            Ok(write) => break write,
            Err(need) => {
                batch = need.batch;
                blocking::ensure_spare(log)?;
            }
        }
    };
    blocking::append(log, write)?;
    Ok(Some((from, floor)))
}

fn use_after(log_dir: &Path, uses: &[UseNumber]) -> Result<UseNumber, OpenError> {
    let last = uses.last().map_or(0, |number| number.0);
    match last.checked_add(1) {
        Some(next) => Ok(UseNumber(next)),
        None => Err(OpenError::corrupt(log_dir, 0, "use numbers are used up")),
    }
}

fn corrupt(log_dir: &Path, at: Position, why: &str) -> OpenError {
    let file = log_dir.join(segment::file_name(at.use_number()));
    OpenError::corrupt(&file, u64::from(at.offset()), why)
}
