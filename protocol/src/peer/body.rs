//! What a frame says, by its kind. Fields lie one after the other, without padding.

use super::addresses::Addresses;
use super::frame::Malformed;
use super::wire::{Reader, put_u32, put_u64};
use crate::limits::{
    PEER_CHUNK_MAX, PEER_CONFIG_MAX_BYTES, PEER_ENTRIES_MAX, PEER_RECORDS_MAX_BYTES,
};
use crate::validate_key;

/// Bytes of a NodeId.
pub const NODE_ID_LEN: usize = 16;

/// An entry's place: term u64, index u64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryId {
    /// The term.
    pub term: u64,
    /// The index.
    pub index: u64,
}

/// What entries are: 0 no-op, 1 commands, 2 one configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first entry of a leader's term.
    Noop = 0,
    /// Commands of the lock tables.
    Commands = 1,
    /// A configuration of the cluster.
    Config = 2,
}

/// Consecutive entries of one term and one kind: term u64, count u32, kind u8, three zeros, then
/// the records as they lie in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// Their term.
    pub term: u64,
    /// How many; none only probes.
    pub count: u32,
    /// What they are.
    pub kind: Kind,
    /// Their records, one behind the other; judged by whoever knows the log's format.
    pub records: &'a [u8],
}

/// A snapshot's identity: last entry (16 bytes), size u64, checksum u64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotId {
    /// The last entry it stands for.
    pub last: EntryId,
    /// The file's size in bytes.
    pub bytes: u64,
    /// Tells two files of one index apart.
    pub id: u64,
}

/// What a node tells its leader of itself: one byte, bit 0 room on its disk, bit 1 fit to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its disk has room.
    pub has_room: bool,
    /// Leadership may be handed to it.
    pub fit_to_lead: bool,
}

macro_rules! kinds {
    ($($name:ident = $value:literal),+ $(,)?) => {
        mod kind { $(pub(super) const $name: u8 = $value;)+ }
        /// Every kind there is.
        pub const KINDS: &[u8] = &[$($value),+];
    };
}

