//! A disk that forgets: what was written and not synced may be kept, lost or torn at a power cut.

use std::collections::BTreeSet;

use ticketing_raftlog::UseNumber;
use ticketing_raftlog::limits::BLOCK_BYTES;

use super::rng::Rng;

/// What a device writes as a whole.
const SECTOR_BYTES: usize = 512;

/// One segment's file: what a process reads, and what would survive a power cut.
#[derive(Clone, Debug)]
pub struct SegmentFile {
    /// Which use.
    pub use_number: UseNumber,
    /// The use whose bytes may lie behind this one's.
    pub prior_use: UseNumber,
    /// What a process reads.
    pub bytes: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<u32>,
}

impl SegmentFile {
    /// What would survive a power cut.
    #[must_use]
    pub fn durable(&self) -> &[u8] {
        &self.durable
    }
}

/// The segments of one node's log, oldest first.
///
/// Making and removing a file is durable at once: the real shell syncs the folder before it goes
/// on, and cuts in between are the power cut test's part.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    segments: Vec<SegmentFile>,
}

/// Blocks on their way to the device.
#[derive(Clone, Debug, Default)]
pub struct Sync {
    blocks: Vec<(UseNumber, u32)>,
}

/// What a power cut did to unsynced blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutReport {
    /// As written.
    pub kept: u64,
    /// As before they were written.
    pub lost: u64,
    /// In part.
    pub torn: u64,
}

impl Disk {
    /// The segments, oldest first.
    #[must_use]
    pub fn segments(&self) -> &[SegmentFile] {
        &self.segments
    }

    /// Adds a segment. `left` is what an earlier use of the file left behind, if any.
    pub fn add(&mut self, use_number: UseNumber, bytes: u32, left: Option<SegmentFile>) {
        let (prior_use, content) = match left {
            Some(file) => (file.use_number, file.durable),
            None => (UseNumber(0), vec![0; bytes as usize]),
        };
        self.segments.push(SegmentFile {
            use_number,
            prior_use,
            bytes: content.clone(),
            durable: content,
            dirty: BTreeSet::new(),
        });
    }

    /// Takes the oldest segment away.
    pub fn remove_oldest(&mut self) -> SegmentFile {
        self.segments.remove(0)
    }

    /// Drops every segment of a use above `last`.
    pub fn drop_above(&mut self, last: UseNumber) {
        self.segments.retain(|file| file.use_number <= last);
    }

    /// Writes into the page cache.
    ///
    /// # Panics
    /// When there is no such segment, or the bytes do not fit it.
    pub fn write(&mut self, use_number: UseNumber, offset: u32, bytes: &[u8]) {
        let file = self.file_mut(use_number);
        let at = offset as usize;
        file.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        let blocks = at / BLOCK_BYTES..(at + bytes.len()).div_ceil(BLOCK_BYTES);
        file.dirty.extend(blocks.map(|block| block as u32));
    }

    /// Begins a sync of all that is written by now.
    #[must_use]
    pub fn begin_sync(&self) -> Sync {
        let blocks_of = |file: &SegmentFile| {
            let number = file.use_number;
            file.dirty
                .iter()
                .map(move |&block| (number, block))
                .collect::<Vec<_>>()
        };
        Sync {
            blocks: self.segments.iter().flat_map(blocks_of).collect(),
        }
    }

    /// The sync has ended: its blocks are durable.
    pub fn end_sync(&mut self, sync: &Sync) {
        for &(number, block) in &sync.blocks {
            if let Some(file) = self.segments.iter_mut().find(|f| f.use_number == number) {
                file.dirty.remove(&block);
                let range = block as usize * BLOCK_BYTES..(block as usize + 1) * BLOCK_BYTES;
                file.durable[range.clone()].copy_from_slice(&file.bytes[range]);
            }
        }
    }

    /// The power fails: each unsynced block is kept, lost, or torn between two sectors.
    pub fn power_cut(&mut self, rng: &mut Rng) -> CutReport {
        let mut report = CutReport::default();
        for file in &mut self.segments {
            for block in std::mem::take(&mut file.dirty) {
                let at = block as usize * BLOCK_BYTES;
                let reached = match rng.below(3) {
                    0 => {
                        report.lost += 1;
                        continue;
                    }
                    1 => {
                        report.kept += 1;
                        at..at + BLOCK_BYTES
                    }
                    _ => {
                        report.torn += 1;
                        let sectors = rng.range(1, (BLOCK_BYTES / SECTOR_BYTES - 1) as u64);
                        let cut = at + sectors as usize * SECTOR_BYTES;
                        if rng.chance(500) {
                            at..cut
                        } else {
                            cut..at + BLOCK_BYTES
                        }
                    }
                };
                file.durable[reached.clone()].copy_from_slice(&file.bytes[reached]);
            }
            file.bytes.clone_from(&file.durable);
        }
        report
    }

    /// Flips one bit, on the device and in the cache.
    ///
    /// # Panics
    /// When there is no such segment or byte.
    pub fn rot(&mut self, use_number: UseNumber, offset: u32, bit: u8) {
        let file = self.file_mut(use_number);
        file.bytes[offset as usize] ^= 1 << (bit % 8);
        file.durable[offset as usize] ^= 1 << (bit % 8);
    }

    fn file_mut(&mut self, use_number: UseNumber) -> &mut SegmentFile {
        match self
            .segments
            .iter_mut()
            .find(|f| f.use_number == use_number)
        {
            Some(file) => file,
            None => panic!("no segment of use {use_number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Disk {
        let mut disk = Disk::default();
        disk.add(UseNumber(1), 16 * BLOCK_BYTES as u32, None);
        disk.write(UseNumber(1), 0, &[1; 4 * BLOCK_BYTES]);
        disk
    }

    #[test]
    fn what_was_synced_survives_and_the_rest_may_not() {
        let (mut lost, mut kept, mut torn) = (0, 0, 0);
        for seed in 0..50 {
            let mut disk = written();
            let sync = disk.begin_sync();
            disk.write(UseNumber(1), 4 * BLOCK_BYTES as u32, &[2; 2 * BLOCK_BYTES]);
            disk.end_sync(&sync);
            let report = disk.power_cut(&mut Rng::new(seed));
            lost += report.lost;
            kept += report.kept;
            torn += report.torn;
            let bytes = &disk.segments()[0].bytes;
            assert!(bytes[..4 * BLOCK_BYTES].iter().all(|&byte| byte == 1));
        }
        assert!(lost > 10 && kept > 10 && torn > 10);
        assert_eq!(lost + kept + torn, 100);
    }

    #[test]
    fn a_sync_that_was_cut_makes_nothing_durable() {
        let mut disk = written();
        let _cut = disk.begin_sync();
        let mut all_kept = true;
        for seed in 0..20 {
            let mut copy = disk.clone();
            copy.power_cut(&mut Rng::new(seed));
            all_kept &= copy.segments()[0].bytes[..4 * BLOCK_BYTES]
                .iter()
                .all(|&b| b == 1);
        }
        assert!(!all_kept);
        disk.rot(UseNumber(1), 5, 3);
        assert_eq!(disk.segments()[0].bytes[5], 1 ^ 8);
    }

    #[test]
    fn a_reused_file_keeps_what_lay_behind() {
        let mut disk = written();
        let sync = disk.begin_sync();
        disk.end_sync(&sync);
        let old = disk.remove_oldest();
        disk.add(UseNumber(2), 0, Some(old));
        let file = &disk.segments()[0];
        assert_eq!((file.prior_use, file.bytes[0]), (UseNumber(1), 1));
    }
}
