//! Sockets, as one executor sees them: calls that never block, and the ring to
//! say when to make them.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll, ready};

use socket2::{Domain, Protocol, Type};

use crate::limits::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, LISTEN_BACKLOG};

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

/// The options of a listener; the sockets that it accepts inherit them.
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

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
