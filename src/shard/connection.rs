//! One client connection, as its shard keeps it: what is in flight on it, what
//! waits for its socket, and which grants have not reached the kernel yet.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, Waker};

use hashbrown::HashMap;

use crate::locks::GrantRef;
use crate::security::tls::ClientStream;

/// What a request in flight is, and where it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The shard that owns its key.
    pub owner: u16,
    /// True for an acquire, false for a release.
    pub acquire: bool,
}

/// A grant whose answer the kernel has not taken in full.
#[derive(Debug)]
struct UnsentGrant {
    /// Where its answer ends, in bytes since the connection began.
    ends_at: u64,
    owner: u16,
    grant: GrantRef,
}

/// One client connection.
#[derive(Debug)]
pub struct Connection {
    /// Tells this connection from an earlier one in the same place.
    pub generation: u32,
    /// Requests that have no answer yet, by their id.
    pub in_flight: HashMap<u64, InFlight>,
    /// Bytes of a frame that has not arrived in full.
    pub partial: Vec<u8>,
    /// When bytes last came in, or went out.
    pub active_ms: u64,
    /// Since when its socket has taken none of what waits for it.
    pub write_stalled_since_ms: Option<u64>,
    /// Since when it is not read, for want of room for a release.
    pub read_stalled_since_ms: Option<u64>,
    /// It is to be closed as soon as its task sees this.
    pub closing: bool,
    /// Its task waits for room before it reads on.
    pub paused: bool,
    /// It is in its shard's list of connections to flush.
    pub dirty: bool,
    stream: ClientStream,
    waker: Option<Waker>,
    output: Vec<u8>,
    output_start: usize,
    handed_over: u64,
    unsent: VecDeque<UnsentGrant>,
}

impl Connection {
    /// A connection that has passed the handshake.
    #[must_use]
    pub fn new(generation: u32, stream: ClientStream, now_ms: u64) -> Self {
        Self {
            generation,
            in_flight: HashMap::new(),
            partial: Vec::new(),
            active_ms: now_ms,
            write_stalled_since_ms: None,
            read_stalled_since_ms: None,
            closing: false,
            paused: false,
            dirty: false,
            stream,
            waker: None,
            output: Vec::new(),
            output_start: 0,
            handed_over: 0,
            unsent: VecDeque::new(),
        }
    }

    /// Where to encode an answer.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Bytes that wait for the socket.
    #[must_use]
    pub fn output_waiting(&self) -> usize {
        self.output.len() - self.output_start
    }

    /// Notes that the answer just encoded is a grant, which goes back to
    /// `owner` should the kernel never take it.
    pub fn granted(&mut self, owner: u16, grant: GrantRef) {
        let ends_at = self.handed_over + self.output_waiting() as u64;
        self.unsent.push_back(UnsentGrant {
            ends_at,
            owner,
            grant,
        });
    }

    /// Grants whose answers the kernel did not take, oldest first.
    pub fn take_unsent(&mut self) -> impl Iterator<Item = (u16, GrantRef)> {
        std::mem::take(&mut self.unsent)
            .into_iter()
            .map(|unsent| (unsent.owner, unsent.grant))
    }

    /// Keeps the waker of the connection's own task.
    pub fn keep_waker(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.waker = Some(cx.waker().clone()),
        }
    }

    /// Wakes the connection's own task.
    pub fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// Reads what has arrived.
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.poll_read(cx, buffer)
    }

    /// Hands the kernel as much of the output as it takes; the connection's
    /// own task is woken once it takes more.
    ///
    /// # Errors
    /// The kernel's reason when the connection is broken.
    pub fn flush(&mut self, now_ms: u64) -> io::Result<()> {
        let result = self.write_out(now_ms);
        // Also on a connection that broke just now: what the kernel took before
        // that may have reached the client.
        while self
            .unsent
            .front()
            .is_some_and(|unsent| unsent.ends_at <= self.handed_over)
        {
            self.unsent.pop_front();
        }
        self.tidy_output();
        result
    }

    fn write_out(&mut self, now_ms: u64) -> io::Result<()> {
        let Some(waker) = &self.waker else {
            return Ok(());
        };
        let mut cx = Context::from_waker(waker);
        while self.output_start < self.output.len() {
            let waiting = &self.output[self.output_start..];
            match self.stream.poll_write(&mut cx, waiting) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(taken)) => {
                    self.output_start += taken;
                    self.handed_over += taken as u64;
                    self.active_ms = now_ms;
                    self.write_stalled_since_ms = None;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    self.write_stalled_since_ms.get_or_insert(now_ms);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Ends the connection in both directions; its task sees the end.
    pub fn close(&mut self) {
        self.closing = true;
        self.stream.close();
        self.wake();
    }

    fn tidy_output(&mut self) {
        const KEEP_BYTES: usize = 4_096;
        if self.output_start == self.output.len() {
            self.output.clear();
            self.output_start = 0;
            if self.output.capacity() > KEEP_BYTES {
                self.output.shrink_to(KEEP_BYTES);
            }
        } else if self.output_start > KEEP_BYTES {
            self.output.drain(..self.output_start);
            self.output_start = 0;
        }
    }
}
