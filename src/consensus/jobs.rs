//! What the consensus role asks of the disk now and then, beside the appends:
//! each on a helper thread that may block.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use ticketing_raftlog::{HardState, HardStateStore, LogIndex, Segment};

use crate::runtime;

/// A job that was given to a helper thread, until it is done.
pub(super) type Job = Pin<Box<dyn Future<Output = Done>>>;

/// A job that is done.
pub(super) enum Done {
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
