//! Leases through the worst: very many that end in the same second, wall clocks that jump by an hour, and
//! elections more frequent than a lease.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ticketing_protocol::Reply;

use crate::clients::{Clients, answer, hold};
use crate::load::Load;
use crate::nodes::{Cluster, PATIENCE};
use crate::raw::RawClient;

/// Connections that acquire.
const CONNECTIONS: usize = 4;
/// Requests on their way on each.
const WINDOW: usize = 256;
/// The leases end so many seconds after the first acquire.
const END_S: u8 = 30;
/// Acquiring them all has to be done by then.
const ACQUIRED_BY: Duration = Duration::from_secs(24);
/// Keys of which somebody waits for the end of the lease.
const SAMPLE: usize = 200;
/// When the last lease has ended, the last lock goes by then.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// Others are granted keys meanwhile: never longer than that without a grant.
const SILENCE_AT_MOST: Duration = Duration::from_millis(500);
/// A holder's lease in the storm of elections, and the time between those.
const STORM_LEASE_S: u8 = 5;
const STORM_EVERY: Duration = Duration::from_millis(700);
const STORM_KEYS: usize = 40;
/// How long after the lease's end and the last election the key can be had at the latest.
const STORM_FREE_WITHIN: Duration = Duration::from_secs(3);

/// Runs both; every node's wall clock jumps all the while.
pub fn run(binary: &Path, count: usize) -> Result<(), String> {
    let mut cluster = Cluster::make(binary, 3)?;
    let clock = cluster.root().join("wall-clock");
    set_clock(&clock, "+0")?;
    cluster.set_environment(fake_clock(&clock)?);
    for slot in 0..cluster.slots() {
        cluster.run(slot)?;
    }
    for slot in 0..cluster.slots() {
        cluster.wait_listening(slot)?;
    }
    let load = Load::start(&cluster.shape())?;
    let jumping = Arc::new(AtomicBool::new(true));
    let jumper = std::thread::spawn({
        let jumping = Arc::clone(&jumping);
        move || jump(&clock, &jumping)
    });
    let done = same_second(&cluster, &load, count).and_then(|()| elections(&cluster, &load));
    jumping.store(false, Ordering::Release);
    let jumps = jumper
        .join()
        .map_err(|_| "the clocks' thread has panicked")??;
    done.inspect_err(|_| cluster.print_logs())?;
    let seen = jumps_seen(&cluster);
    println!(
        "leases: wall clocks jumped {jumps} times, the logs show {seen} jumps; {}",
        load.counts.summary()
    );
    if seen == 0 {
        return Err("the wall clocks did not jump: nothing was shown".to_owned());
    }
    match load.counts.violation() {
        Some(violation) => Err(violation),
        None => Ok(()),
    }
}

/// A held key: when it was asked for, and so cannot have been granted before.
struct Held {
    key: String,
    token: u64,
    asked: Instant,
    lease_s: u8,
}

