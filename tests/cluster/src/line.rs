//! A long line of waiters on one key when the leader dies.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ticketing_protocol::Reply;

use crate::clients::{Clients, answer, hold};
use crate::nodes::{Cluster, PATIENCE};
use crate::raw::{RawClient, is_closed};

const KEY: &str = "the-one-seat";
/// The longest that can be asked for, and longer than any round.
const WAIT_S: u8 = 60;
const LEASE_S: u8 = 20;
/// The line on the new leader moves by then.
const MOVES_WITHIN: Duration = Duration::from_secs(1);
/// All of it has had the key by then.
const LINE_WITHIN: Duration = Duration::from_secs(60);

/// How the key gets free on the new leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freed {
    Released,
    LeaseEnds,
}

/// Kills the leader with that line; once with a holder that gives back, once with one that does not.
pub fn run(binary: &Path, nodes: usize, connections: usize, waiters: usize) -> Result<(), String> {
    for freed in [Freed::Released, Freed::LeaseEnds] {
        let mut cluster = Cluster::start(binary, nodes)?;
        one(&mut cluster, connections, waiters, freed).inspect_err(|_| cluster.print_logs())?;
    }
    Ok(())
}

fn one(
    cluster: &mut Cluster,
    connections: usize,
    waiters: usize,
    freed: Freed,
) -> Result<(), String> {
    let old = Clients::of(cluster)?;
    let leader = cluster.leader()?;
    let mut holder = old.connect()?;
    let token = hold(&mut holder, KEY, LEASE_S)?;
    let held = Instant::now();
    let mut line = stand(&old, connections, waiters)?;
    let count = (connections * waiters) as u64;
    wait_for_line(cluster, leader, count)?;
    cluster.kill(leader)?;
    let died = Instant::now();
    // Whoever stood there hears something: at least that the connection is gone.
    let mut answered = 0;
    for client in &mut line {
        answered += hear_the_end(client, waiters)?;
    }
    println!(
        "line, {freed:?}: {count} waiters of {connections} connections heard {answered} answers and the rest the \
         end of their connections {:.0} ms after the leader's death",
        died.elapsed().as_secs_f64() * 1e3
    );
    let new = Clients::of(cluster)?;
    let now_leads = cluster.leader()?;
    let line = stand(&new, connections, waiters)?;
    wait_for_line(cluster, now_leads, count)?;
    let began = Instant::now();
    let turns = Arc::new(Turns::default());
    turns.last.store(token, Ordering::SeqCst);
    let all: Vec<JoinHandle<Result<(), String>>> = line
        .into_iter()
        .map(|client| {
            let turns = Arc::clone(&turns);
            std::thread::spawn(move || take_turns(client, waiters, &turns))
        })
        .collect();
    let free = match freed {
        Freed::Released => {
            let mut holder = new.connect()?;
            holder.send_release(KEY, token);
            let free = Instant::now();
            match answer(&mut holder, PATIENCE) {
                Ok(Reply::Released { .. }) => free,
                other => return Err(format!("the holder's release on the new leader: {other:?}")),
            }
        }
        Freed::LeaseEnds => held + Duration::from_secs(LEASE_S.into()),
    };
    for thread in all {
        thread.join().map_err(|_| "a client has panicked")??;
    }
    let first = turns.first(began).ok_or("nobody was granted the key")?;
    let after = first.saturating_duration_since(free);
    println!(
        "line, {freed:?}: on the new leader the first was granted {:.0} ms after the key was free, all {count} \
         within {:.1} s",
        after.as_secs_f64() * 1e3,
        free.elapsed().as_secs_f64()
    );
    if freed == Freed::LeaseEnds && first < free {
        return Err("a waiter was granted the key before the holder's lease had ended".to_owned());
    }
    if after > MOVES_WITHIN {
        return Err(format!("the line stood still for {after:?}"));
    }
    match turns.granted.load(Ordering::SeqCst) {
        granted if granted == count => Ok(()),
        granted => Err(format!("{granted} grants for {count} waiters")),
    }
}

/// What the holders of the key have in common.
#[derive(Debug, Default)]
struct Turns {
    is_held: AtomicBool,
    last: AtomicU64,
    granted: AtomicU64,
    first: std::sync::OnceLock<Instant>,
}

impl Turns {
    fn first(&self, since: Instant) -> Option<Instant> {
        self.first.get().copied().filter(|first| *first >= since)
    }
}

fn stand(clients: &Clients, connections: usize, waiters: usize) -> Result<Vec<RawClient>, String> {
    let mut line = Vec::new();
    for _ in 0..connections {
        let mut client = clients.connect()?;
        for _ in 0..waiters {
            client.send_acquire(KEY, WAIT_S, LEASE_S);
        }
        line.push(client);
    }
    Ok(line)
}

fn wait_for_line(cluster: &Cluster, slot: usize, count: u64) -> Result<(), String> {
    cluster.wait_until(&format!("{count} wait at slot {slot}"), || {
        cluster
            .status(slot)
            .is_some_and(|status| status["waiting"] == count)
    })
}

/// How many answers came before the end; none of them may be a grant.
fn hear_the_end(client: &mut RawClient, waiters: usize) -> Result<usize, String> {
    let mut answered = 0;
    loop {
        match answer(client, PATIENCE) {
            Ok(Reply::Acquired { .. }) => {
                return Err("a waiter was granted a key that is held".to_owned());
            }
            Ok(_) if answered < waiters => answered += 1,
            Ok(reply) => return Err(format!("more answers than requests: {reply:?}")),
            Err(error) if is_closed(&error) => return Ok(answered),
            Err(error) => return Err(format!("a waiter heard nothing: {error}")),
        }
    }
}

/// Each of a connection's waiters gets the key once, and gives it back at once.
fn take_turns(mut client: RawClient, waiters: usize, turns: &Turns) -> Result<(), String> {
    let mut granted = vec![false; waiters + 1];
    let mut left = waiters;
    let deadline = Instant::now() + LINE_WITHIN;
    while left > 0 {
        let within = deadline.saturating_duration_since(Instant::now());
        match answer(&mut client, within) {
            Ok(Reply::Acquired { request_id, token }) => {
                turns.first.get_or_init(Instant::now);
                if turns.is_held.swap(true, Ordering::SeqCst) {
                    return Err("two hold the key at once".to_owned());
                }
                let last = turns.last.swap(token, Ordering::SeqCst);
                if last >= token {
                    return Err(format!("token {token} after {last}"));
                }
                let before = granted.get_mut(request_id as usize);
                if before.is_none_or(|before| std::mem::replace(before, true)) {
                    return Err(format!("request {request_id} was granted twice"));
                }
                turns.granted.fetch_add(1, Ordering::SeqCst);
                turns.is_held.store(false, Ordering::SeqCst);
                client.send_release(KEY, token);
            }
            Ok(Reply::Released { .. }) => left -= 1,
            other => return Err(format!("a waiter is stuck or refused: {other:?}")),
        }
    }
    Ok(())
}
