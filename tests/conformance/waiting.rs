//! Standing in line: its order, and its end.

use std::sync::Arc;
use std::time::Duration;

use published::{TicketBroker, TicketError};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::support::Options;
use crate::{LONG_LEASE, LONG_WAIT, WORK, connected, give_back, hold, started, try_once};

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_runs_out_is_a_timeout_and_its_connection_lives_on() {
    const PENDING: usize = 8;
    let (server, broker) = started(Options::shards(3)).await;
    server.wait_metric("connections", 2);
    let held = hold(&broker, "held").await;
    let late = hold(&broker, "late").await;
    // On both of the client's connections requests are pending while others time out.
    let mut pending = JoinSet::new();
    for _ in 0..PENDING {
        let broker = broker.clone();
        pending.spawn(async move { give_back(hold(&broker, "late").await).await });
    }
    server.wait_metric("waiting", PENDING as u64);
    for wait_s in [1, 1, 2, 3] {
        let wait = Duration::from_secs(wait_s);
        let mut both = JoinSet::new();
        for _ in 0..2 {
            let broker = broker.clone();
            both.spawn(async move { broker.acquire("held", wait, LONG_LEASE, WORK).await });
        }
        while let Some(outcome) = both.join_next().await {
            let error = outcome.expect("no panic").expect_err("held");
            assert!(matches!(error, TicketError::Timeout), "{wait:?}: {error}");
        }
    }
    server.wait_metric("waiting", PENDING as u64);
    give_back(late).await;
    while let Some(outcome) = pending.join_next().await {
        outcome.expect("every pending acquire got its answer");
    }
    // Not one connection was opened anew.
    assert_eq!(server.metric("connections_accepted"), 2);
    assert_eq!(server.metric("connections"), 2);
    assert_eq!(server.metric("answers{kind=\"timed_out\"}"), 8);
    give_back(held).await;
    // Nobody who timed out got the key after all.
    give_back(try_once(&broker, "held").await.expect("free")).await;
    println!("8 timeouts, {PENDING} requests pending beside them answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_get_the_key_in_the_order_in_which_they_came() {
    const WAITERS: u64 = 40;
    for shards in [1, 3] {
        let (server, broker) = started(Options::shards(shards)).await;
        // On several connections, so that the line is fed by several shards.
        let mut brokers = vec![broker];
        for _ in 0..2 {
            brokers.push(connected(&server).await);
        }
        let held = hold(&brokers[0], "key").await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiters = JoinSet::new();
        for place in 0..WAITERS {
            let broker: TicketBroker = brokers[place as usize % brokers.len()].clone();
            let order = Arc::clone(&order);
            waiters.spawn(async move {
                let ticket = broker
                    .acquire("key", LONG_WAIT, LONG_LEASE, WORK)
                    .await
                    .expect("acquired");
                order.lock().await.push((place, ticket.token()));
                give_back(ticket).await;
            });
            server.wait_metric("waiting", place + 1);
        }
        give_back(held).await;
        while let Some(outcome) = waiters.join_next().await {
            outcome.expect("no panic");
        }
        let order = order.lock().await;
        let places: Vec<u64> = order.iter().map(|&(place, _)| place).collect();
        assert_eq!(places, (0..WAITERS).collect::<Vec<_>>());
        assert!(order.is_sorted_by(|a, b| a.1 < b.1), "{order:?}");
    }
    println!("{WAITERS} waiters in order, on 1 and on 3 shards");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_gives_up_leaves_the_line() {
    let (server, broker) = started(Options::shards(2)).await;
    let other = connected(&server).await;
    let held = hold(&broker, "key").await;
    let waiting = tokio::spawn(async move { hold(&other, "key").await.token() });
    server.wait_metric("waiting", 1);
    waiting.abort();
    server.wait_metric("waiting", 0);
    give_back(held).await;
    give_back(try_once(&broker, "key").await.expect("free")).await;
}
