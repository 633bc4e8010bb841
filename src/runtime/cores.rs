//! Which processor core each executor runs on.
//!
//! An executor that stays on a core of its own keeps its caches, and the append
//! thread that stays there with it is handed its work without a wake-up across
//! cores (`docs/adr/0008-pinned-cores.md`).

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where this process may run, as it was started.
static ALLOWED: OnceLock<CpuSet> = OnceLock::new();

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

    /// Those of `cores` that the executors need, in order.
    ///
    /// # Errors
    /// What to write instead: too few, one twice, or one that this process may
    /// not run on.
    pub fn named(cores: &[usize], executors: usize) -> Result<Self, String> {
        let allowed = allowed();
        if cores.len() < executors {
            return Err(format!(
                "cores names {}, and {executors} executors run (one for each shard, and one for the \
                 consensus role unless it shares one): name as many, or set shards",
                cores.len()
            ));
        }
        for (place, core) in cores.iter().enumerate() {
            if *core >= CpuSet::MAX_CPU || !allowed.is_set(*core) {
                return Err(format!(
                    "cores names core {core}, which this process may not run on: see `taskset -p` and \
                     the service's CPUAffinity"
                ));
            }
            if cores[..place].contains(core) {
                return Err(format!("cores names core {core} twice"));
            }
        }
        Ok(Self {
            cores: cores[..executors].to_vec(),
            _claims: cores.iter().filter_map(|core| claim(*core).ok()).collect(),
        })
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

/// Keeps the calling thread, and those that it starts, on one core.
///
/// # Errors
/// The kernel's reason.
pub(super) fn stay_on(core: usize) -> io::Result<()> {
    // Before the first thread that is kept anywhere.
    allowed();
    let mut one = CpuSet::new();
    one.set(core);
    Ok(sched_setaffinity(None, &one)?)
}

/// Lets the calling thread run wherever the process may, if an executor's core
/// was handed down to it.
pub(super) fn roam() {
    if let Some(allowed) = ALLOWED.get() {
        let _ = sched_setaffinity(None, allowed);
    }
}
