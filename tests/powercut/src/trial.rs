//! The cuts, and what must hold after each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use ticketing_protocol::Reply;

use crate::disk::Damage;
use crate::fuse::{Powered, SharedDisk, locked, mount};
use crate::known::{Known, LEASE_S, own_key};
use crate::raw::RawClient;
use crate::rng::Rng;
use crate::server::{Machine, Server, kill9};
use crate::work::{OWN_KEYS, work};

const WORKERS: u64 = 4;
/// One run in so many is in `memory` durability, and which of them. Counted, not drawn, so that
/// the shortest run has one.
const MEMORY_EVERY: u64 = 6;
const MEMORY_AT: u64 = 3;
/// Before one run in so many the start is cut as well, and before which of them; now and then the
/// one behind a run in memory.
const START_CUT_EVERY: u64 = 4;
const START_CUT_AT: u64 = 2;
const LOAD_AT_LEAST_MS: u64 = 30;
const LOAD_SPREAD_MS: u64 = 400;
const START_CUT_WITHIN_MS: u64 = 120;
/// Segments that are soon full, and snapshots every few hundred entries: both are cut.
const LOG_SMALL: &str =
    "segment_bytes = 65536\nsnapshot_log_bytes = 131072\nsnapshot_log_entries = 300\n";
const LOG_LARGE: &str = "segment_bytes = 1048576\n";
const LOST_LOUDLY: &str = "every lock is lost";

struct Trial {
    machine: Machine,
    disk: SharedDisk,
    at: PathBuf,
    rng: Rng,
    highest_token: u64,
    is_memory: bool,
    totals: Totals,
    damage: Damage,
}

#[derive(Debug, Default)]
struct Totals {
    cuts_sync: u64,
    cuts_memory: u64,
    cuts_at_start: u64,
    grants: usize,
    releases: usize,
    in_flight: usize,
    still_held: usize,
    torn_tails: usize,
    with_snapshot: usize,
}

/// What the log says after a cut.
#[derive(Default)]
struct Log {
    snapshot: u64,
    last: u64,
    grants: BTreeMap<u64, String>,
    held: BTreeMap<String, u64>,
}

