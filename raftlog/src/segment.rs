//! A segment file and its mapping: the only `unsafe` of the crate.
//!
//! Appends are positioned writes to the file; everything that reads does so through a shared
//! read-only mapping (`docs/adr/0001-positioned-writes.md`). A read of a mapping whose disk fails
//! raises SIGBUS, which the process must treat as fatal.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::Mmap;

use crate::disk;
use crate::error::OpenError;
use crate::format::{FORMAT_VERSION, SEGMENT_MAGIC, SegmentHeader, open_block, seal_block};
use crate::limits::{BLOCK_BYTES, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, SEGMENT_HEADER_BYTES};
use crate::parse::{BatchRef, RecordRef};
use crate::types::{ClusterId, Position, UseNumber};

/// What [`Segment::create`] is to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentSpec {
    /// The folder of the log's segments.
    pub dir: PathBuf,
    /// The log's cluster.
    pub cluster_id: ClusterId,
    /// The use number, which also names the file.
    pub use_number: UseNumber,
    /// The file's size.
    pub segment_bytes: u32,
    /// Segments that nothing needs any more, oldest first: they are removed before.
    pub surplus: Vec<UseNumber>,
    /// A segment of the same size that nothing needs any more: its file is used again. `None` for
    /// a new file.
    pub reuse: Option<UseNumber>,
}

/// A preallocated file that holds batches, mapped for reading.
#[derive(Debug)]
pub struct Segment {
    use_number: UseNumber,
    prior_use: UseNumber,
    segment_bytes: u32,
    path: PathBuf,
    file: File,
    map: Mmap,
    // Bytes below this are never written again while the segment is in this use.
    written: AtomicU32,
}

// Shards on other cores read records out of shared segments.
const fn is_send_and_sync<T: Send + Sync>() {}
const _: () = is_send_and_sync::<Segment>();

/// Zeroes written and synced at a time when a segment is filled.
const FILL_BYTES: usize = 1 << 20;

impl Segment {
    /// Creates a segment, synced with its name, from zeros or from the file of one that nothing
    /// needs any more. Blocks for as long as the disk takes.
    ///
    /// A file that could not be finished is removed, and so is the one it was to be made from.
    ///
    /// # Errors
    /// Whatever the system reports; a full disk is [`io::ErrorKind::StorageFull`].
    pub fn create(spec: &SegmentSpec) -> io::Result<Self> {
        let unfinished = spec.dir.join(format!("{:08x}.new", spec.use_number.0));
        let path = spec.dir.join(file_name(spec.use_number));
        remove_oldest_first(&spec.dir, &spec.surplus)?;
        let file = match spec.reuse {
            Some(old) => Self::take_over(spec, old, &unfinished),
            None => Self::fill(spec, &unfinished),
        };
        let result = file.and_then(|file| {
            disk::rename(&unfinished, &path)?;
            disk::sync_dir(&spec.dir)?;
            let header = header_of(spec);
            Self::map(file, path, &header, SEGMENT_HEADER_BYTES as u32)
        });
        if result.is_err() {
            // The first error is the one to report; a leftover is swept at the next start.
            let _ = disk::remove_if_present(&unfinished);
            if let Some(old) = spec.reuse {
                let _ = disk::remove_if_present(&spec.dir.join(file_name(old)));
            }
        }
        result
    }

    /// The use number.
    #[must_use]
    pub fn use_number(&self) -> UseNumber {
        self.use_number
    }

    /// The file's size.
    #[must_use]
    pub fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    /// Where the file is, for handles of the caller's own.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, open for reading and writing.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The offset below which batches can be read.
    #[must_use]
    pub fn written_bytes(&self) -> u32 {
        self.written.load(Ordering::Acquire)
    }

