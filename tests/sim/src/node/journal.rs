//! The log, as far as the consensus role needs it.

use std::rc::Rc;

use ticketing_raftlog::raft::{AppendKind, EntryId, Epoch};
use ticketing_raftlog::{LogIndex, Term};

/// A payload, shared by the log, messages and shards.
pub type Payload = Rc<[u8]>;

/// One entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its term.
    pub term: Term,
    /// What it is.
    pub kind: AppendKind,
    /// Its payload; empty for all but commands.
    pub payload: Payload,
}

/// Where entries are kept. Writes happen in the order of the calls, some time later; the caller
/// of the role reports them as persisted, with the epoch given here.
pub trait Journal {
    /// Appends entries of one term and kind behind the last one.
    fn append(&mut self, term: Term, kind: AppendKind, payloads: &[Payload], epoch: Epoch);
    /// Drops the entries from `from` on; `previous_term` is that of the one before.
    fn truncate(&mut self, from: LogIndex, previous_term: Term, epoch: Epoch);
    /// Drops everything; the log goes on behind `last`.
    fn reset(&mut self, last: EntryId, epoch: Epoch);
    /// The entries up to `last`, which a synced snapshot covers, are needed no more.
    fn compact(&mut self, last: EntryId);
    /// The entry at `index`, if the log has it.
    fn entry(&self, index: LogIndex) -> Option<&Entry>;
    /// The first index that the log has, or would have.
    fn first_index(&self) -> LogIndex;
    /// The term of the entry at `index`, that of the base included.
    fn term_at(&self, index: LogIndex) -> Option<Term>;
}
