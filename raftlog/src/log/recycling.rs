//! Spare segments, snapshots, and using segments again that a snapshot covers.

use std::sync::Arc;

use super::{Log, Retired};
use crate::limits::{MAX_SEGMENTS, SEGMENT_HEADER_BYTES};
use crate::raft::ConfigEntry;
use crate::segment::{Segment, SegmentSpec};
use crate::snapshot::{InstallSpec, Reserve, SnapshotMeta, SnapshotSpec, path_of, received_path};
use crate::types::{LogIndex, UseNumber};

impl Log {
    /// What spare segment to create ([`Segment::create`], on a thread that may block), once:
    /// `None` when one is there or asked for, or the log has [`crate::limits::MAX_SEGMENTS`].
    ///
    /// It is made from the oldest segment that nothing needs any more, if there is one.
    pub fn wants_spare(&mut self) -> Option<SegmentSpec> {
        self.retire();
        if self.spare.is_some() || self.spare_asked {
            return None;
        }
        while self.retired.len() > self.retired_max
            || self
                .retired
                .front()
                .is_some_and(|oldest| oldest.segment_bytes != self.segment_bytes)
        {
            let oldest = self.retired.pop_front().map(|oldest| oldest.use_number);
            self.surplus.extend(oldest);
        }
        if self.retired.is_empty() && !may_grow(self.segments.len() + self.surplus.len()) {
            return None;
        }
        self.spare_asked = true;
        self.reusing = self.retired.pop_front().map(|oldest| oldest.use_number);
        Some(SegmentSpec {
            dir: self.dir.clone(),
            cluster_id: self.cluster_id,
            use_number: self.next_use,
            segment_bytes: self.segment_bytes,
            surplus: self.surplus.clone(),
            reuse: self.reusing,
        })
    }

    /// Hands the spare over.
    ///
    /// # Panics
    /// When it is not the one asked for.
    pub fn give_spare(&mut self, segment: Segment) {
        assert!(
            self.spare_asked && segment.use_number() == self.next_use,
            "not the one asked for"
        );
        self.spare_asked = false;
        self.surplus.clear();
        self.reusing = None;
        self.next_use = UseNumber(self.next_use.0 + 1);
        self.spare = Some(segment);
    }

    /// The spare could not be created (a full disk): [`Log::wants_spare`] asks anew.
    pub fn spare_failed(&mut self) {
        self.spare_asked = false;
        // It is unknown what became of it, and none behind it may go before it does.
        self.surplus.extend(self.reusing.take());
    }

    /// What to write a snapshot of the state at `index` with, on a thread that may block; `config` is
    /// in force there ([`crate::raft::Core::config_at`]).
    ///
    /// # Panics
    /// When there is no such entry, or it is not written.
    #[must_use]
    pub fn snapshot_spec(&self, index: LogIndex, config: ConfigEntry) -> SnapshotSpec {
        let Some(term) = self.term_at(index) else {
            panic!("a snapshot at {index}, where the log has no entry");
        };
        SnapshotSpec {
            dir: self.snapshot_dir.clone(),
            cluster_id: self.cluster_id,
            meta: SnapshotMeta {
                index,
                term,
                position: self.planner.synced_end(),
            },
            config,
        }
    }

    /// Where this node's snapshot up to `index` lies.
    #[must_use]
    pub fn snapshot_path(&self, index: LogIndex) -> std::path::PathBuf {
        path_of(&self.snapshot_dir, index)
    }

    /// What a snapshot from another node is installed with.
    #[must_use]
    pub fn install_spec(&self) -> InstallSpec {
        InstallSpec {
            dir: self.snapshot_dir.clone(),
            received: received_path(&self.snapshot_dir),
            cluster_id: self.cluster_id,
        }
    }

    /// The room on the disk that is kept for a snapshot: as much as a segment takes.
    #[must_use]
    pub fn reserve(&self) -> Reserve {
        Reserve::new(&self.snapshot_dir, u64::from(self.segment_bytes))
    }

    /// Whether a snapshot of everything would let a segment be used again.
    #[must_use]
    pub fn could_recycle(&self) -> bool {
        self.segments.len() > 1
    }

    /// The snapshot is synced under its name: forgets the entries it covers, and lets the segments
    /// that hold nothing else, and that nobody reads, become spares again.
    ///
    /// # Panics
    /// When the log does not reach the snapshot's index.
    pub fn recycle(&mut self, snapshot: &SnapshotMeta) {
        self.index.compact(snapshot.index, snapshot.term);
        self.retire();
    }

    /// How many bytes of the segments in use hold what comes behind `index`, or are not used yet
    /// because something else did not fit them.
    #[must_use]
    pub fn bytes_behind(&self, index: LogIndex) -> u64 {
        let Some(span) = self.index.at_or_after(index.next()) else {
            return 0;
        };
        let from = span.position;
        self.segments
            .iter()
            .filter(|segment| segment.use_number() >= from.use_number())
            .map(|segment| {
                let begin = if segment.use_number() == from.use_number() {
                    from.offset()
                } else {
                    SEGMENT_HEADER_BYTES as u32
                };
                u64::from(segment.written_bytes() - begin)
            })
            .sum()
    }

    /// How many segment files there are, those that wait to be used again included.
    #[must_use]
    pub fn segment_files(&self) -> usize {
        self.segments.len()
            + self.retired.len()
            + self.surplus.len()
            + usize::from(self.spare.is_some() || self.spare_asked)
    }

    /// Takes the oldest segments out of use, as long as the one behind begins at or before the
    /// first entry that counts, and nobody reads the segment.
    fn retire(&mut self) {
        while let (Some(oldest), Some(next)) = (self.segments.front(), self.segments.get(1)) {
            let first = SEGMENT_HEADER_BYTES as u32;
            if next.written_bytes() <= first
                || next.batch(first).header().first_index > self.index.base().next().0
                || Arc::strong_count(oldest) > 1
            {
                return;
            }
            let retired = Retired {
                use_number: oldest.use_number(),
                segment_bytes: oldest.segment_bytes(),
            };
            // Its mapping ends here, before the file is touched.
            self.segments.pop_front();
            self.retired.push_back(retired);
        }
    }
}

/// Whether a log of that many segments may get another one.
fn may_grow(segments: usize) -> bool {
    segments < MAX_SEGMENTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_grows_up_to_its_bound_and_not_beyond() {
        assert!(may_grow(MAX_SEGMENTS - 1));
        assert!(!may_grow(MAX_SEGMENTS));
    }
}
