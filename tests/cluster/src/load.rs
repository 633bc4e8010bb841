//! The published client's chaos load: workers that take turns through a few keys, hold each for a moment, and
//! check that nobody else holds it and that its token has grown.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use published::{BrokerMode, ReleaseOutcome, TicketBroker, TicketError, TlsMode};
use tokio::runtime::Runtime;

const WAIT: Duration = Duration::from_secs(4);
const LEASE: Duration = Duration::from_secs(10);
const WORK: Duration = Duration::from_secs(1);
/// What is remembered of each key, for telling what led to a violation.
const STORY: usize = 12;

/// What to connect to, and how much of it.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The clients' address list.
    pub addresses: Vec<String>,
    /// What clients of the cluster are configured with.
    pub fingerprint: [u8; 32],
    /// The client token.
    pub token: String,
    /// Tasks at work at once.
    pub workers: usize,
    /// Keys they contend for.
    pub keys: usize,
    /// How long each holds a key.
    pub hold: Duration,
    /// Who signs the nodes' certificates, if clients are to use TLS.
    pub authority: Option<PathBuf>,
}

/// What has happened so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Pairs of acquire and release that both succeeded.
    pub pairs: AtomicU64,
    /// Two holders of one key at once.
    pub overlaps: AtomicU64,
    /// A token that is not above the last one of its key.
    pub regressions: AtomicU64,
    /// Errors that a client can do nothing about.
    pub fatal: AtomicU64,
    /// Waits that ran out.
    pub timed_out: AtomicU64,
    /// Busy.
    pub busy: AtomicU64,
    /// Nobody can tell.
    pub indeterminate: AtomicU64,
    /// Anything else.
    pub other: AtomicU64,
    // When, and how long it was waited for.
    grants: Mutex<Vec<(Instant, Duration)>>,
    last_error: Mutex<String>,
    violations: Mutex<Vec<String>>,
}

impl Counts {
    /// When keys were granted, in order, from `since` on.
    pub fn grants_since(&self, since: Instant) -> Vec<Instant> {
        let grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        let mut recent: Vec<Instant> = grants
            .iter()
            .rev()
            .map(|(at, _)| *at)
            .take_while(|at| *at >= since)
            .collect();
        recent.sort_unstable();
        recent
    }

    /// What 99 of 100 grants between two instants took at most, from the acquire on, and how many there were.
    pub fn p99(&self, since: Instant, until: Instant) -> (Duration, usize) {
        let grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waits: Vec<Duration> = grants
            .iter()
            .filter(|(at, _)| (since..until).contains(at))
            .map(|(_, waited)| *waited)
            .collect();
        waits.sort_unstable();
        let p99 = waits.get(waits.len() * 99 / 100).copied();
        (p99.unwrap_or(Duration::MAX), waits.len())
    }

