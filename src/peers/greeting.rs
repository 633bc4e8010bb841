//! Who is at the other end: the hello of both sides, its proof, and whether to believe it.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;

use ticketing_protocol::limits::SLOT_UNKNOWN;
use ticketing_protocol::peer::EntryId;
use ticketing_protocol::peer::hello::{
    self, DIALLED_LEN, HELLO_LEN, Hello, NONCE_LEN, PROOF_LEN, Refusal as WireRefusal, VERDICT_LEN,
    Verdict,
};
use ticketing_raftlog::peers::{self, Claim, Incarnation, Memory, ProcessId, Reason};
use ticketing_raftlog::raft::Config;
use ticketing_raftlog::{ClusterId, LogIndex, NodeId, PeersFile, Term};

use crate::consensus::fatal_unless;
use crate::runtime;
use crate::security::tls::ClientStream;
use crate::security::token::Token;

use super::connection::Connection;
use super::{Event, Inner};

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum Ungreeted {
    /// It broke, as it does when a process ends: worth another try at once.
    Broken(io::Error),
    /// One of the two does not want the other.
    Unwanted(String),
}

impl fmt::Display for Ungreeted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(error) => write!(f, "the connection broke: {error}"),
            Self::Unwanted(why) => f.write_str(why),
        }
    }
}

impl From<String> for Ungreeted {
    fn from(why: String) -> Self {
        Self::Unwanted(why)
    }
}

impl From<&str> for Ungreeted {
    fn from(why: &str) -> Self {
        Self::Unwanted(why.to_owned())
    }
}

/// The side that accepts: says who it is, hears who came, and says what it thinks of it.
pub(super) async fn accepted(
    inner: &Rc<RefCell<Inner>>,
    stream: ClientStream,
) -> Result<Rc<Connection>, Ungreeted> {
    let own = own_hello(inner)?;
    stream
        .write_all(&own.encode())
        .await
        .map_err(Ungreeted::Broken)?;
    let mut answer = [0; DIALLED_LEN];
    stream
        .read_exact(&mut answer)
        .await
        .map_err(Ungreeted::Broken)?;
    let (theirs, proof) = split(&answer);
    let theirs = Hello::parse(&theirs).map_err(|error| Ungreeted::Unwanted(error.to_string()))?;
    let tokens = inner.borrow().setup.tokens.get();
    let proves = |token: &&Token| hello::verify_dialled(token.bytes(), &own, &theirs, &proof);
    let Some(token) = tokens.iter().find(proves).cloned() else {
        return Err("it does not know the peer token".into());
    };
    let judged = judge(inner, &theirs).await;
    let verdict = match &judged {
        Ok(()) => Verdict::Welcome,
        Err(refusal) => Verdict::Refused(wire_refusal(refusal.reason())),
    };
    let bytes = hello::encode_verdict(token.bytes(), &own, &theirs, verdict);
    stream.write_all(&bytes).await.map_err(Ungreeted::Broken)?;
    judged.map_err(|refusal| {
        stream.finish();
        Ungreeted::Unwanted(refusal.to_string())
    })?;
    let mut inner = inner.borrow_mut();
    let (node, process) = (NodeId(theirs.node_id), ProcessId(theirs.process));
    Ok(Connection::new(&mut inner, node, process, false, stream))
}

/// The side that dialled: hears who is there, says who it is, and hears what the other thinks of it.
pub(super) async fn dialled(
    inner: &Rc<RefCell<Inner>>,
    stream: ClientStream,
    token: Token,
) -> Result<Rc<Connection>, Ungreeted> {
    let mut bytes = [0; HELLO_LEN];
    stream
        .read_exact(&mut bytes)
        .await
        .map_err(Ungreeted::Broken)?;
    let theirs = Hello::parse(&bytes).map_err(|error| Ungreeted::Unwanted(error.to_string()))?;
    let own = own_hello(inner)?;
    let mut answer = own.encode().to_vec();
    answer.extend_from_slice(&hello::dialled_proof(token.bytes(), &theirs, &own));
    stream.write_all(&answer).await.map_err(Ungreeted::Broken)?;
    let mut bytes = [0; VERDICT_LEN];
    stream.read_exact(&mut bytes).await.map_err(|_| {
        Ungreeted::from(
            "it closed the connection without an answer: it has another peer token, or is busy",
        )
    })?;
    let verdict = hello::parse_verdict(token.bytes(), &theirs, &own, &bytes)
        .ok_or("it does not know the peer token")?;
    let node = NodeId(theirs.node_id);
    if node == own_id(inner) {
        return Err("it is this node itself: correct the peers' addresses".into());
    }
    match verdict {
        Verdict::Refused(refusal) => {
            let reason = reason(refusal);
            if theirs.cluster_id == inner.borrow().setup.cluster_id.0 {
                inner.borrow_mut().push(Event::Unwelcome(node, reason));
            }
            return Err(format!("it refuses this node: {reason}").into());
        }
        Verdict::Welcome => inner.borrow_mut().push(Event::Welcome(node)),
    }
    judge(inner, &theirs)
        .await
        .map_err(|refusal| Ungreeted::Unwanted(refusal.to_string()))?;
    let mut inner = inner.borrow_mut();
    Ok(Connection::new(
        &mut inner,
        node,
        ProcessId(theirs.process),
        true,
        stream,
    ))
}

