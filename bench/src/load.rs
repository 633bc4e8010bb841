//! The published client's own load, in this process, with its checks on.
//!
//! Tasks (64, unless told otherwise) take their turn through a shuffled list of keys (32), acquire, step into the critical
//! section, step out, release. No two may be inside one key's section, and at the end each
//! key's counter must stand at exactly the number of its turns.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use published::{BrokerMode, ReleaseOutcome, TicketBroker};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::machine::{self, Cpu};

/// How many want how much.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Tasks at work at once.
    pub tasks: usize,
    /// Keys they contend for: `worker-0` and so on.
    pub keys: usize,
}

/// The published client's own load.
pub const CONTENDED: Shape = Shape {
    tasks: 64,
    keys: 32,
};

const WAIT: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(30);
const MIN_WORK: Duration = Duration::from_secs(1);
const READY_WITHIN: Duration = Duration::from_secs(10);

/// Latencies are kept from 1 us to 10 minutes, to three digits.
const LATENCY_MAX_US: u64 = 600_000_000;
const LATENCY_DIGITS: u8 = 3;

/// What to connect to.
#[derive(Clone, Debug)]
pub enum Target {
    /// A server in single mode, without a token.
    Single(SocketAddr),
    /// A cluster.
    Cluster {
        /// Its nodes, by slot.
        addrs: Vec<SocketAddr>,
        /// The client token.
        token: String,
        /// Its identity fingerprint.
        fingerprint: [u8; 32],
    },
}

