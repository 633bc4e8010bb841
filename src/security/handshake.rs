//! The client handshake, as the server runs it: a fresh nonce, an answer that
//! proves the token without sending it, one byte.

use std::io;
use std::time::Duration;

use ticketing_protocol::handshake::{
    ACCEPTED, AUTH_LEN, Mode, REFUSED, ServerHello, single_fingerprint, verify_client_auth,
};
use ticketing_protocol::limits::SLOT_UNKNOWN;

use crate::runtime;
use crate::security::shared::Shared;
use crate::security::tls::{Acceptor, ClientStream};
use crate::security::token::{Token, Tokens};

/// What a client must prove, and how long it may take.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The tokens of which one is to be proved.
    pub tokens: Shared<Tokens>,
    /// Which service the client believes it talks to.
    pub fingerprint: [u8; 32],
    /// As told in the hello.
    pub mode: Mode,
    /// As told in the hello.
    pub slot: u8,
    /// How long the whole handshake may take, TLS included.
    pub deadline: Duration,
    /// TLS, if clients must use it.
    pub tls: Option<Shared<Acceptor>>,
}

impl Gate {
    /// The gate of a single node.
    #[must_use]
    pub fn single(
        tokens: Shared<Tokens>,
        deadline: Duration,
        tls: Option<Shared<Acceptor>>,
    ) -> Self {
        Self {
            tokens,
            fingerprint: single_fingerprint(),
            mode: Mode::Single,
            slot: SLOT_UNKNOWN,
            deadline,
            tls,
        }
    }
}

/// How a handshake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The client knows the token.
    Accepted,
    /// It does not, and was told so.
    Refused,
    /// It broke off, or let the deadline pass. It was told nothing: the refusal
    /// byte would make a good client on a bad network give up for ever.
    Dropped,
}

/// Runs the handshake on a fresh connection.
pub async fn accept(stream: &ClientStream, gate: &Gate) -> Outcome {
    match runtime::timeout(gate.deadline, challenge(stream, gate)).await {
        Ok(Ok(true)) => Outcome::Accepted,
        Ok(Ok(false)) => Outcome::Refused,
        Ok(Err(_)) | Err(_) => Outcome::Dropped,
    }
}

async fn challenge(stream: &ClientStream, gate: &Gate) -> io::Result<bool> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    let hello = ServerHello {
        mode: gate.mode,
        slot: gate.slot,
        nonce,
    };
    stream.write_all(&hello.encode()).await?;
    let mut answer = [0; AUTH_LEN];
    stream.read_exact(&mut answer).await?;
    // Every token is tried, so that how long it takes says nothing.
    let tokens = gate.tokens.get();
    let proves =
        |token: &Token| verify_client_auth(token.bytes(), &gate.fingerprint, &hello, &answer);
    let knows = tokens.iter().filter(|token| proves(token)).count() > 0;
    stream
        .write_all(&[if knows { ACCEPTED } else { REFUSED }])
        .await?;
    if !knows {
        stream.finish();
    }
    Ok(knows)
}
