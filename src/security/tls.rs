//! TLS towards clients: the certificate, and a socket that speaks it.
//!
//! rustls does the cryptography on buffers; the bytes go through the executor's
//! own sockets. Only the server is authenticated: clients prove themselves with
//! the token, inside.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use super::files;
use crate::limits::{TLS_READ_BYTES, TLS_RECORD_BYTES};
use crate::runtime::Socket;

/// What the server shows to clients.
#[derive(Clone, Debug)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
}

impl Acceptor {
    /// Reads a certificate chain and its key, both PEM; the key's file must be
    /// its owner's alone.
    ///
    /// # Errors
    /// Which file is wrong, how, and what to do.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, String> {
        let shown = certificate.display();
        let pem = files::read("certificate file", certificate)?;
        let chain = CertificateDer::pem_slice_iter(&pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| format!("certificate file {shown}: {error}; it must be PEM"))?;
        if chain.is_empty() {
            return Err(format!(
                "certificate file {shown} holds no certificate: it must be PEM, the server's own first"
            ));
        }
        let key_shown = key.display();
        let pem = files::read_secret("key file", key)?;
        let key = PrivateKeyDer::from_pem_slice(&pem)
            .map_err(|error| format!("key file {key_shown}: {error}; it must be PEM"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS: {error}"))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| format!("certificate {shown} with key {key_shown}: {error}"))?;
        Ok(Self {
            config: Arc::new(config),
        })
    }

    /// Puts TLS on a fresh connection; the handshake runs with the first read.
    ///
    /// # Errors
    /// When rustls cannot make a session, which it always can with a
    /// configuration that it has taken.
    pub fn accept(&self, socket: Socket) -> io::Result<ClientStream> {
        let session = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        Ok(ClientStream::Tls(Box::new(TlsSocket {
            socket,
            state: RefCell::new(State {
                session,
                outgoing: Vec::new(),
                sent: 0,
                taken: 0,
            }),
        })))
    }
}

/// A client's connection, plain or under TLS.
#[derive(Debug)]
pub enum ClientStream {
    /// As it comes.
    Plain(Socket),
    /// Under TLS.
    Tls(Box<TlsSocket>),
}

impl ClientStream {
    /// Reads what has arrived into `buffer`; zero at the end of the stream.
    ///
    /// # Errors
    /// When the connection is broken, or what came is no TLS.
    pub fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_read(cx, buffer),
            Self::Tls(tls) => tls.poll_read(cx, buffer),
        }
    }

    /// Hands bytes to the kernel without waiting; the number it took in full.
    /// After pending, call again with the same bytes in front.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_write(cx, bytes),
            Self::Tls(tls) => tls.poll_write(cx, bytes),
        }
    }

    /// Reads exactly `buffer.len()` bytes.
    ///
    /// # Errors
    /// `UnexpectedEof` when the stream ends first; else as
    /// [`ClientStream::poll_read`].
    pub async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match std::future::poll_fn(|cx| self.poll_read(cx, &mut buffer[filled..])).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => filled += read,
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match std::future::poll_fn(|cx| self.poll_write(cx, &bytes[written..])).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                more => written += more,
            }
        }
        Ok(())
    }

    /// Ends both directions, so that a pending read sees the end at once.
    pub fn close(&self) {
        self.socket().close();
    }

    /// Says that nothing more will be sent; what was written still arrives.
    pub fn finish(&self) {
        self.socket().finish();
    }

    fn socket(&self) -> &Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &tls.socket,
        }
    }
}

/// A socket under TLS.
#[derive(Debug)]
pub struct TlsSocket {
    socket: Socket,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    session: ServerConnection,
    /// Ciphertext on its way, and how much of it the kernel has taken.
    outgoing: Vec<u8>,
    sent: usize,
    /// Plaintext bytes of the write in progress that are in `outgoing`.
    taken: usize,
}

impl TlsSocket {
    fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let state = &mut *self.state.borrow_mut();
        let mut arrived = [0; TLS_READ_BYTES];
        loop {
            // What a full socket kept from an earlier handshake message.
            if let Poll::Ready(Err(error)) = state.flush(&self.socket, cx) {
                return Poll::Ready(Err(error));
            }
            match state.session.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
            let count = ready!(self.socket.poll_read(cx, &mut arrived))?;
            if count == 0 {
                return Poll::Ready(Ok(0));
            }
            let mut rest = &arrived[..count];
            while !rest.is_empty() {
                state.session.read_tls(&mut rest)?;
                if let Err(error) = state.session.process_new_packets() {
                    // The alert that says what was wrong, if it can still be sent.
                    let _ = state.flush(&self.socket, cx);
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
            }
        }
    }

    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let state = &mut *self.state.borrow_mut();
        if state.taken == 0 {
            let some = &bytes[..bytes.len().min(TLS_RECORD_BYTES)];
            state.taken = state.session.writer().write(some)?;
        }
        ready!(state.flush(&self.socket, cx))?;
        Poll::Ready(Ok(std::mem::take(&mut state.taken)))
    }
}

impl State {
    /// Hands ciphertext to the kernel; ready once it has taken all there is.
    fn flush(&mut self, socket: &Socket, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.outgoing)?;
        }
        while self.sent < self.outgoing.len() {
            match ready!(socket.poll_write(cx, &self.outgoing[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}
