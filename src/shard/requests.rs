//! From bytes of a connection to requests at the shard that owns their key.

use std::task::{Context, Poll};

use ticketing_protocol::reply::{ErrorCode, Reply};
use ticketing_protocol::request::{Parsed, Request, parse_request};

use crate::lanes::messages::ForwardedRequest;
use crate::limits::STALLED_READ;
use crate::locks::key_hash;

use super::connection::InFlight;
use super::leadership::Asked;
use super::state::{ConnectionRef, Shard, millis};

/// Reads of one connection in one poll: a client that sends without end must
/// not keep the others waiting.
const READS_PER_POLL: usize = 4;

/// The connection is over: it ended, or what it sent is no frame.
struct Over;

impl Shard {
    /// Reads and serves one connection; ready when it is over.
    pub(super) fn poll_connection(&mut self, at: ConnectionRef, cx: &mut Context<'_>) -> Poll<()> {
        let now_ms = self.setup.clock.now_ms();
        match self.connection(at) {
            Some(connection) => connection.keep_waker(cx),
            None => return Poll::Ready(()),
        }
        self.flush_connection(at, now_ms);
        for _ in 0..READS_PER_POLL {
            if !self.may_read(at, now_ms) {
                return match self.connection(at) {
                    Some(connection) if !connection.closing => Poll::Pending,
                    _ => Poll::Ready(()),
                };
            }
            // All connections share one buffer, lent out for one read.
            let mut buffer = std::mem::take(&mut self.read_buffer);
            let read = self.read_into(&mut buffer, now_ms, at, cx);
            self.read_buffer = buffer;
            match read {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => self.setup.doorbell.ring(),
                Poll::Ready(Err(Over)) => {
                    self.setup.doorbell.ring();
                    return Poll::Ready(());
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether there is room for what a read may bring in; without, the
    /// connection waits for it, watched.
    fn may_read(&mut self, at: ConnectionRef, now_ms: u64) -> bool {
        let reserve = self.in_flight_with_reserve();
        let output_limit = self.setup.limits.output_bytes as usize;
        let Some(connection) = self.connection(at) else {
            return false;
        };
        let no_room = connection.in_flight.len() >= reserve;
        if connection.closing || (!no_room && connection.output_waiting() < output_limit) {
            return !connection.closing;
        }
        connection.paused = true;
        if no_room && connection.read_stalled_since_ms.is_none() {
            connection.read_stalled_since_ms = Some(now_ms);
            self.watch(at, now_ms + millis(STALLED_READ));
        }
        false
    }

    fn read_into(
        &mut self,
        buffer: &mut [u8],
        now_ms: u64,
        at: ConnectionRef,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Over>> {
        let Some(connection) = self.connection(at) else {
            return Poll::Ready(Err(Over));
        };
        let kept = connection.partial.len();
        buffer[..kept].copy_from_slice(&connection.partial);
        match connection.poll_read(cx, &mut buffer[kept..]) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(Err(Over)),
            Poll::Ready(Ok(read)) => {
                connection.active_ms = now_ms;
                connection.partial.clear();
                Poll::Ready(self.take_bytes(now_ms, at, &buffer[..kept + read]))
            }
        }
    }

    fn take_bytes(&mut self, now_ms: u64, at: ConnectionRef, bytes: &[u8]) -> Result<(), Over> {
        let mut rest = bytes;
        loop {
            match parse_request(rest) {
                Parsed::Incomplete { .. } => break,
                Parsed::Malformed(_) => return self.malformed(),
                Parsed::Frame { request, consumed } => {
                    match request {
                        Ok(request) => self.take_request(now_ms, at, &request)?,
                        Err(refused) => {
                            if self.is_in_flight(at, refused.request_id) {
                                return self.malformed();
                            }
                            self.refuse(at, refused.request_id, refused.code);
                        }
                    }
                    rest = &rest[consumed..];
                }
            }
        }
        if let Some(connection) = self.connection(at) {
            connection.partial.extend_from_slice(rest);
        }
        Ok(())
    }

    fn take_request(
        &mut self,
        now_ms: u64,
        at: ConnectionRef,
        request: &Request<'_>,
    ) -> Result<(), Over> {
        if self.is_in_flight(at, request.request_id()) {
            return self.malformed();
        }
        match *request {
            Request::Acquire {
                request_id,
                wait_s,
                lease_s,
                key,
            } => self.take_acquire(now_ms, at, request_id, wait_s, lease_s, key),
            Request::Release {
                request_id,
                token,
                key,
            } => self.take_release(now_ms, at, request_id, token, key),
            Request::AcquireSet { request_id, .. } | Request::ReleaseSet { request_id, .. } => {
                self.refuse(at, request_id, ErrorCode::BadKeySet);
            }
        }
        Ok(())
    }

    fn take_acquire(
        &mut self,
        now_ms: u64,
        at: ConnectionRef,
        request_id: u64,
        wait_s: u8,
        lease_s: u8,
        key: &[u8],
    ) {
        self.setup.counters.acquires.add(1);
        if self.stop.asked() && !self.setup.is_cluster {
            self.refuse(at, request_id, ErrorCode::NotActive);
            return;
        }
        let hash = key_hash(self.setup.key_seed, key);
        let owner = self.owner_of(hash);
        let limit = self.setup.limits.in_flight as usize;
        let admits = self.admits(owner);
        let Some(connection) = self.connection(at) else {
            return;
        };
        if !admits || connection.in_flight.len() >= limit {
            self.setup.counters.admission_refused.add(1);
            self.setup.counters.answered_busy.add(1);
            self.reply(at, Reply::Busy { request_id });
            return;
        }
        connection.in_flight.insert(
            request_id,
            InFlight {
                owner,
                acquire: true,
            },
        );
        let origin = self.origin(at, request_id);
        if owner == self.setup.id {
            let asked = Asked::Acquire { wait_s, lease_s };
            self.ask(now_ms, origin, now_ms, (hash, key), asked);
        } else {
            self.setup.counters.forwarded.add(1);
            let request = ForwardedRequest::Acquire {
                arrived_ms: now_ms,
                wait_s,
                lease_s,
            };
            self.outboxes[usize::from(owner)].forward(origin, hash, key, request);
        }
    }

    fn take_release(
        &mut self,
        now_ms: u64,
        at: ConnectionRef,
        request_id: u64,
        token: u64,
        key: &[u8],
    ) {
        self.setup.counters.releases.add(1);
        let hash = key_hash(self.setup.key_seed, key);
        let owner = self.owner_of(hash);
        let Some(connection) = self.connection(at) else {
            return;
        };
        connection.in_flight.insert(
            request_id,
            InFlight {
                owner,
                acquire: false,
            },
        );
        let origin = self.origin(at, request_id);
        if owner == self.setup.id {
            let asked = Asked::Release { token };
            self.ask(now_ms, origin, now_ms, (hash, key), asked);
        } else {
            self.setup.counters.forwarded.add(1);
            let request = ForwardedRequest::Release {
                arrived_ms: now_ms,
                token,
            };
            self.outboxes[usize::from(owner)].forward(origin, hash, key, request);
        }
    }

    fn is_in_flight(&mut self, at: ConnectionRef, request_id: u64) -> bool {
        self.connection(at)
            .is_some_and(|connection| connection.in_flight.contains_key(&request_id))
    }

    fn refuse(&mut self, at: ConnectionRef, request_id: u64, code: ErrorCode) {
        self.setup.counters.answered_error.add(1);
        self.reply(at, Reply::Error { request_id, code });
    }

    fn malformed(&mut self) -> Result<(), Over> {
        self.setup.counters.malformed.add(1);
        Err(Over)
    }
}
