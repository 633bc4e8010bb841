//! Held locks in a snapshot: their bytes, cuts of many locks, and leases that go on.

use proptest::prelude::*;
use ticketing::locks::limits::{KEY_BYTES_MAX, LEASE_MS_MAX};
use ticketing::locks::{
    Command, CutChunk, HELD_LOCK_BYTES_MAX, HeldLock, HeldLockError, LockTable, Outputs,
    TableLimits, held_locks, key_hash,
};

/// What is left of the longest lease when it has just begun.
const LONGEST_LEFT_MS: u32 = 250_250 + 20;

fn encode(lock: &HeldLock<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    lock.encode(&mut bytes);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_goes_in_comes_out(
        locks in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 1..=KEY_BYTES_MAX), 1..=u64::MAX, 0..=LEASE_MS_MAX, 0..=1_000_u32),
            0..20,
        ),
    ) {
        let locks: Vec<HeldLock<'_>> = locks
            .iter()
            .map(|(key, token, lease_ms, share)| HeldLock {
                key,
                token: *token,
                lease_ms: *lease_ms,
                left_ms: (u64::from(*lease_ms) * u64::from(*share) / 1_000) as u32,
            })
            .collect();
        let bytes: Vec<u8> = locks.iter().flat_map(encode).collect();
        let read: Result<Vec<_>, _> = held_locks(&bytes).collect();
        prop_assert_eq!(read, Ok(locks));
    }

    #[test]
    fn any_bytes_give_locks_or_an_error_and_locks_encode_to_the_same(
        bytes in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut again = Vec::new();
        for lock in held_locks(&bytes) {
            match lock {
                Ok(lock) => lock.encode(&mut again),
                Err(_) => {
                    prop_assert!(again.len() < bytes.len());
                    prop_assert_eq!(&bytes[..again.len()], &again[..]);
                    return Ok(());
                }
            }
        }
        prop_assert_eq!(bytes, again);
    }
}

#[test]
fn every_field_holds_at_its_bound_and_not_one_past() {
    let (longest, longer) = ([b'k'; KEY_BYTES_MAX], [b'k'; KEY_BYTES_MAX + 1]);
    let lock = HeldLock {
        key: &longest,
        token: u64::MAX,
        lease_ms: LEASE_MS_MAX,
        left_ms: LONGEST_LEFT_MS,
    };
    let bytes = encode(&lock);
    assert_eq!(bytes.len(), HELD_LOCK_BYTES_MAX);
    assert_eq!(HeldLock::decode(&bytes), Ok((lock, &[][..])));
    for size in 0..bytes.len() {
        assert_eq!(HeldLock::decode(&bytes[..size]), Err(HeldLockError::CutOff));
    }
    let change = |at: usize, with: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        HeldLock::decode(&bytes)
            .map(|_| ())
            .expect_err("one past its bound")
    };
    assert_eq!(change(0, &[0; 8]), HeldLockError::ZeroToken);
    assert_eq!(
        change(8, &(LEASE_MS_MAX + 1).to_le_bytes()),
        HeldLockError::Lease(250_001)
    );
    let left_ms = LONGEST_LEFT_MS + 1;
    assert_eq!(
        change(12, &left_ms.to_le_bytes()),
        HeldLockError::Left {
            lease_ms: LEASE_MS_MAX,
            left_ms
        }
    );
    assert_eq!(change(16, &[0]), HeldLockError::KeyLength(0));
    let mut too_long = bytes.clone();
    too_long[16] = longer.len() as u8;
    too_long.push(b'k');
    assert_eq!(
        HeldLock::decode(&too_long),
        Err(HeldLockError::KeyLength(129))
    );
    let refused = std::panic::catch_unwind(|| {
        encode(&HeldLock {
            key: &longer,
            ..lock
        })
    });
    assert!(refused.is_err());
}

fn name(key: u32) -> (Vec<u8>, u64) {
    let name = format!("seat-{key}").into_bytes();
    let hash = key_hash(0, &name);
    (name, hash)
}

