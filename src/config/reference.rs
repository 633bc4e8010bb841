//! Every key of the configuration file, with its default, its bounds and what it is for, as a file that can be
//! started from.

use std::fmt::{Display, Write as _};
use std::ops::RangeInclusive;

use super::{Limits, LogConfig};
use crate::limits;
use crate::security::token::{ADMIN_TOKEN_VARIABLE, CLIENT_TOKEN_VARIABLE, PEER_TOKEN_VARIABLE};

/// A part of the file.
struct Section {
    /// Its table; none of the top.
    table: Option<&'static str>,
    /// What it is for.
    meaning: &'static str,
    /// Whether a file need not have it.
    optional: bool,
    keys: Vec<Key>,
}

/// One key.
struct Key {
    name: &'static str,
    /// Its value, as TOML has it: the default, or an example where it has to be set.
    value: String,
    /// Whether a file need not have it.
    optional: bool,
    meaning: String,
}

fn needed(name: &'static str, example: &str, meaning: &str) -> Key {
    Key {
        name,
        value: example.to_owned(),
        optional: false,
        meaning: meaning.to_owned(),
    }
}

fn optional(name: &'static str, default: impl Display, meaning: impl Into<String>) -> Key {
    Key {
        name,
        value: default.to_string(),
        optional: true,
        meaning: meaning.into(),
    }
}

fn bounded<T: Display>(
    name: &'static str,
    default: impl Display,
    range: &RangeInclusive<T>,
    meaning: &str,
) -> Key {
    let (start, end) = (range.start(), range.end());
    optional(name, default, format!("{meaning} {start} to {end}."))
}

fn top() -> Section {
    Section {
        table: None,
        meaning: "",
        optional: false,
        keys: vec![
            needed(
                "mode",
                "\"cluster\"",
                "\"single\": one node by itself; or \"cluster\": one of 3 or 5.",
            ),
            needed(
                "slot",
                "0",
                "In a cluster: this node's place in the clients' address list, from 0 on.",
            ),
            needed(
                "listen",
                "\"10.0.0.1:5225\"",
                "Where clients connect. In numbers.",
            ),
            needed(
                "data_dir",
                "\"data\"",
                "The data folder. This path, and every other, may be relative to this file's folder.",
            ),
            bounded(
                "shards",
                1,
                &limits::SHARDS,
                "Cores for connections and keys. By default all but one, at least one.",
            ),
            optional(
                "durability",
                "\"sync\"",
                "What an acknowledgement means: \"sync\", synced on the disks of a majority; \"memory\", in the \
                 memory of a majority's machines.",
            ),
            optional(
                "admin",
                "\"127.0.0.1:7225\"",
                "Where metrics, health and status are served, and operators' orders taken: on loopback. Not \
                 served if left out.",
            ),
            optional(
                "client_token_file",
                "\"client.token\"",
                format!(
                    "What clients must know, or {CLIENT_TOKEN_VARIABLE}; needed unless listen is on loopback. \
                     Mode 0600."
                ),
            ),
            optional(
                "previous_client_token_file",
                "\"client-previous.token\"",
                "A second token that clients may know instead, while it is being changed.",
            ),
            optional(
                "admin_token_file",
                "\"admin.token\"",
                format!(
                    "In a cluster: what operators must know to give orders, or {ADMIN_TOKEN_VARIABLE}; without \
                     it no orders are taken. Mode 0600."
                ),
            ),
            optional(
                "cores",
                "\"auto\"",
                "Which processor cores the executors stay on. \"auto\": cores that no other server has, if there \
                 are enough; \"any\": none in particular; or a list, the consensus role's first: [3, 1, 2]. One \
                 whose core other processes want leaves it for a while.",
            ),
            optional(
                "consensus_core",
                "\"auto\"",
                format!(
                    "Whether the consensus role has an executor of its own: \"own\", \"shared\" with the first \
                     shard, or \"auto\", which shares on {} cores or fewer.",
                    limits::SHARED_CORES_MOST
                ),
            ),
        ],
    }
}

