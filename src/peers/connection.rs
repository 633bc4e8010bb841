//! One connection with another node: frames out of a bounded buffer, frames into the role's inbox.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};

use ticketing_protocol::peer::{Body, Frame, Parsed, parse};
use ticketing_raftlog::NodeId;
use ticketing_raftlog::peers::ProcessId;

use crate::limits::{PEER_ALIVE_MS, PEER_INPUT_BYTES, PEER_READ_BYTES};
use crate::runtime::{self, spawn_local};
use crate::security::tls::ClientStream;

use super::book;
use super::convert::received;
use super::{Event, Inner};

/// A connection with a node that was let in.
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) node: NodeId,
    pub(super) process: ProcessId,
    pub(super) dialled: bool,
    pub(super) heard_ms: Cell<u64>,
    pub(super) remote_ip: Option<IpAddr>,
    // It has said where it listens.
    pub(super) told_address: Cell<bool>,
    stream: ClientStream,
    out: RefCell<Out>,
}

#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    waker: Option<Waker>,
    // Nothing is added any more; what is there still goes.
    finishing: bool,
}

impl Connection {
    pub(super) fn new(
        inner: &mut Inner,
        node: NodeId,
        process: ProcessId,
        dialled: bool,
        stream: ClientStream,
    ) -> Rc<Self> {
        inner.next_connection += 1;
        Rc::new(Self {
            id: inner.next_connection,
            node,
            process,
            dialled,
            heard_ms: Cell::new(inner.setup.clock.now_ms()),
            remote_ip: stream.peer_ip(),
            told_address: Cell::new(false),
            stream,
            out: RefCell::default(),
        })
    }

    /// Adds what `write` appends to what waits to be sent, unless `limit` bytes wait already.
    pub(super) fn write(&self, limit: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = self.out.borrow_mut();
        if out.finishing || out.bytes.len() >= limit {
            return;
        }
        write(&mut out.bytes);
        if let Some(waker) = out.waker.take() {
            waker.wake();
        }
    }

    /// Closes once what waits is sent.
    pub(super) fn finish(&self) {
        let mut out = self.out.borrow_mut();
        out.finishing = true;
        if let Some(waker) = out.waker.take() {
            waker.wake();
        }
    }

    /// Closes at once.
    pub(super) fn close(&self) {
        self.stream.close();
    }

    async fn send_all(&self) -> io::Result<()> {
        let mut sending = Vec::new();
        loop {
            let over = poll_fn(|cx| {
                let mut out = self.out.borrow_mut();
                if !out.bytes.is_empty() {
                    sending.clear();
                    std::mem::swap(&mut sending, &mut out.bytes);
                    return Poll::Ready(false);
                }
                if out.finishing {
                    return Poll::Ready(true);
                }
                out.waker = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            if over {
                self.stream.finish();
                return Ok(());
            }
            self.stream.write_all(&sending).await?;
        }
    }
}

/// Runs a connection that was let in until it closes.
pub(super) async fn run(inner: &Rc<RefCell<Inner>>, connection: Rc<Connection>) {
    inner.borrow_mut().add(&connection);
    let sender = Rc::clone(&connection);
    spawn_local(async move {
        if sender.send_all().await.is_err() {
            sender.close();
        }
    });
    spawn_local(say_alive(Rc::clone(inner), Rc::clone(&connection)));
    let why = read_frames(inner, &connection).await;
    connection.close();
    // Lets the sender's task end.
    connection.finish();
    inner.borrow_mut().remove(&connection);
    if let Err(why) = why {
        tracing::warn!(node = ?connection.node, "connection with a peer closed: {why}");
    }
}

/// Says so again and again, as long as the connection lasts.
async fn say_alive(inner: Rc<RefCell<Inner>>, connection: Rc<Connection>) {
    while pause(&inner, PEER_ALIVE_MS).await && !connection.out.borrow().finishing {
        let term = inner.borrow().known.term.0;
        let frame = Frame {
            term,
            body: Body::Alive,
        };
        connection.write(1, |out| frame.encode(out));
    }
}

async fn read_frames(inner: &Rc<RefCell<Inner>>, connection: &Connection) -> Result<(), String> {
    let mut buffer = vec![0; PEER_READ_BYTES];
    let (mut start, mut end) = (0, 0);
    loop {
        has_room(inner).await;
        let read = poll_fn(|cx| connection.stream.poll_read(cx, &mut buffer[end..])).await;
        match read {
            Ok(0) => return Ok(()),
            Ok(count) => end += count,
            // How a connection ends when the other process does.
            Err(_) => return Ok(()),
        }
        let mut need = 1;
        {
            connection.heard_ms.set(inner.borrow().setup.clock.now_ms());
            while start < end {
                match parse(&buffer[start..end]) {
                    Parsed::Incomplete { need: bytes } => {
                        need = bytes;
                        break;
                    }
                    Parsed::Malformed(why) => return Err(why.to_string()),
                    Parsed::Frame {
                        frame:
                            Frame {
                                body: Body::Alive, ..
                            },
                        consumed,
                    } => start += consumed,
                    Parsed::Frame {
                        frame:
                            Frame {
                                body: Body::Addresses(addresses),
                                ..
                            },
                        consumed,
                    } => {
                        book::told(inner, connection, addresses);
                        start += consumed;
                    }
                    Parsed::Frame { frame, consumed } => {
                        let Some(received) = received(&frame) else {
                            return Err("it sent records that are not what it announced".into());
                        };
                        inner
                            .borrow_mut()
                            .push(Event::Frame(connection.node, received));
                        start += consumed;
                    }
                }
            }
        }
        if start == end {
            (start, end) = (0, 0);
        } else if start > 0 {
            buffer.copy_within(start..end, 0);
            (start, end) = (0, end - start);
        }
        if buffer.len() < need.max(end + 1) {
            buffer.resize(need.max(end + 1), 0);
        } else if buffer.len() > PEER_READ_BYTES && end < PEER_READ_BYTES / 2 {
            buffer.truncate(PEER_READ_BYTES);
            buffer.shrink_to_fit();
        }
    }
}

/// Waits until what the role has not taken in is less than the bound.
async fn has_room(inner: &Rc<RefCell<Inner>>) {
    poll_fn(|cx| {
        let mut inner = inner.borrow_mut();
        if inner.event_bytes < PEER_INPUT_BYTES || inner.ended {
            return Poll::Ready(());
        }
        inner.paused.push(cx.waker().clone());
        Poll::Pending
    })
    .await;
}

/// Waits for that long, or less if the node ends.
pub(super) async fn pause(inner: &Rc<RefCell<Inner>>, ms: u64) -> bool {
    runtime::sleep(std::time::Duration::from_millis(ms)).await;
    !inner.borrow().ended
}
