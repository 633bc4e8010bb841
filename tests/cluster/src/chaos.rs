//! The published client's chaos load while nodes are killed, frozen, stopped, cut off and replaced.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::load::Load;
use crate::network;
use crate::nodes::{Cluster, PATIENCE};
use crate::rng::Rng;

/// What is done to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// `kill -9`, back after a while.
    Kill,
    /// SIGSTOP past an election, then SIGCONT.
    Freeze,
    /// SIGTERM, back after a while.
    Restart,
    /// Nothing gets through to or from it; clients still reach it.
    CutOff,
    /// Others do not hear it, but it hears them.
    Mute,
    /// It does not hear others, but they hear it.
    Deaf,
    /// Two nodes do not hear each other, and all others hear both.
    Bridge,
    /// A node gets a slot that another had.
    Replace,
    /// Leadership is handed over.
    Transfer,
}

const FAULTS: [Fault; 9] = [
    Fault::Kill,
    Fault::Freeze,
    Fault::Restart,
    Fault::CutOff,
    Fault::Mute,
    Fault::Deaf,
    Fault::Bridge,
    Fault::Replace,
    Fault::Transfer,
];

/// Grants go on within this time of every heal.
const PROGRESS_WITHIN: Duration = Duration::from_secs(5);

/// Runs the load for that long with one fault after another, every kind at least once if there is time.
pub fn run(binary: &Path, nodes: usize, seconds: u64, seed: u64) -> Result<(), String> {
    let mut cluster = Cluster::start(binary, nodes)?;
    let load = Load::start(&cluster.shape())?;
    let mut rng = Rng::new(seed);
    let done = storm(&mut cluster, &load, &mut rng, Duration::from_secs(seconds));
    let done = done.and_then(|faults| {
        load.wait_for_grant(PATIENCE)?;
        Ok(faults)
    });
    if done.is_err() {
        cluster.print_logs();
    }
    let faults = done?;
    println!(
        "chaos: {nodes} nodes, {seconds} s, seed {seed}, {faults} faults: {}",
        load.counts.summary()
    );
    Ok(())
}

fn storm(
    cluster: &mut Cluster,
    load: &Load,
    rng: &mut Rng,
    length: Duration,
) -> Result<usize, String> {
    let end = Instant::now() + length;
    let mut faults = 0;
    let mut round: Vec<Fault> = Vec::new();
    while Instant::now() < end {
        if round.is_empty() {
            round = FAULTS.to_vec();
            for at in (1..round.len()).rev() {
                round.swap(at, rng.below(at as u64 + 1) as usize);
            }
        }
        let Some(fault) = round.pop() else {
            continue;
        };
        // The leader as often as not: it matters most.
        let leader = cluster.leader()?;
        let slot = if rng.one_in(2) {
            leader
        } else {
            rng.below(cluster.slots() as u64) as usize
        };
        let is_leader = if slot == leader { " (the leader)" } else { "" };
        println!("{fault:?} slot {slot}{is_leader}");
        inflict(cluster, rng, fault, slot)?;
        faults += 1;
        let after = load.wait_for_grant(PROGRESS_WITHIN);
        let after = after.map_err(|why| format!("after {fault:?} of slot {slot}: {why}"))?;
        println!(
            "  granted again {:.0} ms after the heal",
            after.as_secs_f64() * 1e3
        );
        rest(rng, 200, 1_500);
    }
    Ok(faults)
}

fn inflict(cluster: &mut Cluster, rng: &mut Rng, fault: Fault, slot: usize) -> Result<(), String> {
    let slots = cluster.slots();
    let other = (slot + 1 + rng.below(slots as u64 - 1) as usize) % slots;
    match fault {
        Fault::Kill => {
            cluster.kill(slot)?;
            rest(rng, 50, 2_500);
            cluster.run(slot)?;
            cluster.wait_listening(slot)?;
        }
        Fault::Freeze => {
            cluster.signal(slot, Signal::STOP)?;
            rest(rng, 1_000, 3_000);
            cluster.signal(slot, Signal::CONT)?;
        }
        Fault::Restart => {
            cluster.signal(slot, Signal::TERM)?;
            let status = cluster.reap(slot)?;
            if !status.success() {
                return Err(format!("a planned stop ended with {status}"));
            }
            rest(rng, 0, 1_000);
            cluster.run(slot)?;
            cluster.wait_listening(slot)?;
        }
        Fault::CutOff => {
            network::cut_off(slot, slots)?;
            rest(rng, 500, 3_000);
            network::heal()?;
        }
        Fault::Mute => {
            for other in (0..slots).filter(|&other| other != slot) {
                network::cut(slot, other)?;
            }
            rest(rng, 500, 3_000);
            network::heal()?;
        }
        Fault::Deaf => {
            for other in (0..slots).filter(|&other| other != slot) {
                network::cut(other, slot)?;
            }
            rest(rng, 500, 3_000);
            network::heal()?;
        }
        Fault::Bridge => {
            network::cut(slot, other)?;
            network::cut(other, slot)?;
            rest(rng, 500, 3_000);
            network::heal()?;
        }
        Fault::Replace => {
            if rng.one_in(2) {
                cluster.kill(slot)?;
            }
            cluster.replace(slot)?;
        }
        Fault::Transfer => {
            // May be refused: a node that has just started is no target.
            cluster.transfer(other);
        }
    }
    Ok(())
}

fn rest(rng: &mut Rng, least_ms: u64, most_ms: u64) {
    let ms = least_ms + rng.below(most_ms - least_ms + 1);
    std::thread::sleep(Duration::from_millis(ms));
}
