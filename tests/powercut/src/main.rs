//! Cuts the power under the real server, again and again, at random instants under load. Its data
//! folder is on a disk of ours that keeps, loses or tears what was not synced. Nothing that was
//! acknowledged may be lost, nothing that was released may come back, and no token may come twice.
//!
//! After that a sync fails: the server must end at once with the exit code for it, and answer
//! nothing more.
//!
//! `ticketing-powercut SERVER`, with `SEED` and `CUTS` in the environment. Needs root, `/dev/fuse`
//! and `unshare`.

mod disk;
mod failed_sync;
mod fuse;
#[path = "../../support/known.rs"]
mod known;
#[allow(
    dead_code,
    reason = "shared with the integration tests, which use all of it"
)]
#[path = "../../support/raw.rs"]
mod raw;
#[path = "../../support/rng.rs"]
mod rng;
mod server;
mod trial;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How long anything may take that takes milliseconds on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
const CUTS_DEFAULT: u64 = 50;
const SEED_DEFAULT: u64 = 7;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("powercut: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let binary = std::env::args_os().nth(1).map(PathBuf::from);
    let binary = binary.ok_or("usage: ticketing-powercut SERVER-BINARY")?;
    let binary = binary
        .canonicalize()
        .map_err(|error| format!("{}: {error}", binary.display()))?;
    if !rustix::process::geteuid().is_root() {
        return Err("needs root: it mounts a file system and hides the boot id".to_owned());
    }
    if !std::path::Path::new("/dev/fuse").exists() {
        return Err("needs /dev/fuse: load the kernel module `fuse`".to_owned());
    }
    let seed = number("SEED")?.unwrap_or(SEED_DEFAULT);
    let cuts = number("CUTS")?.unwrap_or(CUTS_DEFAULT);
    println!("powercut: SEED={seed} CUTS={cuts}");
    trial::run(binary.clone(), seed, cuts)
        .map_err(|why| format!("SEED={seed} CUTS={cuts}: {why}"))?;
    failed_sync::run(&binary, seed).map_err(|why| format!("SEED={seed}: a failed sync: {why}"))
}

fn number(name: &str) -> Result<Option<u64>, String> {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => text
            .parse()
            .map(Some)
            .map_err(|_| format!("{name}={text} is no whole number")),
        _ => Ok(None),
    }
}
