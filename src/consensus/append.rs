//! The consensus role's one job on the disk at a time: a batch appended, or
//! the hard state kept.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use ticketing_raftlog::{
    Durability, HardState, HardStateStore, LogIndex, PendingWrite, Segment, UseNumber,
};

use crate::runtime::{self, LogFile};

/// A job that was given to the disk, until it is done.
pub(super) type Job = Pin<Box<dyn Future<Output = Done>>>;

/// A job that is done.
pub(super) enum Done {
    /// A batch is where it belongs.
    Appended {
        write: PendingWrite,
        /// The file it went to, open for the next one.
        file: OpenFile,
        result: io::Result<()>,
        took_us: u64,
        /// Whether it was synced.
        synced: bool,
    },
    /// Every segment is synced.
    AllSynced(io::Result<()>),
    /// Term and vote are on the disk.
    HardState {
        store: HardStateStore,
        state: HardState,
        result: io::Result<()>,
    },
    /// The ceiling of a log kept in memory is on the disk.
    Ceiling {
        store: HardStateStore,
        ceiling: LogIndex,
        result: io::Result<()>,
    },
    /// A clean stop is on record.
    CleanStop {
        store: HardStateStore,
        result: io::Result<()>,
    },
    /// A spare segment was made.
    Spare(io::Result<Segment>),
}

/// The segment that is open for appends.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    use_number: UseNumber,
    file: Rc<LogFile>,
}

/// Appends a sealed batch; in `sync` durability, syncs it.
pub(super) fn batch(
    mut write: PendingWrite,
    open: Option<OpenFile>,
    durability: Durability,
) -> Job {
    Box::pin(async move {
        let began = Instant::now();
        let bytes = std::mem::take(&mut write.bytes);
        let (file, result) = put(&write, bytes, open, durability).await;
        let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        match file {
            Ok(file) => Done::Appended {
                write,
                file,
                result,
                took_us,
                synced: durability == Durability::Sync,
            },
            Err(error) => crate::fatal::Fatal::Disk.exit(format_args!(
                "cannot open {} for appending: {error}",
                write.segment.path().display()
            )),
        }
    })
}

async fn put(
    write: &PendingWrite,
    bytes: Vec<u8>,
    open: Option<OpenFile>,
    durability: Durability,
) -> (io::Result<OpenFile>, io::Result<()>) {
    let use_number = write.segment.use_number();
    let open = match open {
        Some(open) if open.use_number == use_number => open,
        _ => match LogFile::open(write.segment.path()).await {
            Ok(file) => OpenFile {
                use_number,
                file: Rc::new(file),
            },
            Err(error) => return (Err(error), Ok(())),
        },
    };
    let result = async {
        open.file.write_at(bytes, write.offset).await?;
        match durability {
            Durability::Sync => open.file.sync_data().await,
            Durability::Memory => Ok(()),
        }
    }
    .await;
    (Ok(open), result)
}

/// Syncs every segment, before a clean stop of a log kept in memory.
pub(super) fn sync_all(segments: Vec<Arc<Segment>>) -> Job {
    Box::pin(async move {
        let result = runtime::blocking(move || {
            segments
                .iter()
                .try_for_each(|segment| segment.file().sync_data())
        })
        .await;
        Done::AllSynced(result)
    })
}

/// Keeps term and vote.
pub(super) fn hard_state(mut store: HardStateStore, state: HardState) -> Job {
    Box::pin(async move {
        let (store, result) = runtime::blocking(move || {
            let result = store.write(&state);
            (store, result)
        })
        .await;
        Done::HardState {
            store,
            state,
            result,
        }
    })
}

/// Raises the ceiling of a log kept in memory.
pub(super) fn ceiling(mut store: HardStateStore, ceiling: LogIndex) -> Job {
    Box::pin(async move {
        let (store, result) = runtime::blocking(move || {
            let result = store.raise_ceiling(ceiling);
            (store, result)
        })
        .await;
        Done::Ceiling {
            store,
            ceiling,
            result,
        }
    })
}

/// Records that everything is in order.
pub(super) fn clean_stop(mut store: HardStateStore) -> Job {
    Box::pin(async move {
        let (store, result) = runtime::blocking(move || {
            let result = store.record_clean_stop();
            (store, result)
        })
        .await;
        Done::CleanStop { store, result }
    })
}

/// Makes the next segment, on a thread that may block.
pub(super) fn spare(spec: ticketing_raftlog::SegmentSpec) -> Job {
    Box::pin(async move { Done::Spare(runtime::blocking(move || Segment::create(&spec)).await) })
}
