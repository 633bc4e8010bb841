//! A planned stop: nothing that is in the log is lost, and everybody hears about it.

use std::time::{Duration, Instant};

use ticketing_protocol::{ErrorCode, Reply};

use crate::support::raw::release;
use crate::support::server::verify_log;
use crate::support::{Options, PATIENCE, RawClient, SLACK, Server};

/// How long a connection must be silent before a stop closes it, and how long a stop lasts.
const SILENCE: Duration = Duration::from_millis(250);
const AT_MOST: Duration = Duration::from_secs(5);

#[test]
fn a_stop_finishes_releases_and_answers_the_rest_with_not_active() {
    let mut server = Server::start(Options::shards(3));
    let mut holder = RawClient::connect(server.address);
    let released = holder.hold("released", 250);
    let kept = holder.hold("kept", 250);
    let mut waiter = RawClient::connect(server.address);
    let waiting = waiter.send_acquire("kept", 60, 60);
    server.wait_metric("waiting", 1);
    let mut idle = RawClient::connect(server.address);

    server.terminate();
    // Who stands in line gets told.
    assert_eq!(waiter.reply(), not_active(waiting));
    // From then on there are no acquires, and releases still work.
    assert_eq!(id_less(holder.acquire("free", 0, 60)), not_active(0));
    assert_eq!(id_less(holder.acquire("free", 60, 60)), not_active(0));
    holder.give_back("released", released);
    idle.assert_closed("an idle connection");
    waiter.assert_closed("a connection whose waiter was told");
    holder.assert_closed("a connection that went silent");
    let (status, stderr) = server.wait_exit();
    assert_eq!(status.code(), Some(0), "{stderr}");
    let report = verify_log(&server.data_dir());
    assert_eq!(report["verdict"], "clean", "{report}");
    assert_eq!(report["clean_stop"], true, "{report}");

    // What was released is free, what was held is held, and its token still works.
    server.restart();
    let mut client = RawClient::connect(server.address);
    let next = client.hold("released", 250);
    assert!(next > kept, "{next} after {kept}");
    let reply = client.acquire("kept", 0, 60);
    assert!(matches!(reply, Reply::Busy { .. }), "{reply:?}");
    client.give_back("kept", kept);
}

#[test]
fn an_idle_server_stops_in_about_the_time_of_one_silence() {
    let mut server = Server::start(Options::shards(2));
    let mut clients = [(); 5].map(|()| RawClient::connect(server.address));
    let started = Instant::now();
    server.terminate();
    for client in &mut clients {
        client.assert_closed("an idle connection");
    }
    let (status, stderr) = server.wait_exit();
    let took = started.elapsed();
    assert_eq!(status.code(), Some(0), "{stderr}");
    assert!(took < SILENCE + SLACK, "stopped only after {took:?}");
    println!("stopped after {took:?}");
}

#[test]
fn a_client_that_never_falls_silent_hears_not_active_until_the_stop_ends() {
    let mut server = Server::start(Options::shards(2));
    let mut client = RawClient::connect(server.address);
    client.assert_usable();
    let started = Instant::now();
    server.terminate();
    let mut refused = 0;
    loop {
        let id = client.send_acquire_unless_closed("key", 1, 10);
        match client.try_reply(PATIENCE) {
            Ok(Reply::Acquired { token, .. }) if refused == 0 => client.give_back("key", token),
            Ok(reply) => {
                assert_eq!(Some(reply), id.map(not_active));
                refused += 1;
            }
            Err(_) => break,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let took = started.elapsed();
    assert!(
        took + Duration::from_millis(50) >= AT_MOST,
        "closed after {took:?}"
    );
    assert!(took < AT_MOST + SLACK, "closed only after {took:?}");
    assert!(refused > 0, "never refused");
    let (status, stderr) = server.wait_exit();
    assert_eq!(status.code(), Some(0), "{stderr}");
    println!("{refused} acquires refused during a stop of {took:?}");
}

fn not_active(request_id: u64) -> Reply {
    Reply::Error {
        request_id,
        code: ErrorCode::NotActive,
    }
}

/// An error reply as if it named request 0, to compare what it says.
fn id_less(reply: Reply) -> Reply {
    match reply {
        Reply::Error { code, .. } => Reply::Error {
            request_id: 0,
            code,
        },
        other => other,
    }
}

#[test]
fn releases_forwarded_by_a_connection_that_closes_do_not_break_a_stop() {
    const KEYS: usize = 40;
    for durability in ["memory", "sync"] {
        let mut server = Server::start(Options::shards(3).durability(durability));
        let mut client = RawClient::connect(server.address);
        let mut releases = Vec::new();
        for key in 0..KEYS {
            let key = format!("key-{key}");
            let token = client.hold(&key, 250);
            releases.extend(release(client.new_id(), &key, token));
        }
        server.terminate();
        std::thread::sleep(SILENCE / 4);
        // The shards that own the keys have nothing left to wait for, and this
        // one hears of the releases and of the end at once.
        client.send_bytes(&releases);
        drop(client);
        let (status, stderr) = server.wait_exit();
        assert_eq!(status.code(), Some(0), "{durability}: {stderr}");
        let report = verify_log(&server.data_dir());
        assert_eq!(report["verdict"], "clean", "{durability}: {report}");
        assert_eq!(report["clean_stop"], true, "{durability}: {report}");
    }
}