kinds! {
    PRE_VOTE = 1,
    PRE_VOTE_ANSWER = 2,
    VOTE = 3,
    VOTE_ANSWER = 4,
    APPEND = 5,
    MATCHED = 6,
    CONFLICT = 7,
    HEARTBEAT = 8,
    HEARTBEAT_ANSWER = 9,
    SNAPSHOT_CHUNK = 10,
    SNAPSHOT_ANSWER = 11,
    TIMEOUT_NOW = 12,
    DO_YOU_LEAD = 13,
    NOT_LEADING = 14,
    TERM_OVER = 15,
    NEEDS_SNAPSHOT = 16,
    RELEASE = 32,
    RELEASE_ANSWER = 33,
    STATE_HASH = 34,
    READY = 35,
    ALIVE = 36,
    ADDRESSES = 37,
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// Kind 1. Would you vote for me? `last`: the sender's last entry.
    PreVote {
        /// The sender's last entry.
        last: EntryId,
    },
    /// Kind 2: The answer: one byte, 0 or 1.
    PreVoteAnswer {
        /// It would.
        granted: bool,
    },
    /// Kind 3: RequestVote: last entry, then one byte: the leader asked for this.
    Vote {
        /// The sender's last entry.
        last: EntryId,
        /// A leadership transfer.
        transfer: bool,
    },
    /// Kind 4: The answer: one byte, 0 or 1.
    VoteAnswer {
        /// The vote is given.
        granted: bool,
    },
    /// Kind 5: AppendEntries: previous entry, commit index u64, then the run.
    Append {
        /// The entry before the first.
        previous: EntryId,
        /// The sender's commit index.
        commit: u64,
        /// The entries.
        run: Run<'a>,
    },
    /// Kind 6: The log is the leader's up to this index (u64), and persisted.
    Matched {
        /// The index.
        up_to: u64,
    },
    /// Kind 7: Another entry, or none, at an append's `previous`: its index u64, then the hint.
    Conflict {
        /// That append's previous index.
        refused: u64,
        /// The last entry that may be the leader's.
        hint: EntryId,
    },
    /// Kind 8: Round u64, commit index u64, rank u8.
    Heartbeat {
        /// Which round.
        round: u64,
        /// What of the receiver's log is committed.
        commit: u64,
        /// The receiver's place by how much of the log it has.
        rank: u8,
    },
    /// Kind 9: Round u64, received index u64, report u8.
    HeartbeatAnswer {
        /// The heartbeat's round.
        round: u64,
        /// How far the sender's log is the leader's.
        received: u64,
        /// About the sender.
        report: Report,
    },
    /// Kind 10: Snapshot, offset u64, the configuration's index u64, its length u8 and three zeros,
    /// the configuration, then the file's bytes.
    SnapshotChunk {
        /// Of which snapshot.
        snapshot: SnapshotId,
        /// Where in the file.
        offset: u64,
        /// Where in the log the configuration is that is in force at its last index.
        config_index: u64,
        /// That configuration, as its record in the log has it; judged by
        /// whoever knows the log's format.
        config: &'a [u8],
        /// The bytes; none only asks.
        bytes: &'a [u8],
    },
    /// Kind 11: Snapshot, next offset u64.
    SnapshotAnswer {
        /// Of which snapshot.
        snapshot: SnapshotId,
        /// The next byte that the sender needs.
        next_offset: u64,
    },
    /// Kind 12: Stand for election at once. Empty.
    TimeoutNow,
    /// Kind 13: Do you still lead? Empty.
    DoYouLead,
    /// Kind 14: The sender does not lead. Empty.
    NotLeading,
    /// Kind 15: What this answers is of a term that is over. Empty.
    TermOver,
    /// Kind 16: the sender knows no members, and needs a snapshot to begin with. Empty.
    NeedsSnapshot,
    /// Kind 32: An ex-leader asks the leader to release a grant that nobody wants: number u64, token
    /// u64, then the key.
    Release {
        /// The sender's name for the request.
        number: u64,
        /// The grant's token; not 0.
        token: u64,
        /// The lock's name.
        key: &'a [u8],
    },
    /// Kind 33: The release is done, or there was nothing to release: number u64.
    ReleaseAnswer {
        /// The request's number.
        number: u64,
    },
    /// Kind 34: The hash of the lock state applied up to an index: index u64, hash u128.
    StateHash {
        /// The index.
        index: u64,
        /// The sum of the locks' hashes.
        hash: u128,
    },
    /// Kind 35: The sender leads in the frame's term, and serves clients. Empty.
    Ready,
    /// Kind 36: The sender's process is alive, and has nothing else to say. Empty.
    Alive,
    /// Kind 37: Where the sender listens, and where those do that it is connected with: an entry each.
    Addresses(Addresses<'a>),
}

impl<'a> Body<'a> {
    /// Its kind, as in the frame's header.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Self::PreVote { .. } => kind::PRE_VOTE,
            Self::PreVoteAnswer { .. } => kind::PRE_VOTE_ANSWER,
            Self::Vote { .. } => kind::VOTE,
            Self::VoteAnswer { .. } => kind::VOTE_ANSWER,
            Self::Append { .. } => kind::APPEND,
            Self::Matched { .. } => kind::MATCHED,
            Self::Conflict { .. } => kind::CONFLICT,
            Self::Heartbeat { .. } => kind::HEARTBEAT,
            Self::HeartbeatAnswer { .. } => kind::HEARTBEAT_ANSWER,
            Self::SnapshotChunk { .. } => kind::SNAPSHOT_CHUNK,
            Self::SnapshotAnswer { .. } => kind::SNAPSHOT_ANSWER,
            Self::TimeoutNow => kind::TIMEOUT_NOW,
            Self::DoYouLead => kind::DO_YOU_LEAD,
            Self::NotLeading => kind::NOT_LEADING,
            Self::TermOver => kind::TERM_OVER,
            Self::NeedsSnapshot => kind::NEEDS_SNAPSHOT,
            Self::Release { .. } => kind::RELEASE,
            Self::ReleaseAnswer { .. } => kind::RELEASE_ANSWER,
            Self::StateHash { .. } => kind::STATE_HASH,
            Self::Ready => kind::READY,
            Self::Alive => kind::ALIVE,
            Self::Addresses(_) => kind::ADDRESSES,
        }
    }

    /// Appends the body to `out`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::PreVote { last } => last.encode(out),
            Self::PreVoteAnswer { granted } | Self::VoteAnswer { granted } => {
                out.push(u8::from(granted));
            }
            Self::Vote { last, transfer } => {
                last.encode(out);
                out.push(u8::from(transfer));
            }
            Self::Append {
                previous,
                commit,
                run,
            } => {
                previous.encode(out);
                put_u64(out, commit);
                put_u64(out, run.term);
                put_u32(out, run.count);
                out.extend_from_slice(&[run.kind as u8, 0, 0, 0]);
                out.extend_from_slice(run.records);
            }
            Self::Matched { up_to } => put_u64(out, up_to),
            Self::Conflict { refused, hint } => {
                put_u64(out, refused);
                hint.encode(out);
            }
            Self::Heartbeat {
                round,
                commit,
                rank,
            } => {
                put_u64(out, round);
                put_u64(out, commit);
                out.push(rank);
            }
            Self::HeartbeatAnswer {
                round,
                received,
                report,
            } => {
                put_u64(out, round);
                put_u64(out, received);
                out.push(u8::from(report.has_room) | u8::from(report.fit_to_lead) << 1);
            }
            Self::SnapshotChunk {
                snapshot,
                offset,
                config_index,
                config,
                bytes,
            } => {
                snapshot.encode(out);
                put_u64(out, offset);
                put_u64(out, config_index);
                assert!(config.len() <= PEER_CONFIG_MAX_BYTES, "too many members");
                out.extend_from_slice(&[config.len() as u8, 0, 0, 0]);
                out.extend_from_slice(config);
                out.extend_from_slice(bytes);
            }
            Self::SnapshotAnswer {
                snapshot,
                next_offset,
            } => {
                snapshot.encode(out);
                put_u64(out, next_offset);
            }
            Self::TimeoutNow
            | Self::DoYouLead
            | Self::NotLeading
            | Self::TermOver
            | Self::NeedsSnapshot
            | Self::Ready
            | Self::Alive => {}
            Self::Release { number, token, key } => {
                put_u64(out, number);
                put_u64(out, token);
                out.extend_from_slice(key);
            }
            Self::ReleaseAnswer { number } => put_u64(out, number),
            Self::StateHash { index, hash } => {
                put_u64(out, index);
                out.extend_from_slice(&hash.to_le_bytes());
            }
            Self::Addresses(addresses) => out.extend_from_slice(addresses.bytes()),
        }
    }

    /// Reads the body of a frame of that kind.
    pub(super) fn parse(kind: u8, body: &'a [u8]) -> Result<Self, Malformed> {
        if !KINDS.contains(&kind) {
            return Err(Malformed::Kind(kind));
        }
        let mut reader = Reader(body);
        Self::read(kind, &mut reader)
            // What is left over is of another version, or a lie.
            .filter(|_| reader.0.is_empty())
            .ok_or(Malformed::Body {
                kind,
                bytes: body.len(),
            })
    }

    fn read(kind: u8, reader: &mut Reader<'a>) -> Option<Self> {
        Some(match kind {
            kind::PRE_VOTE => Self::PreVote {
                last: EntryId::read(reader)?,
            },
            kind::PRE_VOTE_ANSWER => Self::PreVoteAnswer {
                granted: reader.bool()?,
            },
            kind::VOTE => Self::Vote {
                last: EntryId::read(reader)?,
                transfer: reader.bool()?,
            },
            kind::VOTE_ANSWER => Self::VoteAnswer {
                granted: reader.bool()?,
            },
            kind::APPEND => Self::Append {
                previous: EntryId::read(reader)?,
                commit: reader.u64()?,
                run: Run::read(reader)?,
            },
            kind::MATCHED => Self::Matched {
                up_to: reader.u64()?,
            },
            kind::CONFLICT => Self::Conflict {
                refused: reader.u64()?,
                hint: EntryId::read(reader)?,
            },
            kind::HEARTBEAT => Self::Heartbeat {
                round: reader.u64()?,
                commit: reader.u64()?,
                rank: reader.u8()?,
            },
            kind::HEARTBEAT_ANSWER => Self::HeartbeatAnswer {
                round: reader.u64()?,
                received: reader.u64()?,
                report: Report::read(reader)?,
            },
            kind::SNAPSHOT_CHUNK => {
                let snapshot = SnapshotId::read(reader)?;
                let offset = reader.u64()?;
                let config_index = reader.u64()?;
                let config_bytes = usize::from(reader.u8()?);
                if config_bytes > PEER_CONFIG_MAX_BYTES {
                    return None;
                }
                reader.zeros::<3>()?;
                let config = reader.bytes(config_bytes)?;
                Self::SnapshotChunk {
                    snapshot,
                    offset,
                    config_index,
                    config,
                    bytes: Some(reader.rest()).filter(|bytes| bytes.len() <= PEER_CHUNK_MAX)?,
                }
            }
            kind::SNAPSHOT_ANSWER => Self::SnapshotAnswer {
                snapshot: SnapshotId::read(reader)?,
                next_offset: reader.u64()?,
            },
            kind::TIMEOUT_NOW => Self::TimeoutNow,
            kind::DO_YOU_LEAD => Self::DoYouLead,
            kind::NOT_LEADING => Self::NotLeading,
            kind::TERM_OVER => Self::TermOver,
            kind::NEEDS_SNAPSHOT => Self::NeedsSnapshot,
            kind::RELEASE => Self::Release {
                number: reader.u64()?,
                token: reader.u64().filter(|token| *token != 0)?,
                key: Some(reader.rest()).filter(|key| validate_key(key).is_ok())?,
            },
            kind::RELEASE_ANSWER => Self::ReleaseAnswer {
                number: reader.u64()?,
            },
            kind::STATE_HASH => Self::StateHash {
                index: reader.u64()?,
                hash: u128::from_le_bytes(reader.array()?),
            },
            kind::READY => Self::Ready,
            kind::ALIVE => Self::Alive,
            kind::ADDRESSES => Self::Addresses(Addresses::read(reader)?),
            _ => return None,
        })
    }
}

