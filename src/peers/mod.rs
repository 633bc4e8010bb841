//! Connections with the cluster's other nodes. All of it runs on the consensus role's executor.
//!
//! Every node dials every address it was configured with, and those it has heard of, and accepts
//! whoever proves to know the peer token and is believed to be who it says ([`ticketing_raftlog::peers`]). A
//! connection is used both ways: what is for a node goes over the one that this node dialled, or over one that
//! the other did, so that a node at an address that nobody knows yet is reached as soon as it dials.

mod book;
mod connection;
mod convert;
mod dialling;
mod greeting;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use ticketing_protocol::peer::{Body, Frame};
use ticketing_raftlog::peers::{Incarnation, Live, ProcessId, Reason};
use ticketing_raftlog::raft::{Config, EntryId};
use ticketing_raftlog::{ClusterId, LogIndex, NodeId, PeersFile, Term};

use crate::lanes::Doorbell;
use crate::limits::PEER_OUTPUT_BYTES;
use crate::runtime::{Clock, QuietListener, spawn_local};
use crate::security::shared::Shared;
use crate::security::tls::PeerTls;
use crate::security::token::Tokens;

use book::Book;
use connection::Connection;
pub use convert::{Received, body};

/// What the connections are made with.
#[derive(Debug)]
pub struct Setup {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// This node.
    pub node_id: NodeId,
    /// Its place; `None` before it has one.
    pub slot: Option<u8>,
    /// Its folder.
    pub incarnation: Incarnation,
    /// How often that was started.
    pub starts: u64,
    /// This process.
    pub process: ProcessId,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where the other slots' nodes listen, as configured.
    pub dial: Vec<SocketAddr>,
    /// The data folder, where it is kept where nodes listen.
    pub folder: PathBuf,
    /// What every node of the cluster knows.
    pub tokens: Shared<Tokens>,
    /// TLS between the nodes, if they use it.
    pub tls: Option<Shared<PeerTls>>,
    /// The clock that all cores share.
    pub clock: Clock,
    /// Rung when something has happened.
    pub doorbell: Arc<Doorbell>,
}

/// What has happened.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are of the largest kind"
)]
pub enum Event {
    /// What is sent to this node from now on arrives, as long as the connection lasts; what was sent
    /// before may not have.
    Connected(NodeId),
    /// There is no connection with it any more.
    Lost(NodeId),
    /// Its machine says that nobody listens there.
    Refused(NodeId),
    /// It sent something.
    Frame(NodeId, Received),
    /// It does not believe that this node is who it says.
    Unwelcome(NodeId, Reason),
    /// It lets this node in.
    Welcome(NodeId),
}

/// The connections.
#[derive(Clone)]
pub struct Peers {
    inner: Rc<RefCell<Inner>>,
}

/// What the consensus role knows, for judging others and for saying who this node is.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The members, as the latest configuration in the log has them.
    pub config: Config,
    /// Whether this node leads.
    pub leads: bool,
    /// Its term.
    pub term: Term,
    /// Its log's last entry.
    pub last: EntryId,
}

pub(crate) struct Inner {
    setup: Setup,
    known: Known,
    // `None` while a job on a helper thread has it.
    file: Option<PeersFile>,
    // Acknowledged meanwhile.
    acknowledged: VecDeque<Acknowledged>,
    save_running: bool,
    book: Book,
    book_unsaved: bool,
    book_saving: bool,
    // Addresses beside the configured ones that a task dials.
    dialled: BTreeSet<SocketAddr>,
    events: VecDeque<Event>,
    event_bytes: usize,
    // Connections that are not read because too much waits here.
    paused: Vec<Waker>,
    nodes: BTreeMap<NodeId, Node>,
    next_connection: u64,
    strangers: usize,
    ended: bool,
}

#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    node: NodeId,
    term: Term,
    up_to: LogIndex,
    commit: LogIndex,
    now_ms: u64,
}

#[derive(Default)]
struct Node {
    connections: Vec<Rc<Connection>>,
    // The one that is sent on.
    sending: Option<u64>,
}

