//! Clusters under the load of the throughput figures: that nobody is elected without need, that replacing a
//! node goes unnoticed, and that a bad disk does.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::disks::{self, Disk};
use crate::load::Load;
use crate::nodes::{Cluster, PATIENCE, edit};

/// Connections, caches and the log have what they need by then.
const WARM_UP: Duration = Duration::from_secs(3);
/// How long the load is watched before something is done.
const BEFORE: Duration = Duration::from_secs(6);
/// How much longer requests may take while a node is replaced.
const REPLACING_AT_MOST: f64 = 3.0;
/// How much longer requests may take while a follower's disk is bad.
const BAD_FOLLOWER_AT_MOST: f64 = 1.5;
/// A leader whose disk hangs gives up leadership by then.
const GIVES_UP_WITHIN: Duration = Duration::from_secs(1);
/// Then somebody is granted something within that time of the hang: the new leader has what the old one had
/// in its log, and the old one's clients hear of it though its disk hangs.
const GRANTED_WITHIN: Duration = Duration::from_millis(1_500);
/// How long a disk hangs: past an election's time, and every other timer of a node.
const HANGS: Duration = Duration::from_secs(4);

/// Runs the load for that long; fails if anybody is elected.
pub fn calm(binary: &Path, nodes: usize, seconds: u64) -> Result<(), String> {
    let cluster = Cluster::start(binary, nodes)?;
    let load = Load::start(&cluster.full_load())?;
    std::thread::sleep(WARM_UP);
    let leader = cluster.leader()?;
    let before = cluster.terms();
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(seconds));
    let longest = load.longest_silence(began, Instant::now());
    let (after, now) = (cluster.terms(), cluster.leader()?);
    println!(
        "calm: {nodes} nodes, {seconds} s: terms {before:?} before, {after:?} after; longest time without a grant \
         {:.1} ms; {}",
        ms(longest),
        load.counts.summary()
    );
    let is_calm = before.iter().all(Option::is_some) && before == after && leader == now;
    if !is_calm {
        cluster.print_logs();
        return Err("somebody was elected under load".to_owned());
    }
    no_failure(&load)
}

/// Replaces a follower and then the leader under load, `rounds` times.
pub fn replace(binary: &Path, nodes: usize, rounds: usize) -> Result<(), String> {
    let mut cluster = Cluster::start(binary, nodes)?;
    let load = Load::start(&cluster.full_load())?;
    std::thread::sleep(WARM_UP);
    let mut ratios = [Vec::new(), Vec::new()];
    for round in 1..=rounds {
        for (whose, ratios) in ["a follower", "the leader"].into_iter().zip(&mut ratios) {
            let leader = cluster.leader()?;
            let slot = match whose {
                "the leader" => leader,
                _ => (leader + 1) % nodes,
            };
            // The new node's disk is that of all others here: what formatting its folder does to them is no part
            // of a replacement.
            let newcomer = cluster.add_node(slot)?;
            let began = Instant::now();
            std::thread::sleep(BEFORE);
            let (before, _) = load.counts.p99(began, Instant::now());
            let began = Instant::now();
            cluster
                .take_place(newcomer)
                .inspect_err(|_| cluster.print_logs())?;
            let took = began.elapsed();
            let (during, grants) = load.counts.p99(began, Instant::now());
            let longest = load.longest_silence(began, Instant::now());
            let ratio = during.as_secs_f64() / before.as_secs_f64();
            println!(
                "replace, round {round}: {whose} in {:.0} ms: p99 {:.1} ms before, {:.1} ms during it ({ratio:.2}x, \
                 of {grants} grants), longest time without a grant {:.1} ms, {} failed requests",
                ms(took),
                ms(before),
                ms(during),
                ms(longest),
                load.counts.failures()
            );
            ratios.push(ratio);
            no_failure(&load).inspect_err(|_| cluster.print_logs())?;
        }
    }
    println!("replace: {}", load.counts.summary());
    for (whose, ratios) in ["a follower", "the leader"].into_iter().zip(&mut ratios) {
        let median = median(ratios);
        println!("replace: {whose}: median {median:.2}x (bound {REPLACING_AT_MOST}x)");
        if median > REPLACING_AT_MOST {
            return Err(format!("replacing {whose} makes it {median:.2}x"));
        }
    }
    Ok(())
}

