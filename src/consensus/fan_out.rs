//! Committed entries on their way to the shards, in log order.

use std::sync::Arc;

use ticketing_raftlog::{Log, LogIndex, RecordKind, RecordRef, Term};

use crate::lanes::messages::{Committed, CommittedRecord, FromConsensus, Records, Restored};
use crate::lanes::{Sender, owner_of};
use crate::limits::COMMITTED_RECORDS_PER_MESSAGE;
use crate::locks::{Command, Fate, HeldLockError, held_locks, key_hash};

use super::fates::Fates;
use super::tail::Tail;

/// Hands out what is committed, as far as the lanes have room.
#[derive(Debug)]
pub(super) struct FanOut {
    key_seed: u64,
    to_shards: Vec<Sender<FromConsensus>>,
    // What did not fit a lane; while a shard has something here, the cursor
    // stands still.
    parked: Vec<Vec<FromConsensus>>,
    cursor: LogIndex,
    handed_out: Option<LogIndex>,
    barrier: Option<LogIndex>,
    barrier_sent: Option<LogIndex>,
    // Terms in which this node leads or has led: all of their entries are its own.
    led: Vec<Term>,
    // Of the last entry that was looked at.
    term: Term,
    // How far apart the indexes are at which the shards are to say what they hold; never, of a single node.
    hash_every: Option<u64>,
    ended: bool,
}

impl FanOut {
    /// Starts with the entry at `cursor`.
    pub(super) fn new(
        key_seed: u64,
        to_shards: Vec<Sender<FromConsensus>>,
        cursor: LogIndex,
    ) -> Self {
        Self {
            key_seed,
            parked: to_shards.iter().map(|_| Vec::new()).collect(),
            to_shards,
            cursor,
            handed_out: None,
            barrier: None,
            barrier_sent: None,
            led: Vec::new(),
            term: Term(0),
            hash_every: None,
            ended: false,
        }
    }

    /// Has the shards say what they hold, at every index that is a multiple of that.
    pub(super) fn hash_every(&mut self, indexes: u64) {
        self.hash_every = Some(indexes);
    }

    /// This node leads in `term`, whose first entry is at `index`: that becomes a barrier that every
    /// shard reports.
    pub(super) fn lead_from(&mut self, index: LogIndex, term: Term) {
        self.barrier = Some(index);
        self.barrier_sent = None;
        self.led.push(term);
    }

    /// This node leads no more: nobody waits for the barrier.
    pub(super) fn lead_no_more(&mut self) {
        self.barrier = None;
        self.barrier_sent = None;
    }

    /// The barrier that was sent down every lane in this leadership.
    pub(super) fn barrier_sent(&self) -> Option<LogIndex> {
        self.barrier_sent
    }

    /// The next entry to hand out.
    pub(super) fn next(&self) -> LogIndex {
        self.cursor
    }

    /// A snapshot up to `index` takes the place of what comes before.
    pub(super) fn go_on_behind(&mut self, index: LogIndex) {
        self.cursor = index.next();
        self.handed_out = None;
    }

    /// True while a lane is full.
    pub(super) fn is_parked(&self) -> bool {
        self.parked.iter().any(|messages| !messages.is_empty())
    }

    /// The last entry that was handed out, also if it waits for room in a
    /// lane; none before the first.
    pub(super) fn handed_out(&self) -> Option<LogIndex> {
        self.handed_out
    }

    /// Sends every lock in a snapshot's chunk to the shard that owns its key,
    /// and every shard a message, even if it owns none of them.
    pub(super) fn restore(&mut self, index: LogIndex, chunk: &[u8]) -> Result<(), HeldLockError> {
        let shards = self.to_shards.len();
        let mut locks = vec![Vec::new(); shards];
        for lock in held_locks(chunk) {
            let lock = lock?;
            let owner = owner_of(key_hash(self.key_seed, lock.key), shards);
            lock.encode(&mut locks[usize::from(owner)]);
        }
        for (shard, locks) in locks.into_iter().enumerate() {
            self.send(shard, FromConsensus::Restore(Restored { index, locks }));
        }
        Ok(())
    }

    /// Sends one message to one shard.
    pub(super) fn tell(&mut self, shard: u16, message: FromConsensus) {
        self.send(usize::from(shard), message);
    }

    /// Sends one message to the shard that owns a key.
    pub(super) fn tell_owner(&mut self, key: &[u8], message: impl FnOnce(&[u8]) -> FromConsensus) {
        let owner = owner_of(key_hash(self.key_seed, key), self.to_shards.len());
        self.send(usize::from(owner), message(key));
    }

    /// Sends one message to every shard.
    pub(super) fn tell_all(&mut self, message: impl Fn() -> FromConsensus) {
        for shard in 0..self.to_shards.len() {
            self.send(shard, message());
        }
    }

    /// Sends every shard the end, ahead of all that found no room in its lane:
    /// whoever has ended takes nothing in any more. Nothing is sent after it.
    pub(super) fn end(&mut self) {
        for parked in &mut self.parked {
            parked.clear();
        }
        self.tell_all(|| FromConsensus::End);
        self.ended = true;
    }