/// Whether to believe who the other side says it is. Who is let in is remembered, synced.
async fn judge(inner: &Rc<RefCell<Inner>>, theirs: &Hello) -> Result<(), peers::Refusal> {
    let claim = Claim {
        cluster_id: ClusterId(theirs.cluster_id),
        node_id: NodeId(theirs.node_id),
        incarnation: Incarnation(theirs.incarnation),
        starts: theirs.start_counter,
        process: ProcessId(theirs.process),
        term: Term(theirs.term),
        last_index: LogIndex(theirs.last.index),
    };
    let file = take_file(inner).await;
    let known = inner.borrow().known;
    let live = inner.borrow().live(claim.node_id, claim.process);
    let judged = peers::Known {
        cluster_id: inner.borrow().setup.cluster_id,
        config: &known.config,
        leads: known.leads,
        memories: file.memories(),
    }
    .judge(live.as_ref(), &claim);
    match judged {
        Ok(memory) => {
            let file = let_in(file, known.config, claim.node_id, memory).await;
            give_back(inner, file);
            Ok(())
        }
        Err(refusal) => {
            give_back(inner, file);
            Err(refusal)
        }
    }
}

async fn let_in(mut file: PeersFile, config: Config, node: NodeId, memory: Memory) -> PeersFile {
    if file.memories().of(node) == Some(&memory) {
        return file;
    }
    let (file, result) = runtime::blocking(move || {
        let result = file.let_in(&config, node, memory);
        (file, result)
    })
    .await;
    fatal_unless(result, "keeping who was let in");
    file
}

/// Saves what was acknowledged.
pub(super) async fn save(inner: Rc<RefCell<Inner>>) {
    let mut file = take_file(&inner).await;
    let (file, result) = runtime::blocking(move || {
        let result = file.save();
        (file, result)
    })
    .await;
    fatal_unless(result, "keeping what peers acknowledged");
    inner.borrow_mut().save_running = false;
    give_back(&inner, file);
}

/// Remembers who left with a configuration.
pub(super) async fn committed(inner: Rc<RefCell<Inner>>, before: Config, now: Config) {
    let mut file = take_file(&inner).await;
    let (file, result) = runtime::blocking(move || {
        let result = file.committed(&before, &now);
        (file, result)
    })
    .await;
    fatal_unless(result, "keeping who left the cluster");
    give_back(&inner, file);
}

/// The file, for one job at a time.
async fn take_file(inner: &Rc<RefCell<Inner>>) -> PeersFile {
    loop {
        if let Some(file) = inner.borrow_mut().file.take() {
            return file;
        }
        runtime::sleep(std::time::Duration::from_millis(1)).await;
    }
}

fn give_back(inner: &Rc<RefCell<Inner>>, mut file: PeersFile) {
    let mut inner = inner.borrow_mut();
    for one in std::mem::take(&mut inner.acknowledged) {
        file.acknowledged(one.node, one.term, one.up_to, one.commit, one.now_ms);
    }
    inner.file = Some(file);
}

fn own_hello(inner: &Rc<RefCell<Inner>>) -> Result<Hello, String> {
    let inner = inner.borrow();
    let mut nonce = [0; NONCE_LEN];
    getrandom::fill(&mut nonce).map_err(|error| error.to_string())?;
    let setup = &inner.setup;
    Ok(Hello {
        slot: setup.slot.unwrap_or(SLOT_UNKNOWN),
        cluster_id: setup.cluster_id.0,
        node_id: setup.node_id.0,
        incarnation: setup.incarnation.0,
        start_counter: setup.starts,
        process: setup.process.0,
        term: inner.known.term.0,
        last: EntryId {
            term: inner.known.last.term.0,
            index: inner.known.last.index.0,
        },
        nonce,
    })
}

fn own_id(inner: &Rc<RefCell<Inner>>) -> NodeId {
    inner.borrow().setup.node_id
}

fn split(answer: &[u8; DIALLED_LEN]) -> ([u8; HELLO_LEN], [u8; PROOF_LEN]) {
    let (mut theirs, mut proof) = ([0; HELLO_LEN], [0; PROOF_LEN]);
    theirs.copy_from_slice(&answer[..HELLO_LEN]);
    proof.copy_from_slice(&answer[HELLO_LEN..]);
    (theirs, proof)
}

fn wire_refusal(reason: Reason) -> WireRefusal {
    match reason {
        Reason::OtherCluster => WireRefusal::OtherCluster,
        Reason::NotAMember => WireRefusal::NotAMember,
        Reason::RunsTwice => WireRefusal::SecondProcess,
        Reason::Replaced => WireRefusal::Replaced,
        Reason::AnotherFolder => WireRefusal::OtherIncarnation,
        Reason::SeenBefore => WireRefusal::OldStart,
        Reason::LogLost => WireRefusal::LostLog,
    }
}

fn reason(refusal: WireRefusal) -> Reason {
    match refusal {
        WireRefusal::OtherCluster => Reason::OtherCluster,
        WireRefusal::NotAMember => Reason::NotAMember,
        WireRefusal::SecondProcess => Reason::RunsTwice,
        WireRefusal::Replaced => Reason::Replaced,
        WireRefusal::OtherIncarnation => Reason::AnotherFolder,
        WireRefusal::OldStart => Reason::SeenBefore,
        WireRefusal::LostLog => Reason::LogLost,
    }
}
