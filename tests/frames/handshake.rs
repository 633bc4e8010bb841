//! The first 61 bytes of a connection.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ticketing_protocol::handshake::{
    ACCEPTED, HELLO_LEN, REFUSED, ServerHello, client_auth, cluster_fingerprint, single_fingerprint,
};

use crate::support::raw::{is_closed, open, read_hello};
use crate::support::{Options, RawClient, SLACK, Server};

const TOKEN: &str = "a-client-token-for-tests";

#[test]
fn the_hello_is_exact_and_its_nonce_fresh() {
    let server = Server::start(Options::shards(2));
    let mut nonces = Vec::new();
    for _ in 0..20 {
        let mut stream = open(server.address).expect("connected");
        let mut hello = [0; HELLO_LEN];
        stream.read_exact(&mut hello).expect("28 bytes");
        assert_eq!(hello[..12], *b"TCKCLI3\0\0\x03\0\xff", "{hello:?}");
        nonces.push(hello[12..].to_vec());
        // Nothing more before the client's answer.
        stream
            .set_read_timeout(Some(Duration::from_millis(5)))
            .expect("set");
        let more = stream.read(&mut [0]).expect_err("nothing more");
        assert!(matches!(
            more.kind(),
            ErrorKind::WouldBlock | ErrorKind::TimedOut
        ));
    }
    nonces.sort_unstable();
    nonces.dedup();
    assert_eq!(nonces.len(), 20, "a nonce came twice");
}

#[test]
fn a_wrong_answer_gets_byte_0_and_the_end_and_is_counted() {
    let server = Server::start(Options::shards(2).token(TOKEN));
    let single = single_fingerprint();
    let another = cluster_fingerprint(&[7; 16]);
    type Answer<'a> = &'a dyn Fn(&ServerHello) -> [u8; 32];
    let wrong: [(&str, Answer<'_>); 5] = [
        ("another token", &|hello| {
            client_auth(b"a-client-token-for-testz", &single, hello)
        }),
        ("no token", &|hello| client_auth(b"", &single, hello)),
        ("another identity", &|hello| {
            client_auth(TOKEN.as_bytes(), &another, hello)
        }),
        ("an answer to another nonce", &|hello| {
            let mut other = *hello;
            other.nonce[15] ^= 1;
            client_auth(TOKEN.as_bytes(), &single, &other)
        }),
        ("the last bit", &|hello| {
            let mut answer = client_auth(TOKEN.as_bytes(), &single, hello);
            answer[31] ^= 1;
            answer
        }),
    ];
    for (what, answer) in wrong {
        let mut stream = open(server.address).expect("connected");
        let hello = read_hello(&mut stream).expect("a hello");
        stream.write_all(&answer(&hello)).expect("sent");
        assert_eq!(all_that_comes(stream), [REFUSED], "{what}");
    }
    server.wait_metric("handshakes_refused", wrong.len() as u64);
    RawClient::connect_with(server.address, TOKEN.as_bytes()).assert_usable();
    println!("{} wrong answers refused", wrong.len());
}

#[test]
fn the_answer_may_come_byte_by_byte_and_with_frames_behind_it() {
    let server = Server::start(Options::shards(2));
    let mut stream = open(server.address).expect("connected");
    let hello = read_hello(&mut stream).expect("a hello");
    for byte in client_auth(b"", &single_fingerprint(), &hello) {
        stream.write_all(&[byte]).expect("sent");
        std::thread::sleep(Duration::from_micros(500));
    }
    let mut verdict = [7];
    stream.read_exact(&mut verdict).expect("a verdict");
    assert_eq!(verdict, [ACCEPTED]);

    let mut stream = open(server.address).expect("connected");
    let hello = read_hello(&mut stream).expect("a hello");
    let mut bytes = client_auth(b"", &single_fingerprint(), &hello).to_vec();
    bytes.extend(crate::support::raw::release(9, "key", 1));
    stream.write_all(&bytes).expect("sent");
    let mut answer = [0; 1 + 11];
    stream.read_exact(&mut answer).expect("verdict and reply");
    assert_eq!(answer, *b"\x01N\0\x08\0\0\0\0\0\0\0\x09");
}

#[test]
fn a_silent_stranger_is_closed_at_the_deadline_without_a_byte() {
    const DEADLINE: Duration = Duration::from_millis(300);
    let server = Server::start(Options::shards(2).limits("handshake_ms = 300"));
    let mut streams = Vec::new();
    for sent in [0, 1, 31] {
        let started = Instant::now();
        let mut stream = open(server.address).expect("connected");
        read_hello(&mut stream).expect("a hello");
        stream.write_all(&[1; 32][..sent]).expect("sent");
        streams.push((started, sent, stream));
    }
    for (started, sent, stream) in streams {
        assert_eq!(all_that_comes(stream), b"", "after {sent} bytes");
        let took = started.elapsed();
        assert!(took >= DEADLINE, "closed after {took:?}");
        assert!(took < DEADLINE + SLACK, "closed only after {took:?}");
    }
    server.wait_metric("handshakes_dropped", 3);
    assert_eq!(server.metric("handshakes_refused"), 0);
    // Who got in before the deadline is not concerned by it.
    let mut client = RawClient::connect(server.address);
    std::thread::sleep(DEADLINE * 2);
    client.assert_usable();
}

#[test]
fn strangers_and_connections_past_their_bound_are_closed_without_a_byte() {
    let limits = "connections = 3\nunauthenticated_connections = 2";
    let server = Server::start(Options::shards(1).limits(limits));
    let mut first = open(server.address).expect("connected");
    let hello = read_hello(&mut first).expect("a hello");
    let mut second = open(server.address).expect("connected");
    read_hello(&mut second).expect("a hello");
    let third = open(server.address).expect("connected");
    assert_eq!(all_that_comes(third), b"", "a third stranger");

    let answer = client_auth(b"", &single_fingerprint(), &hello);
    first.write_all(&answer).expect("sent");
    let mut verdict = [0];
    first.read_exact(&mut verdict).expect("a verdict");
    let mut third = open(server.address).expect("connected");
    read_hello(&mut third).expect("one of two strangers is known by now");
    server.wait_metric("connections", 1);
    let fourth = open(server.address).expect("connected");
    assert_eq!(all_that_comes(fourth), b"", "a fourth connection");

    // Each that goes makes room for one.
    drop((second, third));
    server.wait_metric("unauthenticated", 0);
    let mut clients = [(); 2].map(|()| RawClient::connect(server.address));
    clients.iter_mut().for_each(RawClient::assert_usable);
    server.wait_metric("connections", 3);
    let fourth = open(server.address).expect("connected");
    assert_eq!(all_that_comes(fourth), b"", "a fourth connection");
    assert_eq!(server.metric("connections_turned_away"), 3);
}

/// What the server sends until it closes.
fn all_that_comes(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 64];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return bytes,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            Err(error) if is_closed(&error) => return bytes,
            Err(error) => panic!("not closed: {error}"),
        }
    }
}