    /// The record at that offset of the file, read in place.
    ///
    /// # Panics
    /// When no record starts there, or nothing was written there yet: the caller is wrong.
    #[must_use]
    pub fn record(&self, offset: u32) -> RecordRef<'_> {
        let written = self.readable();
        assert!(offset as usize >= SEGMENT_HEADER_BYTES && offset.is_multiple_of(8));
        assert!(
            (offset as usize) < written.len(),
            "record at {offset}, {} written",
            written.len()
        );
        match RecordRef::read(&written[offset as usize..]) {
            Some((record, _)) => record,
            None => panic!("no record at offset {offset} of {}", self.path.display()),
        }
    }

    /// The batch at that offset of the file, read in place.
    ///
    /// # Panics
    /// When no batch starts there, or nothing was written there yet: the caller is wrong.
    #[must_use]
    pub fn batch(&self, offset: u32) -> BatchRef<'_> {
        let written = self.readable();
        assert!(
            (offset as usize) < written.len(),
            "batch at {offset}, {} written",
            written.len()
        );
        let batch = BatchRef::trusted(&written[offset as usize..]);
        match batch.filter(|b| b.position() == Position::new(self.use_number, offset)) {
            Some(batch) => batch,
            None => panic!("no batch at offset {offset} of {}", self.path.display()),
        }
    }

    /// Opens the segment with that use number for writing, nothing counted as written yet.
    pub(crate) fn open(
        dir: &Path,
        cluster_id: ClusterId,
        use_number: UseNumber,
    ) -> Result<Self, OpenError> {
        let path = dir.join(file_name(use_number));
        let file = disk::open_for_writing(&path)
            .map_err(|e| OpenError::io(&path, "open the segment", e))?;
        let header = read_header(&file, &path, cluster_id, use_number)?;
        let shown = path.clone();
        Self::map(file, path, &header, SEGMENT_HEADER_BYTES as u32)
            .map_err(|e| OpenError::io(&shown, "map the segment", e))
    }

    /// Everything in the file. Only while this process is the one writer, and is not writing.
    pub(crate) fn whole(&self) -> &[u8] {
        &self.map
    }

    /// The use whose bytes may still lie behind what was written; 0 for none.
    pub(crate) fn prior_use(&self) -> UseNumber {
        self.prior_use
    }

    /// From now on `bytes` of the file can be read.
    pub(crate) fn set_written(&self, bytes: u32) {
        assert!(bytes <= self.segment_bytes);
        assert!(
            bytes >= self.written.load(Ordering::Relaxed),
            "written bytes never shrink"
        );
        self.written.store(bytes, Ordering::Release);
    }

    fn readable(&self) -> &[u8] {
        &self.map[..self.written_bytes() as usize]
    }

    fn fill(spec: &SegmentSpec, path: &Path) -> io::Result<File> {
        let size = u64::from(spec.segment_bytes);
        let file = disk::create(path)?;
        let zeroes = vec![0; FILL_BYTES.min(spec.segment_bytes as usize)];
        let mut at = 0;
        while at < size {
            let chunk = zeroes.len().min((size - at) as usize);
            disk::write_at(&file, &zeroes[..chunk], at)?;
            // Piece by piece: behind all of it at once other syncs on the disk would wait, the log's among them.
            disk::sync_data(&file)?;
            at += chunk as u64;
        }
        disk::write_at(&file, &seal_block(&header_of(spec)), 0)?;
        disk::sync(&file)?;
        Ok(file)
    }

    /// Makes the file of an earlier use that of the next one, without touching what lies behind
    /// its header: a batch of another use is none in this one.
    fn take_over(spec: &SegmentSpec, old: UseNumber, unfinished: &Path) -> io::Result<File> {
        disk::rename(&spec.dir.join(file_name(old)), unfinished)?;
        // Before the header changes: under its old name the file would be damaged.
        disk::sync_dir(&spec.dir)?;
        let file = disk::open_for_writing(unfinished)?;
        disk::write_at(&file, &seal_block(&header_of(spec)), 0)?;
        disk::sync(&file)?;
        Ok(file)
    }

    #[allow(unsafe_code)]
    fn map(file: File, path: PathBuf, header: &SegmentHeader, written: u32) -> io::Result<Self> {
        // SAFETY: the mapping is shared and read-only, of a file whose size never changes while it
        // has its name. Safe code gets slices of it below `written` only (`whole` is for recovery,
        // which does not write while it reads), and the one process that holds the folder's lock
        // writes a byte of the file once in this use, before `written` passes it; so no byte
        // changes under a slice. A file is used again only once no `Segment` of its earlier use,
        // and so no mapping of it, is left (`Log::recycle`). Tools that read a live node's log use their own copies, not a mapping.
        let map = unsafe { Mmap::map(&file)? };
        if map.len() != header.segment_bytes as usize {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file's size has changed",
            ));
        }
        Ok(Self {
            use_number: UseNumber(header.use_number),
            prior_use: UseNumber(header.prior_use),
            segment_bytes: header.segment_bytes,
            path,
            file,
            map,
            written: AtomicU32::new(written),
        })
    }
}