    /// Requests that were answered with anything but what was asked for, and those that nobody can tell of.
    pub fn failures(&self) -> u64 {
        let all = [
            &self.fatal,
            &self.timed_out,
            &self.busy,
            &self.indeterminate,
            &self.other,
        ];
        all.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The first thing that must never happen, if it did.
    pub fn violation(&self) -> Option<String> {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let (overlaps, regressions, fatal) = (
            count(&self.overlaps),
            count(&self.regressions),
            count(&self.fatal),
        );
        (overlaps + regressions + fatal > 0).then(|| {
            let error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
            format!(
                "{overlaps} overlapping holders, {regressions} token regressions, {fatal} fatal errors \
                 (last: {error})\n{}",
                self.violations.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
            )
        })
    }

    /// One line.
    pub fn summary(&self) -> String {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        format!(
            "{} pairs, {} overlapping holders, {} token regressions, {} fatal errors; {} timed out, {} busy, \
             {} indeterminate, {} other",
            count(&self.pairs),
            count(&self.overlaps),
            count(&self.regressions),
            count(&self.fatal),
            count(&self.timed_out),
            count(&self.busy),
            count(&self.indeterminate),
            count(&self.other),
        )
    }

    fn granted(&self, waited: Duration) {
        let mut grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        grants.push((Instant::now(), waited));
    }

    fn violated(&self, story: String) {
        let mut violations = self
            .violations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        violations.push(story);
    }

    fn failed(&self, error: &TicketError) -> bool {
        let counter = match error {
            TicketError::Timeout => &self.timed_out,
            TicketError::Busy | TicketError::ClientCapacity => &self.busy,
            TicketError::Indeterminate => &self.indeterminate,
            TicketError::Auth
            | TicketError::InsufficientLease
            | TicketError::UnsupportedDuration { .. }
            | TicketError::InvalidInput(_)
            | TicketError::Protocol(_) => &self.fatal,
            _ => &self.other,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let is_fatal = std::ptr::eq(counter, &self.fatal);
        let mut last = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *last = error.to_string();
        is_fatal
    }
}

/// A load that runs until it is dropped.
pub struct Load {
    runtime: Option<Runtime>,
    stopping: Arc<AtomicBool>,
    broker: TicketBroker,
    /// What has happened so far.
    pub counts: Arc<Counts>,
}

#[derive(Default)]
struct Key {
    is_held: AtomicBool,
    last_token: AtomicU64,
    story: Mutex<VecDeque<(Instant, String)>>,
}

impl Key {
    /// Remembers what happened to the key lately, and tells it.
    fn tell(&self, what: String) -> Vec<String> {
        let mut story = self.story.lock().unwrap_or_else(PoisonError::into_inner);
        if story.len() == STORY {
            story.pop_front();
        }
        story.push_back((Instant::now(), what));
        let told = story
            .iter()
            .map(|(at, what)| format!("{:.1} ms ago {what}", at.elapsed().as_secs_f64() * 1e3));
        told.collect()
    }
}

impl Load {
    /// Connects and starts the workers.
    pub fn start(shape: &Shape) -> Result<Self, String> {
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        let counts = Arc::new(Counts::default());
        let stopping = Arc::new(AtomicBool::new(false));
        let broker = runtime.block_on(connect(shape))?;
        let keys: Arc<Vec<Key>> = Arc::new((0..shape.keys).map(|_| Key::default()).collect());
        for worker in 0..shape.workers {
            runtime.spawn(work(
                broker.clone(),
                worker,
                Arc::clone(&keys),
                shape.hold,
                Arc::clone(&counts),
                Arc::clone(&stopping),
            ));
        }
        Ok(Self {
            runtime: Some(runtime),
            broker,
            stopping,
            counts,
        })
    }

    /// Tries once to get a key, for at most so long, waiting for a second; gives why not if it is refused.
    pub fn try_once(&mut self, key: &str, within: Duration) -> Result<Option<String>, String> {
        let runtime = self.runtime.as_ref().ok_or("it has ended")?;
        let wait = Duration::from_secs(1);
        let acquire = self.broker.acquire(key, wait, LEASE, WORK);
        match runtime.block_on(async { tokio::time::timeout(within, acquire).await }) {
            Err(_) => Err(format!("no answer within {within:?}")),
            Ok(Ok(_)) => Ok(None),
            Ok(Err(error)) => Ok(Some(error.to_string())),
        }
    }

    /// The longest time without a grant between two instants.
    pub fn longest_silence(&self, since: Instant, until: Instant) -> Duration {
        let mut last = since;
        let mut longest = Duration::ZERO;
        for grant in self.counts.grants_since(since) {
            let grant = grant.min(until);
            longest = longest.max(grant - last);
            last = grant;
        }
        longest.max(until - last)
    }

    /// Waits until a key is granted, after now.
    pub fn wait_for_grant(&self, within: Duration) -> Result<Duration, String> {
        let began = Instant::now();
        loop {
            if let Some(violation) = self.counts.violation() {
                return Err(violation);
            }
            if let Some(first) = self.counts.grants_since(began).first() {
                return Ok(*first - began);
            }
            if began.elapsed() > within {
                return Err(format!(
                    "no key was granted for {within:?}; {}",
                    self.counts.summary()
                ));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

/// A client that has reached the leader.
pub async fn connect(shape: &Shape) -> Result<TicketBroker, String> {
    let broker = TicketBroker::builder()
        .addrs(shape.addresses.clone())
        .token(shape.token.clone())
        .mode(BrokerMode::Cluster {
            identity_fingerprint: shape.fingerprint,
        })
        .tls(match &shape.authority {
            Some(file) => TlsMode::Ca(file.clone()),
            None => TlsMode::Off,
        })
        .connect()
        .map_err(|error| error.to_string())?;
    if !broker.wait_ready(Duration::from_secs(15)).await {
        return Err("no node is ready for clients".to_owned());
    }
    let smoke = broker
        .acquire("smoke", Duration::from_secs(15), LEASE, WORK)
        .await;
    let ticket = smoke.map_err(|error| format!("the first acquire: {error}"))?;
    match ticket.release().await {
        Ok(ReleaseOutcome::Released) => Ok(broker),
        Ok(outcome) => Err(format!("the first release: {outcome:?}")),
        Err(error) => Err(format!("the first release: {error}")),
    }
}

async fn work(
    broker: TicketBroker,
    worker: usize,
    keys: Arc<Vec<Key>>,
    hold: Duration,
    counts: Arc<Counts>,
    stopping: Arc<AtomicBool>,
) {
    let mut round = worker;
    while !stopping.load(Ordering::Acquire) {
        round += 1;
        let key = &keys[round % keys.len()];
        let name = format!("chaos-{}", round % keys.len());
        let began = Instant::now();
        match broker.acquire(&name, WAIT, LEASE, hold + WORK).await {
            Ok(ticket) => {
                let waited = began.elapsed();
                counts.granted(waited);
                let token = ticket.token();
                let waited_ms = waited.as_millis();
                let story = key.tell(format!(
                    "worker {worker} granted {token} after {waited_ms} ms"
                ));
                let overlaps = key.is_held.swap(true, Ordering::SeqCst);
                let regresses = key.last_token.fetch_max(token, Ordering::SeqCst) >= token;
                counts
                    .overlaps
                    .fetch_add(u64::from(overlaps), Ordering::Relaxed);
                counts
                    .regressions
                    .fetch_add(u64::from(regresses), Ordering::Relaxed);
                if overlaps || regresses {
                    counts.violated(format!("{name}: {}", story.join(", ")));
                }
                if !hold.is_zero() {
                    tokio::time::sleep(hold).await;
                }
                key.is_held.store(false, Ordering::SeqCst);
                key.tell(format!("worker {worker} gives {token} back"));
                match ticket.release().await {
                    Ok(outcome) => {
                        key.tell(format!("{token} is given back: {outcome:?}"));
                        counts.pairs.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        key.tell(format!("{token} is perhaps given back: {error}"));
                        counts.failed(&error);
                    }
                }
            }
            Err(error) => {
                let pause_ms = if counts.failed(&error) { 200 } else { 5 };
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            }
        }
    }
}
