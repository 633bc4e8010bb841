//! What the integration tests share: the real server as a process, a client of raw frames, and
//! ways to wait for a condition instead of for a time.
//!
//! A test uses what it needs of it, so each test binary leaves some of it unused.
#![allow(
    dead_code,
    unused_imports,
    reason = "every test binary uses another part of it"
)]

pub mod known;
pub mod raw;
pub mod rng;
pub mod server;
pub mod usage;

use std::time::{Duration, Instant};

pub use raw::RawClient;
pub use server::{Options, Server};

/// How long anything may take that takes milliseconds on an idle machine. Only a broken server
/// ever needs all of it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Beyond what the server promises: what a loaded test machine may add to a measured time.
pub const SLACK: Duration = Duration::from_millis(700);

/// Looks again and again until `holds`; a failure says what never came.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