/// Slows and hangs the disks of a follower and of the leader, each on a file system of its own.
pub fn disks(binary: &Path, rounds: usize) -> Result<(), String> {
    const NODES: usize = 3;
    let mut cluster = Cluster::make(binary, NODES)?;
    let mut all = Vec::new();
    for slot in 0..NODES {
        let disk = Disk::mount(&cluster.root(), slot)?;
        let data = disk.move_here(&cluster.folder(slot).join("data"))?;
        let changed = format!("data_dir = \"{}\"", data.display());
        edit(&cluster.folder(slot), &[("data_dir = \"data\"", &changed)])?;
        all.push(disk);
    }
    for slot in 0..NODES {
        cluster.run(slot)?;
    }
    for slot in 0..NODES {
        cluster.wait_listening(slot)?;
    }
    let load = Load::start(&cluster.full_load())?;
    std::thread::sleep(WARM_UP);
    for (what, freeze, thaw) in [
        ("hung", HANGS, Duration::ZERO),
        ("slow", disks::SLOW_FROZEN, disks::SLOW_THAWED),
    ] {
        let mut worst = Vec::new();
        for round in 1..=rounds {
            let follower = (cluster.leader()? + 1) % NODES;
            let before = watched(&load, BEFORE / 2);
            let began = Instant::now();
            all[follower].bad_for(HANGS, freeze, thaw)?;
            let (during, _) = load.counts.p99(began, Instant::now());
            cluster.wait_caught_up(follower)?;
            let after = watched(&load, BEFORE / 2);
            let beside = before.max(after);
            let ratio = during.as_secs_f64() / beside.as_secs_f64();
            println!(
                "a follower's disk is {what}, round {round}: p99 {:.1} ms before, {:.1} ms meanwhile, {:.1} ms \
                 after ({ratio:.2}x)",
                ms(before),
                ms(during),
                ms(after)
            );
            worst.push(ratio);
        }
        let median = median(&mut worst);
        println!(
            "a follower's disk is {what}: median {median:.2}x (bound {BAD_FOLLOWER_AT_MOST}x)"
        );
        no_failure(&load).inspect_err(|_| cluster.print_logs())?;
        if median > BAD_FOLLOWER_AT_MOST {
            return Err(format!("a follower's {what} disk makes it {median:.2}x"));
        }
    }
    for round in 1..=rounds {
        let leader = cluster.leader()?;
        let began = Instant::now();
        let mut gave_up = None;
        let frozen = all[leader].freeze_for(HANGS)?;
        while began.elapsed() < HANGS && gave_up.is_none() {
            if !cluster.says_it_leads(leader) {
                gave_up = Some(began.elapsed());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        frozen.wait()?;
        let longest = load.longest_silence(began, Instant::now());
        println!(
            "the leader's disk hangs, round {round}: it gave up leadership after {:.0} ms, longest time without a \
             grant {:.0} ms",
            gave_up.map_or(f64::NAN, ms),
            ms(longest)
        );
        if gave_up.is_none_or(|after| after > GIVES_UP_WITHIN) {
            cluster.print_logs();
            return Err(format!("a leader held on to leadership: {gave_up:?}"));
        }
        if longest > GRANTED_WITHIN {
            cluster.print_logs();
            return Err(format!("nobody was granted anything for {longest:?}"));
        }
        cluster.wait_caught_up(leader)?;
        load.wait_for_grant(PATIENCE)?;
    }
    println!("disks: {}", load.counts.summary());
    match load.counts.violation() {
        Some(violation) => Err(violation),
        None => Ok(()),
    }
}

fn watched(load: &Load, how_long: Duration) -> Duration {
    let began = Instant::now();
    std::thread::sleep(how_long);
    load.counts.p99(began, Instant::now()).0
}

fn no_failure(load: &Load) -> Result<(), String> {
    match (load.counts.violation(), load.counts.failures()) {
        (Some(violation), _) => Err(violation),
        (None, failed) if failed > 0 => Err(format!(
            "{failed} requests failed: {}",
            load.counts.summary()
        )),
        (None, _) => Ok(()),
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}
