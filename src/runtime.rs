//! The executors, their sockets and timers: the only file that knows
//! which thread-per-core runtime this is (glommio).
//!
//! Everything here is one executor's own and never leaves its thread, except
//! [`Executor`] handles.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd as _, IntoRawFd as _};
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_io::AsyncRead as _;
use futures_io::AsyncWrite as _;
use glommio::{LocalExecutorBuilder, Placement};
use socket2::{Domain, Protocol, Type};

use crate::limits::{
    KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, LISTEN_BACKLOG, RING_DEPTH,
};

/// One point in time that all cores of a process count from.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// Milliseconds since the start, monotonic: a jump of the wall clock does
    /// not show.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// How long until `deadline_ms`; zero when it has passed.
    #[must_use]
    pub fn until(&self, deadline_ms: u64) -> Duration {
        Duration::from_millis(deadline_ms).saturating_sub(self.start.elapsed())
    }
}

/// A running executor: one thread, one set of rings.
#[derive(Debug)]
pub struct Executor {
    thread: JoinHandle<()>,
}

impl Executor {
    /// Starts a thread named `name`, pinned to `cpu` when given, and runs the
    /// future that `main` makes on an executor of its own until it ends.
    ///
    /// # Errors
    /// When the thread or its rings cannot be made: the reason the kernel gave.
    pub fn spawn<F>(
        name: &str,
        cpu: Option<usize>,
        main: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = ()> + 'static,
    {
        let (started, wait) = mpsc::sync_channel(1);
        let placement = cpu.map_or(Placement::Unbound, Placement::Fixed);
        let label = name.to_owned();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // The preemption timer stays at its default of 100 ms: with
                // shorter ones the executor can park while tasks are runnable.
                let made = LocalExecutorBuilder::new(placement)
                    .name(&label)
                    .ring_depth(RING_DEPTH)
                    .make();
                match made {
                    Ok(executor) => {
                        let _ = started.send(Ok(()));
                        executor.run(async move { main().await });
                    }
                    Err(error) => {
                        let _ = started.send(Err(io::Error::other(error.to_string())));
                    }
                }
            })?;
        match wait.recv() {
            Ok(Ok(())) => Ok(Self { thread }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("the executor's thread ended at start")),
        }
    }

    /// Waits for the executor's main future to end.
    ///
    /// # Errors
    /// When its thread panicked.
    pub fn join(self) -> io::Result<()> {
        self.thread
            .join()
            .map_err(|_| io::Error::other("an executor's thread panicked"))
    }
}

/// Runs `task` on this executor until it ends by itself.
pub fn spawn_local(task: impl Future<Output = ()> + 'static) {
    glommio::spawn_local(task).detach();
}

/// Runs `work` on a helper thread, for what has no asynchronous form.
pub async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    // In a task of its own: the runtime keeps a waker for every poll of such a
    // future until it is done, and allows a task 32,767 of them. A caller that
    // is polled for other reasons meanwhile would use them up.
    glommio::spawn_local(async move { glommio::executor().spawn_blocking(work).await }).await
}

/// Ready after `duration`.
pub async fn sleep(duration: Duration) {
    glommio::timer::sleep(duration).await;
}

/// A timer that can be polled beside other things and moved.
#[derive(Debug, Default)]
pub struct Alarm {
    armed: Option<(u64, glommio::timer::Timer)>,
}

