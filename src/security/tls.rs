//! TLS towards clients and between nodes: the certificates, and a socket that speaks it.
//!
//! rustls does the cryptography on buffers; the bytes go through the executor's
//! own sockets. Towards clients only the server is authenticated: they prove
//! themselves with the token, inside. So do nodes, which may have to show certificates as well.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

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
        let own = Identity::from_files(certificate, key)?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS: {error}"))?
            .with_no_client_auth();
        own.into_server(config)
    }

    /// Puts TLS on a fresh connection; the handshake runs with the first read.
    ///
    /// # Errors
    /// When rustls cannot make a session, which it always can with a
    /// configuration that it has taken.
    pub fn accept(&self, socket: Socket) -> io::Result<ClientStream> {
        let session = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        Ok(ClientStream::under_tls(socket, Connection::Server(session)))
    }
}

/// What a node shows to others, and what it expects of them.
#[derive(Clone, Debug)]
pub struct PeerTls {
    accept: Acceptor,
    connect: Arc<ClientConfig>,
}

impl PeerTls {
    /// Reads this node's certificate chain and key and the certificates of whoever signs the nodes', all
    /// PEM. With `mutual`, whoever connects has to show one, too.
    ///
    /// # Errors
    /// Which file is wrong, how, and what to do.
    pub fn from_files(
        certificate: &Path,
        key: &Path,
        authority: &Path,
        mutual: bool,
    ) -> Result<Self, String> {
        let own = Identity::from_files(certificate, key)?;
        let shown = authority.display();
        let mut roots = RootCertStore::empty();
        for signer in chain("authority's certificate file", authority)? {
            roots
                .add(signer)
                .map_err(|error| format!("authority's certificate file {shown}: {error}"))?;
        }
        let roots = Arc::new(roots);
        let server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS: {error}"))?;
        let server = if mutual {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider())
                    .build()
                    .map_err(|error| format!("authority's certificate file {shown}: {error}"))?;
            server.with_client_cert_verifier(verifier)
        } else {
            server.with_no_client_auth()
        };
        let connect = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS: {error}"))?
            .with_root_certificates(roots)
            .with_client_auth_cert(own.chain.clone(), own.key.clone_key())
            .map_err(|error| format!("{own}: {error}"))?;
        Ok(Self {
            accept: own.into_server(server)?,
            connect: Arc::new(connect),
        })
    }

    /// Puts TLS on a connection that came in.
    ///
    /// # Errors
    /// As [`Acceptor::accept`].
    pub fn accept(&self, socket: Socket) -> io::Result<ClientStream> {
        self.accept.accept(socket)
    }

    /// Puts TLS on a connection to `host`, whose certificate must name that address.
    ///
    /// # Errors
    /// As [`Acceptor::accept`].
    pub fn connect(&self, socket: Socket, host: IpAddr) -> io::Result<ClientStream> {
        let name = ServerName::IpAddress(host.into());
        let session =
            ClientConnection::new(Arc::clone(&self.connect), name).map_err(io::Error::other)?;
        Ok(ClientStream::under_tls(socket, Connection::Client(session)))
    }
}

/// A certificate chain and its key.
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    shown: String,
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Identity {
    fn from_files(certificate: &Path, key: &Path) -> Result<Self, String> {
        let chain = chain("certificate file", certificate)?;
        let key_shown = key.display();
        let pem = files::read_secret("key file", key)?;
        let key = PrivateKeyDer::from_pem_slice(&pem)
            .map_err(|error| format!("key file {key_shown}: {error}; it must be PEM"))?;
        Ok(Self {
            chain,
            key,
            shown: format!("certificate {} with key {key_shown}", certificate.display()),
        })
    }

    fn into_server(
        self,
        config: rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert>,
    ) -> Result<Acceptor, String> {
        let config = config
            .with_single_cert(self.chain, self.key)
            .map_err(|error| format!("{}: {error}", self.shown))?;
        Ok(Acceptor {
            config: Arc::new(config),
        })
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The certificates in a PEM file, of which there must be one.
fn chain(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = path.display();
    let pem = files::read(what, path)?;
    let chain = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("{what} {shown}: {error}; it must be PEM"))?;
    if chain.is_empty() {
        return Err(format!(
            "{what} {shown} holds no certificate: it must be PEM, the server's own first"
        ));
    }
    Ok(chain)
}

/// A connection, plain or under TLS.
#[derive(Debug)]
pub enum ClientStream {
    /// As it comes.
    Plain(Socket),
    /// Under TLS.
    Tls(Box<TlsSocket>),
}

impl ClientStream {
    fn under_tls(socket: Socket, session: Connection) -> Self {
        Self::Tls(Box::new(TlsSocket {
            socket,
            state: RefCell::new(State {
                session,
                outgoing: Vec::new(),
                sent: 0,
                taken: 0,
            }),
        }))
    }

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

    /// The other side's IP address, if the kernel still knows it.
    #[must_use]
    pub fn peer_ip(&self) -> Option<IpAddr> {
        self.socket().peer_ip()
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
    session: Connection,
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
