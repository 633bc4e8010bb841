//! Finding each other: listening, and dialling again and again.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use ticketing_raftlog::NodeId;

use crate::fatal::Fatal;
use crate::limits::{
    PEER_CONNECT_TIMEOUT, PEER_GREETING_TIMEOUT, PEER_REDIAL_FIRST_MS, PEER_REDIAL_MOST_MS,
    PEER_STRANGERS,
};
use crate::runtime::{self, QuietListener, Socket, spawn_local};
use crate::security::tls::ClientStream;

use super::connection::{pause, run};
use super::greeting::Ungreeted;
use super::{Event, Inner, greeting};

/// Accepts whoever comes.
pub(super) async fn accept(inner: Rc<RefCell<Inner>>, listener: QuietListener) {
    loop {
        let socket = listener.accept().await;
        if inner.borrow().ended {
            return;
        }
        let Ok(socket) = socket else {
            // Out of descriptors, mostly.
            pause(&inner, PEER_REDIAL_MOST_MS).await;
            continue;
        };
        if inner.borrow().strangers >= PEER_STRANGERS {
            continue;
        }
        inner.borrow_mut().strangers += 1;
        let inner = Rc::clone(&inner);
        spawn_local(async move {
            let tls = inner.borrow().setup.tls.clone();
            let stream = match tls {
                None => Ok(ClientStream::Plain(socket)),
                Some(tls) => tls.get().accept(socket),
            };
            let stream = stream.unwrap_or_else(|error| {
                Fatal::Panic.exit(format_args!("no TLS session can be made: {error}"))
            });
            let greeted =
                runtime::timeout(PEER_GREETING_TIMEOUT, greeting::accepted(&inner, stream)).await;
            inner.borrow_mut().strangers -= 1;
            match greeted {
                Ok(Ok(connection)) => run(&inner, connection).await,
                Ok(Err(why)) => tracing::info!("a connection on the peer port was closed: {why}"),
                Err(_) => tracing::debug!("a connection on the peer port said nothing in time"),
            }
        });
    }
}

/// Keeps a connection with whoever listens at `address`, for as long as that is configured, or a member's.
pub(super) async fn dial(inner: Rc<RefCell<Inner>>, address: SocketAddr) {
    let mut pause_ms = 0;
    let mut last_seen: Option<NodeId> = None;
    let mut said = String::new();
    let mut tries = 0_u32;
    while pause_ms == 0 || pause(&inner, pause_ms).await {
        if inner.borrow().ended {
            return;
        }
        let wanted = inner.borrow().setup.dial.contains(&address)
            || inner.borrow().wanted().contains(&address);
        if !wanted {
            inner.borrow_mut().dialled.remove(&address);
            return;
        }
        let from = inner.borrow().setup.listen.ip();
        let connected =
            runtime::timeout(PEER_CONNECT_TIMEOUT, Socket::connect(from, address)).await;
        let socket = match connected {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) | Err(error) => {
                if error.kind() == io::ErrorKind::ConnectionRefused
                    && let Some(node) = last_seen
                    && !is_connected(&inner, node)
                {
                    inner.borrow_mut().push(Event::Refused(node));
                }
                pause_ms = next_pause(pause_ms);
                continue;
            }
        };
        let tls = inner.borrow().setup.tls.clone();
        let stream = match tls {
            None => Ok(ClientStream::Plain(socket)),
            Some(tls) => tls.get().connect(socket, address.ip()),
        };
        let stream = stream.unwrap_or_else(|error| {
            Fatal::Panic.exit(format_args!("no TLS session can be made: {error}"))
        });
        // While the token is being changed, the other side may only know the one before.
        let tokens = inner.borrow().setup.tokens.get();
        let token = match &tokens.previous {
            Some(previous) if tries % 2 == 1 => previous.clone(),
            _ => tokens.current.clone(),
        };
        tries += 1;
        let greeted = runtime::timeout(
            PEER_GREETING_TIMEOUT,
            greeting::dialled(&inner, stream, token),
        )
        .await;
        match greeted {
            Ok(Ok(connection)) => {
                last_seen = Some(connection.node);
                tries = 0;
                said.clear();
                run(&inner, connection).await;
                // At once: whether it still listens says whether its process lives.
                pause_ms = 0;
            }
            Ok(Err(Ungreeted::Unwanted(why))) => {
                if why != said {
                    tracing::warn!(%address, "the peer there is not connected: {why}");
                    said = why;
                }
                pause_ms = PEER_REDIAL_MOST_MS;
            }
            Ok(Err(Ungreeted::Broken(_))) | Err(_) => pause_ms = next_pause(pause_ms),
        }
    }
}

fn next_pause(pause_ms: u64) -> u64 {
    (pause_ms * 2).clamp(PEER_REDIAL_FIRST_MS, PEER_REDIAL_MOST_MS)
}

fn is_connected(inner: &Rc<RefCell<Inner>>, node: NodeId) -> bool {
    let inner = inner.borrow();
    inner.nodes.get(&node).is_some_and(|n| n.sending.is_some())
}