fn tls() -> Section {
    Section {
        table: Some("tls"),
        meaning: "With it clients must speak TLS.",
        optional: true,
        keys: vec![
            needed(
                "certificate_file",
                "\"server.pem\"",
                "PEM, the server's own certificate first.",
            ),
            needed("key_file", "\"server.key\"", "PEM, mode 0600."),
        ],
    }
}

fn bounds() -> Section {
    let default = Limits::default();
    Section {
        table: Some("limits"),
        meaning: "What is bounded, of the whole node unless it says otherwise.",
        optional: true,
        keys: vec![
            bounded(
                "connections",
                limits::CONNECTIONS_DEFAULT,
                &limits::CONNECTIONS,
                "Client connections; by default as many of these as the open-files limit allows.",
            ),
            bounded(
                "unauthenticated_connections",
                default.unauthenticated_connections,
                &limits::UNAUTHENTICATED,
                "Those of them that have not passed the handshake.",
            ),
            bounded(
                "handshake_ms",
                default.handshake_ms,
                &limits::HANDSHAKE_MS,
                "How long a handshake may take.",
            ),
            bounded(
                "requests_in_flight",
                default.requests_in_flight,
                &limits::IN_FLIGHT,
                "Requests in flight on one connection; beyond it acquires are answered Busy.",
            ),
            bounded(
                "output_bytes",
                default.output_bytes,
                &limits::OUTPUT_BYTES,
                "Answers that may wait for one connection; beyond it the connection is not read.",
            ),
            bounded(
                "locks_per_shard",
                default.locks_per_shard,
                &limits::LOCKS_PER_SHARD,
                "Locks that may be held on one shard; beyond it acquires are answered Busy.",
            ),
            bounded(
                "waiters_per_shard",
                default.waiters_per_shard,
                &limits::WAITERS_PER_SHARD,
                "Requests that may stand in line on one shard; beyond it they are answered Busy.",
            ),
            bounded(
                "waiters_per_key",
                default.waiters_per_key,
                &limits::WAITERS_PER_KEY,
                "Requests that may stand in line for one key; beyond it they are answered Busy.",
            ),
            bounded(
                "wait_margin_ms",
                default.wait_margin_ms,
                &limits::WAIT_MARGIN_MS,
                "How long before the end of its wait a request is told that it ran out.",
            ),
        ],
    }
}

fn log() -> Section {
    let default = LogConfig::default();
    Section {
        table: Some("log"),
        meaning: "The log on the disk.",
        optional: true,
        keys: vec![
            bounded(
                "segment_bytes",
                default.segment_bytes,
                &limits::SEGMENT_BYTES,
                "Size of a segment: a multiple of 4096.",
            ),
            bounded(
                "snapshot_log_bytes",
                default.snapshot_log_bytes,
                &limits::SNAPSHOT_LOG_BYTES,
                "Bytes of log after which a snapshot is taken: the log keeps about twice as much.",
            ),
            bounded(
                "snapshot_log_entries",
                default.snapshot_log_entries,
                &limits::SNAPSHOT_LOG_ENTRIES,
                "Entries of the log after which a snapshot is taken: what a start applies at most.",
            ),
        ],
    }
}

fn peers() -> Section {
    Section {
        table: Some("peers"),
        meaning: "In a cluster, and only there: the other nodes.",
        optional: false,
        keys: vec![
            needed(
                "listen",
                "\"10.0.0.1:6225\"",
                "Where this node listens for the others.",
            ),
            needed(
                "addresses",
                "[\"10.0.0.1:6225\", \"10.0.0.2:6225\", \"10.0.0.3:6225\"]",
                "Where each slot's node listens for the others, 3 or 5 of them. A node that has another address \
                 by now is found through the others.",
            ),
            optional(
                "token_file",
                "\"peer.token\"",
                format!(
                    "What every node of the cluster must know, or {PEER_TOKEN_VARIABLE}. Mode 0600."
                ),
            ),
            optional(
                "previous_token_file",
                "\"peer-previous.token\"",
                "A second token that the others may know instead, while it is being changed.",
            ),
        ],
    }
}

