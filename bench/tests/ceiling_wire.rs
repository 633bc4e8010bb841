//! The ceiling on the wire: what it answers, and what it closes over.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use ticketing_bench::ceiling::Ceiling;
use ticketing_protocol::handshake::{
    ACCEPTED, HELLO_LEN, REFUSED, ServerHello, client_auth, single_fingerprint,
};
use ticketing_protocol::{
    ErrorCode, KeySetBuf, ParsedReply, Reply, Request, RequestKind, parse_reply,
};

/// Far longer than any answer here takes; a hang becomes a failure.
const PATIENCE: Duration = Duration::from_secs(10);

fn start() -> SocketAddr {
    let ceiling = Ceiling::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = ceiling.local_addr().unwrap();
    thread::spawn(move || ceiling.run());
    addr
}

struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    /// A connection that has answered the hello with `token`, and the verdict on it.
    fn connect(addr: SocketAddr, token: &[u8]) -> (Client, u8) {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut hello = [0; HELLO_LEN];
        stream.read_exact(&mut hello).unwrap();
        let hello = ServerHello::parse(&hello).unwrap();
        stream
            .write_all(&client_auth(token, &single_fingerprint(), &hello))
            .unwrap();
        let mut verdict = [0];
        stream.read_exact(&mut verdict).unwrap();
        let received = Vec::new();
        (Client { stream, received }, verdict[0])
    }

    fn accepted(addr: SocketAddr) -> Client {
        let (client, verdict) = Client::connect(addr, b"");
        assert_eq!(verdict, ACCEPTED);
        client
    }

    fn send(&mut self, request: Request<'_>) {
        let mut frame = Vec::new();
        request.encode(&mut frame);
        self.stream.write_all(&frame).unwrap();
    }

    fn reply(&mut self) -> Reply {
        loop {
            match parse_reply(&self.received) {
                ParsedReply::Frame { reply, consumed } => {
                    self.received.drain(..consumed);
                    return reply;
                }
                ParsedReply::Malformed(why) => panic!("{why}"),
                ParsedReply::Incomplete { .. } => {
                    let mut chunk = [0; 4_096];
                    let got = self.stream.read(&mut chunk).unwrap();
                    assert_ne!(got, 0, "closed while a reply was due");
                    self.received.extend_from_slice(&chunk[..got]);
                }
            }
        }
    }

    fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(got) => got == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

fn acquire(request_id: u64, wait_s: u8, key: &[u8]) -> Request<'_> {
    Request::Acquire {
        request_id,
        wait_s,
        lease_s: 30,
        key,
    }
}

fn token_of(reply: Reply, id: u64) -> u64 {
    let Reply::Acquired { request_id, token } = reply else {
        panic!("{reply:?}");
    };
    assert_eq!(request_id, id);
    token
}

#[test]
fn a_key_is_handed_down_the_line_across_connections() {
    let addr = start();
    let (mut one, mut two) = (Client::accepted(addr), Client::accepted(addr));
    one.send(acquire(1, 0, b"k"));
    let first = token_of(one.reply(), 1);
    two.send(acquire(1, 0, b"k"));
    assert_eq!(two.reply(), Reply::Busy { request_id: 1 });
    two.send(acquire(2, 30, b"k"));
    // Once this is answered, the one before it stands in line.
    two.send(acquire(3, 0, b"k"));
    assert_eq!(two.reply(), Reply::Busy { request_id: 3 });
    one.send(Request::Release {
        request_id: 2,
        token: first,
        key: b"k",
    });
    assert_eq!(one.reply(), Reply::Released { request_id: 2 });
    assert!(token_of(two.reply(), 2) > first);
    one.send(Request::Release {
        request_id: 3,
        token: first,
        key: b"k",
    });
    assert_eq!(one.reply(), Reply::NotFound { request_id: 3 });
}

#[test]
fn a_waiter_that_left_is_passed_over() {
    let addr = start();
    let (mut one, mut two) = (Client::accepted(addr), Client::accepted(addr));
    one.send(acquire(1, 0, b"k"));
    let token = token_of(one.reply(), 1);
    two.send(acquire(1, 30, b"k"));
    two.send(acquire(2, 0, b"k"));
    assert_eq!(two.reply(), Reply::Busy { request_id: 2 });
    drop(two);
    // The ceiling works events off in order: this connection is newer than that end.
    let mut three = Client::accepted(addr);
    one.send(Request::Release {
        request_id: 2,
        token,
        key: b"k",
    });
    assert_eq!(one.reply(), Reply::Released { request_id: 2 });
    three.send(acquire(1, 0, b"k"));
    token_of(three.reply(), 1);
}

#[test]
fn bytes_one_by_one_and_thousands_at_once() {
    let addr = start();
    let mut client = Client::accepted(addr);
    let mut frame = Vec::new();
    acquire(1, 0, b"slow").encode(&mut frame);
    for byte in frame {
        client.stream.write_all(&[byte]).unwrap();
    }
    token_of(client.reply(), 1);

    let mut many = Vec::new();
    for id in 2..20_002 {
        acquire(id, 0, b"slow").encode(&mut many);
    }
    let mut writer = client.stream.try_clone().unwrap();
    let writing = thread::spawn(move || writer.write_all(&many).unwrap());
    for request_id in 2..20_002 {
        assert_eq!(client.reply(), Reply::Busy { request_id });
    }
    writing.join().unwrap();
}

#[test]
fn bad_values_get_their_error_and_sets_their_no() {
    let addr = start();
    let mut client = Client::accepted(addr);
    let opcode = RequestKind::Acquire.opcode();
    let lease_251 = [opcode, 0, 11, 0, 0, 0, 0, 0, 0, 0, 1, 0, 251, b'k'];
    client.stream.write_all(&lease_251).unwrap();
    let code = ErrorCode::BadLease;
    assert_eq!(
        client.reply(),
        Reply::Error {
            request_id: 1,
            code
        }
    );
    let set = KeySetBuf::from_unsorted(&["a", "b"]).unwrap();
    let keys = set.as_set();
    client.send(Request::AcquireSet {
        request_id: 2,
        wait_s: 1,
        lease_s: 1,
        keys,
    });
    assert_eq!(client.reply(), Reply::Busy { request_id: 2 });
    client.send(Request::ReleaseSet {
        request_id: 3,
        token: 1,
        keys,
    });
    assert_eq!(client.reply(), Reply::NotFound { request_id: 3 });
}

#[test]
fn wrong_answers_and_broken_framing_are_closed() {
    let addr = start();
    let (mut stranger, verdict) = Client::connect(addr, b"a token it does not have");
    assert_eq!(verdict, REFUSED);
    assert!(stranger.is_closed());
    for bytes in [
        &b"?"[..],
        b"A\x00\x09",
        b"A\x00\x8b",
        b"A\x00\x0b\0\0\0\0\0\0\0\0\x00\x1ek",
    ] {
        let mut client = Client::accepted(addr);
        client.stream.write_all(bytes).unwrap();
        assert!(client.is_closed(), "{bytes:?}");
    }
}