impl EntryId {
    fn encode(self, out: &mut Vec<u8>) {
        put_u64(out, self.term);
        put_u64(out, self.index);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            term: reader.u64()?,
            index: reader.u64()?,
        })
    }
}

impl<'a> Run<'a> {
    fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let term = reader.u64()?;
        let count = reader.u32()?;
        let kind = match reader.u8()? {
            0 => Kind::Noop,
            1 => Kind::Commands,
            2 => Kind::Config,
            _ => return None,
        };
        reader.zeros::<3>()?;
        let records = reader.rest();
        let most = match kind {
            Kind::Noop | Kind::Config => 1,
            Kind::Commands => PEER_ENTRIES_MAX,
        };
        let fits = count <= most
            && records.len() <= PEER_RECORDS_MAX_BYTES
            && (count == 0) == records.is_empty();
        fits.then_some(Self {
            term,
            count,
            kind,
            records,
        })
    }
}

impl SnapshotId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.last.encode(out);
        put_u64(out, self.bytes);
        put_u64(out, self.id);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            last: EntryId::read(reader)?,
            bytes: reader.u64().filter(|bytes| *bytes > 0)?,
            id: reader.u64()?,
        })
    }
}

impl Report {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let bits = reader.u8().filter(|bits| *bits < 4)?;
        Some(Self {
            has_room: bits & 1 != 0,
            fit_to_lead: bits & 2 != 0,
        })
    }
}
