//! `kill -9` in a loop, under load, always on the same folder: nothing that was acknowledged may
//! be lost, nothing that was released may come back, and no token may be issued again.

#[path = "support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use ticketing_protocol::Reply;

use crate::support::known::{Known, LEASE_S, Op, own_key};
use crate::support::rng::Rng;
use crate::support::server::{dump_log, verify_log};
use crate::support::{Options, RawClient, Server};

const ROUNDS: u64 = 20;
const WORKERS: u64 = 5;
/// Keys that only one worker ever asks for, and keys that all of them do.
const OWN_KEYS: u64 = 12;
const SHARED_KEYS: u64 = 4;
/// Of a worker's own keys, how many it asks for or gives back in one write.
const AT_ONCE: usize = 4;
const WAIT_S: u8 = 60;

#[test]
fn nothing_acknowledged_is_lost_in_20_kills_with_every_commit_on_disk() {
    Trial::new("sync", 3).run();
}

#[test]
fn nothing_acknowledged_is_lost_in_20_kills_with_commits_in_the_page_cache() {
    Trial::new("memory", 2).run();
}

/// A server that is killed again and again, and what is known of its log.
struct Trial {
    server: Server,
    rng: Rng,
    /// Who holds each key, by the log.
    held: BTreeMap<String, u64>,
    /// The last index that the log was seen to have.
    last_index: u64,
    totals: Totals,
}

#[derive(Debug, Default)]
struct Totals {
    grants: usize,
    releases: usize,
    in_flight: usize,
    still_held: usize,
    torn: usize,
}

impl Trial {
    fn new(durability: &'static str, shards: u16) -> Self {
        Self {
            // One trial with each placement of the consensus role.
            server: Server::start(Options::shards(shards).durability(durability).top(
                match durability {
                    "sync" => "consensus_core = \"own\"",
                    _ => "consensus_core = \"shared\"",
                },
            )),
            rng: Rng::new(u64::from(shards)),
            held: BTreeMap::new(),
            last_index: 0,
            totals: Totals::default(),
        }
    }

    fn run(mut self) {
        for round in 0..ROUNDS {
            let known = self.load_and_kill(round);
            self.check_log(&known);
            self.server.restart();
            self.check_server(&known);
        }
        let totals = &self.totals;
        assert!(totals.in_flight > 0, "no kill met a request in flight");
        assert!(totals.still_held > 0, "no kill met a lock that was held");
        println!("{ROUNDS} rounds: {totals:?}");
    }

