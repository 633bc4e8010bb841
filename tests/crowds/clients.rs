//! The clients of a crowd: each connects, asks for the key, and releases at once.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ticketing_protocol::handshake::{
    ACCEPTED, HELLO_LEN, ServerHello, client_auth, single_fingerprint,
};
use ticketing_protocol::{ParsedReply, Reply, parse_reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::support::raw::{acquire, release};

/// How long all of a crowd may take: the longest wait there is.
const CROWD_AT_MOST: Duration = Duration::from_secs(240);

/// How long a handshake may take. When a burst overflows the listener's queue, the kernel can forget
/// a connection that its client holds for made, and the server, which speaks first, never hears of it.
const ENTER_WITHIN: Duration = Duration::from_secs(20);

/// How long a client that was turned away lets things be.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// One client's turn.
#[derive(Clone, Copy, Debug)]
pub struct Visit {
    /// Its fencing token.
    pub token: u64,
    /// When it read its grant.
    pub granted: Instant,
    /// Just before it sent its release.
    pub released: Instant,
    /// Connections that it needed to get in.
    pub tries: u32,
    /// From the crowd's start to its handshake done.
    pub connected_after: Duration,
}

/// A crowd that has been served, and still has its connections.
pub struct Crowd {
    /// What its clients saw.
    pub visits: Vec<Visit>,
    leave: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Crowd {
    /// Has that many clients come at once and ask for `key`; returns when all have had it.
    pub fn gather(address: SocketAddr, key: &'static str, clients: usize) -> Self {
        let (leave, left) = oneshot::channel();
        let visits = Arc::new(Mutex::new(Vec::new()));
        let (done, wait) = std::sync::mpsc::channel();
        let seen = Arc::clone(&visits);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let start = Instant::now();
                let all: Vec<_> = (0..clients)
                    .map(|_| tokio::spawn(visit(address, key, start)))
                    .collect();
                let mut open = Vec::new();
                for client in all {
                    match client.await.expect("no client panics") {
                        Ok((visit, stream)) => {
                            seen.lock().expect("nobody panics holding it").push(visit);
                            open.push(stream);
                        }
                        Err(error) => eprintln!("a client was lost: {error}"),
                    }
                }
                let _ = done.send(());
                let _ = left.await;
                for stream in &open {
                    // With a reset, which leaves no port behind that is still closing.
                    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
                }
            });
        });
        wait.recv_timeout(CROWD_AT_MOST)
            .expect("everybody is served in time");
        let visits = std::mem::take(&mut *visits.lock().expect("nobody panics holding it"));
        Self {
            visits,
            leave: Some(leave),
            thread: Some(thread),
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        if let Some(leave) = self.leave.take() {
            let _ = leave.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn visit(
    address: SocketAddr,
    key: &'static str,
    start: Instant,
) -> io::Result<(Visit, TcpStream)> {
    let mut tries = 0;
    let mut stream = loop {
        tries += 1;
        let entered = tokio::time::timeout(ENTER_WITHIN, enter(address)).await;
        match entered.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
            Ok(stream) => break stream,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(error),
            Err(_) => tokio::time::sleep(TRY_AGAIN_AFTER).await,
        }
    };
    let connected_after = start.elapsed();
    stream.write_all(&acquire(1, key, 255, 250)).await?;
    let token = match reply(&mut stream).await? {
        Reply::Acquired {
            request_id: 1,
            token,
        } => token,
        other => return Err(io::Error::other(format!("{other:?}"))),
    };
    let granted = Instant::now();
    let frame = release(2, key, token);
    let released = Instant::now();
    stream.write_all(&frame).await?;
    // Anything else, a second grant above all, would come before or instead.
    match reply(&mut stream).await? {
        Reply::Released { request_id: 2 } => {}
        other => return Err(io::Error::other(format!("{other:?}"))),
    }
    let visit = Visit {
        token,
        granted,
        released,
        tries,
        connected_after,
    };
    Ok((visit, stream))
}

/// Connects and passes the handshake.
pub async fn enter(address: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut hello = [0; HELLO_LEN];
    stream.read_exact(&mut hello).await?;
    let hello = ServerHello::parse(&hello).expect("a hello");
    let answer = client_auth(b"", &single_fingerprint(), &hello);
    stream.write_all(&answer).await?;
    if stream.read_u8().await? != ACCEPTED {
        return Err(ErrorKind::PermissionDenied.into());
    }
    Ok(stream)
}

/// The next reply, which must be all that has come.
async fn reply(stream: &mut TcpStream) -> io::Result<Reply> {
    let mut received = Vec::with_capacity(32);
    loop {
        if stream.read_buf(&mut received).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        match parse_reply(&received) {
            ParsedReply::Frame { reply, consumed } if consumed == received.len() => {
                return Ok(reply);
            }
            ParsedReply::Frame { .. } => return Err(io::Error::other("one answer too many")),
            ParsedReply::Malformed(why) => return Err(io::Error::other(why.to_string())),
            ParsedReply::Incomplete { .. } => {}
        }
    }
}