    /// Hands out everything up to `commit`, as far as there is room: what is on its way to the file from
    /// `tail`, unless `ahead` is false. True when there is more.
    ///
    /// What is committed is on the disks of a majority, which need not have this node among it: whoever waits
    /// for an answer does not wait for a disk here that is slow or hangs.
    pub(super) fn run(
        &mut self,
        (log, tail): (&Log, &Tail),
        commit: LogIndex,
        ahead: bool,
        mut fates: Option<&mut Fates>,
    ) -> bool {
        self.unpark();
        // What is committed is behind a truncation that the file may not have yet.
        let in_file = commit.min(tail.stale_from().previous());
        let holds_nothing = !ahead || tail.begins_anew();
        while !self.is_parked() && self.cursor <= commit {
            let held = match holds_nothing {
                true => None,
                false => tail.held(self.cursor, commit),
            };
            if let Some(bytes) = held {
                let mut rest = 0;
                let records = std::iter::from_fn(|| {
                    let (record, length) = RecordRef::read(&bytes[rest..])?;
                    let offset = rest;
                    rest += length;
                    Some((offset as u32, record))
                });
                let memory = || Records::Memory(bytes.as_slice().into());
                let taken = self.hand_out(records, commit, memory, fates.as_deref_mut());
                debug_assert!(taken, "the entry at the cursor is the first of them");
            } else if self.cursor <= in_file
                && let Some(location) = log.locate_at_or_after(self.cursor)
            {
                let segment = || Records::Segment(Arc::clone(&location.segment));
                let taken =
                    self.hand_out(location.entries(), in_file, segment, fates.as_deref_mut());
                if !taken {
                    // The batch ends before the cursor: what follows starts behind it.
                    self.cursor = location.last_index.next();
                }
            } else {
                break;
            }
        }
        self.is_parked()
    }

    /// Tells the shards what a committed entry says of commands of a leadership that is over.
    fn decide(&mut self, fates: &mut Fates, index: LogIndex, term: Term) {
        for pending in fates.committed(index, term) {
            let Ok(command) = Command::decode(&pending.payload) else {
                unreachable!("a shard of this node encoded it");
            };
            self.tell_owner(command.key(), |_| FromConsensus::Dropped {
                commands: vec![pending.payload.clone()],
                fate: Fate::Dropped,
            });
        }
    }

    /// Hands out some of `records`, each with its offset in what `lie_in` gives; false when none was next.
    fn hand_out<'a>(
        &mut self,
        all: impl Iterator<Item = (u32, RecordRef<'a>)>,
        commit: LogIndex,
        lie_in: impl Fn() -> Records,
        mut fates: Option<&mut Fates>,
    ) -> bool {
        let shards = self.to_shards.len();
        let mut records: Vec<Vec<CommittedRecord>> = vec![Vec::new(); shards];
        let mut taken = 0;
        let mut barrier = None;
        let mut hashed = None;
        let mut own = None;
        for (offset, record) in all {
            if record.index < self.cursor {
                continue;
            }
            if record.index > commit || taken == COMMITTED_RECORDS_PER_MESSAGE {
                break;
            }
            if record.term > self.term {
                // Terms never fall along a log: none of the earlier ones comes again.
                self.term = record.term;
                self.led.retain(|led| *led >= record.term);
            }
            let is_own = self.led.contains(&record.term);
            if *own.get_or_insert(is_own) != is_own {
                break;
            }
            if let Some(fates) = fates.as_deref_mut()
                && !fates.is_empty()
            {
                // What it decides goes behind what was committed before.
                if taken > 0 && fates.would_drop(record.term) {
                    break;
                }
                self.decide(fates, record.index, record.term);
            }
            taken += 1;
            self.cursor = record.index.next();
            self.handed_out = Some(record.index);
            match record.kind {
                RecordKind::Command => {
                    // A command that cannot be read goes to the first shard,
                    // which stops the node over it.
                    let hash = Command::decode(record.payload)
                        .map_or(0, |command| key_hash(self.key_seed, command.key()));
                    let owner = usize::from(owner_of(hash, shards));
                    records[owner].push(CommittedRecord {
                        offset,
                        key_hash: hash,
                    });
                }
                _ if self.barrier == Some(record.index) => {
                    barrier = self.barrier.take();
                    break;
                }
                _ => {}
            }
            if self
                .hash_every
                .is_some_and(|every| record.index.0.is_multiple_of(every))
            {
                hashed = Some(record.index);
                break;
            }
        }
        let lie_in = lie_in();
        for (shard, records) in records.into_iter().enumerate() {
            if !records.is_empty() {
                let committed = Committed {
                    lie_in: lie_in.clone(),
                    own: own.unwrap_or(false),
                    records,
                };
                self.send(shard, FromConsensus::Committed(committed));
            }
        }
        if let Some(index) = hashed {
            self.tell_all(|| FromConsensus::StateSum { index });
        }
        if let Some(index) = barrier {
            // What came before it has been sent, and nothing that came after it.
            self.barrier_sent = Some(index);
            self.tell_all(|| FromConsensus::Barrier { index });
        }
        taken > 0
    }

    fn send(&mut self, shard: usize, message: FromConsensus) {
        if self.ended {
            return;
        }
        if !self.parked[shard].is_empty() {
            self.parked[shard].push(message);
        } else if let Err(message) = self.to_shards[shard].try_send(message) {
            self.parked[shard].push(message);
        }
    }

    /// Sends what did not fit the lanes, as far as there is room now.
    pub(super) fn unpark(&mut self) {
        for (shard, parked) in self.parked.iter_mut().enumerate() {
            let mut messages = std::mem::take(parked).into_iter();
            for message in messages.by_ref() {
                if let Err(message) = self.to_shards[shard].try_send(message) {
                    parked.push(message);
                    break;
                }
            }
            parked.extend(messages);
        }
    }
}
