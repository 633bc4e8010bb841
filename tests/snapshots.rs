//! Snapshots of the real server: its disk use is bounded for ever, a killed one comes back with
//! everything on any number of shards, and a start takes no longer than it may.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process;
use std::time::{Duration, Instant};

use support::raw::{acquire, release};
use support::rng::Rng;
use support::server::{run, verify_log};
use support::{Options, RawClient, Server, wait_until};
use ticketing::locks::Command;
use ticketing_protocol::Reply;
use ticketing_raftlog::{
    BootId, Durability, EntryKind, Folder, HardState, OpenOptions, Opened, Term, blocking,
};

/// Small enough that a few thousand commands go through many segments.
const SMALL: &str = "\n[log]\nsegment_bytes = 65536\nsnapshot_log_bytes = 262144\n\
                     snapshot_log_entries = 2000\n";
/// What came since the last snapshot but one, a spare, those kept to be used again, and what came
/// while a snapshot was being written.
const MOST_SEGMENTS: usize = 24;
/// The newest one, the next while it is written, and the reserve.
const MOST_SNAPSHOT_FILES: usize = 3;
const MOST_BYTES: u64 = MOST_SEGMENTS as u64 * 65_536 + 4 * (1 << 20);

const KEYS: u64 = 300;
const REQUESTS_AT_ONCE: usize = 64;
const BURSTS_PER_ROUND: usize = 60;

/// What is known of the locks from the answers alone.
#[derive(Default)]
struct Known {
    held: BTreeMap<String, u64>,
    /// Held under a token that the answer did not come with.
    lost: BTreeSet<String>,
    last_token: u64,
    /// Acquires that were answered Busy, as they are while the disk is full.
    busy: u64,
}

enum Asked {
    Acquire(String),
    Release(String, u64),
}

/// Requests for different keys: acquires of free ones, releases of held ones.
fn burst(rng: &mut Rng, known: &Known) -> Vec<Asked> {
    let mut keys = BTreeSet::new();
    while keys.len() < REQUESTS_AT_ONCE {
        keys.insert(format!("seat-{}", rng.below(KEYS)));
    }
    keys.into_iter()
        .filter(|key| !known.lost.contains(key))
        .map(|key| match known.held.get(&key) {
            Some(&token) => Asked::Release(key, token),
            None => Asked::Acquire(key),
        })
        .collect()
}

fn send(client: &mut RawClient, burst: Vec<Asked>) -> BTreeMap<u64, Asked> {
    let mut bytes = Vec::new();
    let mut asked = BTreeMap::new();
    for request in burst {
        let id = client.new_id();
        match &request {
            Asked::Acquire(key) => bytes.extend(acquire(id, key, 0, 250)),
            Asked::Release(key, token) => bytes.extend(release(id, key, *token)),
        }
        asked.insert(id, request);
    }
    client.send_bytes(&bytes);
    asked
}

impl Known {
    fn take_in(&mut self, client: &mut RawClient, mut asked: BTreeMap<u64, Asked>) {
        let before = self.last_token;
        let mut tokens = BTreeSet::new();
        while !asked.is_empty() {
            let reply = client.reply();
            let id = match reply {
                Reply::Acquired { request_id, .. }
                | Reply::Released { request_id }
                | Reply::Busy { request_id } => request_id,
                other => panic!("{other:?}"),
            };
            match (asked.remove(&id).expect("asked for"), reply) {
                (Asked::Acquire(key), Reply::Acquired { token, .. }) => {
                    assert!(
                        token > before && tokens.insert(token),
                        "token {token} again"
                    );
                    self.held.insert(key, token);
                    self.last_token = self.last_token.max(token);
                }
                (Asked::Release(key, _), Reply::Released { .. }) => {
                    self.held.remove(&key);
                }
                (Asked::Acquire(_), Reply::Busy { .. }) => self.busy += 1,
                (_, reply) => panic!("{reply:?}"),
            }
        }
    }

