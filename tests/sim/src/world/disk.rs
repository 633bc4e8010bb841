//! A disk that forgets: what was written and not synced may be kept, lost or torn at a power cut.

use std::collections::BTreeSet;

use ticketing_raftlog::UseNumber;
use ticketing_raftlog::limits::{BLOCK_BYTES, MIN_SEGMENT_BYTES};

use super::rng::Rng;

/// What a device writes as a whole.
const SECTOR_BYTES: usize = 512;
/// More than any run fills by itself.
const DISK_BYTES: u64 = 1 << 40;
/// As much as a segment takes.
const RESERVE_BYTES: u64 = MIN_SEGMENT_BYTES as u64;

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
#[derive(Clone, Debug)]
pub struct Disk {
    segments: Vec<SegmentFile>,
    free_bytes: u64,
    /// What others have filled it with.
    others_bytes: u64,
    snapshot_bytes: u64,
    /// Kept for the snapshot that makes room.
    reserve_bytes: u64,
}

/// The disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl Default for Disk {
    fn default() -> Self {
        Self {
            segments: Vec::new(),
            free_bytes: DISK_BYTES,
            others_bytes: 0,
            snapshot_bytes: 0,
            reserve_bytes: 0,
        }
    }
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

    /// Adds a segment full of zeros.
    ///
    /// # Errors
    /// [`NoRoom`] when the disk has no room for it.
    pub fn add(&mut self, use_number: UseNumber, bytes: u32) -> Result<(), NoRoom> {
        self.allocate(u64::from(bytes))?;
        let content = vec![0; bytes as usize];
        self.segments.push(SegmentFile {
            use_number,
            prior_use: UseNumber(0),
            bytes: content.clone(),
            durable: content,
            dirty: BTreeSet::new(),
        });
        Ok(())
    }

    /// Makes the oldest segment that of the next use; its bytes stay.
    pub fn reuse_oldest(&mut self, use_number: UseNumber) {
        let mut file = self.segments.remove(0);
        file.prior_use = file.use_number;
        file.use_number = use_number;
        self.segments.push(file);
    }

    /// Takes the oldest segment away.
    pub fn remove_oldest(&mut self) {
        let file = self.segments.remove(0);
        self.free_bytes += file.bytes.len() as u64;
    }

    /// Drops every segment of a use above `last`.
    pub fn drop_above(&mut self, last: UseNumber) {
        while self
            .segments
            .last()
            .is_some_and(|file| file.use_number > last)
        {
            let file = self.segments.pop();
            self.free_bytes += file.map_or(0, |file| file.bytes.len() as u64);
        }
    }

    /// Others write until so much room is left.
    pub fn fill(&mut self, left_bytes: u64) {
        let taken = self.free_bytes.saturating_sub(left_bytes);
        self.free_bytes -= taken;
        self.others_bytes += taken;
    }

    /// Others remove all that they wrote.
    pub fn make_room(&mut self) {
        self.free_bytes += std::mem::take(&mut self.others_bytes);
    }

    /// Keeps room for a snapshot, if there is some and none is kept.
    pub fn hold_reserve(&mut self) {
        if self.reserve_bytes == 0 && self.allocate(RESERVE_BYTES).is_ok() {
            self.reserve_bytes = RESERVE_BYTES;
        }
    }

    /// Writes a snapshot and removes the one before; `pressed`: the reserve is for it.
    ///
    /// # Errors
    /// [`NoRoom`] when there is room for one of them only.
    pub fn save_snapshot(&mut self, bytes: u64, pressed: bool) -> Result<(), NoRoom> {
        if pressed {
            self.free_bytes += std::mem::take(&mut self.reserve_bytes);
        }
        let saved = self.allocate(bytes);
        if saved.is_ok() {
            self.free_bytes += std::mem::replace(&mut self.snapshot_bytes, bytes);
        }
        if pressed {
            self.hold_reserve();
        }
        saved
    }

    /// It is a copy of another, made by a program that has synced it.
    pub fn is_copied(&mut self) {
        for file in &mut self.segments {
            file.dirty.clear();
            file.durable.clone_from(&file.bytes);
        }
    }

    fn allocate(&mut self, bytes: u64) -> Result<(), NoRoom> {
        self.free_bytes = self.free_bytes.checked_sub(bytes).ok_or(NoRoom)?;
        Ok(())
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

    /// Whether what a process reads in a segment from one offset to another would survive a power cut.
    #[must_use]
    pub fn is_durable(&self, use_number: UseNumber, from: u32, to: u32) -> bool {
        let file = self.segments.iter().find(|f| f.use_number == use_number);
        let range = from as usize..to as usize;
        file.is_some_and(|file| file.bytes[range.clone()] == file.durable[range])
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
        disk.add(UseNumber(1), 16 * BLOCK_BYTES as u32)
            .expect("room");
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
        disk.reuse_oldest(UseNumber(2));
        let file = &disk.segments()[0];
        let uses = (file.use_number, file.prior_use);
        assert_eq!(uses, (UseNumber(2), UseNumber(1)));
        assert_eq!((file.bytes[0], file.durable()[0]), (1, 1));
        // A lost write leaves what lay there.
        let mut stale = false;
        for seed in 0..20 {
            let mut copy = disk.clone();
            copy.write(UseNumber(2), 0, &[2; BLOCK_BYTES]);
            copy.power_cut(&mut Rng::new(seed));
            stale |= copy.segments()[0].bytes[..BLOCK_BYTES]
                .iter()
                .all(|&b| b == 1);
        }
        assert!(stale);
    }

    #[test]
    fn a_full_disk_has_room_for_what_it_has_and_for_one_snapshot() {
        let mut disk = written();
        let size = 16 * BLOCK_BYTES as u32;
        disk.hold_reserve();
        disk.fill(1_000);
        assert_eq!(disk.add(UseNumber(2), size), Err(NoRoom));
        assert_eq!(disk.save_snapshot(1_001, false), Err(NoRoom));
        assert_eq!(
            disk.save_snapshot(1_000 + RESERVE_BYTES + 1, true),
            Err(NoRoom)
        );
        assert_eq!(disk.save_snapshot(1_001, true), Ok(()), "the reserve");
        assert_eq!(
            disk.save_snapshot(RESERVE_BYTES, true),
            Err(NoRoom),
            "what is left of it is not enough to keep it again"
        );
        disk.reuse_oldest(UseNumber(2));
        disk.remove_oldest();
        assert_eq!(disk.add(UseNumber(3), size), Ok(()));
        disk.make_room();
        assert_eq!(disk.add(UseNumber(4), size), Ok(()));
        disk.drop_above(UseNumber(3));
        assert_eq!(disk.segments().len(), 1);
    }
}
