//! Reading the log of a stopped or a live node, without its lock and without changing anything.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::disk;
use crate::error::OpenError;
use crate::folder::{LOG_DIR, foreign};
use crate::hardstate::{self, NodeState};
use crate::identity::{self, Identity};
use crate::parse::BatchRef;
use crate::recovery::newest_whole;
use crate::scan::{Scan, SegmentBytes, Verdict};
use crate::segment::{self, read_header};
use crate::snapshot::{SNAPSHOT_DIR, SnapshotMeta, SnapshotReader};
use crate::types::{BootId, LogIndex, Position, Term, UseNumber};

/// How often a log that seems damaged is read again, in case its node is writing just now.
const MAX_ATTEMPTS: u32 = 5;
/// How long to wait in between.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// A data folder opened for reading.
#[derive(Debug)]
pub struct LogReader {
    log_dir: PathBuf,
    snapshot_dir: PathBuf,
    identity: Identity,
    state: NodeState,
}

/// What is in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogReport {
    /// Whether it is whole. On a live node a torn tail may be a write on its way.
    pub verdict: Verdict,
    /// The position behind the last batch that counts.
    pub end: Position,
    /// Everything before this position is proven to have been synced.
    pub mark: Position,
    /// Segments read.
    pub segments: usize,
    /// Batches that count.
    pub batches: u64,
    /// Entries that count.
    pub entries: u64,
    /// The first index the log can hold.
    pub first_index: LogIndex,
    /// The last index, skipped ones included.
    pub last_index: LogIndex,
    /// The term of the last entry.
    pub last_term: Term,
    /// Whether the log ends in the mark of a clean stop.
    pub clean_stop: bool,
    /// The newest snapshot that is whole.
    pub snapshot: Option<SnapshotMeta>,
    /// How many items the state machine put into it.
    pub snapshot_items: u64,
    /// What is wrong with a newer one, which a start would do without.
    pub damaged_snapshot: Option<String>,
}

impl LogReader {
    /// Opens a folder for reading.
    ///
    /// # Errors
    /// As [`crate::Folder::open_single`], but for the lock, and nothing is created.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let Some(identity) = identity::load(dir)? else {
            return Err(foreign(dir, "it has no identity file"));
        };
        Ok(Self {
            log_dir: dir.join(LOG_DIR),
            snapshot_dir: dir.join(SNAPSHOT_DIR),
            identity,
            state: hardstate::read_only(dir)?,
        })
    }

    /// Whose log it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The file that holds a position.
    #[must_use]
    pub fn path_of(&self, position: Position) -> PathBuf {
        self.log_dir.join(segment::file_name(position.use_number()))
    }

    /// Judges the log as a start under `boot_id` would. Takes a segment's size of memory.
    ///
    /// # Errors
    /// When a file cannot be read, or a segment's header is damaged.
    pub fn verify(&self, boot_id: BootId) -> Result<LogReport, OpenError> {
        let same_boot = self.state.boot_id == boot_id;
        let mut report = self.scan(same_boot);
        // A node that writes while its segments are read, front to back, leaves a picture that
        // never was on the disk: damage counts only when it is still there, at the same place.
        for _ in 1..MAX_ATTEMPTS {
            if report.as_ref().is_ok_and(|r| r.verdict == Verdict::Clean) {
                break;
            }
            thread::sleep(RETRY_AFTER);
            let again = self.scan(same_boot);
            let unchanged = matches!((&again, &report), (Ok(now), Ok(before)) if now == before);
            report = again;
            if unchanged {
                break;
            }
        }
        report
    }

    /// The newest snapshot that is whole, from its first chunk on.
    ///
    /// # Errors
    /// When the folder or a file cannot be read.
    pub fn snapshot(&self) -> Result<Option<SnapshotReader>, OpenError> {
        let (snapshot, _) = newest_whole(&self.snapshot_dir, self.identity.cluster_id)?;
        Ok(snapshot)
    }

    /// Shows every batch that is left, up to the report's end, with its file, in log order.
    ///
    /// # Errors
    /// As [`LogReader::verify`]; also when a live node's log has moved on meanwhile, so that not
    /// all of it was shown.
    pub fn for_each(
        &self,
        report: &LogReport,
        mut visit: impl FnMut(&Path, &BatchRef<'_>),
    ) -> Result<(), OpenError> {
        let end = report.end;
        let mut scan = self.begin(report.snapshot);
        self.each_segment(|path, bytes| {
            if bytes.use_number <= end.use_number() {
                scan.segment(bytes, |batch| {
                    if batch.position() < end {
                        visit(path, batch);
                    }
                });
            }
        })?;
        if scan.end() < end {
            let moved =
                io::Error::other("the node has moved on while its log was read; read again");
            return Err(OpenError::io(&self.log_dir, "show all of the log", moved));
        }
        Ok(())
    }

    fn begin(&self, snapshot: Option<SnapshotMeta>) -> Scan {
        match snapshot {
            Some(covered) => Scan::behind(self.identity.cluster_id, covered),
            None => Scan::new(self.identity.cluster_id),
        }
    }

    fn scan(&self, same_boot: bool) -> Result<LogReport, OpenError> {
        let (snapshot, damaged) = newest_whole(&self.snapshot_dir, self.identity.cluster_id)?;
        let covered = snapshot.as_ref().map(SnapshotReader::meta);
        let mut scan = self.begin(covered);
        let segments = self.each_segment(|_, bytes| scan.segment(bytes, |_| {}))?;
        let index = scan.index();
        let verdict = scan.verdict(same_boot);
        let damaged_snapshot = match (verdict, damaged) {
            // Without it there is not enough.
            (Verdict::Corrupt { .. }, Some(error)) => return Err(error),
            (_, damaged) => damaged.map(|error| error.to_string()),
        };
        Ok(LogReport {
            verdict,
            snapshot: covered,
            snapshot_items: snapshot.map_or(0, |snapshot| snapshot.items()),
            damaged_snapshot,
            end: scan.end(),
            mark: scan.mark(),
            segments,
            batches: scan.batches(),
            entries: index.entries(),
            first_index: index.base().next(),
            last_index: index.next_index().previous(),
            last_term: index.last_term(),
            clean_stop: scan.ends_in_clean_stop(),
        })
    }

    fn each_segment(
        &self,
        mut visit: impl FnMut(&Path, &SegmentBytes<'_>),
    ) -> Result<usize, OpenError> {
        let list_error = |e| OpenError::io(&self.log_dir, "list the log", e);
        let uses = segment::list(&self.log_dir).map_err(list_error)?;
        let mut bytes = Vec::new();
        for use_number in &uses {
            let path = self.log_dir.join(segment::file_name(*use_number));
            let file =
                disk::open(&path).map_err(|e| OpenError::io(&path, "open the segment", e))?;
            let header = read_header(&file, &path, self.identity.cluster_id, *use_number)?;
            bytes.resize(header.segment_bytes as usize, 0);
            // Read, not mapped: a live node writes to this file.
            disk::read_exact_at(&file, &mut bytes, 0)
                .map_err(|e| OpenError::io(&path, "read the segment", e))?;
            let prior_use = UseNumber(header.prior_use);
            let read = SegmentBytes {
                use_number: *use_number,
                prior_use,
                bytes: &bytes,
            };
            visit(&path, &read);
        }
        Ok(uses.len())
    }
}