/// A table in which keys 0 to `count` are held, each under its number plus one.
fn table_of(count: u32) -> LockTable {
    let mut table = LockTable::new(TableLimits::default(), 0);
    let mut out = Outputs::default();
    for key in 0..count {
        let (name, hash) = name(key);
        let grant = Command::Grant {
            key: &name,
            lease_ms: 30_000,
        };
        table.apply(7, u64::from(key) + 1, hash, grant, false, &mut out);
    }
    table
}

#[test]
fn a_chunk_looks_at_as_many_locks_as_it_may_and_the_cut_ends_with_the_last() {
    let mut table = table_of(10);
    table.begin_snapshot(7);
    let mut out = Vec::new();
    let mut chunks = Vec::new();
    loop {
        let chunk = table.snapshot_chunk(4, &mut out);
        chunks.push((chunk.locks, chunk.more));
        if !chunk.more {
            break;
        }
    }
    assert_eq!(chunks, [(4, true), (4, true), (2, false)]);
    assert_eq!(held_locks(&out).count(), 10);
    let none = CutChunk {
        locks: 0,
        more: false,
    };
    assert_eq!(table.snapshot_chunk(4, &mut out), none, "the cut is over");
    assert!(
        std::panic::catch_unwind(move || {
            table.begin_snapshot(8);
            table.begin_snapshot(8);
        })
        .is_err()
    );
}

#[test]
fn everything_released_and_granted_anew_while_it_is_written_is_written_as_it_was() {
    const KEYS: u32 = 1_000;
    let mut table = table_of(KEYS);
    table.begin_snapshot(7);
    let (mut out, mut written, mut index) = (Outputs::default(), Vec::new(), 10_000);
    let mut locks = 0;
    for key in (0..KEYS).rev() {
        let (name, hash) = name(key);
        let token = u64::from(key) + 1;
        for command in [
            Command::Release { key: &name, token },
            Command::Grant {
                key: &name,
                lease_ms: 1_000,
            },
        ] {
            index += 1;
            table.apply(8, index, hash, command, false, &mut out);
        }
        locks += table.snapshot_chunk(1, &mut written).locks;
    }
    loop {
        let chunk = table.snapshot_chunk(64, &mut written);
        locks += chunk.locks;
        if !chunk.more {
            break;
        }
    }
    assert_eq!(locks, KEYS);
    let mut tokens: Vec<u64> = held_locks(&written)
        .map(|lock| {
            let lock = lock.expect("it decodes");
            assert_eq!((lock.lease_ms, lock.left_ms), (30_000, 30_050));
            lock.token
        })
        .collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (1..=u64::from(KEYS)).collect::<Vec<_>>());
}

#[test]
fn a_restored_lease_goes_on_where_it_was_never_earlier_and_never_beyond_its_whole() {
    let expire_at = |lease_ms, left_ms| {
        let mut table = LockTable::new(TableLimits::default(), 0);
        let (name, hash) = name(1);
        let lock = HeldLock {
            key: &name,
            token: 9,
            lease_ms,
            left_ms,
        };
        assert!(table.restore_lock(1_000, hash, &lock));
        table.restored_up_to(12);
        assert_eq!(table.applied_index(), 12);
        table.set_ready(1_000);
        let due_ms = table.next_deadline_ms().expect("its lease runs");
        let mut out = Outputs::default();
        table.advance(due_ms - 1, &mut out);
        assert!(out.proposals.is_empty());
        table.advance(due_ms, &mut out);
        let payload = out.proposals.payloads().next().expect("an Expire").to_vec();
        assert_eq!(
            Command::decode(&payload),
            Ok(Command::Expire {
                key: &name,
                token: 9
            })
        );
        // What is in the log up to there was applied already.
        let release = Command::Release {
            key: &name,
            token: 9,
        };
        table.apply(due_ms, 12, hash, release, false, &mut out);
        assert_eq!(table.stats().held, 1);
        due_ms - 1_000
    };
    // Stretched for the other clock, and graced again.
    assert_eq!(expire_at(30_000, 10_000), 10_010 + 20);
    assert_eq!(expire_at(30_000, 0), 20);
    assert_eq!(expire_at(30_000, 30_050), 30_030 + 20);
    assert_eq!(
        expire_at(LEASE_MS_MAX, LONGEST_LEFT_MS),
        u64::from(LONGEST_LEFT_MS)
    );
}
