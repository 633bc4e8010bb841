//! Which processor core each executor runs on.
//!
//! An executor that stays on a core of its own keeps its caches, and the append
//! thread that stays there with it is handed its work without a wake-up across
//! cores (`docs/adr/0008-pinned-cores.md`).

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where this process may run, as it was started.
static ALLOWED: OnceLock<CpuSet> = OnceLock::new();

/// Cores that threads of this process were kept on.
static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// How often a server looks whether another one is done choosing, and how long it waits each time.
const CHOOSING_TRIES: u32 = 50;
const CHOOSING_PAUSE: Duration = Duration::from_millis(10);

/// The cores of a node's executors, by executor; held against other servers for
/// as long as this lives.
#[derive(Debug, Default)]
pub struct Cores {
    cores: Vec<usize>,
    _claims: Vec<UnixListener>,
}

impl Cores {
    /// A core for each of `executors`, the last ones first, where each can have
    /// one that no other server has; else none: they run anywhere.
    ///
    /// Servers see each other's cores within a network namespace.
    #[must_use]
    pub fn free(executors: usize) -> Self {
        let allowed = allowed();
        let mut made = Self::default();
        // One server chooses at a time: two could each take what the other needs, and both go without.
        let _choosing = choosing();
        for core in (0..CpuSet::MAX_CPU).rev() {
            if made.cores.len() == executors {
                break;
            }
            if allowed.is_set(core)
                && let Ok(claim) = claim(core)
            {
                made.cores.push(core);
                made._claims.push(claim);
            }
        }
        if made.cores.len() == executors {
            made
        } else {
            Self::default()
        }
    }

    /// Checks a list of cores.
    ///
    /// # Errors
    /// What to write instead: none, too few, one twice, or one that this process may not run on.
    pub fn check(cores: &[usize], executors: usize) -> Result<(), String> {
        let allowed = allowed();
        if cores.is_empty() {
            return Err(
                "cores = [] names no core: write \"any\" to have executors run on any, or leave it out"
                    .to_owned(),
            );
        }
        if cores.len() < executors {
            return Err(format!(
                "cores names {}, and {executors} executors run (one for each shard, and one for the \
                 consensus role unless it shares one): name as many, or set shards",
                cores.len()
            ));
        }
        for (place, core) in cores.iter().enumerate() {
            if *core >= CpuSet::MAX_CPU {
                return Err(format!(
                    "cores names core {core}: cores are numbered from 0 to {} at most",
                    CpuSet::MAX_CPU - 1
                ));
            }
            if !allowed.is_set(*core) {
                return Err(format!(
                    "cores names core {core}, which this process may not run on: see `taskset -p` and \
                     the service's CPUAffinity"
                ));
            }
            if cores[..place].contains(core) {
                return Err(format!("cores names core {core} twice"));
            }
        }
        Ok(())
    }

    /// Those of `cores` that the executors need, in order. That another server has one of them too is told
    /// in the log.
    ///
    /// # Errors
    /// As [`Cores::check`].
    pub fn named(cores: &[usize], executors: usize) -> Result<Self, String> {
        Self::check(cores, executors)?;
        let mut made = Self::default();
        for &core in &cores[..executors] {
            made.cores.push(core);
            match claim(core) {
                Ok(claim) => made._claims.push(claim),
                Err(_) => tracing::warn!(
                    core,
                    "another server on this machine has this core too: both are slower than on cores of their own"
                ),
            }
        }
        Ok(made)
    }

    /// The core of that executor, if it has one.
    #[must_use]
    pub fn of(&self, executor: usize) -> Option<usize> {
        self.cores.get(executor).copied()
    }

    /// All of them, by executor; empty when they run anywhere.
    #[must_use]
    pub fn list(&self) -> &[usize] {
        &self.cores
    }
}

fn claim(core: usize) -> io::Result<UnixListener> {
    let name = UnixAddr::from_abstract_name(format!("ticketing/core/{core}"))?;
    UnixListener::bind_addr(&name)
}

fn allowed() -> &'static CpuSet {
    // What cannot be asked for cannot be chosen from.
    ALLOWED.get_or_init(|| sched_getaffinity(None).unwrap_or_default())
}

/// Held by the server that is choosing its cores, if that can be had.
fn choosing() -> Option<UnixListener> {
    let name = UnixAddr::from_abstract_name("ticketing/cores").ok()?;
    for _ in 0..CHOOSING_TRIES {
        if let Ok(held) = UnixListener::bind_addr(&name) {
            return Some(held);
        }
        std::thread::sleep(CHOOSING_PAUSE);
    }
    None
}

fn only(core: usize) -> CpuSet {
    let mut one = CpuSet::new();
    one.set(core);
    one
}

/// Keeps the calling thread, and those that it starts, on one core.
///
/// # Errors
/// The kernel's reason.
pub(super) fn stay_on(core: usize) -> io::Result<()> {
    // Before the first thread that is kept anywhere.
    allowed();
    KEPT.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(core);
    Ok(sched_setaffinity(None, &only(core))?)
}

/// Lets the calling thread run wherever the process may, if it is on the core that it was kept on: where an
/// administrator has put it since, it stays. True if it was.
pub(super) fn leave(core: usize) -> bool {
    let one = only(core);
    *allowed() != one
        && sched_getaffinity(None).is_ok_and(|now| now == one)
        && sched_setaffinity(None, allowed()).is_ok()
}

/// Keeps the calling thread on its core again, if it may run wherever the process may. True if it does.
pub(super) fn return_to(core: usize) -> bool {
    sched_getaffinity(None).is_ok_and(|now| now == *allowed())
        && sched_setaffinity(None, &only(core)).is_ok()
}

/// Lets the calling thread run wherever the process may, if an executor's core
/// was handed down to it.
pub(super) fn roam() {
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let _ = kept.iter().any(|&core| leave(core));
}
