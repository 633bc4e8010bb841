//! Accepting connections, and the task that each of them has.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use crate::fatal::Fatal;
use crate::limits::{ACCEPT_BREATH, ACCEPTED_IN_A_ROW};
use crate::runtime::{self, Listener, Socket};
use crate::security::handshake::{self, Outcome};
use crate::security::tls::ClientStream;

use super::state::Shard;

/// How long to let things be after the kernel refused a connection, which for
/// want of descriptors it would do again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Starts to accept connections.
pub(super) fn listen(shard: &Rc<RefCell<Shard>>) {
    let (address, signals) = {
        let shard = shard.borrow();
        (
            shard.setup.listen,
            std::sync::Arc::clone(&shard.setup.signals),
        )
    };
    let listener = match Listener::bind(address) {
        Ok(listener) => listener,
        Err(error) => Fatal::Listen.exit(format_args!(
            "cannot listen on {address}: {error}; is another program using it?"
        )),
    };
    signals.shard_listens();
    runtime::spawn_local(accept(Rc::clone(shard), listener));
}

async fn accept(shard: Rc<RefCell<Shard>>, listener: Listener) {
    let mut in_a_row = 0;
    loop {
        if in_a_row == ACCEPTED_IN_A_ROW {
            in_a_row = 0;
            runtime::sleep(ACCEPT_BREATH).await;
        }
        match listener.accept().await {
            Ok(socket) => {
                in_a_row += 1;
                if shard.borrow_mut().admit_stranger() {
                    runtime::spawn_local(connection(Rc::clone(&shard), socket));
                } else {
                    socket.close();
                }
            }
            Err(error) => {
                shard.borrow().setup.counters.accept_errors.add(1);
                tracing::warn!("a connection could not be accepted: {error}");
                runtime::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(shard: Rc<RefCell<Shard>>, socket: Socket) {
    let gate = shard.borrow().setup.gate.clone();
    let stream = match &gate.tls {
        None => ClientStream::Plain(socket),
        Some(tls) => match tls.get().accept(socket) {
            Ok(stream) => stream,
            Err(error) => Fatal::Panic.exit(format_args!("no TLS session can be made: {error}")),
        },
    };
    let outcome = handshake::accept(&stream, &gate).await;
    let at = {
        let mut shard = shard.borrow_mut();
        shard.handshakes -= 1;
        shard.setup.signals.stranger_known();
        match outcome {
            Outcome::Accepted => Some(shard.add_connection(stream)),
            Outcome::Refused | Outcome::Dropped => {
                stream.close();
                shard.setup.signals.connection_gone();
                let counters = &shard.setup.counters;
                match outcome {
                    Outcome::Refused => counters.handshakes_refused.add(1),
                    _ => counters.handshakes_dropped.add(1),
                }
                None
            }
        }
    };
    let Some(at) = at else { return };
    poll_fn(|cx| shard.borrow_mut().poll_connection(at, cx)).await;
    let mut shard = shard.borrow_mut();
    shard.remove_connection(at);
    shard.setup.signals.connection_gone();
}

impl Shard {
    /// Lets one more connection try the handshake, if there is room.
    fn admit_stranger(&mut self) -> bool {
        let limits = &self.setup.limits;
        let counters = &self.setup.counters;
        counters.accepted.add(1);
        let room = !self.stop.asked()
            && !self.setup.signals.shut()
            && self
                .setup
                .signals
                .admit(limits.connections, limits.unauthenticated);
        if room {
            self.handshakes += 1;
            true
        } else {
            counters.turned_away.add(1);
            false
        }
    }
}