fn same_second(cluster: &Cluster, load: &Load, count: usize) -> Result<(), String> {
    let clients = Clients::of(cluster)?;
    let began = Instant::now();
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|at| {
            let clients = clients.clone();
            std::thread::spawn(move || {
                acquire_all(&clients, at, count / CONNECTIONS, began, count / SAMPLE)
            })
        })
        .collect();
    let mut sample = Vec::new();
    for thread in threads {
        sample.extend(thread.join().map_err(|_| "a client has panicked")??);
    }
    let took = began.elapsed();
    if took > ACQUIRED_BY {
        return Err(format!(
            "{count} acquires took {took:?}: too long for this test"
        ));
    }
    println!(
        "  {count} leases that end in the same second, acquired in {:.1} s",
        took.as_secs_f64()
    );
    // Somebody waits for each of the sample.
    let mut waiter = clients.connect()?;
    for held in &sample {
        waiter.send_acquire(&held.key, 60, 1);
    }
    let end = began + Duration::from_secs(END_S.into());
    std::thread::sleep(
        (end - Duration::from_millis(200)).saturating_duration_since(Instant::now()),
    );
    let watched = Instant::now();
    let mut worst = Duration::ZERO;
    for _ in 0..sample.len() {
        let (request_id, token) = match answer(&mut waiter, PATIENCE) {
            Ok(Reply::Acquired { request_id, token }) => (request_id, token),
            other => return Err(format!("somebody who waits is not served: {other:?}")),
        };
        let held = &sample[request_id as usize - 1];
        let age = held.asked.elapsed();
        let lease = Duration::from_secs(held.lease_s.into());
        if age < lease || token <= held.token {
            return Err(format!(
                "{} was granted again after {age:?} of a lease of {lease:?}, token {token} after {}",
                held.key, held.token
            ));
        }
        worst = worst.max(age - lease);
    }
    // The load's own keys, and what the waiters hold for a second.
    let others = 8;
    let slot = cluster.leader()?;
    let last_end = end + Duration::from_secs(1);
    let gone = loop {
        let left = cluster
            .status(slot)
            .and_then(|status| status["locks_held"].as_u64());
        if left.is_some_and(|left| left <= others) {
            break Instant::now();
        }
        if last_end.elapsed() > GONE_WITHIN + PATIENCE {
            return Err(format!(
                "{left:?} locks are left {:?} after the last lease's end",
                last_end.elapsed()
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let silence = load.longest_silence(watched, Instant::now());
    println!(
        "  none early; those who waited got it at most {:.0} ms late, all were gone {:.1} s after the last one's end; \
         others were never longer than {:.0} ms without a grant",
        worst.as_secs_f64() * 1e3,
        gone.saturating_duration_since(last_end).as_secs_f64(),
        silence.as_secs_f64() * 1e3
    );
    if gone.saturating_duration_since(last_end) > GONE_WITHIN {
        return Err(format!(
            "locks outlive their leases by more than {GONE_WITHIN:?}"
        ));
    }
    if silence > SILENCE_AT_MOST {
        return Err(format!("nobody else was served for {silence:?}"));
    }
    Ok(())
}

/// Acquires keys with whatever lease ends in that second; gives every `one_in`th.
fn acquire_all(
    clients: &Clients,
    number: usize,
    count: usize,
    began: Instant,
    one_in: usize,
) -> Result<Vec<Held>, String> {
    let mut client = clients.connect()?;
    let mut sample = Vec::new();
    let mut asked: VecDeque<Held> = VecDeque::new();
    let mut sent = 0;
    let mut granted = 0;
    while granted < count {
        while sent < count && asked.len() < WINDOW {
            let elapsed_s = began.elapsed().as_secs();
            let lease_s = u64::from(END_S).saturating_sub(elapsed_s).max(1) as u8;
            let key = format!("seat-{number}-{sent}");
            let at = Instant::now();
            client.send_acquire(&key, 0, lease_s);
            asked.push_back(Held {
                key,
                token: 0,
                asked: at,
                lease_s,
            });
            sent += 1;
        }
        // Answers of different shards overtake each other.
        match answer(&mut client, PATIENCE) {
            Ok(Reply::Acquired { request_id, token }) => {
                let oldest = sent - asked.len() + 1;
                let at = request_id as usize - oldest;
                asked[at].token = token;
            }
            other => return Err(format!("an acquire of a free key: {other:?}")),
        }
        granted += 1;
        while asked.front().is_some_and(|held| held.token != 0) {
            let number = sent - asked.len();
            if let Some(held) = asked.pop_front()
                && number.is_multiple_of(one_in)
            {
                sample.push(held);
            }
        }
    }
    Ok(sample)
}

/// Hands leadership over again and again, more often than a lease is long.
fn elections(cluster: &Cluster, load: &Load) -> Result<(), String> {
    let mut client = Clients::of(cluster)?.connect()?;
    let mut held = Vec::new();
    for number in 0..STORM_KEYS {
        let key = format!("storm-{number}");
        let asked = Instant::now();
        let token = hold(&mut client, &key, STORM_LEASE_S)?;
        held.push(Held {
            key,
            token,
            asked,
            lease_s: STORM_LEASE_S,
        });
    }
    let lease = Duration::from_secs(STORM_LEASE_S.into());
    let began = Instant::now();
    let mut elections = 0;
    let mut asked_at = Instant::now();
    while !held.is_empty() {
        if began.elapsed() > lease + PATIENCE {
            return Err(format!("{} keys are never free", held.len()));
        }
        // Until the leases' end and a little longer.
        if asked_at.elapsed() > STORM_EVERY && began.elapsed() < lease + STORM_EVERY {
            let before = cluster.leader()?;
            cluster.transfer((before + 1) % cluster.slots());
            if cluster.leader()? != before {
                elections += 1;
            }
            asked_at = Instant::now();
        }
        let Ok(mut prober) = Clients::of(cluster)?.connect() else {
            continue;
        };
        try_all(&mut prober, &mut held, began)?;
        std::thread::sleep(Duration::from_millis(50));
    }
    println!(
        "  {STORM_KEYS} leases of {STORM_LEASE_S} s through {elections} elections, one each {} ms: none ended early, \
         all had ended {:.1} s after the first",
        STORM_EVERY.as_millis(),
        began.elapsed().as_secs_f64()
    );
    if elections < 4 {
        return Err(format!("{elections} elections are no storm"));
    }
    if began.elapsed() > lease + STORM_EVERY + STORM_FREE_WITHIN {
        return Err(format!(
            "the last key was free only after {:?}",
            began.elapsed()
        ));
    }
    load.wait_for_grant(PATIENCE).map(drop)
}

/// Tries to get every key at once; whoever gets one must not have got it early.
fn try_all(prober: &mut RawClient, held: &mut Vec<Held>, began: Instant) -> Result<(), String> {
    let mut at = 0;
    while let Some(one) = held.get(at) {
        let sent = prober.send_acquire_unless_closed(&one.key, 0, 1);
        if sent.is_none() {
            return Ok(());
        }
        match answer(prober, PATIENCE) {
            Ok(Reply::Acquired { token, .. }) => {
                let age = one.asked.elapsed();
                if age < Duration::from_secs(one.lease_s.into()) || token <= one.token {
                    return Err(format!(
                        "{} was granted again after {age:?}, {:?} into the storm, token {token} after {}",
                        one.key,
                        began.elapsed(),
                        one.token
                    ));
                }
                held.swap_remove(at);
            }
            // Refused, moved, or nobody can tell: it is tried again.
            Ok(_) => at += 1,
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// Processes with these see the wall clock that the file tells; all other clocks are as they are.
fn fake_clock(file: &Path) -> Result<Vec<(String, String)>, String> {
    let library = library().ok_or("needs libfaketime (Debian package libfaketime)")?;
    let pairs = [
        ("LD_PRELOAD", library.as_path()),
        ("FAKETIME_TIMESTAMP_FILE", file),
        ("FAKETIME_NO_CACHE", Path::new("1")),
        ("FAKETIME_DONT_FAKE_MONOTONIC", Path::new("1")),
    ];
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_string_lossy().into_owned()));
    Ok(pairs.to_vec())
}

fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    folders
        .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
        .chain([PathBuf::from("/usr/lib/faketime/libfaketimeMT.so.1")])
        .find(|path| path.exists())
}

fn set_clock(file: &Path, offset: &str) -> Result<(), String> {
    let new = file.with_extension("new");
    fs::write(&new, format!("{offset}\n")).map_err(|error| error.to_string())?;
    fs::rename(&new, file).map_err(|error| error.to_string())
}

fn jump(clock: &Path, jumping: &AtomicBool) -> Result<usize, String> {
    let mut jumps = 0;
    while jumping.load(Ordering::Acquire) {
        let offset = ["+3600", "-3600", "+0"][jumps % 3];
        set_clock(clock, offset)?;
        jumps += 1;
        std::thread::sleep(Duration::from_millis(900));
    }
    Ok(jumps)
}

/// How often a log's time stamps go back by more than half an hour.
fn jumps_seen(cluster: &Cluster) -> usize {
    let mut seen = 0;
    for slot in 0..cluster.slots() {
        let log = cluster.log(slot);
        // `2026-12-07T08:00:00.000000Z`: hours and minutes tell enough.
        let minutes: Vec<i64> = log
            .lines()
            .filter_map(|line| {
                let at = line.find('T')?;
                let hours: i64 = line.get(at + 1..at + 3)?.parse().ok()?;
                let minutes: i64 = line.get(at + 4..at + 6)?.parse().ok()?;
                Some(hours * 60 + minutes)
            })
            .collect();
        seen += minutes
            .windows(2)
            .filter(|pair| (pair[0] - pair[1]).abs() > 30)
            .count();
    }
    seen
}
