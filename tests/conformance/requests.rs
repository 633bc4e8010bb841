//! Single requests and their answers.

use std::time::{Duration, Instant};

use published::{ReleaseOutcome, TicketBroker, TicketError};

use crate::support::{Options, PATIENCE, SLACK, Server};
use crate::{LONG_WAIT, WORK, connected, give_back, hold, started, try_once};

const TOKEN: &str = "a-client-token-for-tests";

#[tokio::test(flavor = "multi_thread")]
async fn acquire_and_release_with_tokens_that_grow_over_all_keys() {
    for shards in [1, 2, 3] {
        for durability in ["sync", "memory"] {
            let options = Options::shards(shards).durability(durability);
            let (server, broker) = started(options).await;
            let mut last = 0;
            for turn in 0..60 {
                let key = format!("seat/{}", turn % 20);
                let ticket = try_once(&broker, &key).await.expect("free");
                assert_eq!(ticket.key(), key);
                assert!(ticket.token() > last, "{} after {last}", ticket.token());
                last = ticket.token();
                give_back(ticket).await;
            }
            server.wait_metric("locks_held", 0);
            assert_eq!(server.metric("answers{kind=\"acquired\"}"), 60);
            assert_eq!(server.metric("answers{kind=\"released\"}"), 60);
        }
    }
    println!("60 turns on 1, 2 and 3 shards, in both durability modes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_ticket_is_released_and_a_second_release_changes_nothing() {
    let (server, broker) = started(Options::shards(2)).await;
    drop(hold(&broker, "key").await);
    server.wait_metric("locks_held", 0);
    let ticket = hold(&broker, "key").await;
    // Somebody who knows the token was first.
    let mut other = crate::support::RawClient::connect(server.address);
    other.give_back("key", ticket.token());
    let next = hold(&broker, "key").await;
    let outcome = ticket.release().await.expect("an answer");
    assert_eq!(outcome, ReleaseOutcome::AlreadyGoneOrNotCurrent);
    give_back(next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_try_of_a_held_key_is_busy_and_never_in_line() {
    let (server, broker) = started(Options::shards(2)).await;
    let ticket = hold(&broker, "key").await;
    for _ in 0..50 {
        let error = try_once(&broker, "key").await.expect_err("held");
        assert!(matches!(error, TicketError::Busy), "{error}");
    }
    assert_eq!(server.metric("waiting"), 0);
    give_back(ticket).await;
    give_back(try_once(&broker, "key").await.expect("free")).await;
    assert_eq!(server.metric("answers{kind=\"busy\"}"), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_the_authentication_error_and_the_right_one_works() {
    let server = Server::start(Options::shards(2).token(TOKEN));
    let broker = |token: &str| {
        TicketBroker::builder()
            .addrs([server.address.to_string()])
            .token(token)
            .connect()
            .expect("a broker")
    };
    let right = broker(TOKEN);
    give_back(hold(&right, "key").await).await;

    let wrong = broker("a-client-token-for-testz");
    let error = wrong
        .acquire("key", PATIENCE, LONG_WAIT, WORK)
        .await
        .expect_err("a wrong token");
    assert!(matches!(error, TicketError::Auth), "{error}");
    let none = without_token(&server);
    let error = none
        .acquire("key", PATIENCE, LONG_WAIT, WORK)
        .await
        .expect_err("no token");
    assert!(matches!(error, TicketError::Auth), "{error}");
    give_back(hold(&right, "key").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_hands_the_key_on_and_not_before() {
    const LEASE: Duration = Duration::from_secs(1);
    let (server, broker) = started(Options::shards(2)).await;
    let second = connected(&server).await;
    let asked = Instant::now();
    let first = broker
        .acquire("key", Duration::ZERO, LEASE, WORK)
        .await
        .expect("free");
    let next = hold(&second, "key").await;
    let took = asked.elapsed();
    assert!(took >= LEASE, "handed on after {took:?}");
    assert!(took < LEASE + SLACK, "handed on only after {took:?}");
    assert!(next.token() > first.token());
    let outcome = first.release().await.expect("an answer");
    assert_eq!(outcome, ReleaseOutcome::AlreadyGoneOrNotCurrent);
    server.wait_metric("expired", 1);
    give_back(next).await;
    println!("a lease of {LEASE:?} handed on after {took:?}");
}

/// A client without a token, which a server with one will not let in.
fn without_token(server: &Server) -> TicketBroker {
    TicketBroker::connect_loopback([server.address.to_string()])
}