fn peer_tls() -> Section {
    Section {
        table: Some("peers.tls"),
        meaning: "With it the nodes speak TLS among themselves; all of them or none.",
        optional: true,
        keys: vec![
            needed(
                "certificate_file",
                "\"peer.pem\"",
                "PEM, the node's own certificate first; it names the IP address in peers.listen.",
            ),
            needed("key_file", "\"peer.key\"", "PEM, mode 0600."),
            needed(
                "authority_file",
                "\"authority.pem\"",
                "PEM: who has signed the others' certificates.",
            ),
            optional(
                "mutual",
                false,
                "Whether who dials must show a certificate too.",
            ),
        ],
    }
}

/// The whole file, with everything that may be left out commented out.
#[must_use]
pub fn reference() -> String {
    let mut out = String::new();
    let mut line = |text: &str| {
        let _ = writeln!(out, "{text}");
    };
    line(
        "# Every key of ticketing.toml. One that is commented out shows its default, or an example",
    );
    line("# where there is none. A file that has a key that is not here is refused.");
    for section in [top(), tls(), bounds(), log(), peers(), peer_tls()] {
        line("");
        for text in wrapped(section.meaning) {
            line(&format!("# {text}"));
        }
        let left_out = if section.optional { "# " } else { "" };
        if let Some(table) = section.table {
            line(&format!("{left_out}[{table}]"));
        }
        for key in section.keys {
            if section.table.is_none() {
                line("");
            }
            for text in wrapped(&key.meaning) {
                line(&format!("# {text}"));
            }
            let left_out = if key.optional { "# " } else { left_out };
            line(&format!("{left_out}{} = {}", key.name, key.value));
        }
    }
    out
}

/// Words in lines of some 90 characters.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(last) if last.len() + word.len() < 90 => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::FileConfig;
    use super::*;

    /// The reference with every line that is commented out, and is no text, in force.
    fn in_force() -> String {
        let uncommented = |line: &str| match line.strip_prefix("# ") {
            Some(rest) if rest.starts_with('[') || is_assignment(rest) => rest.to_owned(),
            _ => line.to_owned(),
        };
        let lines: Vec<String> = reference().lines().map(uncommented).collect();
        lines.join("\n")
    }

    fn is_assignment(line: &str) -> bool {
        line.split_once(" = ")
            .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
    }

    /// The keys that a table may have, from what the parser says of one that it may not.
    fn known(table: &str) -> BTreeSet<String> {
        let whole = in_force();
        let marked = match table {
            "" => format!("no_such_key = 1\n{whole}"),
            table => whole.replace(
                &format!("[{table}]"),
                &format!("[{table}]\nno_such_key = 1"),
            ),
        };
        let error = toml::from_str::<FileConfig>(&marked)
            .expect_err("unknown")
            .to_string();
        let (_, expected) = error.split_once("expected one of ").expect("a list");
        let names = expected.split('`').skip(1).step_by(2).map(str::to_owned);
        names.collect()
    }

    #[test]
    fn a_file_may_have_what_the_reference_has_and_nothing_else() {
        for section in [top(), tls(), bounds(), log(), peers(), peer_tls()] {
            let table = section.table.unwrap_or_default();
            let mut expected: BTreeSet<String> =
                section.keys.iter().map(|key| key.name.to_owned()).collect();
            match table {
                "" => expected.extend(["tls", "limits", "log", "peers"].map(str::to_owned)),
                "peers" => expected.extend(["tls".to_owned()]),
                _ => {}
            }
            // With two keys the parser says "a or b" instead of a list.
            if expected.len() > 2 {
                assert_eq!(known(table), expected, "[{table}]");
            }
        }
    }

    #[test]
    fn the_reference_is_a_file_and_what_it_leaves_out_is_the_default() {
        let written: FileConfig = toml::from_str(&reference()).expect("it parses");
        let whole: FileConfig = toml::from_str(&in_force()).expect("it parses in force");
        let mut problems = Vec::new();
        assert_eq!(
            whole.log.checked(&mut problems),
            written.log.checked(&mut problems)
        );
        let mut limits = whole.limits.checked(&mut problems);
        assert_eq!(limits.connections.take(), Some(limits::CONNECTIONS_DEFAULT));
        assert_eq!(limits, written.limits.checked(&mut problems));
        assert_eq!(problems, [""; 0]);
    }
}
