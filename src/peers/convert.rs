//! Between the Raft core's messages and the frames on the wire.

use ticketing_protocol::peer::{self, Body, Kind};
use ticketing_raftlog::raft::{
    self, AppendKind, Config, ConfigEntry, EntryId, Message, Report, Run, Snapshot,
};
use ticketing_raftlog::{LogIndex, RecordKind, RecordRef, Term};

/// What a frame said, and the bytes that came with it.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are of the largest kind"
)]
pub enum Received {
    /// For the Raft core.
    Raft {
        /// The message.
        message: Message,
        /// Its entries' records, or its part of a snapshot.
        bytes: Vec<u8>,
    },
    /// An ex-leader wants a grant released.
    Release {
        /// Its name for the request.
        number: u64,
        /// The grant's token.
        token: u64,
        /// The lock's name.
        key: Vec<u8>,
    },
    /// That grant is current no more.
    ReleaseAnswer {
        /// The request's number.
        number: u64,
    },
    /// The hash of the lock state up to an index.
    StateHash {
        /// The index.
        index: LogIndex,
        /// The hash.
        hash: u128,
    },
    /// The sender leads in that term, and serves.
    Ready {
        /// The term.
        term: Term,
    },
}

impl Received {
    /// Bytes of memory that it holds, about.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Raft { bytes, .. } => bytes.len(),
                Self::Release { key, .. } => key.len(),
                _ => 0,
            }
    }
}

/// Reads a frame whose layout was right; `None` when what it says cannot be.
#[must_use]
pub fn received(frame: &peer::Frame<'_>) -> Option<Received> {
    let mut bytes = Vec::new();
    let term = Term(frame.term);
    let body = match frame.body {
        Body::PreVote { last } => raft::Body::PreVote { last: entry(last) },
        Body::PreVoteAnswer { granted } => raft::Body::PreVoteAnswer { granted },
        Body::Vote { last, transfer } => raft::Body::Vote {
            last: entry(last),
            transfer,
        },
        Body::VoteAnswer { granted } => raft::Body::VoteAnswer { granted },
        Body::Append {
            previous,
            commit,
            run,
        } => {
            let previous = entry(previous);
            let kind = run_kind(previous.index, &run)?;
            bytes.extend_from_slice(run.records);
            raft::Body::Append {
                previous,
                run: Run {
                    term: Term(run.term),
                    count: run.count,
                    bytes: run.records.len() as u64,
                    kind,
                },
                commit: LogIndex(commit),
            }
        }
        Body::Matched { up_to } => raft::Body::Matched {
            up_to: LogIndex(up_to),
        },
        Body::Conflict { refused, hint } => raft::Body::Conflict {
            refused: LogIndex(refused),
            hint: entry(hint),
        },
        Body::Heartbeat {
            round,
            commit,
            rank,
        } => raft::Body::Heartbeat {
            round,
            commit: LogIndex(commit),
            rank,
        },
        Body::HeartbeatAnswer {
            round,
            received,
            report,
        } => raft::Body::HeartbeatAnswer {
            round,
            received: LogIndex(received),
            report: Report {
                has_room: report.has_room,
                fit_to_lead: report.fit_to_lead,
            },
        },
        Body::SnapshotChunk {
            snapshot,
            offset,
            config_index,
            config,
            bytes: chunk,
        } => {
            bytes.extend_from_slice(chunk);
            raft::Body::SnapshotChunk {
                snapshot: snapshot_of(snapshot),
                config: ConfigEntry {
                    index: LogIndex(config_index),
                    config: Config::decode_members(config).ok()?,
                },
                offset,
                bytes: u32::try_from(chunk.len()).ok()?,
            }
        }
        Body::SnapshotAnswer {
            snapshot,
            next_offset,
        } => raft::Body::SnapshotAnswer {
            snapshot: snapshot_of(snapshot),
            next_offset,
        },
        Body::TimeoutNow => raft::Body::TimeoutNow,
        Body::DoYouLead => raft::Body::DoYouLead,
        Body::NotLeading => raft::Body::NotLeading,
        Body::TermOver => raft::Body::TermOver,
        Body::NeedsSnapshot => raft::Body::NeedsSnapshot,
        Body::Release { number, token, key } => {
            return Some(Received::Release {
                number,
                token,
                key: key.to_vec(),
            });
        }
        Body::ReleaseAnswer { number } => return Some(Received::ReleaseAnswer { number }),
        Body::StateHash { index, hash } => {
            return Some(Received::StateHash {
                index: LogIndex(index),
                hash,
            });
        }
        Body::Ready => return Some(Received::Ready { term }),
        // Not for the role.
        Body::Alive | Body::Addresses(_) => return None,
    };
    let message = Message { term, body };
    Some(Received::Raft { message, bytes })
}

