//! SIGTERM and SIGINT: a request to stop, from the first moment on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Watches for requests to stop.
#[derive(Debug)]
pub struct StopRequest {
    asked: mpsc::Receiver<()>,
    is_opening: Arc<AtomicBool>,
}

impl StopRequest {
    /// Watches on a thread of its own. Until [`StopRequest::opened`] a signal
    /// ends the process at once, with exit code 0: nobody has been served yet,
    /// and a folder that is being opened may be left at any instant.
    ///
    /// # Errors
    /// The kernel's reason when the signals cannot be caught.
    pub fn watch() -> io::Result<Self> {
        let (tell, asked) = mpsc::channel();
        let is_opening = Arc::new(AtomicBool::new(true));
        let watched = Arc::clone(&is_opening);
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        std::thread::spawn(move || {
            for _ in signals.forever() {
                if watched.load(Ordering::Acquire) {
                    tracing::info!("stopped before it served");
                    std::process::exit(0);
                }
                if tell.send(()).is_err() {
                    return;
                }
            }
        });
        Ok(Self { asked, is_opening })
    }

    /// From now on a stop is the caller's to carry out, in order.
    pub fn opened(&self) {
        self.is_opening.store(false, Ordering::Release);
    }

    /// Waits for a request for that long; whether there was one.
    #[must_use]
    pub fn came_within(&self, limit: Duration) -> bool {
        !matches!(
            self.asked.recv_timeout(limit),
            Err(RecvTimeoutError::Timeout)
        )
    }
}
