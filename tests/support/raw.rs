//! A client of raw frames: it sends what it is told, well-formed or not.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ticketing_protocol::handshake::{
    ACCEPTED, HELLO_LEN, ServerHello, client_auth, single_fingerprint,
};
use ticketing_protocol::{ParsedReply, Reply, Request, parse_reply};

use super::PATIENCE;

/// One connection past its handshake. Reads end with an error after [`PATIENCE`].
#[derive(Debug)]
pub struct RawClient {
    stream: TcpStream,
    received: Vec<u8>,
    next_id: u64,
}

impl RawClient {
    /// Connects without a token.
    pub fn connect(address: SocketAddr) -> Self {
        Self::connect_with(address, b"")
    }

    /// Connects with a token.
    pub fn connect_with(address: SocketAddr, token: &[u8]) -> Self {
        Self::try_connect(address, token).expect("connected and accepted")
    }

    /// Connects with a token, if the server is there and lets it in.
    ///
    /// # Errors
    /// The socket's error; `PermissionDenied` when the server refuses.
    pub fn try_connect(address: SocketAddr, token: &[u8]) -> io::Result<Self> {
        Self::try_connect_to(address, token, &single_fingerprint())
    }

    /// Connects to a node of the cluster that has that identity fingerprint.
    ///
    /// # Errors
    /// As [`RawClient::try_connect`].
    pub fn try_connect_to(
        address: SocketAddr,
        token: &[u8],
        fingerprint: &[u8; 32],
    ) -> io::Result<Self> {
        let mut stream = open(address)?;
        let hello = read_hello(&mut stream)?;
        stream.write_all(&client_auth(token, fingerprint, &hello))?;
        let mut verdict = [0];
        stream.read_exact(&mut verdict)?;
        if verdict != [ACCEPTED] {
            return Err(ErrorKind::PermissionDenied.into());
        }
        Ok(Self {
            stream,
            received: Vec::new(),
            next_id: 1,
        })
    }

    /// An id that was not used here before.
    pub fn new_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sent");
    }

    /// Sends bytes as they are, unless the connection is broken.
    ///
    /// # Errors
    /// The socket's error.
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends an acquire and gives its id back.
    pub fn send_acquire(&mut self, key: &str, wait_s: u8, lease_s: u8) -> u64 {
        let request_id = self.new_id();
        self.send_bytes(&acquire(request_id, key, wait_s, lease_s));
        request_id
    }

    /// Sends an acquire and gives its id back, unless the connection is closed already.
    pub fn send_acquire_unless_closed(
        &mut self,
        key: &str,
        wait_s: u8,
        lease_s: u8,
    ) -> Option<u64> {
        let request_id = self.new_id();
        let bytes = acquire(request_id, key, wait_s, lease_s);
        self.try_send_bytes(&bytes).ok().map(|()| request_id)
    }

    /// Sends a release and gives its id back.
    pub fn send_release(&mut self, key: &str, token: u64) -> u64 {
        let request_id = self.new_id();
        self.send_bytes(&release(request_id, key, token));
        request_id
    }

    /// The next reply.
    pub fn reply(&mut self) -> Reply {
        self.try_reply(PATIENCE).expect("a reply")
    }

    /// The next reply, or the connection's end (`UnexpectedEof`, `ConnectionReset`), or
    /// `TimedOut` when nothing comes within that time.
    ///
    /// # Errors
    /// As above.
    pub fn try_reply(&mut self, within: Duration) -> io::Result<Reply> {
        let deadline = Instant::now() + within;
        loop {
            match parse_reply(&self.received) {
                ParsedReply::Frame { reply, consumed } => {
                    self.received.drain(..consumed);
                    return Ok(reply);
                }
                ParsedReply::Malformed(why) => panic!("the server sent no frame: {why}"),
                ParsedReply::Incomplete { .. } => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.received.extend_from_slice(&bytes[..read]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Acquires and waits for the answer.
    pub fn acquire(&mut self, key: &str, wait_s: u8, lease_s: u8) -> Reply {
        let request_id = self.send_acquire(key, wait_s, lease_s);
        let reply = self.reply();
        assert_eq!(reply.request_id(), Some(request_id), "{reply:?}");
        reply
    }

    /// Acquires a key that must be free; its token.
    pub fn hold(&mut self, key: &str, lease_s: u8) -> u64 {
        match self.acquire(key, 0, lease_s) {
            Reply::Acquired { token, .. } => token,
            other => panic!("{key} is not free: {other:?}"),
        }
    }

    /// Releases and waits for the answer.
    pub fn release(&mut self, key: &str, token: u64) -> Reply {
        let request_id = self.send_release(key, token);
        let reply = self.reply();
        assert_eq!(reply.request_id(), Some(request_id), "{reply:?}");
        reply
    }

    /// Releases a key that must be held under that token.
    pub fn give_back(&mut self, key: &str, token: u64) {
        let reply = self.release(key, token);
        assert!(matches!(reply, Reply::Released { .. }), "{key}: {reply:?}");
    }

    /// Fails unless the server answers on this connection.
    pub fn assert_usable(&mut self) {
        let reply = self.release("nobody-holds-this", 1);
        assert!(matches!(reply, Reply::NotFound { .. }), "{reply:?}");
    }

    /// Fails unless the server closes the connection without another byte.
    pub fn assert_closed(&mut self, what: &str) {
        match self.try_reply(PATIENCE) {
            Ok(reply) => panic!("{what}: answered with {reply:?} instead of closed"),
            Err(error) => assert!(is_closed(&error), "{what}: not closed: {error}"),
        }
    }

    /// Fails if anything comes within that time.
    pub fn assert_silent(&mut self, within: Duration) {
        match self.try_reply(within) {
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            other => panic!("expected silence, got {other:?}"),
        }
    }

    /// Closes one direction: nothing more will be sent.
    pub fn half_close(&mut self) {
        self.stream.shutdown(Shutdown::Write).expect("half closed");
    }

    /// Closes with a reset, as the kernel of a machine that lost its process may.
    pub fn reset(self) {
        let socket = socket2::Socket::from(self.stream);
        socket
            .set_linger(Some(Duration::ZERO))
            .expect("the option is set");
    }
}

/// True of an error that means the other side ended the connection.
pub fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

/// A connection before its handshake; reads and writes on it are bounded.
///
/// # Errors
/// The socket's error.
pub fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// The server's first 28 bytes.
///
/// # Errors
/// The socket's error.
pub fn read_hello(stream: &mut TcpStream) -> io::Result<ServerHello> {
    let mut bytes = [0; HELLO_LEN];
    stream.read_exact(&mut bytes)?;
    Ok(ServerHello::parse(&bytes).expect("a hello"))
}

/// The frame of an acquire.
pub fn acquire(request_id: u64, key: &str, wait_s: u8, lease_s: u8) -> Vec<u8> {
    encoded(&Request::Acquire {
        request_id,
        wait_s,
        lease_s,
        key: key.as_bytes(),
    })
}

/// The frame of a release.
pub fn release(request_id: u64, key: &str, token: u64) -> Vec<u8> {
    encoded(&Request::Release {
        request_id,
        token,
        key: key.as_bytes(),
    })
}

/// A frame of these bytes, whatever they are.
pub fn frame(opcode: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("a body of at most 64 KiB");
    let mut frame = vec![opcode];
    frame.extend(length.to_be_bytes());
    frame.extend(body);
    frame
}

/// The body of an acquire or a release with any bytes for a key.
pub fn body(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn encoded(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    bytes
}
