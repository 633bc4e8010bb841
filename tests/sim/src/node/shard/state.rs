//! What is applied, cut and restored.

use ticketing::lanes::owner_of;
use ticketing::locks::{Applied, Command, held_locks, key_hash};
use ticketing_raftlog::LogIndex;
use xxhash_rust::xxh3::xxh3_128;

use super::{Shard, decode};
use crate::node::bugs::ShellBug;
use crate::node::messages::{Effect, Record, Seen, ToRole};

impl Shard {
    pub(super) fn apply(&mut self, now_ms: u64, record: &Record, effects: &mut Vec<Effect>) {
        let mut command = decode(&record.payload);
        let hash = key_hash(self.setup.key_seed, command.key());
        if self.setup.bug == Some(ShellBug::ExpireWithoutToken)
            && let Command::Expire { key, token } = &mut command
            && !record.own
            && let Some(lock) = self.table.lock(now_ms, hash, key)
        {
            *token = lock.token.unwrap_or(*token);
        }
        let (index, own) = (record.index, record.own);
        let applied = self
            .table
            .apply(now_ms, index.0, hash, command, own, &mut self.out);
        effects.push(Effect::Seen(Seen::Applied(index, applied)));
        debug_assert_ne!(applied, Applied::Noop, "every record is new and readable");
        self.flush(effects);
    }

    pub(super) fn cut(&mut self, now_ms: u64, index: LogIndex, effects: &mut Vec<Effect>) {
        self.table.begin_snapshot(now_ms);
        let mut locks = Vec::new();
        while self.table.snapshot_chunk(64, &mut locks).more {}
        let part = ToRole::Part(self.setup.id, index, locks);
        effects.push(Effect::ToRole(part));
    }

    pub(super) fn restore(
        &mut self,
        now_ms: u64,
        index: LogIndex,
        locks: &[u8],
        effects: &mut Vec<Effect>,
    ) {
        // Nothing of this table's is in the log: its commands' fates were told before.
        self.table.step_down(now_ms, &mut self.out);
        self.flush(effects);
        self.table = self.setup.table(now_ms);
        for held in held_locks(locks) {
            let held = match held {
                Ok(held) => held,
                Err(error) => panic!("a snapshot whose checksum is right: {error}"),
            };
            let hash = key_hash(self.setup.key_seed, held.key);
            if owner_of(hash, self.setup.shards) == self.setup.id {
                assert!(self.table.restore_lock(now_ms, hash, &held), "a key twice");
            }
        }
        self.table.restored_up_to(index.0);
        self.through = index;
        self.confirmed_ones(now_ms, effects);
    }

    /// The mistake of giving every lease its full length again.
    pub(super) fn restart_leases(&mut self, now_ms: u64) {
        if !self.table.is_quiet() || self.table.stats().requests > 0 {
            return;
        }
        self.table.begin_snapshot(now_ms);
        let mut locks = Vec::new();
        while self.table.snapshot_chunk(64, &mut locks).more {}
        let applied = self.table.applied_index();
        self.table = self.setup.table(now_ms);
        for mut held in held_locks(&locks).flatten() {
            held.left_ms = held.lease_ms;
            let hash = key_hash(self.setup.key_seed, held.key);
            self.table.restore_lock(now_ms, hash, &held);
        }
        self.table.restored_up_to(applied);
    }

    /// The sum over what is held here: the same on every node, whatever its shards are.
    pub(super) fn sum(&self) -> u128 {
        let hash = |key: &[u8], token: u64, lease_ms: u32| {
            let mut bytes = key.to_vec();
            bytes.extend_from_slice(&token.to_le_bytes());
            bytes.extend_from_slice(&lease_ms.to_le_bytes());
            xxh3_128(&bytes)
        };
        let held = self
            .table
            .locks(0)
            .filter_map(|lock| Some((lock.key, lock.token?, lock.lease_ms)));
        let sum = held.fold(0_u128, |sum, (key, token, lease_ms)| {
            sum.wrapping_add(hash(key, token, lease_ms))
        });
        assert_eq!(
            sum,
            self.table.state_sum(),
            "the table keeps count of what it holds"
        );
        sum
    }
}
