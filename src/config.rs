//! The configuration: parsed into values that cannot be wrong, or refused with
//! every problem at once.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use ticketing_raftlog::Durability;

use crate::limits;
use crate::runtime::Cores;
use crate::security::files;
use crate::security::tls::Acceptor;
use crate::security::token::{CLIENT_TOKEN_VARIABLE, Token, Tokens};

mod cluster;
mod reference;

pub use cluster::ClusterConfig;
use cluster::FilePeers;
pub use reference::reference;

/// A node's configuration, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// The data folder.
    pub data_dir: PathBuf,
    /// Cores that hold connections and keys.
    pub shards: u16,
    /// What an acknowledgement means.
    pub durability: Durability,
    /// Where metrics, health and status are served.
    pub admin: Option<SocketAddr>,
    /// What a client must know.
    pub client_tokens: Tokens,
    /// TLS towards clients.
    pub tls: Option<Acceptor>,
    /// Whether the consensus role runs on the first shard's executor.
    pub consensus_shared: bool,
    /// Which cores the executors stay on.
    pub cores: CoreChoice,
    /// Bounds.
    pub limits: Limits,
    /// How the log lies on the disk.
    pub log: LogConfig,
    /// The file that all of it came from, if it came from one.
    pub source: Option<PathBuf>,
    /// The other nodes; none of a single node.
    pub cluster: Option<ClusterConfig>,
}

/// How the log lies on the disk (see [`crate::limits`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Size of its segments.
    pub segment_bytes: u32,
    /// Bytes after which a snapshot is taken.
    pub snapshot_log_bytes: u64,
    /// Entries after which a snapshot is taken.
    pub snapshot_log_entries: u64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            segment_bytes: limits::SEGMENT_BYTES_DEFAULT,
            snapshot_log_bytes: limits::SNAPSHOT_LOG_BYTES_DEFAULT,
            snapshot_log_entries: limits::SNAPSHOT_LOG_ENTRIES_DEFAULT,
        }
    }
}

/// Where the consensus role runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConsensusCore {
    /// On an executor of its own, unless there are no more than
    /// [`limits::SHARED_CORES_MOST`] cores.
    #[default]
    Auto,
    /// On an executor of its own.
    Own,
    /// On the first shard's executor, where cores are scarce.
    Shared,
}

impl ConsensusCore {
    /// Whether it runs on the first shard's executor, on a machine of `cores`.
    #[must_use]
    pub fn is_shared(self, cores: usize) -> bool {
        match self {
            Self::Auto => cores <= limits::SHARED_CORES_MOST,
            Self::Own => false,
            Self::Shared => true,
        }
    }
}

/// Which processor cores the executors stay on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CoreChoice {
    /// Any that no other server has, the last ones first, if there is one for each
    /// executor; else none in particular.
    #[default]
    Auto,
    /// None in particular: for machines whose cores are shared out by others.
    Any,
    /// These, the consensus role's executor first.
    These(Vec<usize>),
}

impl<'de> Deserialize<'de> for CoreChoice {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "cores is \"auto\", \"any\", or a list like [2, 3]"
        )]
        enum Written {
            Word(Word),
            List(Vec<usize>),
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Word {
            Auto,
            Any,
        }
        Ok(match Written::deserialize(from)? {
            Written::Word(Word::Auto) => Self::Auto,
            Written::Word(Word::Any) => Self::Any,
            Written::List(cores) => Self::These(cores),
        })
    }
}

/// The bounds that can be configured, for the whole node unless said otherwise
/// (see [`crate::limits`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Client connections; when not configured, as many as the default and the
    /// open-files limit allow.
    pub connections: Option<u32>,
    /// Client connections that have not passed the handshake.
    pub unauthenticated_connections: u32,
    /// How long a handshake may take, in milliseconds.
    pub handshake_ms: u32,
    /// Requests in flight on one connection.
    pub requests_in_flight: u32,
    /// Bytes of answers that may wait for one connection.
    pub output_bytes: u32,
    /// Locks that may be held on one shard.
    pub locks_per_shard: u32,
    /// Requests that may stand in line on one shard.
    pub waiters_per_shard: u32,
    /// Requests that may stand in line for one key.
    pub waiters_per_key: u32,
    /// How long before the end of its wait a request is told that it ran out.
    pub wait_margin_ms: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: None,
            unauthenticated_connections: limits::UNAUTHENTICATED_DEFAULT,
            handshake_ms: limits::HANDSHAKE_MS_DEFAULT,
            requests_in_flight: limits::IN_FLIGHT_DEFAULT,
            output_bytes: limits::OUTPUT_BYTES_DEFAULT,
            locks_per_shard: limits::LOCKS_PER_SHARD_DEFAULT,
            waiters_per_shard: limits::WAITERS_PER_SHARD_DEFAULT,
            waiters_per_key: limits::WAITERS_PER_KEY_DEFAULT,
            wait_margin_ms: limits::WAIT_MARGIN_MS_DEFAULT,
        }
    }
}