impl Peers {
    /// Listens and dials.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub fn start(setup: Setup, known: Known, file: PeersFile) -> io::Result<Self> {
        let listener = QuietListener::bind(setup.listen)?;
        let dial = setup.dial.clone();
        let book = Book::load(&setup.folder);
        let inner = Rc::new(RefCell::new(Inner {
            setup,
            known,
            file: Some(file),
            acknowledged: VecDeque::new(),
            save_running: false,
            book,
            book_unsaved: false,
            book_saving: false,
            dialled: BTreeSet::new(),
            events: VecDeque::new(),
            event_bytes: 0,
            paused: Vec::new(),
            nodes: BTreeMap::new(),
            next_connection: 0,
            strangers: 0,
            ended: false,
        }));
        spawn_local(dialling::accept(Rc::clone(&inner), listener));
        for address in dial {
            spawn_local(dialling::dial(Rc::clone(&inner), address));
        }
        book::dial_wanted(&inner);
        Ok(Self { inner })
    }

    /// An operator says where a node listens that is to join.
    pub fn note_address(&self, node: NodeId, address: SocketAddr) {
        let news = {
            let mut inner = self.inner.borrow_mut();
            let config = inner.known.config;
            // Who is connected knows better.
            !inner.is_told(node) && inner.book.note(&config, node, address)
        };
        if news {
            book::changed(&self.inner);
        }
    }

    /// What has happened next, if anything did.
    pub fn next_event(&self) -> Option<Event> {
        let mut inner = self.inner.borrow_mut();
        let event = inner.events.pop_front()?;
        if let Event::Frame(_, received) = &event {
            inner.event_bytes -= received.byte_len();
        }
        if inner.events.is_empty() {
            for waker in inner.paused.drain(..) {
                waker.wake();
            }
        }
        Some(event)
    }

    /// Takes note of what the consensus role knows now.
    pub fn know(&self, known: Known) {
        let before = std::mem::replace(&mut self.inner.borrow_mut().known, known);
        if before.config != known.config {
            book::dial_wanted(&self.inner);
        }
    }

    /// Sends a frame, if there is a connection and it takes bytes; what was sent may be lost.
    pub fn send(&self, to: NodeId, term: Term, body: Body<'_>) {
        let inner = self.inner.borrow();
        let Some(connection) = inner.nodes.get(&to).and_then(Node::sending) else {
            return;
        };
        let frame = Frame { term: term.0, body };
        connection.write(PEER_OUTPUT_BYTES, |out| frame.encode(out));
    }

    /// Whether there is a connection with that node.
    #[must_use]
    pub fn is_connected(&self, node: NodeId) -> bool {
        let inner = self.inner.borrow();
        inner.nodes.get(&node).is_some_and(|n| n.sending.is_some())
    }

    /// A node acknowledges its log up to `up_to` to this one, which leads in `term`.
    pub fn acknowledged(
        &self,
        node: NodeId,
        term: Term,
        up_to: LogIndex,
        commit: LogIndex,
        now_ms: u64,
    ) {
        let mut inner = self.inner.borrow_mut();
        match &mut inner.file {
            Some(file) => file.acknowledged(node, term, up_to, commit, now_ms),
            None => inner.acknowledged.push_back(Acknowledged {
                node,
                term,
                up_to,
                commit,
                now_ms,
            }),
        }
        let due = inner.file.as_ref().is_some_and(|f| f.is_save_due(now_ms));
        if due && !inner.save_running {
            inner.save_running = true;
            spawn_local(greeting::save(Rc::clone(&self.inner)));
        }
    }

    /// A configuration is committed behind `before`: who left is remembered.
    pub fn committed(&self, before: Config, now: Config) {
        spawn_local(greeting::committed(Rc::clone(&self.inner), before, now));
    }

    /// Sends what waits and closes everything.
    pub fn end(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.ended = true;
        for node in inner.nodes.values() {
            for connection in &node.connections {
                connection.finish();
            }
        }
        for waker in inner.paused.drain(..) {
            waker.wake();
        }
    }
}

impl Node {
    fn sending(&self) -> Option<&Rc<Connection>> {
        let id = self.sending?;
        self.connections.iter().find(|c| c.id == id)
    }
}

impl Inner {
    fn push(&mut self, event: Event) {
        if let Event::Frame(_, received) = &event {
            self.event_bytes += received.byte_len();
        }
        self.events.push_back(event);
        self.setup.doorbell.ring();
    }

    /// The connection that is open under that name, if another process has it.
    fn live(&self, node: NodeId, process: ProcessId) -> Option<Live> {
        let now_ms = self.setup.clock.now_ms();
        let node = self.nodes.get(&node)?;
        let other = |c: &&Rc<Connection>| c.process != process;
        let newest = node.connections.iter().filter(other);
        newest
            .map(|connection| Live {
                process: connection.process,
                silent_ms: now_ms.saturating_sub(connection.heard_ms.get()),
            })
            .min_by_key(|live| live.silent_ms)
    }

    /// Whether a node that is connected has said where it listens.
    fn is_told(&self, node: NodeId) -> bool {
        let node = self.nodes.get(&node);
        node.is_some_and(|node| node.connections.iter().any(|c| c.told_address.get()))
    }

    /// Adds a connection that is let in; those of an earlier process of the node are closed.
    fn add(&mut self, connection: &Rc<Connection>) {
        let node = self.nodes.entry(connection.node).or_default();
        for other in &node.connections {
            if other.process != connection.process {
                other.close();
            }
        }
        node.connections.push(Rc::clone(connection));
        self.tell_addresses(connection);
        self.choose(connection.node);
    }

    /// Forgets a connection that has closed.
    fn remove(&mut self, connection: &Rc<Connection>) {
        if let Some(node) = self.nodes.get_mut(&connection.node) {
            node.connections.retain(|other| other.id != connection.id);
            self.choose(connection.node);
        }
    }

    /// Chooses the connection to send on, and says so if it is another one now.
    fn choose(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        // The one that is sent on stays as long as it can: changing loses what is on its way.
        let stays = node.sending().is_some();
        if stays {
            return;
        }
        let before = node.sending;
        let dialled = node.connections.iter().find(|c| c.dialled);
        node.sending = dialled.or(node.connections.last()).map(|c| c.id);
        match (before, node.sending) {
            (_, Some(_)) => self.push(Event::Connected(id)),
            (Some(_), None) => self.push(Event::Lost(id)),
            (None, None) => {}
        }
    }
}