/// What the entries are, if the records are those that the run announces, one behind the other.
fn run_kind(previous: LogIndex, run: &peer::Run<'_>) -> Option<AppendKind> {
    let mut rest = run.records;
    let mut next = previous.next();
    let mut count = 0;
    let mut config = None;
    while !rest.is_empty() {
        let (record, bytes) = RecordRef::read(rest)?;
        let kind_fits = match run.kind {
            Kind::Noop => record.kind == RecordKind::Noop && record.payload.is_empty(),
            Kind::Commands => record.kind == RecordKind::Command,
            Kind::Config => record.kind == RecordKind::Config,
        };
        if !kind_fits || record.term.0 != run.term || record.index != next {
            return None;
        }
        if run.kind == Kind::Config {
            config = Some(Config::decode_members(record.payload).ok()?);
        }
        count += 1;
        next = next.next();
        rest = rest.get(bytes..)?;
    }
    if count != run.count {
        return None;
    }
    Some(match (run.kind, config) {
        (Kind::Noop, _) => AppendKind::Noop,
        (Kind::Commands, _) => AppendKind::Commands,
        (Kind::Config, Some(config)) => AppendKind::Config(config),
        // Only probes, and says nothing of what would come.
        (Kind::Config, None) => AppendKind::Commands,
    })
}

/// What a message of the core's is on the wire. `bytes` are its entries' records, or its part of a
/// snapshot; `config` is room for a configuration's bytes.
#[must_use]
pub fn body<'a>(message: &Message, bytes: &'a [u8], config: &'a mut Vec<u8>) -> Body<'a> {
    match message.body {
        raft::Body::PreVote { last } => Body::PreVote { last: wire(last) },
        raft::Body::PreVoteAnswer { granted } => Body::PreVoteAnswer { granted },
        raft::Body::Vote { last, transfer } => Body::Vote {
            last: wire(last),
            transfer,
        },
        raft::Body::VoteAnswer { granted } => Body::VoteAnswer { granted },
        raft::Body::Append {
            previous,
            run,
            commit,
        } => Body::Append {
            previous: wire(previous),
            commit: commit.0,
            run: peer::Run {
                term: run.term.0,
                count: run.count,
                kind: match run.kind {
                    AppendKind::Noop => Kind::Noop,
                    AppendKind::Commands => Kind::Commands,
                    AppendKind::Config(_) => Kind::Config,
                },
                records: bytes,
            },
        },
        raft::Body::Matched { up_to } => Body::Matched { up_to: up_to.0 },
        raft::Body::Conflict { refused, hint } => Body::Conflict {
            refused: refused.0,
            hint: wire(hint),
        },
        raft::Body::NeedsSnapshot => Body::NeedsSnapshot,
        raft::Body::Heartbeat {
            round,
            commit,
            rank,
        } => Body::Heartbeat {
            round,
            commit: commit.0,
            rank,
        },
        raft::Body::HeartbeatAnswer {
            round,
            received,
            report,
        } => Body::HeartbeatAnswer {
            round,
            received: received.0,
            report: peer::Report {
                has_room: report.has_room,
                fit_to_lead: report.fit_to_lead,
            },
        },
        raft::Body::SnapshotChunk {
            snapshot,
            config: entry,
            offset,
            ..
        } => {
            entry.config.encode(config);
            Body::SnapshotChunk {
                snapshot: wire_snapshot(&snapshot),
                offset,
                config_index: entry.index.0,
                config,
                bytes,
            }
        }
        raft::Body::SnapshotAnswer {
            snapshot,
            next_offset,
        } => Body::SnapshotAnswer {
            snapshot: wire_snapshot(&snapshot),
            next_offset,
        },
        raft::Body::TimeoutNow => Body::TimeoutNow,
        raft::Body::DoYouLead => Body::DoYouLead,
        raft::Body::NotLeading => Body::NotLeading,
        raft::Body::TermOver => Body::TermOver,
    }
}

fn entry(id: peer::EntryId) -> EntryId {
    EntryId {
        term: Term(id.term),
        index: LogIndex(id.index),
    }
}

fn wire(id: EntryId) -> peer::EntryId {
    peer::EntryId {
        term: id.term.0,
        index: id.index.0,
    }
}

fn snapshot_of(id: peer::SnapshotId) -> Snapshot {
    Snapshot {
        last: entry(id.last),
        bytes: id.bytes,
        id: id.id,
    }
}

fn wire_snapshot(snapshot: &Snapshot) -> peer::SnapshotId {
    peer::SnapshotId {
        last: wire(snapshot.last),
        bytes: snapshot.bytes,
        id: snapshot.id,
    }
}
