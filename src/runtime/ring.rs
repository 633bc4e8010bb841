//! One executor's io_uring: which descriptors are ready, and sleeping until one
//! is or another thread has something.
//!
//! The ring is used for waiting only. Reads and writes of sockets are plain
//! calls that never block, made when the ring says that they get somewhere: a
//! buffer is then needed only while there are bytes for it, which is what lets
//! one executor hold ten thousand idle connections.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use slab::Slab;

use crate::limits::{RING_COMPLETIONS, RING_DEPTH};

/// Completions that nobody waits for: those of cancellations.
const NOBODY: u64 = u64::MAX;
/// Completions of the bell that other threads ring.
const BELL: u64 = u64::MAX - 1;

const POLLIN: u32 = 0x0001;
const POLLPRI: u32 = 0x0002;
const POLLOUT: u32 = 0x0004;
const POLLERR: u32 = 0x0008;
const POLLHUP: u32 = 0x0010;
const POLLRDHUP: u32 = 0x2000;
/// After any of these a short read does not mean that all there was has been
/// taken: an end or an error may be behind it, or more than an urgent byte, where
/// reads stop.
const MORE: u32 = POLLPRI | POLLERR | POLLHUP | POLLRDHUP;

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// Something to read, or to accept: told each time that more arrives.
    Read,
    /// Room to write: told once.
    Write,
}

/// A descriptor that is watched, until [`Ring::forget`].
#[derive(Debug)]
struct Watched {
    fd: RawFd,
    interest: Interest,
    waker: Option<Waker>,
    ready: bool,
    // A short read does not mean that there is no more.
    more: bool,
    // The kernel has the request.
    armed: bool,
    // Its owner is gone; the place is free once the kernel has let go of it.
    forgotten: bool,
}

/// The ring, and what is watched through it.
pub(super) struct Ring {
    ring: IoUring,
    watched: Slab<Watched>,
    bell: RawFd,
    bell_armed: bool,
    woken: Vec<Waker>,
}

impl Ring {
    /// A ring of this thread, which `bell`, an event descriptor that must stay
    /// open as long as the ring, wakes from its sleep.
    ///
    /// # Errors
    /// The kernel's reason: switched off, forbidden, or no memory.
    pub(super) fn new(bell: BorrowedFd<'_>) -> io::Result<Self> {
        let ring = IoUring::builder()
            // Completions are made where they are waited for, and interrupt
            // nothing meanwhile.
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(RING_COMPLETIONS)
            .build(RING_DEPTH)?;
        ring.submitter().register_ring_fd()?;
        let mut made = Self {
            ring,
            watched: Slab::new(),
            bell: bell.as_raw_fd(),
            bell_armed: false,
            woken: Vec::new(),
        };
        made.arm_bell();
        Ok(made)
    }

    /// Watches a descriptor; its owner forgets it before it closes it.
    pub(super) fn watch(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> usize {
        let place = self.watched.insert(Watched {
            fd: fd.as_raw_fd(),
            interest,
            waker: None,
            ready: false,
            more: false,
            armed: false,
            forgotten: false,
        });
        self.arm(place);
        place
    }

    /// Ready when a call on the descriptor may get somewhere; the task is woken
    /// when it may.
    pub(super) fn poll_ready(&mut self, place: usize, cx: &Context<'_>) -> Poll<()> {
        let watched = &mut self.watched[place];
        if watched.ready {
            return Poll::Ready(());
        }
        match &mut watched.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => watched.waker = Some(cx.waker().clone()),
        }
        if !watched.armed {
            self.arm(place);
        }
        Poll::Pending
    }

    /// Notes that less was read than there was room for: there is no more for now,
    /// unless there may be, which would ring no more.
    pub(super) fn drained(&mut self, place: usize) {
        let watched = &mut self.watched[place];
        watched.ready = watched.more;
    }

