//! The published client, unchanged, against the real server: what its users rely on.

#[path = "../support/mod.rs"]
mod support;

mod load;
mod requests;
mod waiting;

use std::time::Duration;

use published::{ReleaseOutcome, Ticket, TicketBroker, TicketError};

use crate::support::{Options, PATIENCE, Server};

/// A wait that no test lets run out.
const LONG_WAIT: Duration = Duration::from_secs(60);
/// A lease that no test lets run out.
const LONG_LEASE: Duration = Duration::from_secs(120);
/// What a holder needs of its lease.
const WORK: Duration = Duration::from_millis(10);

/// A server and a client of it that is connected.
async fn started(options: Options) -> (Server, TicketBroker) {
    let server = Server::start(options);
    let broker = connected(&server).await;
    (server, broker)
}

/// Another client of that server.
async fn connected(server: &Server) -> TicketBroker {
    let broker = TicketBroker::connect_loopback([server.address.to_string()]);
    assert!(broker.wait_ready(PATIENCE).await, "not connected");
    broker
}

/// One try.
async fn try_once(broker: &TicketBroker, key: &str) -> Result<Ticket, TicketError> {
    broker.acquire(key, Duration::ZERO, LONG_LEASE, WORK).await
}

/// Acquires a key that will be free in time.
async fn hold(broker: &TicketBroker, key: &str) -> Ticket {
    broker
        .acquire(key, LONG_WAIT, LONG_LEASE, WORK)
        .await
        .expect("acquired")
}

/// Gives a held key back.
async fn give_back(ticket: Ticket) {
    let outcome = ticket.release().await.expect("an answer");
    assert_eq!(outcome, ReleaseOutcome::Released);
}
