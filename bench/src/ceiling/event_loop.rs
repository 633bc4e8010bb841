//! Bytes between the kernel and the table: read all there is, answer it, write once.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;
use ticketing_protocol::handshake::{
    self, ACCEPTED, AUTH_LEN, FINGERPRINT_LEN, NONCE_LEN, REFUSED, ServerHello,
};
use ticketing_protocol::limits::REQUEST_FRAME_MAX;
use ticketing_protocol::{Parsed, Refused, Reply, Request, parse_request};

use super::table::{ConnId, Table};

/// Most connections at once. Past it, newcomers are closed.
const CONNECTIONS_MAX: usize = 1_024;
/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 256;
/// One read, at most: thousands of requests.
const READ_MAX: usize = 256 * 1024;
/// Output a client may leave unread before it is closed.
const UNSENT_MAX: usize = 4 * 1024 * 1024;
/// A buffer that grew past this is given back once it is empty.
const KEPT_OUT_MAX: usize = 256 * 1024;

/// A started frame waits in front of the next read, and both fit the one buffer.
const SCRATCH: usize = REQUEST_FRAME_MAX + READ_MAX;
const _: () = assert!(AUTH_LEN <= REQUEST_FRAME_MAX);

const LISTENER: Token = Token(usize::MAX);

/// Why the ceiling could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum CeilingError {
    /// The address could not be listened on.
    #[error("cannot listen on {addr}: {error}")]
    Listen {
        /// The address asked for.
        addr: SocketAddr,
        /// What the kernel said.
        error: io::Error,
    },
    /// The event loop itself failed.
    #[error("event loop: {0}")]
    Poll(#[from] io::Error),
    /// No random bytes for a nonce.
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),
}

/// A listening responder.
pub struct Ceiling {
    poll: Poll,
    listener: TcpListener,
    conns: Slab<Conn>,
    table: Table,
    fingerprint: [u8; FINGERPRINT_LEN],
    last_generation: u64,
    scratch: Box<[u8]>,
    /// Connections with something to write, each once.
    dirty: Vec<usize>,
}

struct Conn {
    stream: TcpStream,
    generation: u64,
    /// None once the client has proved itself.
    hello: Option<ServerHello>,
    /// The start of a frame whose rest has not come yet.
    partial: Vec<u8>,
    out: Vec<u8>,
    is_dirty: bool,
    /// To be closed once `out` is written.
    ends: bool,
}

/// The connection is over.
struct Gone;

impl Ceiling {
    /// Listens on `addr`.
    ///
    /// # Errors
    /// The address cannot be bound, or there is no epoll.
    pub fn bind(addr: SocketAddr) -> Result<Ceiling, CeilingError> {
        let poll = Poll::new()?;
        let mut listener =
            TcpListener::bind(addr).map_err(|error| CeilingError::Listen { addr, error })?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Ceiling {
            poll,
            listener,
            conns: Slab::new(),
            table: Table::default(),
            fingerprint: handshake::single_fingerprint(),
            last_generation: 0,
            scratch: vec![0; SCRATCH].into(),
            dirty: Vec::new(),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves for ever.
    ///
    /// # Errors
    /// The event loop or the random source fails. A client's error closes that client only.
    pub fn run(mut self) -> Result<(), CeilingError> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        loop {
            match self.poll.poll(&mut events, None) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                if event.token() == LISTENER {
                    self.accept_all()?;
                    continue;
                }
                let index = event.token().0;
                if event.is_writable() {
                    mark(&mut self.conns, &mut self.dirty, index);
                }
                let ends = event.is_read_closed() || event.is_error();
                if event.is_readable() && self.read(index, ends).is_err() {
                    self.close(index);
                }
            }
            self.write_all();
        }
    }

