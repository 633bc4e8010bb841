//! The metrics in the text form that Prometheus reads.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::counters::{Counter, ShardCounters};

use super::NodeView;

/// The exposition as of now.
///
/// # Errors
/// Never in practice: writing to a string does not fail.
pub(super) fn encode(view: &NodeView) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("ticketing");
    registry.register_collector(Box::new(Snapshot::of(view)));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

type OfShard = fn(&ShardCounters) -> &Counter;

/// Sums over all shards that only grow.
const COUNTERS: &[(&str, &str, OfShard)] = &[
    ("connections_accepted", "Connections accepted", |s| {
        &s.accepted
    }),
    (
        "connections_turned_away",
        "Connections closed at once because there were too many",
        |s| &s.turned_away,
    ),
    ("accept_errors", "Accepts that the kernel refused", |s| {
        &s.accept_errors
    }),
    (
        "handshakes_refused",
        "Handshakes with a wrong answer",
        |s| &s.handshakes_refused,
    ),
    (
        "handshakes_dropped",
        "Handshakes broken off or too slow",
        |s| &s.handshakes_dropped,
    ),
    (
        "connections_malformed",
        "Connections closed for malformed framing",
        |s| &s.malformed,
    ),
    (
        "connections_stalled",
        "Connections closed for taking nothing or leaving no room",
        |s| &s.stalled,
    ),
    ("acquires", "Acquires received", |s| &s.acquires),
    ("releases", "Releases received", |s| &s.releases),
    (
        "requests_forwarded",
        "Requests for a key of another shard",
        |s| &s.forwarded,
    ),
    (
        "admission_refused",
        "Acquires answered Busy because the log or a lane was backed up",
        |s| &s.admission_refused,
    ),
    (
        "expired",
        "Locks taken back because their lease ran out",
        |s| &s.expired,
    ),
    (
        "ghosts",
        "Grants released because their requester was gone",
        |s| &s.ghosts,
    ),
    ("grants_rejected", "Grants that met a held key", |s| {
        &s.grants_rejected
    }),
];

/// Answers, by kind, summed over all shards.
const ANSWERS: &[(&str, OfShard)] = &[
    ("acquired", |s| &s.answered_acquired),
    ("released", |s| &s.answered_released),
    ("not_found", |s| &s.answered_not_found),
    ("timed_out", |s| &s.answered_timed_out),
    ("busy", |s| &s.answered_busy),
    ("indeterminate", |s| &s.answered_indeterminate),
    ("error", |s| &s.answered_error),
    ("moved", |s| &s.answered_moved),
];

/// Sums over all shards that come and go.
const GAUGES: &[(&str, &str, OfShard)] = &[
    (
        "connections",
        "Connections that have passed the handshake",
        |s| &s.connections,
    ),
    ("unauthenticated", "Connections in the handshake", |s| {
        &s.unauthenticated
    }),
    ("locks_held", "Locks held", |s| &s.locks_held),
    ("waiting", "Requests in line", |s| &s.waiting),
];

#[derive(Debug)]
struct Snapshot {
    counters: Vec<(&'static str, &'static str, u64)>,
    gauges: Vec<(&'static str, &'static str, u64)>,
    answers: Vec<(&'static str, u64)>,
}

impl Snapshot {
    fn of(view: &NodeView) -> Self {
        let consensus = &view.consensus;
        let mut counters: Vec<_> = COUNTERS
            .iter()
            .map(|&(name, help, of)| (name, help, view.sum(of)))
            .collect();
        counters.extend([
            (
                "log_batches",
                "Log batches written",
                consensus.batches.get(),
            ),
            ("log_commands", "Entries in them", consensus.commands.get()),
            ("log_syncs", "Syncs done", consensus.syncs.get()),
            (
                "snapshots",
                "Snapshots written since the start",
                consensus.snapshots.get(),
            ),
            (
                "log_persist_microseconds",
                "Time spent writing and syncing batches",
                consensus.persist_us.get(),
            ),
        ]);
        let mut gauges: Vec<_> = GAUGES
            .iter()
            .map(|&(name, help, of)| (name, help, view.sum(of)))
            .collect();
        gauges.extend([
            (
                "shards",
                "Cores that hold connections and keys",
                view.shards.len() as u64,
            ),
            ("term", "Raft term", consensus.term.get()),
            ("last_index", "Last log index", consensus.last_index.get()),
            (
                "persisted_index",
                "Last log index that is persisted",
                consensus.persisted_index.get(),
            ),
            (
                "commit_index",
                "Last log index that is committed",
                consensus.commit_index.get(),
            ),
            (
                "proposal_bytes_waiting",
                "Bytes of proposals that wait for a batch",
                consensus.waiting_bytes.get(),
            ),
            (
                "log_segments",
                "Segment files of the log",
                consensus.segments.get(),
            ),
            (
                "log_full",
                "1 while the disk has no room for the next segment, and acquires are answered Busy",
                consensus.log_full.get(),
            ),
            (
                "snapshot_index",
                "Last log index in the newest snapshot",
                consensus.snapshot_index.get(),
            ),
            (
                "snapshot_bytes",
                "Size of the newest snapshot",
                consensus.snapshot_bytes.get(),
            ),
        ]);
        Self {
            counters,
            gauges,
            answers: ANSWERS
                .iter()
                .map(|&(kind, of)| (kind, view.sum(of)))
                .collect(),
        }
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for &(name, help, value) in &self.counters {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        for &(name, help, value) in &self.gauges {
            // Indexes stay below 2^53, so the sign bit is never reached.
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        let answers: Family<[(&str, &str); 1], prometheus_client::metrics::counter::Counter> =
            Family::default();
        for &(kind, value) in &self.answers {
            answers.get_or_create(&[("kind", kind)]).inc_by(value);
        }
        let metric =
            encoder.encode_descriptor("answers", "Answers sent", None, answers.metric_type())?;
        answers.encode(metric)
    }
}
