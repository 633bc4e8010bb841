//! Sockets, as one executor sees them: calls that never block, and the ring to
//! say when to make them.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::{Domain, Protocol, Type};

use crate::limits::{
    KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, LISTEN_BACKLOG, PEER_UNACKNOWLEDGED,
};

use super::executor::Watch;
use super::ring::Interest;

/// A listening socket of this executor. Several executors may listen on one
/// address; the kernel spreads the connections over them.
#[derive(Debug)]
pub struct Listener {
    // Before the socket, so that it ends first.
    arriving: Watch,
    socket: TcpListener,
}

impl Listener {
    /// Listens on `address`, sharing it with the other executors (and, as the
    /// kernel sees it, with any process of the same user: check with
    /// [`crate::security::port::claim`] first).
    ///
    /// # Errors
    /// The kernel's reason when the address cannot be used.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = socket2::Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_port(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        // Of a burst larger than this the kernel drops some that believe
        // themselves connected.
        socket.listen(LISTEN_BACKLOG)?;
        prepare(socket.as_fd())?;
        let socket = TcpListener::from(socket);
        Ok(Self {
            arriving: Watch::new(socket.as_fd(), Interest::Read),
            socket,
        })
    }

    /// The address, its port as the kernel gave it.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The next connection, its options set.
    ///
    /// # Errors
    /// The kernel's reason; running out of descriptors is the usual one.
    pub async fn accept(&self) -> io::Result<Socket> {
        poll_fn(|cx| {
            loop {
                ready!(self.arriving.poll_ready(cx));
                match self.socket.accept() {
                    Ok((stream, _)) => return Poll::Ready(Socket::new(stream)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.arriving.not_ready();
                    }
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        })
        .await
    }
}

/// A listening socket whose connections are accepted on a helper thread. When its process is killed
/// the kernel closes it at once; one that a ring watches is closed with the ring, which takes the kernel
/// some 200 ms, and until then whoever connects believes that somebody is there.
#[derive(Debug)]
pub struct QuietListener {
    socket: Arc<TcpListener>,
}

impl QuietListener {
    /// Listens on `address`, which nobody else may have.
    ///
    /// # Errors
    /// The kernel's reason when the address cannot be used.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = socket2::Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        prepare(socket.as_fd())?;
        give_up_unacknowledged(socket.as_fd())?;
        socket.bind(&address.into())?;
        socket.listen(LISTEN_BACKLOG)?;
        Ok(Self {
            socket: Arc::new(TcpListener::from(socket)),
        })
    }

    /// The next connection, its options set.
    ///
    /// # Errors
    /// The kernel's reason; running out of descriptors is the usual one.
    pub async fn accept(&self) -> io::Result<Socket> {
        let socket = Arc::clone(&self.socket);
        let (stream, _) = super::blocking(move || socket.accept()).await?;
        Socket::new(stream)
    }
}

/// A connected socket. It may be polled for reading by one task and written to
/// by another of the same executor.
#[derive(Debug)]
pub struct Socket {
    // Before the stream, so that they end first.
    arriving: Watch,
    // While the kernel has no room for what is to be sent.
    room: RefCell<Option<Watch>>,
    stream: TcpStream,
}

impl Socket {
    /// Connects to `address`, from the address of `from` unless that is a wildcard.
    ///
    /// # Errors
    /// The kernel's reason: `ConnectionRefused` when nobody listens there.
    pub async fn connect(from: IpAddr, address: SocketAddr) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = socket2::Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        prepare(socket.as_fd())?;
        give_up_unacknowledged(socket.as_fd())?;
        if !from.is_unspecified() && from.is_ipv4() == address.is_ipv4() {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        match socket.connect(&address.into()) {
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            done => done?,
        }
        let socket = Self::new(TcpStream::from(socket))?;
        let room = Watch::new(socket.stream.as_fd(), Interest::Write);
        poll_fn(|cx| room.poll_ready(cx)).await;
        drop(room);
        match socket.stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(socket),
        }
    }

    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            arriving: Watch::new(stream.as_fd(), Interest::Read),
            room: RefCell::new(None),
            stream,
        })
    }

    /// Reads what has arrived into `buffer`; zero at the end of the stream.
    ///
    /// # Errors
    /// The kernel's reason when the connection is broken.
    pub fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.arriving.poll_ready(cx));
            match (&self.stream).read(buffer) {
                Ok(count) => {
                    if count < buffer.len() {
                        self.arriving.drained();
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.arriving.not_ready();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Hands bytes to the kernel without waiting; the number it took, or
    /// pending, in which case `cx` is woken once it takes more.
    ///
    /// # Errors
    /// The kernel's reason when the connection is broken.
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match (&self.stream).write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut room = self.room.borrow_mut();
                    let room = room
                        .get_or_insert_with(|| Watch::new(self.stream.as_fd(), Interest::Write));
                    room.not_ready();
                    // Told anew, as what was told before is not so any more.
                    let _ = room.poll_ready(cx);
                    return Poll::Pending;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => {
                    self.room.borrow_mut().take();
                    return Poll::Ready(done);
                }
            }
        }
    }

    /// The other side's IP address, if the kernel still knows it.
    #[must_use]
    pub fn peer_ip(&self) -> Option<IpAddr> {
        let address = self.stream.peer_addr().ok()?;
        Some(address.ip().to_canonical())
    }

    /// Ends both directions, so that a pending read sees the end at once.
    pub fn close(&self) {
        // An error means the other side was faster.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Says that nothing more will be sent; what was written still arrives.
    pub fn finish(&self) {
        // An error means the other side was faster.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// The options of a socket; those that a listener accepts inherit them.
fn prepare(fd: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::net::sockopt;
    // So that connections of the last run that are still closing do not keep
    // the next one from claiming the address.
    sockopt::set_socket_reuseaddr(fd, true)?;
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(fd, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(fd, KEEPALIVE_PROBES)?;
    Ok(())
}

/// Between nodes; see [`PEER_UNACKNOWLEDGED`].
fn give_up_unacknowledged(fd: BorrowedFd<'_>) -> io::Result<()> {
    let ms = u32::try_from(PEER_UNACKNOWLEDGED.as_millis()).unwrap_or(u32::MAX);
    rustix::net::sockopt::set_tcp_user_timeout(fd, ms)?;
    Ok(())
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
