//! Memory for connections, locks, waiters; none for keys of the past. Time for none of them.

use std::time::{Duration, Instant};

use crate::load::{BATCH, Load};
use crate::support::usage::{anonymous_kib, cpu_time, raise_open_files};
use crate::support::{Options, RawClient, Server};

/// Anonymous memory that growth by a part of a full load may take besides its share: tables grow
/// by doubling.
const SLACK_KIB: u64 = 8 * 1024;

/// What an idle server may use of one core, in thousandths.
const IDLE_PER_MILLE: u128 = 10;

const IDLE_WATCHED: Duration = Duration::from_secs(3);

/// How long a server may go on preparing its next log segment after it serves.
const PREPARED_WITHIN: Duration = Duration::from_secs(20);

fn server() -> Server {
    let limits = "connections = 19000";
    let server = Server::start(Options::shards(2).durability("memory").limits(limits));
    let mut load = Load::connect(server.address);
    let keys = numbered("warm", 0, BATCH);
    let tokens = load.hold(&keys);
    load.give_back(&keys, &tokens);
    drop(load);
    server.wait_metric("connections", 0);
    server
}

fn numbered(prefix: &str, from: usize, number: usize) -> Vec<String> {
    (from..from + number)
        .map(|n| format!("{prefix}-{n}"))
        .collect()
}

/// Fails if the server's memory grew by more than `bound_kib` since `before_kib`.
fn assert_grown(server: &Server, what: &str, before_kib: u64, bound_kib: u64) {
    let now_kib = anonymous_kib(server.pid());
    let grown = now_kib.saturating_sub(before_kib);
    println!("{what}: {grown} KiB over {before_kib} KiB (at most {bound_kib} KiB)");
    assert!(grown <= bound_kib, "{what} take too much memory");
}

/// Waits until what a start leaves to do behind its first answers is done.
fn wait_prepared(server: &Server) {
    let deadline = Instant::now() + PREPARED_WITHIN;
    loop {
        let before = cpu_time(server.pid());
        std::thread::sleep(Duration::from_millis(300));
        let used = cpu_time(server.pid()).saturating_sub(before);
        if used < Duration::from_millis(3) {
            return;
        }
        assert!(Instant::now() < deadline, "never idle: {used:?} of 300 ms");
    }
}

fn assert_idle(server: &Server, what: &str) {
    wait_prepared(server);
    let before = cpu_time(server.pid());
    std::thread::sleep(IDLE_WATCHED);
    let used = cpu_time(server.pid()).saturating_sub(before);
    println!("{what}: {used:?} of CPU in {IDLE_WATCHED:?}");
    assert!(
        used.as_micros() * 1_000 <= IDLE_WATCHED.as_micros() * IDLE_PER_MILLE,
        "{what}: too much"
    );
}

#[test]
fn an_idle_server_uses_no_core() {
    assert_idle(&server(), "idle");
}

fn idle_connections(number: usize, bound_kib: u64) {
    assert!(raise_open_files() >= number as u64 + 256, "ulimit -n");
    let server = server();
    let before = anonymous_kib(server.pid());
    let clients: Vec<RawClient> = (0..number)
        .map(|_| RawClient::connect(server.address))
        .collect();
    server.wait_metric("connections", number as u64);
    assert_grown(&server, &format!("{number} connections"), before, bound_kib);
    assert_idle(&server, &format!("{number} idle connections"));
    drop(clients);
}

#[test]
fn two_thousand_idle_connections() {
    idle_connections(2_000, 64 * 1024 / 5);
}

#[test]
#[ignore = "make bounds"]
fn ten_thousand_idle_connections() {
    idle_connections(10_000, 64 * 1024);
}

fn held_keys(number: usize, bound_kib: u64) {
    let server = server();
    let before = anonymous_kib(server.pid());
    let mut load = Load::connect(server.address);
    for from in (0..number).step_by(BATCH) {
        load.hold(&numbered("held", from, BATCH.min(number - from)));
    }
    server.wait_metric("locks_held", number as u64);
    assert_grown(&server, &format!("{number} held keys"), before, bound_kib);
}

#[test]
fn a_hundred_thousand_held_keys() {
    held_keys(100_000, 300 * 1024 / 10 + SLACK_KIB);
}

#[test]
#[ignore = "make bounds"]
fn a_million_held_keys() {
    held_keys(1_000_000, 300 * 1024);
}

#[test]
fn a_hundred_thousand_waiters() {
    const WAITERS: usize = 100_000;
    const PER_CONNECTION: usize = 25_000;
    const IN_LINE_BATCH: usize = 5_000;
    let server = server();
    let before = anonymous_kib(server.pid());
    let mut holder = RawClient::connect(server.address);
    holder.hold("wanted", 250);
    let mut loads: Vec<Load> = (0..WAITERS / PER_CONNECTION)
        .map(|_| Load::connect(server.address))
        .collect();
    // A burst that one shard has for another has a bound of its own, so batch by batch.
    let mut waiting = 0;
    while waiting < WAITERS {
        let batch = IN_LINE_BATCH.min(WAITERS - waiting);
        loads[waiting / PER_CONNECTION].stand_in_line("wanted", batch);
        waiting += batch;
        server.wait_metric("waiting", waiting as u64);
    }
    assert_grown(&server, "100000 waiters", before, 64 * 1024);
    drop(loads);
    server.wait_metric("waiting", 0);
}

fn churn(number: usize) {
    let server = server();
    let mut load = Load::connect(server.address);
    let mut before = 0;
    for from in (0..number).step_by(BATCH) {
        let keys = numbered("past", from, BATCH.min(number - from));
        let tokens = load.hold(&keys);
        load.give_back(&keys, &tokens);
        // What is made once is there after a tenth.
        if from <= number / 10 {
            before = anonymous_kib(server.pid());
        }
    }
    server.wait_metric("locks_held", 0);
    assert_grown(
        &server,
        &format!("{number} keys of the past"),
        before,
        SLACK_KIB,
    );
}

#[test]
fn keys_of_the_past_take_no_memory() {
    churn(1_000_000);
}

#[test]
#[ignore = "make bounds"]
fn ten_million_keys_of_the_past_take_no_memory() {
    churn(10_000_000);
}
