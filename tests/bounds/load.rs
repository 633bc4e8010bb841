//! One connection that sends requests in big batches and reads all answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use ticketing_protocol::handshake::{ACCEPTED, client_auth, single_fingerprint};
use ticketing_protocol::{ParsedReply, Reply, parse_reply};

use crate::support::raw::{acquire, open, read_hello, release};

/// Requests sent before their answers are read: far under the in-flight limit, and few enough
/// bytes for what may wait for the log.
pub const BATCH: usize = 8_192;

/// A connection past its handshake.
pub struct Load {
    stream: TcpStream,
    next_id: u64,
    received: Vec<u8>,
}

impl Load {
    pub fn connect(address: SocketAddr) -> Self {
        let mut stream = open(address).expect("connected");
        let hello = read_hello(&mut stream).expect("a hello");
        let answer = client_auth(b"", &single_fingerprint(), &hello);
        stream.write_all(&answer).expect("sent");
        let mut verdict = [0];
        stream.read_exact(&mut verdict).expect("a verdict");
        assert_eq!(verdict, [ACCEPTED]);
        Self {
            stream,
            next_id: 1,
            received: Vec::new(),
        }
    }

    /// Acquires keys that must be free; their tokens, in the order of the keys.
    pub fn hold(&mut self, keys: &[String]) -> Vec<u64> {
        let first = self.send(keys.iter().map(|key| (key.as_str(), None)), 0);
        let mut tokens = vec![0; keys.len()];
        for reply in self.replies(keys.len()) {
            match reply {
                Reply::Acquired { request_id, token } => {
                    tokens[(request_id - first) as usize] = token;
                }
                other => panic!("a free key was not granted: {other:?}"),
            }
        }
        tokens
    }

    /// Releases keys that must be held under those tokens.
    pub fn give_back(&mut self, keys: &[String], tokens: &[u64]) {
        let both = keys.iter().zip(tokens);
        self.send(both.map(|(key, token)| (key.as_str(), Some(*token))), 0);
        for reply in self.replies(keys.len()) {
            assert!(matches!(reply, Reply::Released { .. }), "{reply:?}");
        }
    }

    /// Stands in line for a held key that many times, and reads nothing.
    pub fn stand_in_line(&mut self, key: &str, times: usize) {
        self.send(std::iter::repeat_n((key, None), times), 255);
    }

    fn send<'a>(
        &mut self,
        requests: impl Iterator<Item = (&'a str, Option<u64>)>,
        wait_s: u8,
    ) -> u64 {
        let first = self.next_id;
        let mut bytes = Vec::new();
        for (key, token) in requests {
            match token {
                None => bytes.extend(acquire(self.next_id, key, wait_s, 250)),
                Some(token) => bytes.extend(release(self.next_id, key, token)),
            }
            self.next_id += 1;
        }
        self.stream.write_all(&bytes).expect("sent");
        first
    }

    fn replies(&mut self, number: usize) -> Vec<Reply> {
        let mut replies = Vec::with_capacity(number);
        let mut buffer = vec![0; 64 * 1024];
        while replies.len() < number {
            let read = self.stream.read(&mut buffer).expect("answers");
            assert_ne!(read, 0, "the server closed the connection");
            self.received.extend_from_slice(&buffer[..read]);
            let mut at = 0;
            while let ParsedReply::Frame { reply, consumed } = parse_reply(&self.received[at..]) {
                replies.push(reply);
                at += consumed;
            }
            self.received.drain(..at);
        }
        replies
    }
}
