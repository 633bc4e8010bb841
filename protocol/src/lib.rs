//! Ticketing's client wire protocol, version 3: every byte of it, and nothing else.
//!
//! Bytes go in, values come out, and the other way round. No sockets, no clock, no randomness:
//! the caller brings the nonce and moves the bytes. All integers are big-endian.
//!
//! A connection starts with the [`handshake`]; then both sides send frames of
//! *opcode u8 · body length u16 · body*. Servers read with [`parse_request`] and write
//! [`Reply`]s; clients write [`Request`]s and read with [`parse_reply`]. A reader keeps what has
//! arrived in one buffer and asks for the first frame until it is told [`Parsed::Incomplete`]:
//!
//! ```
//! use ticketing_protocol::handshake::{self, ServerHello};
//! use ticketing_protocol::{Parsed, ParsedReply, Reply, Request, parse_reply, parse_request};
//!
//! // The server's first 28 bytes. The nonce comes from the system's random source.
//! let hello = ServerHello::single(*b"16 fresh bytes!!");
//! let on_the_wire = hello.encode();
//!
//! // The client reads them, and proves that it knows the token without sending it.
//! let token = b"a-client-token-of-some-length";
//! let fingerprint = handshake::single_fingerprint();
//! let heard = ServerHello::parse(&on_the_wire)?;
//! let answer = handshake::client_auth(token, &fingerprint, &heard);
//! assert!(handshake::verify_client_auth(token, &fingerprint, &hello, &answer));
//!
//! // The client asks for a key: up to 2 s in line, for 30 s.
//! let mut to_server = Vec::new();
//! let ask = Request::Acquire { request_id: 1, wait_s: 2, lease_s: 30, key: b"seat:A-12" };
//! ask.encode(&mut to_server);
//!
//! // The server has received all but the last byte, then all of it.
//! let partial = &to_server[..to_server.len() - 1];
//! assert_eq!(parse_request(partial), Parsed::Incomplete { need: to_server.len() });
//! let Parsed::Frame { request: Ok(request), consumed } = parse_request(&to_server) else {
//!     panic!("a whole frame");
//! };
//! assert_eq!((request, consumed), (ask, to_server.len()));
//!
//! // It grants the key under fencing token 7001, and the client reads that.
//! let reply = Reply::Acquired { request_id: request.request_id(), token: 7001 };
//! let mut to_client = Vec::new();
//! reply.encode(&mut to_client);
//! assert_eq!(parse_reply(&to_client), ParsedReply::Frame { reply, consumed: 19 });
//! assert!(reply.allowed_for(ask.kind()));
//! # Ok::<(), handshake::HelloError>(())
//! ```
//!
//! [`Parsed::Malformed`] means that the connection must be closed; [`Refused`] is a frame whose
//! framing is sound and whose value is not, and gets its E reply. The module [`request`] tells
//! them apart. Every bound is in [`limits`].

mod frame;
pub mod handshake;
mod key;
mod keyset;
pub mod limits;
pub mod peer;
pub mod reply;
pub mod request;

pub use frame::Malformed;
pub use key::{KeyError, validate_key};
pub use keyset::{KeySetBuf, KeySetError, KeySetRef, Keys};
pub use limits::SLOT_UNKNOWN;
pub use reply::{ErrorCode, ParsedReply, Reply, parse_reply};
pub use request::{Parsed, Refused, Request, RequestKind, parse_request};