    /// After a crash: what was asked for and not answered happened, or did not.
    fn find_out(&mut self, client: &mut RawClient, unanswered: BTreeMap<u64, Asked>) {
        for request in unanswered.into_values() {
            match request {
                Asked::Acquire(key) => match client.acquire(&key, 0, 250) {
                    Reply::Acquired { token, .. } => {
                        assert!(token > self.last_token);
                        self.last_token = token;
                        self.held.insert(key, token);
                    }
                    Reply::Busy { .. } => drop(self.lost.insert(key)),
                    other => panic!("{other:?}"),
                },
                Asked::Release(key, token) => {
                    self.held.remove(&key);
                    match client.release(&key, token) {
                        Reply::Released { .. } | Reply::NotFound { .. } => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        // Everything else is as it was answered.
        for key in self.held.keys() {
            assert!(
                matches!(client.acquire(key, 0, 250), Reply::Busy { .. }),
                "{key} is held"
            );
        }
    }
}

/// Files with that ending, and their bytes.
fn usage(folder: &Path, ending: &str) -> (usize, u64) {
    fs::read_dir(folder)
        .expect("a folder")
        .filter_map(|entry| {
            let entry = entry.expect("an entry");
            let name = entry.file_name();
            let size = entry.metadata().ok()?.len();
            name.to_string_lossy().ends_with(ending).then_some(size)
        })
        .fold((0, 0), |(files, bytes), size| (files + 1, bytes + size))
}

/// The disk use of a live node. A listing is no instant: it may show a file under the name before
/// a rename and the one behind it, so what is over the bound must be there in every listing.
fn check_disk(data: &Path) {
    let over = (0..10).all(|_| {
        let (segments, segment_bytes) = usage(&data.join("log"), "");
        let (snapshots, snapshot_bytes) = usage(&data.join("snapshots"), "");
        segments > MOST_SEGMENTS
            || snapshots > MOST_SNAPSHOT_FILES
            || segment_bytes + snapshot_bytes > MOST_BYTES
    });
    assert!(
        !over,
        "{:?} segments, {:?} files of snapshots",
        usage(&data.join("log"), ""),
        usage(&data.join("snapshots"), "")
    );
}

fn killed_and_restarted(durability: &'static str, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut server = Server::start(Options::shards(2).durability(durability).limits(SMALL));
    let data = server.data_dir();
    let (mut known, mut written) = (Known::default(), 0);
    for shards in [1, 3, 2, 5, 1] {
        let mut client = RawClient::connect(server.address);
        for number in 0..BURSTS_PER_ROUND {
            let asked = send(&mut client, burst(&mut rng, &known));
            known.take_in(&mut client, asked);
            check_disk(&data);
            if number % 20 == 0 {
                // Of a live node, which may be recycling just now.
                verify_log(&data);
            }
        }
        let unanswered = send(&mut client, burst(&mut rng, &known));
        std::thread::sleep(Duration::from_micros(rng.below(4_000)));
        written += server.metric("snapshots");
        server.kill9();
        server.set_shards(shards);
        server.restart();
        let mut client = RawClient::connect(server.address);
        known.find_out(&mut client, unanswered);
    }
    assert!(written >= 5, "{written} snapshots");
    assert_eq!(known.busy, 0, "there was room all along");
    server.terminate();
    let (status, stderr) = server.wait_exit();
    assert!(status.success(), "{stderr}");

    let report = verify_log(&data);
    assert_eq!(report["verdict"], "clean", "{report}");
    assert!(report["snapshot"]["index"].as_u64() > Some(0), "{report}");
    let newest = fs::read_dir(data.join("log"))
        .expect("a folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("text")
        })
        .max()
        .expect("a segment");
    let uses = u64::from_str_radix(newest.trim_end_matches(".seg"), 16).expect("a use number");
    assert!(
        uses as usize > 2 * MOST_SEGMENTS / 2,
        "only {uses} uses of segments"
    );
    // The dump, read from the snapshot on, ends in what the answers said.
    let mut held = BTreeMap::new();
    let output = run(&["log", "dump", data.to_str().expect("text"), "--json"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    for line in text.lines() {
        let record: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let Some(key) = record["key"].as_str() else {
            continue;
        };
        match record["command"].as_str() {
            Some("held") => drop(held.insert(key.to_owned(), record["token"].as_u64())),
            Some("grant") => drop(held.insert(key.to_owned(), record["index"].as_u64())),
            Some("release") => drop(held.remove(key)),
            other => panic!("{other:?}"),
        }
    }
    for (key, token) in &known.held {
        assert_eq!(held.remove(key), Some(Some(*token)), "{key}");
    }
    assert!(held.keys().all(|key| known.lost.contains(key)), "{held:?}");
}

#[test]
fn a_server_killed_at_any_moment_has_everything_on_any_number_of_shards() {
    killed_and_restarted("sync", 1);
}

#[test]
fn so_has_one_that_keeps_its_log_in_memory() {
    killed_and_restarted("memory", 2);
}

#[test]
fn a_damaged_snapshot_stops_the_server_and_is_named() {
    let mut server = Server::start(Options::shards(1).limits(SMALL));
    let (mut rng, mut known) = (Rng::new(3), Known::default());
    let mut client = RawClient::connect(server.address);
    while server.metric("snapshots") < 3 {
        let asked = send(&mut client, burst(&mut rng, &known));
        known.take_in(&mut client, asked);
    }
    server.kill9();
    let snapshots = server.data_dir().join("snapshots");
    let newest = fs::read_dir(&snapshots)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "snap"))
        .max()
        .expect("a snapshot");
    let mut bytes = fs::read(&newest).expect("readable");
    let place = 4_096 + 20;
    bytes[place] ^= 1;
    fs::write(&newest, bytes).expect("written");
    let output = support::server::finished(&mut server.command());
    assert_eq!(output.status.code(), Some(13), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(newest.to_str().expect("text")), "{stderr}");
    assert!(stderr.contains("offset 4096"), "{stderr}");
}

/// A small disk of its own at a folder, until it is dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// `None` where this process may not mount one.
    fn mount(folder: &'a Path, size: &str) -> Option<Self> {
        let mounted = process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(folder)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Self(folder))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = process::Command::new("umount")
            .arg("-l")
            .arg(self.0)
            .status();
    }
}

#[test]
fn a_full_disk_is_a_reason_for_a_snapshot_and_then_it_goes_on() {
    let rarely = "\n[log]\nsegment_bytes = 65536\nsnapshot_log_bytes = 1000000000\n\
                  snapshot_log_entries = 1000000000\n";
    let mut server = Server::start(Options::shards(1).limits(rarely));
    server.kill9();
    let data = server.data_dir();
    // Room for twenty segments, the reserve included.
    let Some(_disk) = SmallDisk::mount(&data, "1352k") else {
        println!("skipped: only root can mount a small disk");
        return;
    };
    server.restart();
    let (mut rng, mut known) = (Rng::new(4), Known::default());
    let mut client = RawClient::connect(server.address);
    while server.metric("snapshots") < 3 {
        let asked = send(&mut client, burst(&mut rng, &known));
        known.take_in(&mut client, asked);
    }
    assert!(server.stderr().contains("no room for the next log segment"));
    drop(client);
    server.kill9();
    server.restart();
    known.find_out(&mut RawClient::connect(server.address), BTreeMap::new());
}

fn open(data: &Path) -> Opened {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("readable");
    let options = OpenOptions {
        durability: Durability::Sync,
        boot_id: BootId::parse(&boot_id).expect("a boot id"),
        ..OpenOptions::default()
    };
    let mut opened = Folder::open_single(data, &options).expect("it opens");
    let hard = HardState {
        term: Term(opened.hard_state.term.0 + 1),
        voted_for: Some(opened.identity.node_id),
    };
    opened.store.write(&hard).expect("written");
    opened.hard_state = hard;
    opened
}

/// Appends commands as a leader would; `command` gets each one's number and index.
fn append(opened: &mut Opened, count: usize, command: impl Fn(usize, u64, &mut Vec<u8>)) {
    let (mut number, mut payload, mut buffer) = (0, Vec::new(), Vec::new());
    while number < count {
        let mut batch = opened.log.begin(std::mem::take(&mut buffer));
        while number < count && batch.has_room_for(1, 200) {
            payload.clear();
            command(number, batch.next_index().0, &mut payload);
            let pushed = batch.push(EntryKind::Command, opened.hard_state.term, &payload);
            pushed.expect("there is room");
            number += 1;
        }
        blocking::ensure_spare(&mut opened.log).expect("room on the disk");
        let write = opened.log.finish(batch).expect("a spare");
        buffer = blocking::append(&mut opened.log, write).expect("written");
    }
}

fn grant(key: usize, payload: &mut Vec<u8>) {
    let key = format!("row-{:03}-seat-{:05}", key / 1_000, key);
    Command::Grant {
        key: key.as_bytes(),
        lease_ms: 250_000,
    }
    .encode(payload);
}

/// Looser where nothing is optimised.
fn within(release_bound: Duration) -> Duration {
    if cfg!(debug_assertions) {
        release_bound * 15
    } else {
        release_bound
    }
}

#[test]
fn a_million_commands_behind_the_last_snapshot_are_replayed_within_a_second() {
    const COMMANDS: usize = 1_000_000;
    let mut server = Server::start(Options::shards(1));
    server.kill9();
    let mut opened = open(&server.data_dir());
    append(&mut opened, COMMANDS, |number, index, payload| {
        // Pairs of a grant and its release.
        if number % 2 == 0 {
            grant(number / 2 % 10_000, payload);
        } else {
            let mut of_grant = Vec::new();
            grant(number / 2 % 10_000, &mut of_grant);
            let Ok(Command::Grant { key, .. }) = Command::decode(&of_grant) else {
                panic!("a grant");
            };
            Command::Release {
                key,
                token: index - 1,
            }
            .encode(payload);
        }
    });
    let last = opened.log.next_index().previous();
    drop(opened);
    let begin = Instant::now();
    server.restart();
    let took = begin.elapsed();
    println!("start with {COMMANDS} commands to replay: {took:?}");
    assert!(took < within(Duration::from_secs(1)), "{took:?}");
    assert!(server.metric("commit_index") > last.0);
    assert_eq!(server.metric("locks_held"), 0);
}

#[test]
fn a_snapshot_of_many_locks_stops_nobody_and_loads_quickly() {
    let locks = if cfg!(debug_assertions) {
        100_000
    } else {
        1_000_000
    };
    let mut server = Server::start(
        Options::shards(1)
            .limits("\n[log]\nsnapshot_log_bytes = 1000000000\nsnapshot_log_entries = 100001\n"),
    );
    server.kill9();
    let mut opened = open(&server.data_dir());
    append(&mut opened, locks, |number, _, payload| {
        grant(number, payload)
    });
    drop(opened);
    server.restart();
    let mut client = RawClient::connect(server.address);
    let (mut longest, mut pairs) = (Duration::ZERO, 0);
    let begin = Instant::now();
    wait_until("the snapshot is written", || {
        let asked = Instant::now();
        let token = client.hold("another", 10);
        client.give_back("another", token);
        longest = longest.max(asked.elapsed());
        pairs += 1;
        pairs % 20 == 0 && server.metric("snapshots") > 0
    });
    println!(
        "snapshot of {locks} locks, {} bytes: {:?}, longest acquire and release meanwhile {longest:?}",
        server.metric("snapshot_bytes"),
        begin.elapsed()
    );
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    server.kill9();
    let begin = Instant::now();
    server.restart();
    let took = begin.elapsed();
    println!("start with {locks} locks in the snapshot: {took:?}");
    assert!(took < within(Duration::from_secs(4)), "{took:?}");
    assert_eq!(server.metric("locks_held"), locks as u64);
}
