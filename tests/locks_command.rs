//! The replicated commands' encoding, and the buffer that carries them.

use proptest::prelude::*;
use ticketing::locks::command::COMMAND_BYTES_MAX;
use ticketing::locks::limits::{KEY_BYTES_MAX, LEASE_MS_MAX};
use ticketing::locks::{Command, CommandError, Proposals};

fn encoded(command: Command<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    command.encode(&mut out);
    out
}

fn command<'a>(kind: u8, key: &'a [u8], lease_ms: u32, token: u64) -> Command<'a> {
    match kind {
        0 => Command::Grant { key, lease_ms },
        1 => Command::Release { key, token },
        _ => Command::Expire { key, token },
    }
}

#[test]
fn the_layout_is_fixed() {
    let grant = Command::Grant {
        key: b"seat-1",
        lease_ms: 0x0001_0203,
    };
    assert_eq!(encoded(grant), b"\x01\x06\0\0\x03\x02\x01\0seat-1\0\0");
    let release = Command::Release {
        key: b"12345678",
        token: 0x0102_0304_0506_0708,
    };
    assert_eq!(
        encoded(release),
        b"\x02\x08\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x0112345678"
    );
    let expire = Command::Expire {
        key: b"k",
        token: 1,
    };
    assert_eq!(
        encoded(expire),
        b"\x03\x01\0\0\0\0\0\0\x01\0\0\0\0\0\0\0k\0\0\0\0\0\0\0"
    );
}

#[test]
fn bounds_hold_at_the_bound_and_one_past_it() {
    let longest = [b'x'; KEY_BYTES_MAX];
    let most = encoded(Command::Release {
        key: &longest,
        token: u64::MAX,
    });
    assert_eq!(most.len(), COMMAND_BYTES_MAX);
    assert!(Command::decode(&most).is_ok());

    let grant = encoded(Command::Grant {
        key: b"k",
        lease_ms: LEASE_MS_MAX,
    });
    assert!(Command::decode(&grant).is_ok());
    let changed = |at: usize, bytes: &[u8]| {
        let mut payload = grant.clone();
        payload[at..at + bytes.len()].copy_from_slice(bytes);
        Command::decode(&payload).map(|_| ())
    };
    assert_eq!(changed(0, &[0]), Err(CommandError::Kind(0)));
    assert_eq!(changed(0, &[4]), Err(CommandError::Kind(4)));
    assert_eq!(
        changed(0, &[2]),
        Err(CommandError::Length {
            expected: 24,
            actual: 16
        })
    );
    assert_eq!(changed(1, &[0]), Err(CommandError::KeyLength(0)));
    assert_eq!(changed(1, &[129]), Err(CommandError::KeyLength(129)));
    assert_eq!(
        changed(1, &[9]),
        Err(CommandError::Length {
            expected: 24,
            actual: 16
        })
    );
    assert_eq!(changed(2, &[1]), Err(CommandError::Padding));
    assert_eq!(changed(3, &[1]), Err(CommandError::Padding));
    assert_eq!(
        changed(4, &0_u32.to_le_bytes()),
        Err(CommandError::Lease(0))
    );
    assert_eq!(
        changed(4, &(LEASE_MS_MAX + 1).to_le_bytes()),
        Err(CommandError::Lease(250_001))
    );
    assert_eq!(changed(15, &[1]), Err(CommandError::Padding));
    assert_eq!(
        Command::decode(&grant[..7]),
        Err(CommandError::Length {
            expected: 8,
            actual: 7
        })
    );

    let mut expire = encoded(Command::Expire {
        key: b"k",
        token: 1,
    });
    expire[4] = 1;
    assert_eq!(Command::decode(&expire), Err(CommandError::Padding));
    expire[4] = 0;
    expire[8] = 0;
    assert_eq!(Command::decode(&expire), Err(CommandError::ZeroToken));
}

#[test]
#[should_panic(expected = "key length")]
fn a_key_past_the_bound_is_not_encoded() {
    encoded(Command::Grant {
        key: &[b'x'; KEY_BYTES_MAX + 1],
        lease_ms: 1,
    });
}

#[test]
#[should_panic(expected = "lease")]
fn a_lease_past_the_bound_is_not_encoded() {
    encoded(Command::Grant {
        key: b"k",
        lease_ms: LEASE_MS_MAX + 1,
    });
}

proptest! {
    #[test]
    fn what_is_encoded_decodes_to_the_same(
        kind in 0..3_u8,
        key in prop::collection::vec(any::<u8>(), 1..=KEY_BYTES_MAX),
        lease_ms in 1..=LEASE_MS_MAX,
        token in 1..=u64::MAX,
    ) {
        let command = command(kind, &key, lease_ms, token);
        let payload = encoded(command);
        prop_assert!(payload.len().is_multiple_of(8));
        prop_assert_eq!(payload.len(), command.encoded_len());
        prop_assert_eq!(Command::decode(&payload), Ok(command));
    }

    /// Bytes near a real header, cut anywhere, decode or fail; what decodes is canonical.
    #[test]
    fn any_bytes_decode_or_fail(
        kind in 0..5_u8,
        key_len in prop_oneof![0..20_u8, any::<u8>()],
        zeros in prop_oneof![3 => Just([0_u8; 2]), 1 => any::<[u8; 2]>()],
        rest in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..160),
    ) {
        let mut payload = vec![kind, key_len, zeros[0], zeros[1]];
        payload.extend(rest);
        for len in 0..=payload.len() {
            if let Ok(command) = Command::decode(&payload[..len]) {
                prop_assert_eq!(encoded(command), &payload[..len]);
            }
        }
    }

    #[test]
    fn proposals_give_back_their_units(
        units in prop::collection::vec((0..3_u8, any::<bool>(), 1..40_usize), 0..20),
    ) {
        let key = [b'k'; 40];
        let (mut buffer, mut copy) = (Proposals::new(), Proposals::new());
        let mut expected: Vec<Vec<Vec<u8>>> = Vec::new();
        for &(kind, pair, key_len) in &units {
            let first = command(kind, &key[..key_len], 5, 6);
            let second = Command::Grant { key: &key[..key_len], lease_ms: 7 };
            if pair {
                buffer.push_pair(first, second);
                expected.push(vec![encoded(first), encoded(second)]);
            } else {
                buffer.push(first);
                expected.push(vec![encoded(first)]);
            }
        }
        let read: Vec<Vec<Vec<u8>>> =
            buffer.units().map(|unit| unit.payloads().map(<[u8]>::to_vec).collect()).collect();
        prop_assert_eq!(&read, &expected);
        prop_assert_eq!(buffer.len(), expected.concat().len());
        prop_assert_eq!(buffer.payloads().map(<[u8]>::to_vec).collect::<Vec<_>>(), expected.concat());
        prop_assert_eq!(buffer.is_empty(), units.is_empty());

        for unit in buffer.units() {
            copy.push_unit(unit);
        }
        prop_assert_eq!(&copy, &buffer);
        copy.append(&mut buffer);
        prop_assert_eq!(copy.units().count(), 2 * units.len());
        prop_assert_eq!((buffer.len(), buffer.byte_len(), buffer.units().count()), (0, 0, 0));
    }
}