impl Alarm {
    /// Ready once `deadline_ms` has passed; never without a deadline. A timer
    /// that is armed for an earlier time is left alone: waking early is
    /// harmless and cheaper than moving it.
    pub fn poll_due(
        &mut self,
        cx: &mut Context<'_>,
        clock: &Clock,
        deadline_ms: Option<u64>,
    ) -> Poll<()> {
        let Some(deadline_ms) = deadline_ms else {
            return Poll::Pending;
        };
        let keep = matches!(&self.armed, Some((at_ms, _)) if *at_ms <= deadline_ms);
        if !keep {
            let timer = glommio::timer::Timer::new(clock.until(deadline_ms));
            self.armed = Some((deadline_ms, timer));
        }
        let Some((_, timer)) = &mut self.armed else {
            return Poll::Pending;
        };
        match Pin::new(timer).poll(cx) {
            Poll::Ready(_) => {
                self.armed = None;
                Poll::Ready(())
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Runs `work` for at most `limit`.
///
/// # Errors
/// `TimedOut` when it did not end in time; it is dropped then.
pub async fn timeout<T>(limit: Duration, work: impl Future<Output = T>) -> io::Result<T> {
    let mut work = std::pin::pin!(work);
    let mut timer = glommio::timer::Timer::new(limit);
    poll_fn(|cx| {
        if let Poll::Ready(value) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(value));
        }
        Pin::new(&mut timer)
            .poll(cx)
            .map(|_| Err(io::ErrorKind::TimedOut.into()))
    })
    .await
}

/// Runs both futures to their end on this executor.
pub async fn both(one: impl Future<Output = ()>, other: impl Future<Output = ()> + 'static) {
    let other = glommio::spawn_local(other);
    one.await;
    other.await;
}

/// A listening socket of this executor. Several executors may listen on one
/// address; the kernel spreads the connections over them.
#[derive(Debug)]
pub struct Listener {
    inner: glommio::net::TcpListener,
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
        socket.bind(&address.into())?;
        // Not the runtime's own, which lets 1,024 wait: of a burst that is larger
        // the kernel drops some that believe themselves connected.
        socket.listen(LISTEN_BACKLOG)?;
        prepare(socket.as_fd())?;
        // SAFETY: the descriptor is open, and from here on the runtime's alone.
        #[allow(unsafe_code)]
        let inner = unsafe { glommio::net::TcpListener::from_raw_fd(socket.into_raw_fd()) };
        Ok(Self { inner })
    }

    /// The next connection, its options set.
    ///
    /// # Errors
    /// The kernel's reason; running out of descriptors is the usual one.
    pub async fn accept(&self) -> io::Result<Socket> {
        let stream = self.inner.accept().await.map_err(io::Error::from)?;
        Ok(Socket {
            stream: RefCell::new(stream),
        })
    }
}

/// A connected socket. It may be polled for reading by one task and written to
/// by another of the same executor.
#[derive(Debug)]
pub struct Socket {
    stream: RefCell<glommio::net::TcpStream>,
}

impl Socket {
    /// Reads what has arrived into `buffer`; zero at the end of the stream.
    ///
    /// # Errors
    /// The kernel's reason when the connection is broken.
    pub fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_read(cx, buffer)
    }

    /// Hands bytes to the kernel without waiting; the number it took, or
    /// pending, in which case `cx` is woken once it takes more.
    ///
    /// # Errors
    /// The kernel's reason when the connection is broken.
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_write(cx, bytes)
    }

    /// Ends both directions, so that a pending read sees the end at once.
    pub fn close(&self) {
        with_fd(&*self.stream.borrow(), |fd| {
            // An error means the other side was faster.
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        });
    }

    /// Says that nothing more will be sent; what was written still arrives.
    pub fn finish(&self) {
        with_fd(&*self.stream.borrow(), |fd| {
            // An error means the other side was faster.
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Write);
        });
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

fn with_fd<R>(socket: &impl AsRawFd, act: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
    // SAFETY: the descriptor belongs to `socket`, which is borrowed for longer
    // than the borrowed descriptor lives; the runtime's types offer no safe
    // way to it.
    #[allow(unsafe_code)]
    let fd = unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) };
    act(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_on_a_helper_thread_may_be_polled_any_number_of_times() {
        let executor = Executor::spawn("test", None, || async {
            let (go_on, wait) = mpsc::channel();
            let mut job = std::pin::pin!(blocking(move || wait.recv()));
            // More often than the runtime lets a task be woken by one job.
            for poll in 0..40_000 {
                poll_fn(|cx| {
                    assert!(job.as_mut().poll(cx).is_pending());
                    Poll::Ready(())
                })
                .await;
                if poll % 10_000 == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            }
            go_on.send(7).expect("the job waits");
            assert_eq!(job.await, Ok(7));
        });
        executor.expect("it starts").join().expect("no panic");
    }

    #[test]
    fn a_burst_waits_to_be_accepted_and_every_socket_has_its_options() {
        use rustix::net::sockopt;
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("readable");
        let most: usize = most.trim().parse().expect("a number");
        let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        files.current = files.maximum;
        rustix::process::setrlimit(rustix::process::Resource::Nofile, files).expect("raised");
        // Twice what the runtime's own listener would let wait.
        let burst = most.min(2_048);
        let executor = Executor::spawn("test", None, move || async move {
            let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("bound");
            let address = listener.inner.local_addr().expect("an address");
            let mut waiting = Vec::new();
            for number in 0..burst {
                // One that finds no room is only tried again after a second.
                let limit = Duration::from_millis(900);
                let stream = std::net::TcpStream::connect_timeout(&address, limit);
                waiting.push(stream.unwrap_or_else(|error| panic!("{number}: {error}")));
            }
            let socket = listener.accept().await.expect("accepted");
            with_fd(&*socket.stream.borrow(), |fd| {
                assert_eq!(sockopt::socket_reuseaddr(fd), Ok(true));
                assert_eq!(sockopt::tcp_nodelay(fd), Ok(true));
                assert_eq!(sockopt::socket_keepalive(fd), Ok(true));
                assert_eq!(sockopt::tcp_keepidle(fd), Ok(KEEPALIVE_IDLE));
                assert_eq!(sockopt::tcp_keepintvl(fd), Ok(KEEPALIVE_INTERVAL));
                assert_eq!(sockopt::tcp_keepcnt(fd), Ok(KEEPALIVE_PROBES));
            });
        });
        executor.expect("it starts").join().expect("no panic");
    }
}
