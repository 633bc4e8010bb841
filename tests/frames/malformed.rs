//! Malformed framing closes the connection it came on, and no other, and is counted.

use ticketing_protocol::Reply;
use ticketing_protocol::limits::{
    ACQUIRE_BODY_MAX, ACQUIRE_FIXED_BYTES, ACQUIRE_SET_BODY_MAX, ACQUIRE_SET_FIXED_BYTES,
    KEY_MAX_BYTES, RELEASE_BODY_MAX, RELEASE_FIXED_BYTES, RELEASE_SET_BODY_MAX,
    RELEASE_SET_FIXED_BYTES,
};

use crate::support::raw::{acquire, body, frame, release};
use crate::support::{Options, RawClient, Server};

const OPCODES: &[u8] = b"ARSG";

/// A server whose bystander must stay connected whatever others send.
struct Stage {
    server: Server,
    bystander: RawClient,
    closed: u64,
}

impl Stage {
    fn new() -> Self {
        let server = Server::start(Options::shards(2));
        let bystander = RawClient::connect(server.address);
        Self {
            server,
            bystander,
            closed: 0,
        }
    }

    fn connect(&self) -> RawClient {
        RawClient::connect(self.server.address)
    }

    /// Sends bytes on a connection of its own, which must be closed and counted.
    fn assert_closes(&mut self, what: &str, bytes: &[u8]) {
        let mut client = self.connect();
        client.send_bytes(bytes);
        self.assert_closed(what, client);
    }

    fn assert_closed(&mut self, what: &str, mut client: RawClient) {
        client.assert_closed(what);
        self.closed += 1;
    }

    fn finish(mut self, what: &str) {
        self.server
            .wait_metric("connections_malformed", self.closed);
        self.bystander.assert_usable();
        self.server.wait_metric("connections", 1);
        println!("{what}: {} connections closed and counted", self.closed);
    }
}

#[test]
fn every_unknown_opcode() {
    let mut stage = Stage::new();
    for opcode in (0..=u8::MAX).filter(|opcode| !OPCODES.contains(opcode)) {
        let bytes = frame(opcode, &body(&[&1_u64.to_be_bytes(), &[0, 10], b"key"]));
        stage.assert_closes(&format!("opcode {opcode}"), &bytes);
    }
    assert_eq!(stage.closed, 252);
    stage.finish("unknown opcodes");
}

#[test]
fn a_body_shorter_or_longer_than_it_can_be() {
    let mut stage = Stage::new();
    let bounds = [
        (b'A', ACQUIRE_FIXED_BYTES, ACQUIRE_BODY_MAX),
        (b'R', RELEASE_FIXED_BYTES, RELEASE_BODY_MAX),
        (b'S', ACQUIRE_SET_FIXED_BYTES, ACQUIRE_SET_BODY_MAX),
        (b'G', RELEASE_SET_FIXED_BYTES, RELEASE_SET_BODY_MAX),
    ];
    for (opcode, shortest, longest) in bounds {
        let name = char::from(opcode);
        // Id 1, then ones: at their bounds the frames are well-formed and their values bad.
        let body_of = |length: usize| {
            let mut body = vec![1; length];
            body[..7].fill(0);
            body
        };
        let mut client = stage.connect();
        for length in [shortest, longest] {
            client.send_bytes(&frame(opcode, &body_of(length)));
            let reply = client.reply();
            assert_eq!(reply.request_id(), Some(1), "{name} of {length}: {reply:?}");
        }
        for length in [0, 8, shortest - 1, longest + 1, usize::from(u16::MAX)] {
            // The header alone is enough to judge by.
            let mut header = vec![opcode];
            header.extend(u16::try_from(length).expect("two bytes").to_be_bytes());
            stage.assert_closes(&format!("{name} announced with {length}"), &header);
        }
        let too_long = frame(opcode, &body_of(longest + 1));
        stage.assert_closes(&format!("{name} of {} bytes", longest + 1), &too_long);
    }
    assert_eq!(bounds[0].2 + 1, ACQUIRE_FIXED_BYTES + KEY_MAX_BYTES + 1);
    stage.finish("too short or too long");
}

#[test]
fn request_id_0() {
    let mut stage = Stage::new();
    let zero = 0_u64.to_be_bytes();
    for (opcode, rest) in [
        (b'A', &b"\x00\x0akey"[..]),
        (b'R', b"\0\0\0\0\0\0\0\x01key"),
        (b'S', b"\x00\x0a\x02\x01a\x01b"),
        (b'G', b"\0\0\0\0\0\0\0\x01\x02\x01a\x01b"),
    ] {
        let what = format!("{} with id 0", char::from(opcode));
        stage.assert_closes(&what, &frame(opcode, &body(&[&zero, rest])));
    }
    stage.finish("request id 0");
}

#[test]
fn a_request_id_that_is_still_in_flight() {
    let mut stage = Stage::new();
    let token = stage.bystander.hold("key", 60);
    // Well-formed or refused, acquire or release: an id in use is an id in use.
    let second: [(&str, Vec<u8>); 4] = [
        ("acquire", acquire(7, "other", 0, 10)),
        ("release", release(7, "other", 1)),
        (
            "bad lease",
            frame(b'A', &body(&[&7_u64.to_be_bytes(), b"\0\0key"])),
        ),
        (
            "token 0",
            frame(b'R', &body(&[&7_u64.to_be_bytes(), &[0; 8], b"key"])),
        ),
    ];
    for (what, bytes) in second {
        let mut client = stage.connect();
        client.send_bytes(&acquire(7, "key", 60, 10));
        stage.server.wait_metric("waiting", 1);
        client.send_bytes(&bytes);
        stage.assert_closed(what, client);
        // What was in line on that connection is not any more.
        stage.server.wait_metric("waiting", 0);
    }
    // An id is free again once it has its answer.
    let mut client = stage.connect();
    for _ in 0..3 {
        client.send_bytes(&acquire(7, "key", 0, 10));
        assert_eq!(client.reply(), Reply::Busy { request_id: 7 });
    }
    stage.bystander.give_back("key", token);
    drop(client);
    stage.finish("request id in flight");
}

#[test]
fn what_stands_before_a_malformed_frame_leaves_no_lock_behind() {
    let mut stage = Stage::new();
    for round in 0..20 {
        let key = format!("key-{round}");
        let mut client = stage.connect();
        let mut bytes = acquire(1, &key, 0, 60);
        bytes.push(b'?');
        client.send_bytes(&bytes);
        stage.assert_closed("a good frame, then a bad one", client);
    }
    // Every grant was on its way to a connection that is gone, so none is kept for its lease.
    stage.server.wait_metric("locks_held", 0);
    stage.server.wait_metric("ghosts", 20);
    stage.finish("behind a good frame");
}
