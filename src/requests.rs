//! Signals: SIGTERM and SIGINT ask for a stop, from the first moment on; SIGHUP asks for tokens and
//! certificates to be read again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Stop, in order.
    Stop,
    /// Read tokens and certificates again.
    Reload,
}

/// Watches for requests.
#[derive(Debug)]
pub struct Requests {
    asked: mpsc::Receiver<Request>,
    is_opening: Arc<AtomicBool>,
}

impl Requests {
    /// Watches on a thread of its own. Until [`Requests::opened`] a request to stop
    /// ends the process at once, with exit code 0: nobody has been served yet,
    /// and a folder that is being opened may be left at any instant.
    ///
    /// # Errors
    /// The kernel's reason when the signals cannot be caught.
    pub fn watch() -> io::Result<Self> {
        let (tell, asked) = mpsc::channel();
        let is_opening = Arc::new(AtomicBool::new(true));
        let watched = Arc::clone(&is_opening);
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        std::thread::spawn(move || {
            for signal in signals.forever() {
                let request = match signal {
                    SIGHUP => Request::Reload,
                    _ => Request::Stop,
                };
                if request == Request::Stop && watched.load(Ordering::Acquire) {
                    tracing::info!("stopped before it served");
                    std::process::exit(0);
                }
                if tell.send(request).is_err() {
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

    /// Waits for a request for that long; gives it if one came.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Option<Request> {
        match self.asked.recv_timeout(limit) {
            Ok(request) => Some(request),
            Err(RecvTimeoutError::Timeout) => None,
            // The watching thread is gone: nobody can ask for anything any more.
            Err(RecvTimeoutError::Disconnected) => Some(Request::Stop),
        }
    }
}