/// Cuts the power so many times; the reason when something does not hold.
pub fn run(binary: PathBuf, seed: u64, cuts: u64) -> Result<(), String> {
    let folder = TempDir::with_prefix("powercut-").map_err(|error| error.to_string())?;
    let at = folder.path().join("disk");
    std::fs::create_dir(&at).map_err(|error| error.to_string())?;
    let mut trial = Trial {
        machine: Machine {
            binary,
            folder: folder.path().to_path_buf(),
        },
        disk: Arc::new(Mutex::new(Powered::new())),
        at,
        rng: Rng::new(seed),
        highest_token: 0,
        is_memory: false,
        totals: Totals::default(),
        damage: Damage::default(),
    };
    let began = Instant::now();
    let mut before = None;
    for cut in 1..=cuts {
        before = Some(
            trial
                .round(cut, before)
                .map_err(|why| format!("at cut {cut}: {why}"))?,
        );
    }
    trial.last_check(before)?;
    println!("{:?}\n{:?}", trial.totals, trial.damage);
    if trial.totals.grants == 0 || trial.damage.lost + trial.damage.torn == 0 {
        return Err("no cut met a write that was not synced".to_owned());
    }
    println!(
        "powercut: {cuts} of {cuts} cuts survived, nothing acknowledged was lost, in {:.0} s",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

impl Trial {
    /// Starts the server on what the last cut left, checks it, loads it, and cuts the power.
    fn round(&mut self, cut: u64, before: Option<Vec<Known>>) -> Result<Vec<Known>, String> {
        let was_memory = self.is_memory;
        let is_memory = cut % MEMORY_EVERY == MEMORY_AT;
        let log = if self.rng.one_in(3) {
            LOG_LARGE
        } else {
            LOG_SMALL
        };
        if before.is_some() && cut % START_CUT_EVERY == START_CUT_AT {
            self.configure(was_memory, log);
            self.cut_start()?;
        }
        let known = self.up(before, was_memory, is_memory, log, true)?;
        self.is_memory = is_memory;
        Ok(known)
    }

    fn last_check(&mut self, before: Option<Vec<Known>>) -> Result<(), String> {
        let was_memory = self.is_memory;
        self.up(before, was_memory, false, LOG_SMALL, false)
            .map(drop)
            .map_err(|why| format!("after the last cut: {why}"))
    }

    fn up(
        &mut self,
        before: Option<Vec<Known>>,
        was_memory: bool,
        is_memory: bool,
        log: &str,
        with_load: bool,
    ) -> Result<Vec<Known>, String> {
        self.machine.boot(&mut self.rng);
        let session = mount(&self.disk, &self.at).map_err(|error| format!("mount: {error}"))?;
        let known = self.up_mounted(before, was_memory, is_memory, log, with_load);
        // Whatever happened, the file system must not stay mounted.
        locked(&self.disk).is_on = false;
        let unmounted = session.umount_and_join();
        let known = known?;
        unmounted.map_err(|error| format!("unmount: {error}"))?;
        self.cut_disk();
        Ok(known)
    }

    fn up_mounted(
        &mut self,
        before: Option<Vec<Known>>,
        was_memory: bool,
        is_memory: bool,
        log: &str,
        with_load: bool,
    ) -> Result<Vec<Known>, String> {
        self.configure(is_memory, log);
        let known_log = match &before {
            Some(known) if !was_memory => Some(self.check_log(known)?),
            _ => None,
        };
        let server = self
            .machine
            .start()
            .map_err(|stderr| format!("the server does not start:\n{stderr}"))?;
        if let Some(known) = &before {
            if was_memory && !server.stderr().contains(LOST_LOUDLY) {
                return Err(format!("lost in silence:\n{}", server.stderr()));
            }
            self.check_server(&server, known, &known_log.unwrap_or_default())?;
        }
        if !with_load {
            return Ok(Vec::new());
        }
        let known = self.load_and_cut(server);
        for known in &known {
            self.totals.grants += known.granted.len();
            self.totals.releases += known.released.len();
            self.totals.in_flight += known.in_flight.len();
        }
        match is_memory {
            true => self.totals.cuts_memory += 1,
            false => self.totals.cuts_sync += 1,
        }
        Ok(known)
    }

    /// Cuts the power while the server starts.
    fn cut_start(&mut self) -> Result<(), String> {
        self.machine.boot(&mut self.rng);
        let session = mount(&self.disk, &self.at).map_err(|error| format!("mount: {error}"))?;
        let mut child = self.machine.spawn();
        std::thread::sleep(Duration::from_millis(self.rng.below(START_CUT_WITHIN_MS)));
        locked(&self.disk).is_on = false;
        kill9(&mut child);
        session
            .umount_and_join()
            .map_err(|error| format!("unmount: {error}"))?;
        self.cut_disk();
        self.totals.cuts_at_start += 1;
        Ok(())
    }

    fn cut_disk(&mut self) {
        let mut powered = locked(&self.disk);
        powered.disk.cut(&mut self.rng, &mut self.damage);
        powered.is_on = true;
    }

    fn configure(&self, is_memory: bool, log: &str) {
        let durability = if is_memory { "memory" } else { "sync" };
        self.machine.configure(&self.data(), durability, log);
    }

    fn data(&self) -> PathBuf {
        self.at.join("data")
    }

    fn load_and_cut(&mut self, server: Server) -> Vec<Known> {
        let load = Duration::from_millis(LOAD_AT_LEAST_MS + self.rng.below(LOAD_SPREAD_MS));
        let address = server.address;
        let disk = Arc::clone(&self.disk);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS)
                .map(|worker| {
                    let seed = self.rng.below(u64::MAX);
                    scope.spawn(move || work(address, worker, seed))
                })
                .collect();
            std::thread::sleep(load);
            locked(&disk).is_on = false;
            drop(server);
            workers
                .into_iter()
                .map(|worker| worker.join().expect("a worker's checks hold"))
                .collect()
        })
    }

    /// The log is not corrupt, and has everything that was acknowledged.
    fn check_log(&mut self, known: &[Known]) -> Result<Log, String> {
        let report = self.machine.verify(&self.data())?;
        let is_torn = report["verdict"] == "torn tail";
        if !is_torn && report["verdict"] != "clean" {
            return Err(format!("the log is damaged: {report}"));
        }
        self.totals.torn_tails += usize::from(is_torn);
        let log = read_log(&self.machine, &self.data())?;
        self.totals.with_snapshot += usize::from(log.snapshot > 0);
        for known in known {
            for (token, key) in &known.granted {
                if *token > log.snapshot && log.grants.get(token) != Some(key) {
                    return Err(format!(
                        "the acknowledged grant {token} of {key} is lost; the log ends at {}; \
                         {report}",
                        log.last
                    ));
                }
            }
            for (token, key) in &known.released {
                if log.held.get(key) == Some(token) {
                    return Err(format!("the release of {key} by {token} is lost; {report}"));
                }
            }
            for (key, token) in &known.holds {
                if log.held.get(key) != Some(token) {
                    return Err(format!("{key} is not held by {token} any more; {report}"));
                }
            }
        }
        Ok(log)
    }

    /// The server knows what its log says. Leaves every key free.
    fn check_server(&mut self, server: &Server, known: &[Known], log: &Log) -> Result<(), String> {
        let tokens = known.iter().flat_map(|known| &known.granted);
        self.highest_token = tokens
            .map(|&(token, _)| token)
            .chain([log.last, self.highest_token])
            .max()
            .unwrap_or(0);
        let mut client = RawClient::connect(server.address);
        let mut highest_new = 0;
        for worker in 0..WORKERS {
            for key in (0..OWN_KEYS).map(|number| own_key(worker, number)) {
                let holder = known.iter().find_map(|known| known.holds.get(&key));
                let token = match (client.acquire(&key, 0, LEASE_S), log.held.get(&key)) {
                    (Reply::Acquired { token, .. }, None) => {
                        if token <= self.highest_token.max(highest_new) {
                            let highest = self.highest_token;
                            return Err(format!("token {token} is not above {highest}"));
                        }
                        highest_new = token;
                        token
                    }
                    (Reply::Busy { .. }, Some(&token)) => {
                        let is_explained = holder == Some(&token)
                            || known
                                .iter()
                                .flat_map(|known| &known.in_flight)
                                .any(|op| op.explains_held(&key, token));
                        if !is_explained {
                            return Err(format!("{key} is held by {token}, for nobody"));
                        }
                        self.totals.still_held += usize::from(holder.is_some());
                        token
                    }
                    (reply, held) => {
                        return Err(format!("{key}: {reply:?}, and the log says {held:?}"));
                    }
                };
                match client.release(&key, token) {
                    Reply::Released { .. } => {}
                    reply => return Err(format!("{key} by {token}: {reply:?}")),
                }
            }
        }
        self.highest_token = self.highest_token.max(highest_new);
        Ok(())
    }
}

fn read_log(machine: &Machine, data: &Path) -> Result<Log, String> {
    let mut log = Log::default();
    for line in machine.dump(data)? {
        let index = line["index"].as_u64().ok_or("a line without an index")?;
        log.last = log.last.max(index);
        let key = line["key"].as_str().unwrap_or_default().to_owned();
        match (line["command"].as_str(), line["token"].as_u64()) {
            (Some("snapshot"), _) => log.snapshot = index,
            (Some("held"), Some(token)) => {
                log.held.insert(key, token);
            }
            (Some("grant"), _) => {
                if let Some(before) = log.held.insert(key.clone(), index) {
                    return Err(format!("granted while {before} holds it: {line}"));
                }
                log.grants.insert(index, key);
            }
            (Some("release"), Some(token)) => {
                let holder = log.held.remove(&key);
                if holder != Some(token) {
                    return Err(format!("not the holder's: {line}"));
                }
            }
            (Some("expire"), _) => return Err(format!("nothing expires here: {line}")),
            _ => {}
        }
    }
    Ok(log)
}
