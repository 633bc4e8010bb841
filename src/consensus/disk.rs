//! The thread that appends to the log.
//!
//! A positioned write and a sync have no form that never blocks, so the ring
//! would hand each of them to a kernel thread of its own and back
//! (`docs/adr/0002-append-thread.md`). One thread of ours that does both costs
//! half the hand-overs, and leaves the executor just as free: while a sync
//! hangs, the consensus role goes on. It inherits the executor's core, if that has
//! one, and leaves it with the executor: handing over there takes no wake-up of another core.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use ticketing_raftlog::Segment;

use crate::fatal::Fatal;
use crate::lanes::{Doorbell, Receiver, Sender, lane};
use crate::limits::{EXPECT_APPEND, EXPECT_CLIENT};
use crate::runtime;

/// One append: bytes, and where they go.
#[derive(Debug)]
pub(super) struct Append {
    pub segment: Arc<Segment>,
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// Whether to sync before reporting.
    pub sync: bool,
}

/// How an append went.
#[derive(Debug)]
pub(super) struct Appended {
    /// The buffer, to be used again.
    pub bytes: Vec<u8>,
    pub result: io::Result<()>,
    pub took_us: u64,
}

/// The append thread, as the consensus role sees it. At most one append is with
/// it at a time: what arrives meanwhile gathers for the next.
#[derive(Debug)]
pub(super) struct Disk {
    jobs: Sender<Append>,
    done: Receiver<Appended>,
    busy: bool,
}

impl Disk {
    /// Starts the thread; it rings `doorbell` whenever an append is done.
    pub(super) fn start(doorbell: &Arc<Doorbell>) -> Self {
        let wake = Doorbell::new();
        let (jobs, work) = lane::<Append>(1, &wake);
        let (report, done) = lane(1, doorbell);
        let core = runtime::own_core();
        let mut kept = true;
        let thread = std::thread::Builder::new()
            .name("log".into())
            .spawn(move || {
                while let Some(append) = work.recv_parked(&wake) {
                    if let Some(core) = &core {
                        core.follow(&mut kept);
                    }
                    let appended = carry_out(append);
                    if report.try_send(appended).is_err() {
                        // The role is gone: the process is ending.
                        return;
                    }
                }
            });
        if let Err(error) = thread {
            Fatal::Executor.exit(format_args!("the log's thread cannot be started: {error}"));
        }
        Self {
            jobs,
            done,
            busy: false,
        }
    }

    /// True while an append is with the thread.
    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Hands over an append; one that needs no sync is carried out in place and
    /// given back at once: it only copies into the page cache, for less than
    /// what handing it over would cost.
    ///
    /// # Panics
    /// While another one is with the thread.
    pub(super) fn append(&mut self, append: Append) -> Option<Appended> {
        assert!(!self.busy, "one append at a time");
        if !append.sync {
            return Some(carry_out(append));
        }
        self.busy = true;
        if self.jobs.try_send(append).is_err() {
            Fatal::Panic.exit("the log's thread has ended");
        }
        runtime::expect_news(EXPECT_APPEND);
        None
    }

    /// The append that is done, if it is.
    pub(super) fn take_done(&mut self) -> Option<Appended> {
        let done = self.done.try_recv()?;
        self.busy = false;
        runtime::expect_news(EXPECT_CLIENT);
        Some(done)
    }
}

fn carry_out(append: Append) -> Appended {
    let began = Instant::now();
    let file = append.segment.file();
    let mut result = file.write_all_at(&append.bytes, append.offset);
    if append.sync && result.is_ok() {
        result = file.sync_data();
    }
    Appended {
        bytes: append.bytes,
        result,
        took_us: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use ticketing_raftlog::{ClusterId, SegmentSpec, UseNumber};

    #[test]
    fn an_append_is_reported_with_its_buffer_and_is_in_the_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let spec = SegmentSpec {
            dir: dir.path().to_path_buf(),
            cluster_id: ClusterId([1; 16]),
            use_number: UseNumber(1),
            segment_bytes: ticketing_raftlog::limits::MIN_SEGMENT_BYTES,
            surplus: Vec::new(),
            reuse: None,
        };
        let segment = Arc::new(Segment::create(&spec).expect("a segment"));
        let mut disk = Disk::start(&Doorbell::new());
        for (at, sync) in [(1, true), (2, false)] {
            let done = disk.append(Append {
                segment: Arc::clone(&segment),
                offset: at * 4_096,
                bytes: vec![7; 4_096],
                sync,
            });
            assert_eq!(done.is_none(), sync);
            assert_eq!(disk.is_busy(), sync);
            let mut done = done.or_else(|| disk.take_done());
            let appended = loop {
                match done {
                    Some(appended) => break appended,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
                done = disk.take_done();
            };
            assert!(appended.result.is_ok() && appended.bytes.len() == 4_096);
            assert!(!disk.is_busy());
            let mut read = [0; 4_096];
            segment
                .file()
                .read_exact_at(&mut read, at * 4_096)
                .expect("readable");
            assert_eq!(read, [7; 4_096]);
        }
    }
}
