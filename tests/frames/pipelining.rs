//! Frames cut anywhere, packed together, answered out of order; and clients that stop sending.

use std::collections::HashSet;
use std::time::Duration;

use ticketing_protocol::Reply;

use crate::support::raw::{acquire, release};
use crate::support::{Options, PATIENCE, RawClient, Server, wait_until};

/// Long enough for the server to read what was sent so far, on a machine that is not loaded; on
/// one that is, two parts may be read as one, and the test is weaker but not wrong.
const READ_APART: Duration = Duration::from_millis(2);

#[test]
fn frames_may_be_cut_at_every_byte() {
    let server = Server::start(Options::shards(3));
    RawClient::connect(server.address).hold("held", 250);
    let mut client = RawClient::connect(server.address);
    let frames = |first: u64| {
        let mut bytes = acquire(first, "held", 0, 10);
        bytes.extend(release(first + 1, "held", 1));
        bytes
    };
    let length = frames(1).len();
    let mut first = 1;
    let expect = |client: &mut RawClient, first: u64| {
        // Each may belong to another shard than the one that the connection is on.
        let replies = HashSet::from([
            format!("{:?}", client.reply()),
            format!("{:?}", client.reply()),
        ]);
        let busy = Reply::Busy { request_id: first };
        let not_found = Reply::NotFound {
            request_id: first + 1,
        };
        assert_eq!(
            replies,
            HashSet::from([format!("{busy:?}"), format!("{not_found:?}")])
        );
    };
    for cut in 1..length {
        let bytes = frames(first);
        client.send_bytes(&bytes[..cut]);
        std::thread::sleep(READ_APART);
        client.send_bytes(&bytes[cut..]);
        expect(&mut client, first);
        first += 2;
    }
    for byte in frames(first) {
        client.send_bytes(&[byte]);
        std::thread::sleep(READ_APART / 4);
    }
    expect(&mut client, first);
    assert_eq!(server.metric("connections_malformed"), 0);
    println!("frames cut at {} places, and at all at once", length - 1);
}

#[test]
fn a_thousand_frames_in_one_write_get_a_thousand_answers() {
    const FRAMES: u64 = 1_000;
    for shards in [1, 2, 3] {
        let server = Server::start(Options::shards(shards));
        let mut client = RawClient::connect(server.address);
        let key = |id: u64| format!("key-{id}");
        let all: Vec<u8> = (1..=FRAMES)
            .flat_map(|id| acquire(id, &key(id), 0, 60))
            .collect();
        client.send_bytes(&all);
        let mut tokens = vec![0; FRAMES as usize + 1];
        let mut different = HashSet::new();
        for _ in 0..FRAMES {
            match client.reply() {
                Reply::Acquired { request_id, token } => {
                    assert_eq!(
                        tokens[request_id as usize], 0,
                        "{request_id} answered twice"
                    );
                    tokens[request_id as usize] = token;
                    assert!(different.insert(token), "token {token} issued twice");
                }
                other => panic!("{other:?}"),
            }
        }
        server.wait_metric("locks_held", FRAMES);
        let all: Vec<u8> = (1..=FRAMES)
            .flat_map(|id| release(id, &key(id), tokens[id as usize]))
            .collect();
        client.send_bytes(&all);
        let released: HashSet<u64> = (0..FRAMES)
            .map(|_| match client.reply() {
                Reply::Released { request_id } => request_id,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(released.len() as u64, FRAMES);
        server.wait_metric("locks_held", 0);
    }
    println!("{FRAMES} acquires and {FRAMES} releases in one write each, on 1, 2 and 3 shards");
}

#[test]
fn an_answer_overtakes_one_that_has_to_wait() {
    let server = Server::start(Options::shards(2));
    let mut holder = RawClient::connect(server.address);
    let token = holder.hold("slow", 60);
    let mut client = RawClient::connect(server.address);
    let slow = client.send_acquire("slow", 60, 60);
    let quick = client.send_acquire("quick", 60, 60);
    let reply = client.reply();
    assert!(
        matches!(reply, Reply::Acquired { request_id, .. } if request_id == quick),
        "{reply:?}"
    );
    // The waiter's own connection may release what another holds.
    let release = client.send_release("slow", token);
    let replies = [client.reply(), client.reply()];
    assert!(
        replies.contains(&Reply::Released {
            request_id: release
        }),
        "{replies:?}"
    );
    assert!(
        replies.iter().any(|reply| matches!(
            reply,
            Reply::Acquired { request_id, token: next } if *request_id == slow && *next > token
        )),
        "{replies:?}"
    );
}

#[test]
fn a_client_that_sends_no_more_is_not_served_any_more() {
    let server = Server::start(Options::shards(2));
    let mut holder = RawClient::connect(server.address);
    let token = holder.hold("key", 60);
    let mut waiter = RawClient::connect(server.address);
    waiter.send_acquire("key", 60, 60);
    server.wait_metric("waiting", 1);
    waiter.half_close();
    waiter.assert_closed("half closed in line");
    server.wait_metric("waiting", 0);
    holder.give_back("key", token);
    holder.hold("key", 60);

    // Its last request and its end together: answered in time, or not granted at all.
    let mut answered = 0;
    for round in 0..50 {
        let key = format!("last-{round}");
        let mut client = RawClient::connect(server.address);
        client.send_acquire(&key, 0, 250);
        client.half_close();
        match client.try_reply(PATIENCE) {
            Ok(Reply::Acquired { token, .. }) => {
                answered += 1;
                holder.give_back(&key, token);
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => wait_until("a key that nobody was granted is free", || {
                match holder.acquire(&key, 0, 250) {
                    Reply::Acquired { token, .. } => {
                        holder.give_back(&key, token);
                        true
                    }
                    _ => false,
                }
            }),
        }
    }
    println!("50 half-closed with an acquire in flight: {answered} answered before");
}
