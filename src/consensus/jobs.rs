//! What the consensus role asks of the disk now and then, beside the appends:
//! each on a helper thread that may block.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use ticketing_raftlog::{HardState, HardStateStore, LogIndex, Reserve, Segment, SegmentSpec};

use crate::runtime;

use super::role::is_full;

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
    /// Term and vote are on the disk a second time.
    SecondSlot {
        store: HardStateStore,
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

/// Keeps term and vote, in one slot of two.
pub(super) fn hard_state(mut store: HardStateStore, state: HardState) -> Job {
    Box::pin(async move {
        let (store, result) = runtime::blocking(move || {
            let result = store.write_first(&state);
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

/// Keeps them in the other slot too.
pub(super) fn second_slot(mut store: HardStateStore) -> Job {
    Box::pin(async move {
        let (store, result) = runtime::blocking(move || {
            let result = store.write_second();
            (store, result)
        })
        .await;
        Done::SecondSlot { store, result }
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

/// Makes the next segment: from the reserve if `use_reserve`, else behind the reserve. A snapshot that failed may
/// have found no room for that again, as a file system frees some only a while later; what comes free then must
/// not become a segment. One that is made of an old segment takes no room.
pub(super) fn spare(spec: SegmentSpec, reserve: Reserve, use_reserve: bool) -> Job {
    Box::pin(async move {
        let made = runtime::blocking(move || {
            if use_reserve {
                reserve.release()?;
            } else if spec.reuse.is_none() {
                reserve.hold()?;
            }
            let segment = Segment::create(&spec).inspect_err(|_| {
                if use_reserve {
                    // A failure is no news: what this returns is the one to report.
                    let _ = reserve.hold();
                }
            })?;
            held_unless_full(&reserve).map(|()| segment)
        });
        Done::Spare(made.await)
    })
}

fn held_unless_full(reserve: &Reserve) -> io::Result<()> {
    match reserve.hold() {
        Err(error) if !is_full(&error) => Err(error),
        _ => Ok(()),
    }
}
