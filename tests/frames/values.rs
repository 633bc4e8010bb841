//! Well-formed frames with a bad value: each gets its error, and the connection stays usable.

use ticketing_protocol::limits::KEY_MAX_BYTES;
use ticketing_protocol::{ErrorCode, KeySetBuf, Reply, Request};

use crate::support::raw::{body, frame};
use crate::support::{Options, RawClient, Server};

#[test]
fn leases_of_1_and_250_are_granted_and_one_past_is_bad_lease() {
    let server = Server::start(Options::shards(2));
    let mut client = RawClient::connect(server.address);
    for lease_s in [0, 251, 255] {
        let id = client.new_id();
        client.send_bytes(&acquire_frame(id, 0, lease_s, b"key"));
        assert_eq!(client.reply(), error(id, ErrorCode::BadLease), "{lease_s}");
    }
    for lease_s in [1, 250] {
        let key = format!("lease-{lease_s}");
        let token = client.hold(&key, lease_s);
        client.give_back(&key, token);
    }
    assert_eq!(server.metric("answers{kind=\"error\"}"), 3);
    println!("leases: 3 refused, 2 granted");
}

#[test]
fn what_is_no_key_is_bad_key_to_an_acquire_and_to_a_release() {
    let server = Server::start(Options::shards(3));
    let mut client = RawClient::connect(server.address);
    let bad: [&[u8]; 9] = [
        b"", b" ", b"a b", b"\n", b"key\n", b"\r", b"k\rey", b"\xff", b"\xc3",
    ];
    for key in bad {
        let id = client.new_id();
        client.send_bytes(&acquire_frame(id, 0, 10, key));
        assert_eq!(client.reply(), error(id, ErrorCode::BadKey), "{key:?}");
        let id = client.new_id();
        client.send_bytes(&release_frame(id, 1, key));
        assert_eq!(client.reply(), error(id, ErrorCode::BadKey), "{key:?}");
    }
    client.assert_usable();
    println!("keys: {} refused twice", bad.len());
}

#[test]
fn keys_of_1_and_of_128_bytes_are_granted_and_kept_apart() {
    let server = Server::start(Options::shards(3));
    let mut client = RawClient::connect(server.address);
    let longest = "k".repeat(KEY_MAX_BYTES);
    let one_shorter = "k".repeat(KEY_MAX_BYTES - 1);
    let letters = "표".repeat(KEY_MAX_BYTES / 3);
    let keys = ["k", "\0", "\t", &one_shorter, &longest, &letters];
    let tokens: Vec<u64> = keys.iter().map(|key| client.hold(key, 30)).collect();
    for (key, &token) in keys.iter().zip(&tokens) {
        let reply = client.acquire(key, 0, 30);
        assert!(matches!(reply, Reply::Busy { .. }), "{key:?}: {reply:?}");
        client.give_back(key, token);
    }
    println!("keys: {} held at once", keys.len());
}

#[test]
fn token_0_is_bad_token_and_any_other_that_is_not_current_is_not_found() {
    let server = Server::start(Options::shards(2));
    let mut client = RawClient::connect(server.address);
    let id = client.new_id();
    client.send_bytes(&release_frame(id, 0, b"key"));
    assert_eq!(client.reply(), error(id, ErrorCode::BadToken));

    let token = client.hold("key", 30);
    for wrong in [1, token - 1, token + 1, u64::MAX] {
        let reply = client.release("key", wrong);
        assert!(
            matches!(reply, Reply::NotFound { .. }),
            "{wrong}: {reply:?}"
        );
    }
    let reply = client.release("another-key", token);
    assert!(matches!(reply, Reply::NotFound { .. }), "{reply:?}");
    client.give_back("key", token);
    let again = client.release("key", token);
    assert!(matches!(again, Reply::NotFound { .. }), "{again:?}");
}

#[test]
fn the_token_alone_is_the_authority_on_any_connection() {
    let server = Server::start(Options::shards(2));
    let token = RawClient::connect(server.address).hold("key", 30);
    // That connection is closed by now, and the lock lives on.
    let mut other = RawClient::connect(server.address);
    let reply = other.acquire("key", 0, 30);
    assert!(matches!(reply, Reply::Busy { .. }), "{reply:?}");
    other.give_back("key", token);
    other.hold("key", 30);
}

#[test]
fn a_set_of_keys_is_refused_as_a_bad_set() {
    let server = Server::start(Options::shards(2));
    let mut client = RawClient::connect(server.address);
    let keys = KeySetBuf::from_unsorted(&["a", "b"]).expect("a set");
    let mut bytes = Vec::new();
    let acquire = Request::AcquireSet {
        request_id: client.new_id(),
        wait_s: 1,
        lease_s: 10,
        keys: keys.as_set(),
    };
    acquire.encode(&mut bytes);
    let release = Request::ReleaseSet {
        request_id: client.new_id(),
        token: 1,
        keys: keys.as_set(),
    };
    release.encode(&mut bytes);
    client.send_bytes(&bytes);
    for request in [acquire, release] {
        let expected = error(request.request_id(), ErrorCode::BadKeySet);
        assert_eq!(client.reply(), expected, "{request:?}");
    }
    client.assert_usable();
}

#[test]
fn a_set_that_is_none_is_a_bad_set() {
    let server = Server::start(Options::shards(1));
    let mut client = RawClient::connect(server.address);
    let sets: [(&str, &[u8]); 5] = [
        ("one key", b"\x01\x01a"),
        ("17 keys", b"\x11\x01a"),
        ("not ascending", b"\x02\x01b\x01a"),
        ("twice the same", b"\x02\x01a\x01a"),
        ("bytes left over", b"\x02\x01a\x01b\x01c"),
    ];
    for (what, set) in sets {
        let id = client.new_id();
        client.send_bytes(&frame(b'S', &body(&[&id.to_be_bytes(), &[0, 10], set])));
        assert_eq!(client.reply(), error(id, ErrorCode::BadKeySet), "{what}");
    }
    client.assert_usable();
}

fn error(request_id: u64, code: ErrorCode) -> Reply {
    Reply::Error { request_id, code }
}

fn acquire_frame(id: u64, wait_s: u8, lease_s: u8, key: &[u8]) -> Vec<u8> {
    frame(b'A', &body(&[&id.to_be_bytes(), &[wait_s, lease_s], key]))
}

fn release_frame(id: u64, token: u64, key: &[u8]) -> Vec<u8> {
    frame(b'R', &body(&[&id.to_be_bytes(), &token.to_be_bytes(), key]))
}
