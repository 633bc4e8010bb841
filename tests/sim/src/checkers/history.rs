//! What was committed, as whoever knew it first saw it, and a naive model that applies it.

use std::collections::BTreeMap;
use std::rc::Rc;

use ticketing::locks::{Applied, Command};
use ticketing_raftlog::LogIndex;
use ticketing_raftlog::raft::{AppendKind, ConfigEntry};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::cluster::host::{GENESIS, HASH_EVERY};
use crate::node::journal::Entry;
use crate::world::events::Us;

/// One committed entry.
#[derive(Clone, Debug)]
pub struct Committed {
    /// Its term.
    pub term: u64,
    /// A hash of it and everything before it.
    pub chain: u64,
    /// The term of the node that knew it committed first.
    pub known_in_term: u64,
    /// What the model makes of it; none for what is no command.
    pub applied: Option<Applied>,
}

/// A grant.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The key.
    pub key: Rc<[u8]>,
    /// The lease, in seconds.
    pub lease_s: u64,
    /// The entry's term.
    pub term: u64,
    /// When it was first known committed.
    pub at_us: Us,
    /// How it ended: index, when, and whether by an Expire.
    pub ended: Option<(u64, Us, bool)>,
    /// The removal that came before it on its key.
    pub after_removal: Option<u64>,
}

/// A change of lock state.
#[derive(Clone, Debug)]
pub enum Change {
    /// Granted, with that token.
    Granted(u64),
    /// That token's grant ended.
    Ended(u64),
    /// Nothing that lock state shows.
    None,
}

/// All that is committed.
#[derive(Debug, Default)]
pub struct History {
    entries: Vec<Committed>,
    held: BTreeMap<Rc<[u8]>, u64>,
    last_removal: BTreeMap<Rc<[u8]>, u64>,
    grants: BTreeMap<u64, Granted>,
    attempts: BTreeMap<(Rc<[u8]>, u64), u64>,
    sums: BTreeMap<u64, u128>,
    configs: Vec<ConfigEntry>,
}

/// The hash of a log that ends in `entry`, when `chain` is that of the log before.
#[must_use]
pub fn chain_with(chain: u64, entry: &Entry) -> u64 {
    let mut bytes = chain.to_le_bytes().to_vec();
    bytes.extend_from_slice(&entry.term.0.to_le_bytes());
    bytes.push(match entry.kind {
        AppendKind::Noop => 1,
        AppendKind::Commands => 2,
        AppendKind::Config(_) => 3,
    });
    bytes.extend_from_slice(&entry.payload);
    if let AppendKind::Config(config) = entry.kind {
        config.encode(&mut bytes);
    }
    xxh3_64(&bytes)
}

impl History {
    /// A cluster that begins with that configuration.
    #[must_use]
    pub fn new(genesis: ConfigEntry) -> Self {
        Self {
            configs: vec![genesis],
            ..Self::default()
        }
    }

    /// The committed configurations, in their order.
    #[must_use]
    pub fn configs(&self) -> &[ConfigEntry] {
        &self.configs
    }

    /// The committed configuration at `index`; none before the first.
    #[must_use]
    pub fn config_at(&self, index: u64) -> Option<&ConfigEntry> {
        self.configs.iter().rfind(|entry| entry.index.0 <= index)
    }

    /// The last index.
    #[must_use]
    pub fn last(&self) -> u64 {
        GENESIS.index.0 + self.entries.len() as u64
    }

    /// The entry at `index`.
    #[must_use]
    pub fn at(&self, index: u64) -> Option<&Committed> {
        self.entries
            .get(index.checked_sub(GENESIS.index.0 + 1)? as usize)
    }

    /// The hash of the log up to `index`; 0 for what every log begins behind.
    #[must_use]
    pub fn chain(&self, index: u64) -> Option<u64> {
        if index == GENESIS.index.0 {
            return Some(0);
        }
        self.at(index).map(|entry| entry.chain)
    }

