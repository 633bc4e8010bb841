//! How long nobody is granted anything when the leader goes.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::load::Load;
use crate::network;
use crate::nodes::{Cluster, PATIENCE};

/// How the leader goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its process is killed.
    Killed,
    /// Nothing gets through between it and the other nodes, without a reset; clients still reach it.
    CutOff,
    /// It is told to stop.
    Stopped,
}

/// What is allowed.
struct Bound {
    p50: Option<Duration>,
    worst: Duration,
}

impl Event {
    /// All of them.
    pub const ALL: [Event; 3] = [Event::Killed, Event::CutOff, Event::Stopped];

    fn name(self) -> &'static str {
        match self {
            Self::Killed => "leader killed",
            Self::CutOff => "leader cut off from the other nodes",
            Self::Stopped => "planned stop of the leader",
        }
    }

    fn bound(self) -> Bound {
        match self {
            Self::Killed => Bound {
                p50: Some(Duration::from_millis(100)),
                worst: Duration::from_millis(500),
            },
            Self::CutOff => Bound {
                p50: None,
                worst: Duration::from_secs(1),
            },
            Self::Stopped => Bound {
                p50: None,
                worst: Duration::from_millis(100),
            },
        }
    }
}

/// A killed node is back by then.
const BACK_WITHIN: Duration = Duration::from_secs(3);
/// How long the load is watched after each event.
const WATCH: Duration = Duration::from_millis(2_000);
/// Clients that lost their connection to a node come back to it by then.
const SETTLE: Duration = Duration::from_millis(4_500);

/// Runs the rounds of each event and prints the figures.
pub fn run(binary: &Path, nodes: usize, rounds: usize) -> Result<(), String> {
    let mut cluster = Cluster::start(binary, nodes)?;
    let load = Load::start(&cluster.shape())?;
    let mut short = Vec::new();
    for event in Event::ALL {
        let mut gaps = Vec::new();
        let before = load.counts.summary();
        for round in 0..rounds {
            std::thread::sleep(SETTLE);
            load.wait_for_grant(PATIENCE)
                .inspect_err(|_| cluster.print_logs())?;
            let gap = one(&mut cluster, &load, event).inspect_err(|_| cluster.print_logs())?;
            println!("{}, round {}: {:.1} ms", event.name(), round + 1, ms(gap));
            if gap > event.bound().worst {
                cluster.print_logs();
            }
            gaps.push(gap);
        }
        gaps.sort_unstable();
        let (p50, worst) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
        let bound = event.bound();
        let holds = worst < bound.worst && bound.p50.is_none_or(|most| p50 < most);
        println!(
            "{}: p50 {:.1} ms, worst {:.1} ms of {rounds} rounds (bound: {}worst {:.0} ms): {}",
            event.name(),
            ms(p50),
            ms(worst),
            bound
                .p50
                .map_or(String::new(), |p50| format!("p50 {:.0} ms, ", ms(p50))),
            ms(bound.worst),
            if holds { "holds" } else { "FALLS SHORT" }
        );
        println!("  before: {before}");
        println!("  now:    {}", load.counts.summary());
        if !holds {
            short.push(event.name());
        }
    }
    match (load.counts.violation(), short.is_empty()) {
        (Some(violation), _) => Err(violation),
        (None, true) => Ok(()),
        (None, false) => Err(format!("short of the bound: {}", short.join(", "))),
    }
}

/// The longest time from the event on in which nobody was granted anything.
fn one(cluster: &mut Cluster, load: &Load, event: Event) -> Result<Duration, String> {
    let leader = cluster.leader()?;
    let indeterminate = load
        .counts
        .indeterminate
        .load(std::sync::atomic::Ordering::Relaxed);
    // Until a client is back at a node, that one's leadership is of no use to it.
    let is_connected = |slot| cluster.status(slot).is_some_and(|s| s["connections"] != 0);
    cluster.wait_until("clients are back at every node", || {
        (0..cluster.slots()).all(is_connected)
    })?;
    let began = Instant::now();
    match event {
        Event::Killed => cluster.kill(leader)?,
        Event::CutOff => network::cut_off(leader, cluster.slots())?,
        Event::Stopped => cluster.signal(leader, Signal::TERM)?,
    }
    std::thread::sleep(WATCH);
    let gap = silence(load, began)?;
    match event {
        Event::Killed => {
            std::thread::sleep((began + BACK_WITHIN).saturating_duration_since(Instant::now()) / 2);
            cluster.run(leader)?;
        }
        Event::CutOff => network::heal()?,
        Event::Stopped => {
            let status = cluster.reap(leader)?;
            if !status.success() {
                return Err(format!("a planned stop ended with {status}"));
            }
            let now = load
                .counts
                .indeterminate
                .load(std::sync::atomic::Ordering::Relaxed);
            if now != indeterminate {
                return Err(format!(
                    "a planned stop left {} requests indeterminate",
                    now - indeterminate
                ));
            }
            cluster.run(leader)?;
        }
    }
    cluster.wait_listening(leader)?;
    Ok(gap)
}

fn silence(load: &Load, began: Instant) -> Result<Duration, String> {
    load.wait_for_grant(PATIENCE)?;
    Ok(load.longest_silence(began, Instant::now()))
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}
