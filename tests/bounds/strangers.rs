//! Clients that do not read, or send without end; peers that vanish; the other internet protocol.

use std::process::Command;
use std::time::{Duration, Instant};

use ticketing_protocol::Reply;

use crate::support::raw::{acquire, is_closed, release};
use crate::support::server::{EXIT_LISTEN, run};
use crate::support::{Options, RawClient, SLACK, Server, wait_until};

/// After this without taking a byte a client is closed.
const STALLED_WRITE: Duration = Duration::from_secs(10);
/// Releases taken beyond the requests in flight.
const RELEASE_RESERVE: u64 = 4_096;

#[test]
fn a_client_that_never_reads_is_closed_after_ten_seconds_and_its_grants_go_back() {
    let server = Server::start(
        Options::shards(2)
            .durability("memory")
            .limits("output_bytes = 4096"),
    );
    let mut deaf = RawClient::connect(server.address);
    let mut sent = 0_u64;
    let started = Instant::now();
    // Answers to all of it fill its socket; then nobody reads its requests either.
    loop {
        let mut bytes = Vec::new();
        for _ in 0..256 {
            sent += 1;
            bytes.extend(acquire(sent, &format!("deaf-{sent}"), 0, 250));
        }
        if let Err(error) = deaf.try_send_bytes(&bytes) {
            assert!(is_closed(&error), "{error}");
            break;
        }
        assert!(sent < 20_000_000, "the server takes everything");
    }
    let took = started.elapsed();
    println!("closed after {took:?}, {sent} requests");
    assert!(took >= STALLED_WRITE - SLACK, "{took:?}");
    server.wait_metric("connections_stalled", 1);
    server.wait_metric("connections", 0);
    // What the kernel took counts as delivered; everything else is free again.
    let granted = || server.metric("answers{kind=\"acquired\"}");
    wait_until("its unsent grants are released", || {
        let released = server.metric("ghosts");
        let held = server.metric("locks_held");
        held < granted() && held + released >= granted()
    });
    println!(
        "{} granted, {} released unsent, {} handed to the kernel",
        granted(),
        server.metric("ghosts"),
        server.metric("locks_held")
    );
}

#[test]
fn releases_past_the_reserve_wait_unread_and_are_all_answered() {
    const IN_FLIGHT: u64 = 64;
    let server = Server::start(
        Options::shards(1)
            .durability("memory")
            .limits("requests_in_flight = 64"),
    );
    let mut holder = RawClient::connect(server.address);
    holder.hold("held", 250);
    let mut client = RawClient::connect(server.address);
    // The bound is used up by acquires that stay, so only the reserve is left.
    for id in 1..=IN_FLIGHT {
        client.send_bytes(&acquire(id, "held", 255, 250));
    }
    server.wait_metric("waiting", IN_FLIGHT);
    // At the bound, one past it, and far past it.
    let mut next_id = IN_FLIGHT + 1;
    for releases in [RELEASE_RESERVE, RELEASE_RESERVE + 1, 5 * RELEASE_RESERVE] {
        let mut bytes = Vec::new();
        for id in next_id..next_id + releases {
            bytes.extend(release(id, "h", 1));
        }
        client.send_bytes(&bytes);
        for id in next_id..next_id + releases {
            let reply = client.reply();
            assert!(
                matches!(reply, Reply::NotFound { request_id } if request_id == id),
                "{id}: {reply:?}"
            );
        }
        next_id += releases;
    }
    assert_eq!(server.metric("connections_stalled"), 0);
}

#[test]
fn a_peer_that_vanished_is_looked_for() {
    let server = Server::start(Options::shards(1));
    let client = RawClient::connect(server.address);
    let timers = || {
        Command::new("ss")
            .args(["-tnoH", "state", "established", "sport", "="])
            .arg(format!(":{}", server.address.port()))
            .output()
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    // Not every machine has the tool.
    if timers().is_err() {
        return;
    }
    // Until the last byte is acknowledged its own timer shows instead.
    wait_until("the kernel's keep-alive timer runs", || {
        timers().is_ok_and(|text| text.contains("timer:(keepalive,"))
    });
    drop(client);
}

#[test]
fn it_listens_on_ipv6_as_well() {
    let server = Server::start(Options::shards(2).listen("[::1]:0"));
    assert!(server.address.is_ipv6());
    let mut client = RawClient::connect(server.address);
    let token = client.hold("six", 5);
    client.give_back("six", token);
    let folder = server.data_dir().with_file_name("another");
    let second = run(&[
        "serve",
        "--listen",
        &server.address.to_string(),
        "--data-dir",
        folder.to_str().expect("a path of text"),
    ]);
    assert_eq!(second.status.code(), Some(EXIT_LISTEN), "{second:?}");
}