    /// All grants by token.
    #[must_use]
    pub fn grants(&self) -> &BTreeMap<u64, Granted> {
        &self.grants
    }

    /// The token that an attempt was granted.
    #[must_use]
    pub fn granted_to(&self, key: &Rc<[u8]>, lease_s: u64) -> Option<u64> {
        self.attempts.get(&(key.clone(), lease_s)).copied()
    }

    /// Who holds what.
    #[must_use]
    pub fn held(&self) -> &BTreeMap<Rc<[u8]>, u64> {
        &self.held
    }

    /// How many Expires ended nothing.
    #[must_use]
    pub fn idle_expires(&self) -> usize {
        let idle = |entry: &&Committed| entry.applied == Some(Applied::Expired { existed: false });
        self.entries.iter().filter(idle).count()
    }

    /// The sum over what is held at `index`, where it is kept.
    #[must_use]
    pub fn sum(&self, index: u64) -> Option<u128> {
        self.sums.get(&index).copied()
    }

    /// Adds the next entry, which `known_in_term` is the first to know committed.
    pub fn push(&mut self, entry: &Entry, known_in_term: u64, now_us: Us) -> Change {
        let index = self.last() + 1;
        let chain = chain_with(self.chain(self.last()).unwrap_or(0), entry);
        let (applied, change) = self.apply(index, entry, now_us);
        self.entries.push(Committed {
            term: entry.term.0,
            chain,
            known_in_term,
            applied,
        });
        if let AppendKind::Config(config) = entry.kind {
            let index = LogIndex(index);
            self.configs.push(ConfigEntry { index, config });
        }
        if index.is_multiple_of(HASH_EVERY) {
            let sum = self.sum_now();
            self.sums.insert(index, sum);
        }
        change
    }

    fn apply(&mut self, index: u64, entry: &Entry, now_us: Us) -> (Option<Applied>, Change) {
        if entry.kind != AppendKind::Commands {
            return (None, Change::None);
        }
        let Ok(command) = Command::decode(&entry.payload) else {
            return (Some(Applied::Noop), Change::None);
        };
        let key: Rc<[u8]> = Rc::from(command.key());
        let (token, expires) = match command {
            Command::Grant { lease_ms, .. } => {
                if self.held.contains_key(&key) {
                    return (Some(Applied::GrantRejected), Change::None);
                }
                self.held.insert(key.clone(), index);
                let lease_s = u64::from(lease_ms / 1_000);
                self.attempts.insert((key.clone(), lease_s), index);
                let granted = Granted {
                    after_removal: self.last_removal.get(&key).copied(),
                    key,
                    lease_s,
                    term: entry.term.0,
                    at_us: now_us,
                    ended: None,
                };
                self.grants.insert(index, granted);
                return (
                    Some(Applied::Granted { token: index }),
                    Change::Granted(index),
                );
            }
            Command::Release { token, .. } => (token, false),
            Command::Expire { token, .. } => (token, true),
        };
        let existed = self.held.get(&key) == Some(&token);
        if existed {
            self.held.remove(&key);
            self.last_removal.insert(key, index);
            if let Some(granted) = self.grants.get_mut(&token) {
                granted.ended = Some((index, now_us, expires));
            }
        }
        let applied = match (expires, existed) {
            (true, existed) => Applied::Expired { existed },
            (false, true) => Applied::Released,
            (false, false) => Applied::NotFound,
        };
        let change = if existed {
            Change::Ended(token)
        } else {
            Change::None
        };
        (Some(applied), change)
    }

    fn sum_now(&self) -> u128 {
        self.held.iter().fold(0, |sum, (key, token)| {
            let lease_s = self.grants.get(token).map_or(0, |granted| granted.lease_s);
            let mut bytes = key.to_vec();
            bytes.extend_from_slice(&token.to_le_bytes());
            bytes.extend_from_slice(&(lease_s as u32 * 1_000).to_le_bytes());
            sum.wrapping_add(xxh3_128(&bytes))
        })
    }
}
