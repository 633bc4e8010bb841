//! Ticketing's Raft core and its durable log.
//!
//! Two halves that know nothing of each other's inside, nor of locks, sockets or executors.
//!
//! The **log** ([`Folder`], [`Log`]) keeps entries with opaque payloads in preallocated segments.
//! It only plans appends; the caller writes and syncs them (or lets [`blocking`] do so), and reads
//! entries in place from a mapping.
//!
//! The **core** ([`raft::Core`]) decides, and touches nothing: `step(input) -> outputs`. It deals
//! in indexes, terms and counts, never in payloads. Its caller does what the outputs say, in
//! order, and reports back what is persisted:
//!
//! ```
//! use ticketing_raftlog::raft::{AppendKind, Core, Epoch, Input, Output, Start};
//! use ticketing_raftlog::{EntryKind, Folder, OpenOptions, blocking};
//!
//! # let dir = tempfile::tempdir()?;
//! # let options = OpenOptions { segment_bytes: 1 << 20, now_unix_s: 1_700_000_000, ..OpenOptions::default() };
//! let mut node = Folder::open_single(dir.path(), &options)?;
//! let mut core = Core::new(Start::single(
//!     node.identity.node_id,
//!     node.hard_state,
//!     node.recovery.last_index,
//!     node.recovery.last_term,
//! ))?;
//!
//! let mut inputs = vec![Input::Tick { now_ms: 0 }];
//! let mut commands = vec![&b"first"[..], b"second"];
//! let mut committed = Vec::new();
//! let (mut outputs, mut buffer) = (Vec::new(), Vec::new());
//! while let Some(input) = inputs.pop() {
//!     core.step(input, &mut outputs);
//!     for output in outputs.drain(..) {
//!         match output {
//!             // Persist before anything that follows from it.
//!             Output::PersistHardState(hard) => {
//!                 node.store.write(&hard)?;
//!                 inputs.push(Input::HardStatePersisted(hard));
//!             }
//!             // Here the payloads join in: the core only says how many.
//!             Output::Append { first, count, term, kind, .. } => {
//!                 let mut batch = node.log.begin(std::mem::take(&mut buffer));
//!                 assert_eq!(batch.next_index(), first);
//!                 for _ in 0..count {
//!                     let pushed = match kind {
//!                         AppendKind::Noop => batch.push(EntryKind::Noop, term, &[]),
//!                         AppendKind::Commands => {
//!                             batch.push(EntryKind::Command, term, commands.remove(0))
//!                         }
//!                         AppendKind::Config(_) => unreachable!("a single node has no members"),
//!                     };
//!                     pushed.expect("two commands fit a batch");
//!                 }
//!                 let write = node.log.finish(batch).expect("a new segment has room");
//!                 let up_to = write.last_index;
//!                 buffer = blocking::append(&mut node.log, write)?;
//!                 inputs.push(Input::Persisted { epoch: Epoch(0), up_to });
//!             }
//!             // Apply what is committed, in log order, reading it in place.
//!             Output::Commit { up_to } => {
//!                 let location = node.log.locate(up_to).expect("it was written");
//!                 committed.extend(location.entries().map(|(_, entry)| entry.payload.to_vec()));
//!             }
//!             Output::RoleChanged { role, .. } => {
//!                 if role == ticketing_raftlog::raft::Role::Leader {
//!                     inputs.push(Input::Propose { count: 2, bytes: 11 });
//!                 }
//!             }
//!             // In a cluster there is more: messages to send, a log to truncate, snapshots.
//!             other => unreachable!("{other:?} from a single node"),
//!         }
//!     }
//! }
//! assert_eq!(committed, [&b""[..], b"first", b"second"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `docs/log-format.md` has every byte of the files, and recovery's rules.

pub mod blocking;
pub mod format;
pub mod limits;
pub mod peers;
pub mod raft;
pub mod snapshot;

mod batch;
mod disk;
mod error;
mod folder;
mod hardstate;
mod identity;
mod incarnation;
mod index;
mod log;
mod parse;
mod peers_file;
mod reader;
mod recovery;
mod retired;
mod scan;
mod segment;
#[cfg(test)]
mod tests;
mod types;
mod writer;

pub use batch::{BatchBuilder, BatchSummary, Control, EntryKind, Full};
pub use error::OpenError;
pub use folder::{Folder, Genesis, NewMember, OpenOptions, Opened, OpenedMember};
pub use format::RecordKind;
pub use hardstate::{HardStateStore, NodeState};
pub use identity::Identity;
pub use index::{BatchIndex, Span};
pub use log::{Location, Log, NeedSegment, PendingWrite};
pub use parse::{BatchRef, RecordRef, Records};
pub use peers_file::PeersFile;
pub use reader::{LogReader, LogReport};
pub use recovery::{RecoveryReport, Trimmed};
pub use retired::retire;
pub use scan::{Kept, Scan, SegmentBytes, Verdict};
pub use segment::{Segment, SegmentSpec};
pub use snapshot::{
    Decoder as SnapshotDecoder, Encoder as SnapshotEncoder, Reserve, SnapshotMeta, SnapshotReader,
    SnapshotSpec, SnapshotWriter,
};
pub use types::{
    BootId, ClusterId, Durability, HardState, LogIndex, Mode, NodeId, Position, Term, UseNumber,
};
pub use writer::{Planned, Planner, Room, Start as PlannerStart};