/// Everything that is wrong with a configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Problems(Vec<String>);

impl Problems {
    /// One problem.
    #[must_use]
    pub fn one(problem: impl Into<String>) -> Self {
        Self(vec![problem.into()])
    }

    /// Each problem, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for Problems {}

/// What may be given on the command line of a single node instead of in a file.
#[derive(Clone, Debug)]
pub struct SingleFlags {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// The data folder.
    pub data_dir: PathBuf,
    /// Cores that hold connections and keys.
    pub shards: Option<u16>,
    /// What an acknowledgement means.
    pub durability: Durability,
    /// Where metrics, health and status are served.
    pub admin: Option<SocketAddr>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileConfig {
    mode: FileMode,
    listen: FileAddress,
    data_dir: PathBuf,
    shards: Option<u16>,
    #[serde(default)]
    durability: FileDurability,
    admin: Option<FileAddress>,
    client_token_file: Option<PathBuf>,
    previous_client_token_file: Option<PathBuf>,
    #[serde(default)]
    consensus_core: ConsensusCore,
    #[serde(default)]
    cores: CoreChoice,
    tls: Option<FileTls>,
    #[serde(default)]
    limits: FileLimits,
    #[serde(default)]
    log: FileLog,
    slot: Option<u8>,
    admin_token_file: Option<PathBuf>,
    peers: Option<FilePeers>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct FileAddress(SocketAddr);

impl TryFrom<String> for FileAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        address(&text).map(Self)
    }
}

/// Parses an address and a port, both in numbers: what a name stands for can
/// change, and be two addresses, of which only one would be listened on.
///
/// # Errors
/// What to write instead.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!(
            "\"{text}\" is not an address and a port in numbers: write it like 127.0.0.1:5225 or \
             [::1]:5225 (names are not looked up)"
        )
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLog {
    segment_bytes: Option<u32>,
    snapshot_log_bytes: Option<u64>,
    snapshot_log_entries: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTls {
    certificate_file: PathBuf,
    key_file: PathBuf,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileMode {
    Single,
    Cluster,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileDurability {
    #[default]
    Sync,
    Memory,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLimits {
    connections: Option<u32>,
    unauthenticated_connections: Option<u32>,
    handshake_ms: Option<u32>,
    requests_in_flight: Option<u32>,
    output_bytes: Option<u32>,
    locks_per_shard: Option<u32>,
    waiters_per_shard: Option<u32>,
    waiters_per_key: Option<u32>,
    wait_margin_ms: Option<u32>,
}

impl Config {
    /// From the command line's flags, and the token from the environment.
    ///
    /// # Errors
    /// Every problem at once.
    pub fn from_flags(flags: SingleFlags) -> Result<Self, Problems> {
        let mut problems = Vec::new();
        let client_token = token(None, CLIENT_TOKEN_VARIABLE, &mut problems);
        let config = Self {
            listen: flags.listen,
            data_dir: flags.data_dir,
            shards: shards(flags.shards, &mut problems),
            durability: flags.durability,
            admin: flags.admin,
            client_tokens: Tokens::one(client_token),
            tls: None,
            consensus_shared: ConsensusCore::default().is_shared(cores()),
            cores: CoreChoice::default(),
            limits: Limits::default(),
            log: LogConfig::default(),
            source: None,
            cluster: None,
        };
        config.check(problems)
    }

    /// From a file; its paths may be relative to it.
    ///
    /// # Errors
    /// Every problem at once, or where the file cannot be parsed.
    pub fn from_file(path: &Path) -> Result<Self, Problems> {
        let shown = path.display();
        let bytes = files::read("configuration file", path).map_err(Problems::one)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| Problems::one(format!("{shown}: it is not text in UTF-8")))?;
        let parsed: FileConfig = toml::from_str(&text).map_err(|error| {
            let line = error
                .span()
                .map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            Problems::one(format!("{shown}, line {line}: {}", error.message()))
        })?;
        let base = path.parent().unwrap_or(Path::new("."));
        let mut problems = Vec::new();
        let token_files = TokenFiles {
            current: parsed.client_token_file.map(|file| base.join(file)),
            previous: parsed
                .previous_client_token_file
                .map(|file| base.join(file)),
        };
        let client_tokens = token_files.read(CLIENT_TOKEN_VARIABLE, &mut problems);
        let cluster = match (parsed.mode, parsed.peers) {
            (FileMode::Single, None) if parsed.slot.is_none() => None,
            (FileMode::Single, _) => {
                problems.push(
                    "slot and [peers] are of a cluster's node: set mode = \"cluster\", or leave them out"
                        .to_owned(),
                );
                None
            }
            (FileMode::Cluster, None) => {
                problems.push(
                    "a cluster's node needs [peers], with listen, addresses and token_file: \
                     `ticketing cluster init` writes such files"
                        .to_owned(),
                );
                None
            }
            (FileMode::Cluster, Some(peers)) => {
                peers.checked(parsed.slot, parsed.admin_token_file, base, &mut problems)
            }
        };
        let config = Self {
            listen: parsed.listen.0,
            data_dir: base.join(parsed.data_dir),
            shards: shards(parsed.shards, &mut problems),
            durability: match parsed.durability {
                FileDurability::Sync => Durability::Sync,
                FileDurability::Memory => Durability::Memory,
            },
            admin: parsed.admin.map(|admin| admin.0),
            client_tokens,
            tls: tls(parsed.tls, base, &mut problems),
            consensus_shared: parsed.consensus_core.is_shared(cores()),
            cores: parsed.cores,
            limits: parsed.limits.checked(&mut problems),
            log: parsed.log.checked(&mut problems),
            source: Some(path.to_path_buf()),
            cluster,
        };
        config.check(problems)
    }

    /// How many executors run: one for each shard, and one for the consensus role
    /// unless that shares one.
    #[must_use]
    pub fn executors(&self) -> usize {
        usize::from(self.shards) + usize::from(!self.consensus_shared)
    }

    fn check(self, mut problems: Vec<String>) -> Result<Self, Problems> {
        if self.client_tokens.current.is_none() && !self.listen.ip().is_loopback() {
            problems.push(format!(
                "listen = {}: an address that others can reach needs a client token: set \
                 {CLIENT_TOKEN_VARIABLE}, or client_token_file in a config file; or listen on 127.0.0.1",
                self.listen
            ));
        }
        if let Some(admin) = self.admin {
            if !admin.ip().is_loopback() {
                problems.push(format!(
                    "admin = {admin}: the admin address has no protection of its own yet: use a \
                     loopback address"
                ));
            }
            if admin == self.listen && admin.port() != 0 {
                problems.push(format!(
                    "admin = {admin}: clients connect there; give it a port of its own"
                ));
            }
        }
        if let Some(cluster) = &self.cluster {
            cluster.check(&self, &mut problems);
        }
        if let CoreChoice::These(named) = &self.cores
            && let Err(problem) = Cores::check(named, self.executors())
        {
            problems.push(problem);
        }
        if let Some(connections) = self.limits.connections
            && self.limits.unauthenticated_connections > connections
        {
            problems.push(format!(
                "limits.unauthenticated_connections = {} is more than limits.connections = {connections}",
                self.limits.unauthenticated_connections
            ));
        }
        if problems.is_empty() {
            Ok(self)
        } else {
            Err(Problems(problems))
        }
    }
}

impl FileLimits {
    fn checked(&self, problems: &mut Vec<String>) -> Limits {
        let default = Limits::default();
        let mut bounded =
            |name: &str, value: Option<u32>, default: u32, range: RangeInclusive<u32>| {
                let value = value.unwrap_or(default);
                if !range.contains(&value) {
                    problems.push(format!(
                        "limits.{name} = {value}: must be {} to {}",
                        range.start(),
                        range.end()
                    ));
                }
                value
            };
        Limits {
            connections: self.connections.map(|connections| {
                bounded("connections", Some(connections), 0, limits::CONNECTIONS)
            }),
            unauthenticated_connections: bounded(
                "unauthenticated_connections",
                self.unauthenticated_connections,
                default
                    .unauthenticated_connections
                    .min(self.connections.unwrap_or(u32::MAX)),
                limits::UNAUTHENTICATED,
            ),
            handshake_ms: bounded(
                "handshake_ms",
                self.handshake_ms,
                default.handshake_ms,
                limits::HANDSHAKE_MS,
            ),
            requests_in_flight: bounded(
                "requests_in_flight",
                self.requests_in_flight,
                default.requests_in_flight,
                limits::IN_FLIGHT,
            ),
            output_bytes: bounded(
                "output_bytes",
                self.output_bytes,
                default.output_bytes,
                limits::OUTPUT_BYTES,
            ),
            locks_per_shard: bounded(
                "locks_per_shard",
                self.locks_per_shard,
                default.locks_per_shard,
                limits::LOCKS_PER_SHARD,
            ),
            waiters_per_shard: bounded(
                "waiters_per_shard",
                self.waiters_per_shard,
                default.waiters_per_shard,
                limits::WAITERS_PER_SHARD,
            ),
            waiters_per_key: bounded(
                "waiters_per_key",
                self.waiters_per_key,
                default.waiters_per_key,
                limits::WAITERS_PER_KEY,
            ),
            wait_margin_ms: bounded(
                "wait_margin_ms",
                self.wait_margin_ms,
                default.wait_margin_ms,
                limits::WAIT_MARGIN_MS,
            ),
        }
    }
}

impl FileLog {
    fn checked(&self, problems: &mut Vec<String>) -> LogConfig {
        let default = LogConfig::default();
        let mut bounded =
            |name: &str, value: Option<u64>, default: u64, range: RangeInclusive<u64>| {
                let value = value.unwrap_or(default);
                if !range.contains(&value) {
                    problems.push(format!(
                        "log.{name} = {value}: must be {} to {}",
                        range.start(),
                        range.end()
                    ));
                }
                value
            };
        let sizes = limits::SEGMENT_BYTES;
        bounded(
            "segment_bytes",
            self.segment_bytes.map(u64::from),
            u64::from(default.segment_bytes),
            u64::from(*sizes.start())..=u64::from(*sizes.end()),
        );
        let log = LogConfig {
            segment_bytes: self.segment_bytes.unwrap_or(default.segment_bytes),
            snapshot_log_bytes: bounded(
                "snapshot_log_bytes",
                self.snapshot_log_bytes,
                default.snapshot_log_bytes,
                limits::SNAPSHOT_LOG_BYTES,
            ),
            snapshot_log_entries: bounded(
                "snapshot_log_entries",
                self.snapshot_log_entries,
                default.snapshot_log_entries,
                limits::SNAPSHOT_LOG_ENTRIES,
            ),
        };
        if !(log.segment_bytes as usize).is_multiple_of(ticketing_raftlog::limits::BLOCK_BYTES) {
            problems.push(format!(
                "log.segment_bytes = {}: must be a multiple of {}",
                log.segment_bytes,
                ticketing_raftlog::limits::BLOCK_BYTES
            ));
        }
        log
    }
}

fn shards(asked: Option<u16>, problems: &mut Vec<String>) -> u16 {
    let shards = asked.map_or_else(default_shards, usize::from);
    if !limits::SHARDS.contains(&shards) {
        problems.push(format!(
            "shards = {shards}: must be {} to {}",
            limits::SHARDS.start(),
            limits::SHARDS.end()
        ));
    }
    u16::try_from(shards).unwrap_or(u16::MAX)
}

/// One core is the consensus role's; the others are shards.
fn default_shards() -> usize {
    (cores() - 1).clamp(*limits::SHARDS.start(), *limits::SHARDS.end())
}

fn tls(files: Option<FileTls>, base: &Path, problems: &mut Vec<String>) -> Option<Acceptor> {
    let files = files?;
    let read = Acceptor::from_files(
        &base.join(files.certificate_file),
        &base.join(files.key_file),
    );
    read.map_err(|problem| problems.push(problem)).ok()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Where a token and the one before it are kept.
struct TokenFiles {
    current: Option<PathBuf>,
    previous: Option<PathBuf>,
}

impl TokenFiles {
    fn read(&self, variable: &str, problems: &mut Vec<String>) -> Tokens {
        let current = token(self.current.as_deref(), variable, problems);
        let previous = self.previous.as_deref().map(Token::from_file);
        let previous =
            previous.and_then(|read| read.map_err(|problem| problems.push(problem)).ok());
        if current.is_none() && previous.is_some() {
            problems.push(
                "a previous token without a current one lets everybody in: name the current one's file"
                    .to_owned(),
            );
        }
        Tokens { current, previous }
    }
}

fn token(file: Option<&Path>, variable: &str, problems: &mut Vec<String>) -> Token {
    // As bytes: a token that is no text must not count as none.
    let found = match std::env::var_os(variable) {
        Some(value) if !value.is_empty() => Token::new(value.as_bytes(), variable),
        _ => match file {
            Some(file) => Token::from_file(file),
            None => Ok(Token::none()),
        },
    };
    found.unwrap_or_else(|problem| {
        problems.push(problem);
        Token::none()
    })
}

#[cfg(test)]
mod tests;