    /// Notes that a call would have had to wait.
    pub(super) fn not_ready(&mut self, place: usize) {
        let watched = &mut self.watched[place];
        watched.ready = false;
        watched.more = false;
    }

    /// Ends a watch.
    pub(super) fn forget(&mut self, place: usize) {
        let watched = &mut self.watched[place];
        watched.waker = None;
        if watched.armed {
            watched.forgotten = true;
            // Not a removal of the poll, which the kernel refuses while it is about
            // to tell of an event; the connection would live on.
            let cancel = opcode::AsyncCancel::new(place as u64).build();
            self.push(cancel.user_data(NOBODY));
        } else {
            self.watched.remove(place);
        }
    }

    /// Tells the kernel what is new, takes in what it has to tell, and wakes
    /// those concerned. With `wait`, sleeps until there is something, or for
    /// that long.
    pub(super) fn turn(&mut self, wait: Option<Option<Duration>>) {
        if wait.is_some() || self.has_news() {
            self.enter(wait);
        }
        self.take_in();
        if !self.bell_armed {
            self.arm_bell();
        }
        for waker in self.woken.drain(..) {
            waker.wake();
        }
    }

    /// Whether a turn would find something, without a call into the kernel.
    pub(super) fn has_news(&mut self) -> bool {
        let mut submission = self.ring.submission();
        submission.sync();
        !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
    }

    fn enter(&mut self, wait: Option<Option<Duration>>) {
        let submitter = self.ring.submitter();
        let entered = match wait {
            None => submitter.submit(),
            Some(None) => submitter.submit_and_wait(1),
            Some(Some(limit)) => {
                let limit = Timespec::from(limit);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        if let Err(error) = entered {
            let expected = [
                rustix::io::Errno::TIME,
                rustix::io::Errno::INTR,
                // Completions wait to be taken in first, or the kernel is short of memory.
                rustix::io::Errno::BUSY,
                rustix::io::Errno::AGAIN,
            ];
            let known = error.raw_os_error();
            assert!(
                expected.iter().any(|one| Some(one.raw_os_error()) == known),
                "io_uring fails: {error}"
            );
        }
    }

    fn take_in(&mut self) {
        let mut completions = self.ring.completion();
        completions.sync();
        for completion in &mut completions {
            let more = cqueue::more(completion.flags());
            match completion.user_data() {
                NOBODY => {}
                BELL => self.bell_armed = more,
                place => {
                    let place = place as usize;
                    let watched = &mut self.watched[place];
                    watched.armed = more;
                    if watched.forgotten {
                        if !more {
                            self.watched.remove(place);
                        }
                        continue;
                    }
                    watched.ready = true;
                    // A refused request is made again by the next who would have to wait.
                    let events = u32::try_from(completion.result()).unwrap_or(0);
                    watched.more |= events & MORE != 0;
                    self.woken.extend(watched.waker.take());
                }
            }
        }
    }

    fn arm(&mut self, place: usize) {
        let watched = &mut self.watched[place];
        watched.armed = true;
        let (events, again) = match watched.interest {
            Interest::Read => (POLLIN | POLLPRI | POLLRDHUP, true),
            Interest::Write => (POLLOUT, false),
        };
        let poll = opcode::PollAdd::new(Fd(watched.fd), events).multi(again);
        self.push(poll.build().user_data(place as u64));
    }

    fn arm_bell(&mut self) {
        self.bell_armed = true;
        let poll = opcode::PollAdd::new(Fd(self.bell), POLLIN).multi(true);
        self.push(poll.build().user_data(BELL));
    }

    fn push(&mut self, entry: squeue::Entry) {
        loop {
            // SAFETY: the requests made here point to no memory.
            #[allow(unsafe_code)]
            let pushed = unsafe { self.ring.submission().push(&entry) };
            if pushed.is_ok() {
                return;
            }
            self.enter(None);
            self.take_in();
        }
    }
}