/// Removes segments so that at every moment, and after a power cut too, those that are left follow
/// on one another.
pub(crate) fn remove_oldest_first(dir: &Path, uses: &[UseNumber]) -> io::Result<()> {
    for use_number in uses {
        disk::remove_if_present(&dir.join(file_name(*use_number)))?;
        disk::sync_dir(dir)?;
    }
    Ok(())
}

/// The name of the segment file with that use number.
pub(crate) fn file_name(use_number: UseNumber) -> String {
    format!("{:08x}.seg", use_number.0)
}

/// The use numbers of the segments in a folder, ascending.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<UseNumber>> {
    let mut found = Vec::new();
    for path in disk::list(dir)? {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(digits) = name.and_then(|name| name.strip_suffix(".seg")) else {
            continue;
        };
        if let Ok(number) = u32::from_str_radix(digits, 16)
            && file_name(UseNumber(number)) == format!("{digits}.seg")
        {
            found.push(UseNumber(number));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Reads and checks a segment file's header and size.
pub(crate) fn read_header(
    file: &File,
    path: &Path,
    cluster_id: ClusterId,
    use_number: UseNumber,
) -> Result<SegmentHeader, OpenError> {
    let size = disk::size(file).map_err(|e| OpenError::io(path, "look at the segment", e))?;
    let mut block = [0; BLOCK_BYTES];
    if size < BLOCK_BYTES as u64 {
        return Err(OpenError::corrupt(
            path,
            size,
            "the file ends before its header does",
        ));
    }
    disk::read_exact_at(file, &mut block, 0)
        .map_err(|e| OpenError::io(path, "read the segment", e))?;
    judge_header(&block, size, path, cluster_id, use_number)
}

fn judge_header(
    block: &[u8],
    size: u64,
    path: &Path,
    cluster_id: ClusterId,
    use_number: UseNumber,
) -> Result<SegmentHeader, OpenError> {
    let header: SegmentHeader =
        open_block(block, SEGMENT_MAGIC).map_err(|fault| OpenError::block(path, fault))?;
    if header.cluster_id != cluster_id.0 {
        return Err(OpenError::corrupt(
            path,
            16,
            "the segment belongs to another cluster",
        ));
    }
    if header.use_number != use_number.0 {
        return Err(OpenError::corrupt(
            path,
            32,
            "the use number is not the one in the file's name",
        ));
    }
    let in_bounds = (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&header.segment_bytes)
        && (header.segment_bytes as usize).is_multiple_of(BLOCK_BYTES);
    if !in_bounds || u64::from(header.segment_bytes) != size {
        return Err(OpenError::corrupt(
            path,
            size,
            format!(
                "the file has {size} bytes, its header says {}",
                header.segment_bytes
            ),
        ));
    }
    Ok(header)
}

fn header_of(spec: &SegmentSpec) -> SegmentHeader {
    SegmentHeader {
        magic: SEGMENT_MAGIC,
        version: FORMAT_VERSION,
        crc: 0,
        cluster_id: spec.cluster_id.0,
        use_number: spec.use_number.0,
        prior_use: spec.reuse.unwrap_or_default().0,
        segment_bytes: spec.segment_bytes,
        reserved: 0,
    }
}