impl Target {
    fn broker(&self) -> Result<TicketBroker, LoadError> {
        match self {
            Target::Single(addr) => Ok(TicketBroker::connect_loopback([addr.to_string()])),
            Target::Cluster {
                addrs,
                token,
                fingerprint,
            } => TicketBroker::builder()
                .addrs(addrs.iter().map(ToString::to_string))
                .token(token.clone())
                .mode(BrokerMode::Cluster {
                    identity_fingerprint: *fingerprint,
                })
                .connect()
                .map_err(|error| LoadError::Target(error.to_string())),
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Load {
    /// The server or the cluster.
    pub target: Target,
    /// Tasks and keys.
    pub shape: Shape,
    /// Acquire and release pairs to measure.
    pub pairs: u64,
    /// Pairs to run first, not measured.
    pub warm_up_pairs: u64,
    /// The servers' processes, to read their CPU time; a cluster's leader first.
    pub server_pids: Vec<u32>,
    /// Where the shuffle starts.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Pairs completed, each with a positive answer to its release.
    pub pairs: u64,
    /// Wall-clock time of the measured part, in seconds.
    pub elapsed_s: f64,
    /// Pairs per second.
    pub pairs_per_s: f64,
    /// Acquire and release together: the median, in microseconds.
    pub p50_us: u64,
    /// The 99th percentile, in microseconds.
    pub p99_us: u64,
    /// The longest, in microseconds.
    pub max_us: u64,
    /// CPU time of the client's process a pair, in microseconds.
    pub client_cpu_us_per_pair: f64,
    /// CPU time of the server's process a pair, in microseconds, if its process is known.
    pub server_cpu_us_per_pair: Option<f64>,
    /// CPU time of each follower's process a pair, in microseconds, of a cluster.
    pub follower_cpu_us_per_pair: Vec<f64>,
}

/// Why a run does not count.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No connection in time.
    #[error("no connection to {0:?} within {READY_WITHIN:?}: is a server listening there?")]
    NotReady(Target),
    /// The client refuses to connect so.
    #[error("the client: {0}")]
    Target(String),
    /// An acquire failed.
    #[error("acquire of {key} failed: {error}")]
    Acquire {
        /// The key.
        key: String,
        /// The client's error.
        error: String,
    },
    /// A release failed, or found that the key was no longer held.
    #[error("release of {key} failed: {error}")]
    Release {
        /// The key.
        key: String,
        /// The client's error.
        error: String,
    },
    /// Two holders at once.
    #[error("two tasks were inside the critical section of {0} at once")]
    Overlap(String),
    /// A token that is not above the last one of its key.
    #[error("{key} was granted under token {token} after {last}")]
    Token {
        /// The key.
        key: String,
        /// The token.
        token: u64,
        /// The one before.
        last: u64,
    },
    /// A counter is off.
    #[error("{key} counted {counted} turns instead of {expected}")]
    Count {
        /// The key.
        key: String,
        /// What its counter says.
        counted: u64,
        /// How many turns it had.
        expected: u64,
    },
    /// A task panicked.
    #[error("a task died: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// A process's CPU time cannot be read.
    #[error("cannot read CPU time: {0}")]
    Cpu(#[from] std::io::Error),
    /// A latency beyond the histogram.
    #[error("latency not recorded: {0}")]
    Latency(#[from] hdrhistogram::RecordError),
}

/// Runs the load and measures it.
///
/// # Errors
/// The first thing that went wrong; the rest of the load is dropped.
pub async fn run(load: Load) -> Result<Measured, LoadError> {
    let broker = Arc::new(load.target.broker()?);
    if !broker.wait_ready(READY_WITHIN).await {
        return Err(LoadError::NotReady(load.target));
    }
    let Shape { tasks, keys } = load.shape;
    let warm_up = Section::shuffled(load.warm_up_pairs, keys, load.seed);
    run_section(&broker, &warm_up, tasks).await?;

    let section = Section::shuffled(load.pairs, keys, load.seed.wrapping_add(1));
    let client_before = machine::cpu_of_self()?;
    let cpu_of_servers = || {
        let pids = load.server_pids.iter();
        pids.map(|&pid| machine::cpu_of(pid))
            .collect::<Result<Vec<_>, _>>()
    };
    let servers_before = cpu_of_servers()?;
    let started = Instant::now();
    let latency_us = run_section(&broker, &section, tasks).await?;
    let elapsed = started.elapsed();
    let client = machine::cpu_of_self()? - client_before;
    let servers = cpu_of_servers()?;
    let servers = servers.into_iter().zip(servers_before);
    let mut servers = servers.map(|(after, before)| after - before);
    broker.close().await;

    let per_pair = |cpu: Cpu| cpu.as_micros() as f64 / load.pairs as f64;
    Ok(Measured {
        pairs: latency_us.len(),
        elapsed_s: elapsed.as_secs_f64(),
        pairs_per_s: load.pairs as f64 / elapsed.as_secs_f64(),
        p50_us: latency_us.value_at_quantile(0.5),
        p99_us: latency_us.value_at_quantile(0.99),
        max_us: latency_us.max(),
        client_cpu_us_per_pair: per_pair(client),
        server_cpu_us_per_pair: servers.next().map(per_pair),
        follower_cpu_us_per_pair: servers.map(per_pair).collect(),
    })
}

/// The turns to take, and what every turn is checked against.
struct Section {
    /// Key of each turn.
    turns: Vec<usize>,
    next: AtomicUsize,
    keys: Vec<Key>,
}

struct Key {
    name: String,
    is_inside: AtomicBool,
    counted: AtomicU64,
    last_token: AtomicU64,
}

impl Section {
    /// `pairs` turns spread evenly over the keys, in an order that depends on `seed` alone.
    fn shuffled(pairs: u64, keys: usize, seed: u64) -> Arc<Section> {
        let mut turns: Vec<usize> = (0..keys).cycle().take(pairs as usize).collect();
        // Fisher-Yates, fed by a splitmix64 sequence.
        let mut state = seed;
        for at in (1..turns.len()).rev() {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
            turns.swap(at, (mixed % (at as u64 + 1)) as usize);
        }
        let keys = (0..keys).map(|number| Key {
            name: format!("worker-{number}"),
            is_inside: AtomicBool::new(false),
            counted: AtomicU64::new(0),
            last_token: AtomicU64::new(0),
        });
        Arc::new(Section {
            turns,
            next: AtomicUsize::new(0),
            keys: keys.collect(),
        })
    }

    fn next_turn(&self) -> Option<&Key> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.turns.get(turn).map(|&key| &self.keys[key])
    }

    fn check_counts(&self) -> Result<(), LoadError> {
        for (number, key) in self.keys.iter().enumerate() {
            let expected = self.turns.iter().filter(|&&turn| turn == number).count() as u64;
            let counted = key.counted.load(Ordering::Acquire);
            if counted != expected {
                let key = key.name.clone();
                return Err(LoadError::Count {
                    key,
                    counted,
                    expected,
                });
            }
        }
        Ok(())
    }
}

impl Key {
    /// What a holder does. The counter is read, given time to be spoilt, and written: it stays
    /// exact only if nobody else is inside.
    async fn critical_section(&self, token: u64) -> Result<(), LoadError> {
        if self.is_inside.swap(true, Ordering::AcqRel) {
            return Err(LoadError::Overlap(self.name.clone()));
        }
        let last = self.last_token.swap(token, Ordering::AcqRel);
        if token <= last {
            let key = self.name.clone();
            return Err(LoadError::Token { key, token, last });
        }
        let before = self.counted.load(Ordering::Acquire);
        tokio::task::yield_now().await;
        self.counted.store(before + 1, Ordering::Release);
        self.is_inside.store(false, Ordering::Release);
        Ok(())
    }
}

async fn run_section(
    broker: &Arc<TicketBroker>,
    section: &Arc<Section>,
    tasks: usize,
) -> Result<Histogram<u64>, LoadError> {
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        running.spawn(task(Arc::clone(broker), Arc::clone(section)));
    }
    let mut all = histogram();
    // The first error returns, and dropping the set ends every other task.
    while let Some(done) = running.join_next().await {
        for latency_us in done?? {
            all.record(latency_us.clamp(1, LATENCY_MAX_US))?;
        }
    }
    section.check_counts()?;
    Ok(all)
}

/// Takes turns until there are none left; their latencies in microseconds.
async fn task(broker: Arc<TicketBroker>, section: Arc<Section>) -> Result<Vec<u64>, LoadError> {
    let mut latencies_us = Vec::new();
    while let Some(key) = section.next_turn() {
        let started = Instant::now();
        let ticket = broker.acquire(&key.name, WAIT, LEASE, MIN_WORK).await;
        let ticket = ticket.map_err(|error| LoadError::Acquire {
            key: key.name.clone(),
            error: error.to_string(),
        })?;
        key.critical_section(ticket.token()).await?;
        let error = match ticket.release().await {
            Ok(ReleaseOutcome::Released) => {
                latencies_us.push(started.elapsed().as_micros() as u64);
                continue;
            }
            Ok(ReleaseOutcome::AlreadyGoneOrNotCurrent) => "no longer held".to_owned(),
            Err(error) => error.to_string(),
        };
        return Err(LoadError::Release {
            key: key.name.clone(),
            error,
        });
    }
    Ok(latencies_us)
}

fn histogram() -> Histogram<u64> {
    // The bounds are the constants above, and those are in order: this cannot fail.
    Histogram::new_with_bounds(1, LATENCY_MAX_US, LATENCY_DIGITS).expect("constant bounds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_even_and_shuffled_by_seed() {
        let section = Section::shuffled(320, 32, 1);
        for key in 0..32 {
            assert_eq!(
                section.turns.iter().filter(|&&turn| turn == key).count(),
                10
            );
        }
        assert_eq!(section.turns, Section::shuffled(320, 32, 1).turns);
        assert_ne!(section.turns, Section::shuffled(320, 32, 2).turns);
    }

    #[test]
    fn a_counter_that_is_off_is_told() {
        let section = Section::shuffled(32, 32, 1);
        for key in &section.keys {
            key.counted.store(1, Ordering::Release);
        }
        assert!(section.check_counts().is_ok());
        section.keys[5].counted.store(2, Ordering::Release);
        let text = section.check_counts().unwrap_err().to_string();
        assert_eq!(text, "worker-5 counted 2 turns instead of 1");
    }

    #[tokio::test]
    async fn overlaps_and_old_tokens_are_told() {
        let section = Section::shuffled(32, 32, 1);
        let key = &section.keys[0];
        assert!(key.critical_section(7).await.is_ok());
        let error = key.critical_section(7).await.unwrap_err();
        assert!(matches!(
            error,
            LoadError::Token {
                token: 7,
                last: 7,
                ..
            }
        ));
        // That holder never left.
        let error = key.critical_section(8).await.unwrap_err();
        assert!(matches!(error, LoadError::Overlap(_)));
    }
}
