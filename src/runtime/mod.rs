//! The executors, their sockets and timers: the only place that knows how a core
//! is run (one io_uring each, `docs/adr/0007-our-own-executor.md`).
//!
//! Everything here is one executor's own and never leaves its thread, except
//! [`Executor`] handles and the wakers of its tasks.

mod cores;
mod executor;
mod net;
mod ring;
mod starvation;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

pub use cores::Cores;
use executor::Timer;
pub use executor::{Executor, after_io, expect_news, own_core, spawn_local};
pub use net::{Listener, QuietListener, Socket};
pub use starvation::OwnCore;

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

/// Runs `work` on a helper thread, for what has no asynchronous form. Helpers are
/// as many as there is work at a time: none waits behind another. It starts at once,
/// on any core.
pub fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> R + Send + 'static,
) -> impl Future<Output = R> + Unpin {
    blocking::unblock(|| {
        cores::roam();
        work()
    })
}

/// Ready after `duration`.
pub async fn sleep(duration: Duration) {
    Timer::after(duration).await;
}

/// A timer that can be polled beside other things and moved.
#[derive(Debug, Default)]
pub struct Alarm {
    armed: Option<(u64, Timer)>,
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
            let timer = Timer::after(clock.until(deadline_ms));
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
    let mut timer = Timer::after(limit);
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

/// Runs both futures to their end, as parts of one task.
pub async fn both(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    let (mut one_ended, mut other_ended) = (false, false);
    poll_fn(|cx| {
        one_ended = one_ended || one.as_mut().poll(cx).is_ready();
        other_ended = other_ended || other.as_mut().poll(cx).is_ready();
        if one_ended && other_ended {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[cfg(test)]
mod tests;