    /// Lets the workers loose, kills the server under them, and collects what they know.
    fn load_and_kill(&mut self, round: u64) -> Vec<Known> {
        let load = Duration::from_millis(50 + self.rng.below(250));
        let address = self.server.address;
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS)
                .map(|worker| scope.spawn(move || work(address, round, worker)))
                .collect();
            std::thread::sleep(load);
            self.server.kill9();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("a worker's checks hold"))
                .collect()
        })
    }

    /// Everything acknowledged is in the log, and what the log says of each key agrees with what
    /// the workers know of it.
    fn check_log(&mut self, known: &[Known]) {
        let report = verify_log(&self.server.data_dir());
        // A write that was under way may have been cut short; that is no acknowledged one.
        let is_torn = report["verdict"] == "torn tail";
        assert!(is_torn || report["verdict"] == "clean", "{report}");
        self.totals.torn += usize::from(is_torn);

        let (mut grants, mut releases) = (HashMap::new(), BTreeSet::new());
        for line in dump_log(&self.server.data_dir(), self.last_index + 1) {
            let index = line["index"].as_u64().expect("an index");
            assert!(index > self.last_index, "not in order: {line}");
            self.last_index = index;
            let Some(key) = line["key"].as_str() else {
                continue;
            };
            match (line["command"].as_str(), line["token"].as_u64()) {
                (Some("grant"), None) => {
                    let before = self.held.insert(key.to_owned(), index);
                    assert_eq!(before, None, "granted while held: {line}");
                    grants.insert(index, key.to_owned());
                }
                (Some("release"), Some(token)) => {
                    assert_eq!(self.held.remove(key), Some(token), "{line}");
                    releases.insert((token, key.to_owned()));
                }
                _ => panic!("nothing expires here: {line}"),
            }
        }
        for known in known {
            for (token, key) in &known.granted {
                assert_eq!(
                    grants.get(token),
                    Some(key),
                    "an acknowledged grant is lost"
                );
            }
            for release in &known.released {
                assert!(releases.contains(release), "{release:?} is lost");
            }
            for (key, token) in &known.holds {
                assert_eq!(
                    self.held.get(key),
                    Some(token),
                    "{key} is not held any more"
                );
            }
            self.totals.grants += known.granted.len();
            self.totals.releases += known.released.len();
            self.totals.in_flight += known.in_flight.len();
        }
    }

    /// The server knows after its restart what its log and its clients know, and goes on from
    /// there. Leaves every key free.
    fn check_server(&mut self, known: &[Known]) {
        let mut client = RawClient::connect(self.server.address);
        let granted = known.iter().flat_map(|known| &known.granted);
        let highest = granted.map(|&(token, _)| token).max().unwrap_or(0);
        assert!(highest > 0, "nobody was granted anything");
        let in_flight: Vec<&Op> = known.iter().flat_map(|known| &known.in_flight).collect();
        let keys = (0..WORKERS)
            .flat_map(|worker| (0..OWN_KEYS).map(move |number| own_key(worker, number)))
            .chain((0..SHARED_KEYS).map(shared_key));
        for key in keys {
            let holder = known.iter().find_map(|known| known.holds.get(&key));
            let reply = client.acquire(&key, 0, LEASE_S);
            match (reply, self.held.get(&key).copied()) {
                (Reply::Acquired { token, .. }, None) => {
                    assert_eq!(holder, None, "{key} was held, and is free");
                    assert!(token > self.last_index && token > highest, "{token} is old");
                    client.give_back(&key, token);
                }
                (Reply::Busy { .. }, Some(token)) => {
                    let is_explained = holder == Some(&token)
                        || in_flight.iter().any(|op| op.explains_held(&key, token));
                    assert!(is_explained, "{key} was released, and is held by {token}");
                    client.give_back(&key, token);
                    self.totals.still_held += usize::from(holder.is_some());
                }
                (reply, held) => panic!("{key}: {reply:?}, and the log says {held:?}"),
            }
        }
        // What this check did is in the log as well, where the next one finds it.
        self.server.wait_metric("locks_held", 0);
    }
}

fn shared_key(number: u64) -> String {
    format!("shared-{number}")
}

/// Takes and gives back keys until the connection breaks: several of its own in one write, and
/// one that others want too.
fn work(address: SocketAddr, round: u64, worker: u64) -> Known {
    let mut known = Known::default();
    let mut rng = Rng::new(round * WORKERS + worker);
    let Ok(mut client) = RawClient::try_connect(address, b"") else {
        return known;
    };
    let mut shared: Option<String> = None;
    loop {
        let mut ops = Vec::new();
        let first = rng.below(OWN_KEYS);
        for number in 0..AT_ONCE as u64 {
            let key = own_key(worker, (first + number) % OWN_KEYS);
            ops.push((known.next_op(key), 0));
        }
        // Held one moment and then given back before another is asked for, so that no two
        // workers can wait for each other.
        let key = shared.get_or_insert_with(|| shared_key(rng.below(SHARED_KEYS)));
        let op = known.next_op(key.clone());
        if matches!(op, Op::Release { .. }) {
            shared = None;
        }
        ops.push((op, WAIT_S));
        let otherwise = |op: &Op, reply: &Reply| panic!("{op:?}: {reply:?}");
        if !known.exchange(&mut client, ops, otherwise) {
            return known;
        }
    }
}
