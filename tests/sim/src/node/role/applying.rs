//! What is committed goes to the shards in log order; barriers and snapshots between.

use std::collections::BTreeMap;
use std::rc::Rc;

use ticketing::lanes::owner_of;
use ticketing::locks::{Command, Fate, key_hash};
use ticketing_raftlog::raft::{AppendKind, EntryId, Snapshot};
use ticketing_raftlog::{LogIndex, Position};
use xxhash_rust::xxh3::xxh3_64;

use super::{Consensus, Cutting, SNAPSHOT_HEADER_BYTES};
use crate::node::journal::Journal;
use crate::node::messages::{Effect, Lead, PeerFrame, Record, Seen, SnapshotFile, ToShard};

impl Consensus {
    /// Hands out what is committed, in log order.
    pub(super) fn fan_out(&mut self, journal: &mut impl Journal, effects: &mut Vec<Effect>) {
        let commit = self.core.commit();
        if self.cursor > commit {
            if self.snapshot_wanted {
                self.cut(journal, effects);
            }
            return;
        }
        let mut records: Vec<Vec<Record>> = vec![Vec::new(); self.shards];
        while self.cursor <= commit {
            let index = self.cursor;
            let Some(entry) = journal.entry(index).cloned() else {
                // A snapshot that is being installed covers it.
                break;
            };
            let mut dropped = Vec::new();
            let own = self
                .fates
                .committed(index, entry.term, |pending| dropped.push(pending));
            for pending in dropped {
                // Behind what is committed before, and before what comes after.
                self.hand(&mut records, index.previous(), effects);
                let to = ToShard::Dropped(pending.payload, Fate::Dropped);
                effects.push(Effect::ToShard(pending.shard, to));
            }
            if entry.kind == AppendKind::Commands {
                let Ok(command) = Command::decode(&entry.payload) else {
                    panic!("a committed command that cannot be read at {index}");
                };
                let shard = owner_of(key_hash(self.key_seed, command.key()), self.shards);
                records[usize::from(shard)].push(Record {
                    index,
                    payload: entry.payload,
                    own: own.is_some(),
                });
            }
            self.cursor = index.next();
            let begins_term = self.leading.is_some() && self.core.term_start() == Some(index);
            if begins_term || index.0.is_multiple_of(self.hash_every) {
                self.hand(&mut records, index, effects);
                self.tell_all(&ToShard::Barrier(index), effects);
            }
            let since = self
                .snapshots
                .back()
                .map_or(LogIndex(0), |file| file.snapshot.last.index);
            let applied = index.0.saturating_sub(since.0.max(journal.first_index().0));
            if (applied >= self.snapshot_every || self.snapshot_wanted)
                && self.cutting.is_none()
                && !self.saving
            {
                self.hand(&mut records, index, effects);
                self.cut(journal, effects);
            }
        }
        self.hand(&mut records, self.cursor.previous(), effects);
    }

    pub(super) fn hand(
        &mut self,
        records: &mut [Vec<Record>],
        through: LogIndex,
        effects: &mut Vec<Effect>,
    ) {
        for (shard, records) in records.iter_mut().enumerate() {
            let committed = ToShard::Committed {
                through,
                records: std::mem::take(records),
            };
            effects.push(Effect::ToShard(shard as u16, committed));
        }
    }

    /// Has every shard report what it holds at the cursor.
    pub(super) fn cut(&mut self, journal: &mut impl Journal, effects: &mut Vec<Effect>) {
        let index = self.cursor.previous();
        let newest = self
            .snapshots
            .back()
            .map_or(LogIndex(0), |file| file.snapshot.last.index);
        let (Some(term), Some(entry)) = (journal.term_at(index), self.core.config_at(index)) else {
            return;
        };
        if self.cutting.is_some()
            || self.saving
            || index <= newest
            || index > self.core.commit().min(self.core.persisted())
        {
            return;
        }
        self.snapshot_wanted = false;
        self.cutting = Some(Cutting {
            last: EntryId { term, index },
            config: entry,
            position: Position::ZERO,
            parts: BTreeMap::new(),
        });
        self.tell_all(&ToShard::Cut(index), effects);
    }

    pub(super) fn part(
        &mut self,
        shard: u16,
        index: LogIndex,
        bytes: Vec<u8>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(cutting) = self
            .cutting
            .as_mut()
            .filter(|cutting| cutting.last.index == index)
        else {
            return;
        };
        cutting.parts.insert(shard, bytes);
        if cutting.parts.len() < self.shards {
            return;
        }
        let Some(cutting) = self.cutting.take() else {
            return;
        };
        let mut file = Vec::with_capacity(SNAPSHOT_HEADER_BYTES);
        file.extend_from_slice(&cutting.last.index.0.to_le_bytes());
        file.extend_from_slice(&cutting.last.term.0.to_le_bytes());
        file.extend(cutting.parts.into_values().flatten());
        self.saving = true;
        let file = SnapshotFile {
            snapshot: Snapshot {
                last: cutting.last,
                bytes: file.len() as u64,
                id: xxh3_64(&file),
            },
            config: cutting.config,
            locks: Rc::from(file),
            position: cutting.position,
        };
        effects.push(Effect::SaveSnapshot(file, false));
    }

    pub(super) fn restore(&mut self, file: &SnapshotFile, effects: &mut Vec<Effect>) {
        let restore = ToShard::Restore {
            index: file.snapshot.last.index,
            locks: Rc::from(&file.locks[SNAPSHOT_HEADER_BYTES..]),
        };
        self.tell_all(&restore, effects);
    }

    pub(super) fn reached(
        &mut self,
        shard: u16,
        index: LogIndex,
        sum: u128,
        effects: &mut Vec<Effect>,
    ) {
        let reached = &mut self.reached[usize::from(shard)];
        *reached = (*reached).max(index);
        if index.0.is_multiple_of(self.hash_every) {
            let sums = self.sums.entry(index).or_default();
            sums.push(sum);
            if sums.len() == self.shards {
                let sum = sums.iter().fold(0, |all: u128, sum| all.wrapping_add(*sum));
                self.sums.remove(&index);
                effects.push(Effect::Seen(Seen::StateHash(index, sum)));
            }
        }
        let (Some(term), Some(start)) = (self.leading, self.core.term_start()) else {
            return;
        };
        if self.ready || self.reached.iter().any(|reached| *reached < start) {
            return;
        }
        self.ready = true;
        effects.push(Effect::Seen(Seen::Ready(term)));
        self.tell_all(&ToShard::Lead(Lead::Ready(term)), effects);
        let config = self.core.config().config;
        for member in config.members() {
            effects.push(Effect::Send(member, PeerFrame::Ready { term }));
        }
    }
}
