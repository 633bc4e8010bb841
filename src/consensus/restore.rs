//! The start: the locks of the snapshot go to the shards that own their keys on
//! this node, before any entry of the log does.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ticketing_raftlog::{OpenError, SnapshotReader};

use crate::fatal::Fatal;
use crate::runtime;

use super::fan_out::FanOut;

/// A snapshot on its way to the shards.
pub(super) struct Restore {
    // `None` while a job has it.
    reader: Option<SnapshotReader>,
    job: Option<Job>,
}

type Job = Pin<Box<dyn Future<Output = Read>>>;

struct Read {
    reader: SnapshotReader,
    body: Vec<u8>,
    result: Result<Option<u32>, OpenError>,
}

impl Restore {
    pub(super) fn new(reader: SnapshotReader) -> Self {
        Self {
            reader: Some(reader),
            job: None,
        }
    }

    /// Reads on, as long as the lanes have room.
    pub(super) fn turn(&mut self, fan_out: &mut FanOut) {
        fan_out.unpark();
        if !fan_out.is_parked()
            && let Some(mut reader) = self.reader.take()
        {
            self.job = Some(Box::pin(runtime::blocking(move || {
                let mut body = Vec::new();
                let result = reader.next_chunk(&mut body);
                Read {
                    reader,
                    body,
                    result,
                }
            })));
        }
    }

    /// Polls the helper thread: ready when it has read something, with whether
    /// that was all.
    pub(super) fn poll_job(&mut self, cx: &mut Context<'_>, fan_out: &mut FanOut) -> Poll<bool> {
        let Some(job) = &mut self.job else {
            return Poll::Pending;
        };
        let Poll::Ready(read) = job.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.job = None;
        let index = read.reader.meta().index;
        let all = match read.result {
            Ok(Some(_)) => false,
            Ok(None) => true,
            Err(error) => Fatal::Corrupt.exit(error),
        };
        // At the end every shard hears of it, with nothing more to add.
        if let Err(error) = fan_out.restore(index, &read.body) {
            Fatal::Corrupt.exit(format_args!(
                "{}: {error}: it was written by another version or is damaged; do not start this \
                 node again on this folder",
                read.reader.path().display()
            ));
        }
        self.reader = Some(read.reader);
        Poll::Ready(all)
    }
}
