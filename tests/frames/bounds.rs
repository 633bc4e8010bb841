//! Bounds of a connection and of the table, at the bound and one past it; and the times by
//! which a wait is answered.

use std::time::{Duration, Instant};

use ticketing_protocol::Reply;

use crate::support::raw::acquire;
use crate::support::{Options, RawClient, Server};

#[test]
fn requests_in_flight_past_their_bound_are_busy_and_releases_are_not() {
    let server = Server::start(Options::shards(2).limits("requests_in_flight = 3"));
    let mut holder = RawClient::connect(server.address);
    let token = holder.hold("held", 60);
    let mut client = RawClient::connect(server.address);
    let waiters: Vec<u64> = (0..3)
        .map(|_| client.send_acquire("held", 60, 60))
        .collect();
    server.wait_metric("waiting", 3);
    // The fourth, even of a key that is free.
    let reply = client.acquire("free", 60, 60);
    assert!(matches!(reply, Reply::Busy { .. }), "{reply:?}");
    // A release is never refused for lack of room, and another connection has its own.
    client.assert_usable();
    RawClient::connect(server.address).hold("free", 60);

    holder.give_back("held", token);
    match client.reply() {
        Reply::Acquired { request_id, .. } => assert_eq!(request_id, waiters[0]),
        other => panic!("{other:?}"),
    }
    // Two are in flight: there is room for one again, and not for two.
    client.send_acquire("held", 60, 60);
    server.wait_metric("waiting", 3);
    let reply = client.acquire("free", 0, 60);
    assert!(matches!(reply, Reply::Busy { .. }), "{reply:?}");
}

#[test]
fn waiters_of_one_key_past_their_bound_are_busy() {
    let server = Server::start(Options::shards(2).limits("waiters_per_key = 2"));
    let mut client = RawClient::connect(server.address);
    let token = client.hold("key", 60);
    let other = client.hold("other", 60);
    let first = client.send_acquire("key", 60, 60);
    client.send_acquire("key", 60, 60);
    server.wait_metric("waiting", 2);
    let reply = client.acquire("key", 60, 60);
    assert!(matches!(reply, Reply::Busy { .. }), "{reply:?}");
    // Another key has a line of its own.
    client.send_acquire("other", 60, 60);
    server.wait_metric("waiting", 3);
    client.send_release("key", token);
    let replies = [client.reply(), client.reply()];
    let next = replies.iter().find_map(|reply| match *reply {
        Reply::Acquired { request_id, .. } => Some(request_id),
        _ => None,
    });
    assert_eq!(next, Some(first), "{replies:?}");
    // One place is free again.
    client.send_acquire("key", 60, 60);
    server.wait_metric("waiting", 3);
    let reply = client.acquire("key", 60, 60);
    assert!(matches!(reply, Reply::Busy { .. }), "{reply:?}");
    assert!(other != token);
}

#[test]
fn waiters_and_locks_in_all_past_their_bounds_are_busy() {
    let limits = "waiters_per_shard = 2\nlocks_per_shard = 3";
    let server = Server::start(Options::shards(1).limits(limits));
    let mut client = RawClient::connect(server.address);
    let tokens = ["a", "b", "c"].map(|key| client.hold(key, 60));
    let reply = client.acquire("d", 60, 60);
    assert!(
        matches!(reply, Reply::Busy { .. }),
        "a fourth lock: {reply:?}"
    );
    client.send_acquire("a", 60, 60);
    client.send_acquire("b", 60, 60);
    server.wait_metric("waiting", 2);
    let reply = client.acquire("c", 60, 60);
    assert!(
        matches!(reply, Reply::Busy { .. }),
        "a third waiter: {reply:?}"
    );
    client.give_back("c", tokens[2]);
    client.hold("d", 60);
}

#[test]
fn wait_0_on_a_held_key_is_busy_at_once() {
    let server = Server::start(Options::shards(3));
    RawClient::connect(server.address).hold("key", 60);
    let mut client = RawClient::connect(server.address);
    let started = Instant::now();
    for _ in 0..100 {
        let reply = client.acquire("key", 0, 60);
        assert!(matches!(reply, Reply::Busy { .. }), "{reply:?}");
    }
    let took = started.elapsed();
    // One try, a hundred times, in less than the shortest wait there is.
    assert!(took < Duration::from_millis(900), "{took:?}");
    println!("100 tries in {took:?}");
}

/// How long before its end a wait is answered, and what must be left of that when the answer is
/// here, or the margin would be none.
const MARGIN: Duration = Duration::from_millis(50);
const LEFT: Duration = Duration::from_millis(15);
/// Clocks of whole milliseconds on the server's side.
const ROUNDING: Duration = Duration::from_millis(2);
/// On a loaded machine an answer may be late; a server that is always late is at fault itself.
const ATTEMPTS: u32 = 8;

#[test]
fn a_wait_is_answered_a_margin_before_it_ends_and_a_second_earlier_under_a_fresh_leader() {
    let second = Duration::from_secs(1);
    // Within 5 s of ready: a wait of 1 s in full, longer ones a second shorter.
    let in_time = (0..ATTEMPTS).find_map(|_| {
        let server = Server::start(Options::shards(2));
        RawClient::connect(server.address).hold("key", 250);
        let expected = [(1, second), (2, second), (3, 2 * second)];
        waits_end(&server, &expected).then_some(server)
    });
    let server = in_time.unwrap_or_else(|| panic!("late {ATTEMPTS} times"));
    // Every one in full, once it has been ready for long.
    std::thread::sleep(Duration::from_millis(5_100));
    let in_time = (0..ATTEMPTS).any(|_| waits_end(&server, &[(1, second), (2, 2 * second)]));
    assert!(in_time, "late {ATTEMPTS} times");
}

/// Stands in the line of `key` with each wait, and measures when T comes: never earlier than
/// the margin before `ends`. True if each came while something was left of the margin.
fn waits_end(server: &Server, expected: &[(u8, Duration)]) -> bool {
    let mut client = RawClient::connect(server.address);
    let started = Instant::now();
    let mut bytes = Vec::new();
    for &(wait_s, _) in expected {
        bytes.extend(acquire(u64::from(wait_s), "key", wait_s, 10));
    }
    client.send_bytes(&bytes);
    let mut all_in_time = true;
    for _ in expected {
        let reply = client.reply();
        let took = started.elapsed();
        let Reply::TimedOut { request_id } = reply else {
            panic!("{reply:?}");
        };
        let of_this = expected
            .iter()
            .find(|&&(wait_s, _)| u64::from(wait_s) == request_id);
        let &(wait_s, ends) = of_this.expect("a request of this test");
        assert!(
            took + ROUNDING >= ends - MARGIN,
            "wait {wait_s}: T after {took:?}"
        );
        println!("wait {wait_s} s: T after {took:?}");
        all_in_time &= took + LEFT < ends;
    }
    all_in_time
}
