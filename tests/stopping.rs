//! A planned stop, whenever it comes: in order, within its time, with nothing acknowledged lost.

mod support;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::raw::{acquire, release};
use support::server::verify_log;
use support::{Options, RawClient, Server, wait_until};
use ticketing::locks::Command;
use ticketing_protocol::Reply;
use ticketing_raftlog::{BootId, EntryKind, Folder, HardState, OpenOptions, Term, blocking};

/// Many times what fits the lanes to the shards.
const BATCHES: u32 = 6_000;

/// Appends grants of as many keys, each in a batch of its own, as a leader would.
fn append_grants(data: &Path, count: u32) {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("readable");
    let options = OpenOptions {
        boot_id: BootId::parse(&boot_id).expect("a boot id"),
        ..OpenOptions::default()
    };
    let mut opened = Folder::open_single(data, &options).expect("it opens");
    let hard = HardState {
        term: Term(opened.hard_state.term.0 + 1),
        voted_for: Some(opened.identity.node_id),
    };
    opened.store.write(&hard).expect("written");
    let (mut payload, mut buffer) = (Vec::new(), Vec::new());
    for number in 0..count {
        payload.clear();
        let key = format!("seat-{number}");
        Command::Grant {
            key: key.as_bytes(),
            lease_ms: 250_000,
        }
        .encode(&mut payload);
        let mut batch = opened.log.begin(std::mem::take(&mut buffer));
        let pushed = batch.push(EntryKind::Command, hard.term, &payload);
        pushed.expect("there is room");
        blocking::ensure_spare(&mut opened.log).expect("room on the disk");
        let write = opened.log.finish(batch).expect("a spare");
        if number + 1 < count {
            blocking::write_only(&mut opened.log, &write).expect("written");
            buffer = write.bytes;
        } else {
            blocking::append(&mut opened.log, write).expect("written");
        }
    }
}

fn ended(child: &mut Child) -> ExitStatus {
    let mut status = None;
    wait_until("the server ends", || {
        status = child.try_wait().expect("its status");
        status.is_some()
    });
    status.expect("waited for it")
}

#[test]
fn a_stop_while_a_long_log_is_replayed_waits_for_none_of_it() {
    for shards in [1, 4] {
        let mut server = Server::start(Options::shards(shards));
        server.kill9();
        append_grants(&server.data_dir(), BATCHES);
        let begin = Instant::now();
        server.restart();
        let whole = begin.elapsed();
        server.kill9();

        let mut stopped_early = 0;
        for step in 1..=12 {
            let mut child = server
                .command()
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("it starts");
            std::thread::sleep(whole * step / 12);
            kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
            let status = ended(&mut child);
            // Before it opens the folder there is nothing to put in order.
            assert!(
                status.success() || status.signal() == Some(Signal::TERM.as_raw()),
                "after {step}/12 of {whole:?}: {status}"
            );
            stopped_early += u32::from(status.success());
        }
        assert!(
            stopped_early > 0,
            "each one came before the folder was open"
        );
        server.restart();
        assert_eq!(server.metric("locks_held"), u64::from(BATCHES));
        server.terminate();
        assert!(server.wait_exit().0.success());
        assert_eq!(verify_log(&server.data_dir())["verdict"], "clean");
    }
}

#[test]
fn what_arrives_during_a_stop_is_answered_and_stays_so() {
    const KEYS: usize = 400;
    let key = |number: usize| format!("row-{number}");
    for round in 0..5_u32 {
        let mut server = Server::start(Options::shards(4));
        let mut client = RawClient::connect(server.address);
        let mut idle = RawClient::connect(server.address);
        idle.assert_usable();
        let tokens: Vec<u64> = (0..KEYS).map(|n| client.hold(&key(n), 250)).collect();
        // Releases on their way to every shard while the stop begins.
        let mut bytes = Vec::new();
        let first = client.new_id();
        for (number, token) in tokens.iter().enumerate() {
            let id = if number == 0 { first } else { client.new_id() };
            bytes.extend(release(id, &key(number), *token));
        }
        let (early, late) = bytes.split_at(bytes.len() * round as usize / 4);
        client.send_bytes(early);
        server.terminate();
        client.send_bytes(late);
        let mut released = 0;
        while released < KEYS {
            match client.reply() {
                Reply::Released { .. } => released += 1,
                other => panic!("{other:?}"),
            }
        }
        idle.assert_closed("a stop closes whoever is silent");
        let (status, stderr) = server.wait_exit();
        assert!(status.success(), "{stderr}");
        server.restart();
        assert_eq!(server.metric("locks_held"), 0, "round {round}");
        let mut client = RawClient::connect(server.address);
        assert!(client.hold(&key(0), 1) > *tokens.iter().max().expect("some"));
    }
}

#[test]
fn acquires_in_a_stop_are_refused_and_those_before_it_hold() {
    let mut server = Server::start(Options::shards(2));
    let mut client = RawClient::connect(server.address);
    let held = client.hold("held", 250);
    let waiting = client.send_acquire("held", 60, 250);
    client.assert_silent(Duration::from_millis(50));
    server.terminate();
    let refused = client.reply();
    assert!(
        matches!(refused, Reply::Error { request_id, .. } if request_id == waiting),
        "whoever stands in line is told: {refused:?}"
    );
    let id = client.new_id();
    client.send_bytes(&acquire(id, "another", 0, 1));
    let refused = client.reply();
    assert!(
        matches!(refused, Reply::Error { request_id, .. } if request_id == id),
        "{refused:?}"
    );
    client.assert_closed("it was silent");
    let (status, stderr) = server.wait_exit();
    assert!(status.success(), "{stderr}");
    server.restart();
    RawClient::connect(server.address).give_back("held", held);
}