    fn accept_all(&mut self) -> Result<(), CeilingError> {
        loop {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // A client that left in between, or no descriptor to spare: not the loop's end.
                Err(_) => return Ok(()),
            };
            if self.conns.len() >= CONNECTIONS_MAX || stream.set_nodelay(true).is_err() {
                continue;
            }
            let slot = self.conns.vacant_entry();
            let interest = Interest::READABLE | Interest::WRITABLE;
            if self
                .poll
                .registry()
                .register(&mut stream, Token(slot.key()), interest)
                .is_err()
            {
                continue;
            }
            let mut nonce = [0; NONCE_LEN];
            getrandom::fill(&mut nonce)?;
            let hello = ServerHello::single(nonce);
            self.last_generation += 1;
            self.dirty.push(slot.key());
            slot.insert(Conn {
                stream,
                generation: self.last_generation,
                hello: Some(hello),
                partial: Vec::new(),
                out: hello.encode().to_vec(),
                is_dirty: true,
                ends: false,
            });
        }
    }

    /// Reads and answers all there is. `to_end`: the peer has closed, so read until it shows.
    fn read(&mut self, index: usize, to_end: bool) -> Result<(), Gone> {
        loop {
            let conn = self.conns.get_mut(index).ok_or(Gone)?;
            let kept = conn.partial.len();
            self.scratch[..kept].copy_from_slice(&conn.partial);
            let room = &mut self.scratch[kept..];
            let (room_len, got) = match conn.stream.read(room) {
                Ok(0) => return Err(Gone),
                Ok(got) => (room.len(), got),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Err(Gone),
            };
            let filled = kept + got;
            let used = self.answer(index, filled)?;
            let conn = self.conns.get_mut(index).ok_or(Gone)?;
            conn.partial.clear();
            conn.partial.extend_from_slice(&self.scratch[used..filled]);
            // Edge-triggered: a read that left room has taken all there was.
            if got < room_len && !to_end {
                return Ok(());
            }
        }
    }

    /// Answers the whole frames in the first `filled` bytes, and says how many bytes they are.
    fn answer(&mut self, index: usize, filled: usize) -> Result<usize, Gone> {
        let mut used = 0;
        let conn = self.conns.get_mut(index).ok_or(Gone)?;
        if let Some(hello) = conn.hello {
            let Some(answer) = self.scratch[..filled].first_chunk::<AUTH_LEN>() else {
                return Ok(0);
            };
            used = AUTH_LEN;
            let known = handshake::verify_client_auth(b"", &self.fingerprint, &hello, answer);
            conn.hello = None;
            conn.ends = !known;
            conn.out.push(if known { ACCEPTED } else { REFUSED });
            mark(&mut self.conns, &mut self.dirty, index);
        }
        let conn = self.conns.get(index).ok_or(Gone)?;
        if conn.ends {
            return Ok(filled);
        }
        let id = ConnId {
            index,
            generation: conn.generation,
        };
        loop {
            match parse_request(&self.scratch[used..filled]) {
                Parsed::Incomplete { .. } => return Ok(used),
                Parsed::Malformed(_) => return Err(Gone),
                Parsed::Frame { request, consumed } => {
                    used += consumed;
                    decide(
                        &mut self.table,
                        &mut self.conns,
                        &mut self.dirty,
                        id,
                        request,
                    );
                }
            }
        }
    }

    /// One write for each connection that has something to say.
    fn write_all(&mut self) {
        for at in 0..self.dirty.len() {
            let index = self.dirty[at];
            let Some(conn) = self.conns.get_mut(index) else {
                continue;
            };
            conn.is_dirty = false;
            if conn.flush().is_err() {
                self.close(index);
            }
        }
        self.dirty.clear();
    }

    fn close(&mut self, index: usize) {
        if let Some(mut conn) = self.conns.try_remove(index) {
            // The descriptor is closed right after: neither failure changes anything.
            let _ = self.poll.registry().deregister(&mut conn.stream);
            let _ = conn.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Conn {
    fn flush(&mut self) -> Result<(), Gone> {
        let mut sent = 0;
        while sent < self.out.len() {
            match self.stream.write(&self.out[sent..]) {
                Ok(0) => return Err(Gone),
                Ok(wrote) => sent += wrote,
                // The kernel says when there is room again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Gone),
            }
        }
        self.out.drain(..sent);
        if self.out.is_empty() && self.out.capacity() > KEPT_OUT_MAX {
            self.out = Vec::new();
        }
        if self.out.len() > UNSENT_MAX || (self.ends && self.out.is_empty()) {
            return Err(Gone);
        }
        Ok(())
    }
}

/// Answers one request, and whoever its release lets in.
#[inline]
fn decide(
    table: &mut Table,
    conns: &mut Slab<Conn>,
    dirty: &mut Vec<usize>,
    from: ConnId,
    request: Result<Request<'_>, Refused>,
) {
    match request {
        Ok(Request::Acquire {
            request_id,
            wait_s,
            key,
            ..
        }) => {
            if let Some(reply) = table.acquire(from, request_id, wait_s, key) {
                send(conns, dirty, from.index, reply);
            }
        }
        Ok(Request::Release {
            request_id,
            token,
            key,
        }) => {
            let lives = |id: ConnId| {
                conns
                    .get(id.index)
                    .is_some_and(|conn| conn.generation == id.generation)
            };
            let (reply, next) = table.release(request_id, token, key, lives);
            send(conns, dirty, from.index, reply);
            if let Some((to, reply)) = next {
                send(conns, dirty, to.index, reply);
            }
        }
        Ok(Request::AcquireSet { request_id, .. }) => {
            send(conns, dirty, from.index, Reply::Busy { request_id });
        }
        Ok(Request::ReleaseSet { request_id, .. }) => {
            send(conns, dirty, from.index, Reply::NotFound { request_id });
        }
        Err(Refused {
            request_id, code, ..
        }) => {
            send(conns, dirty, from.index, Reply::Error { request_id, code });
        }
    }
}

#[inline]
fn send(conns: &mut Slab<Conn>, dirty: &mut Vec<usize>, index: usize, reply: Reply) {
    if let Some(conn) = conns.get_mut(index) {
        reply.encode(&mut conn.out);
        mark(conns, dirty, index);
    }
}

#[inline]
fn mark(conns: &mut Slab<Conn>, dirty: &mut Vec<usize>, index: usize) {
    if let Some(conn) = conns.get_mut(index)
        && !conn.is_dirty
    {
        conn.is_dirty = true;
        dirty.push(index);
    }
}
