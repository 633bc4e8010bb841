//! Every bound of the server in one place: what it is, what happens beyond it,
//! and how the bounds relate. What a client may send is bounded in
//! [`ticketing_protocol::limits`]; what the log may hold, in
//! [`ticketing_raftlog::limits`]; the table's own, in [`crate::locks::limits`].
//!
//! A `_DEFAULT` can be changed in the configuration, between its `_MIN` and
//! `_MAX`; the rest are fixed.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Shards a node may have.
pub const SHARDS: RangeInclusive<usize> = 1..=64;

/// Cores up to which the consensus role shares the first shard's executor unless
/// told otherwise: there, a hand-over between two threads costs more than the
/// two roles cost each other.
pub const SHARED_CORES_MOST: usize = 2;

/// How long an executor on a core of its own looks for the end of an append before
/// it sleeps. An append takes 40 to 150 microseconds on a disk that is worth having.
pub const EXPECT_APPEND: Duration = Duration::from_micros(300);

/// How long it looks, once an append has ended, for what clients say to the answers
/// that go out then: who was granted a key for a moment's work gives it back at once.
pub const EXPECT_CLIENT: Duration = Duration::from_micros(60);

/// A look for news takes less than this, what the append thread does in between
/// included, unless another process runs on the core.
pub const CORE_AWAY: Duration = Duration::from_micros(50);

/// An executor that met another process on its core sleeps at once for that many
/// times as long as it was away, and at most [`CORE_AWAY_MOST`].
pub const CORE_AWAY_FACTOR: u32 = 10;
/// See [`CORE_AWAY_FACTOR`].
pub const CORE_AWAY_MOST: Duration = Duration::from_millis(100);

/// How often an executor on a core of its own looks whether it gets enough of it.
pub const CORE_LOOK_EVERY: Duration = Duration::from_millis(250);
/// It is starved while it waits for the core for this part of the time,
pub const CORE_STARVED_WAIT: f64 = 0.2;
/// and for this part of the time that it could run in: more than a process beside it that takes turns with it costs.
pub const CORE_STARVED_SHARE: f64 = 0.6;
/// That often in a row, and it leaves the core.
pub const CORE_STARVED_LOOKS: u32 = 4;
/// How long it stays away; each time twice as long.
pub const CORE_BACK_FIRST: Duration = Duration::from_secs(30);
/// See [`CORE_BACK_FIRST`].
pub const CORE_BACK_MOST: Duration = Duration::from_secs(16 * 60);

/// Bytes that may wait to be sent to one peer; what comes beyond is lost, and the Raft core sends it
/// again. Twice the core's window.
pub const PEER_OUTPUT_BYTES: usize = 16 << 20;

/// Bytes from all peers that may wait for the consensus role; beyond it their sockets are not read.
pub const PEER_INPUT_BYTES: usize = 32 << 20;

/// Bytes read from a peer at once; a longer frame makes room for itself.
pub const PEER_READ_BYTES: usize = 64 << 10;

/// Frames from peers taken in before the rest of a turn: appends and answers must not wait for a flood.
pub const PEER_EVENTS_PER_TURN: usize = 256;

/// How long after it listens for clients a node may be handed leadership: until then clients may still
/// be waiting before they come back to it.
pub const FIT_TO_LEAD_AFTER_MS: u64 = 4_000;

/// Connections on the peer port that have not passed the greeting. Beyond it a new one is closed
/// without a byte.
pub const PEER_STRANGERS: usize = 64;

/// How long a greeting between two nodes may take.
pub const PEER_GREETING_TIMEOUT: Duration = Duration::from_secs(2);

/// How long connecting to a peer may take.
pub const PEER_CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a peer's machine may leave sent bytes unacknowledged before the connection is given up. Without
/// it the kernel waits twice as long each time before it sends them again, for up to two minutes, and a
/// network that is whole again would go unnoticed.
pub const PEER_UNACKNOWLEDGED: Duration = Duration::from_secs(1);

/// How often a node says to each other one that it is alive, whatever else it says. Who is silent for
/// [`ticketing_raftlog::limits::PEER_SILENT_MS`] may be dead, and then another process may have its name.
pub const PEER_ALIVE_MS: u64 = 100;

/// The first pause before a peer that refused a connection is dialled again; it doubles each time.
pub const PEER_REDIAL_FIRST_MS: u64 = 10;
/// See [`PEER_REDIAL_FIRST_MS`].
pub const PEER_REDIAL_MOST_MS: u64 = 500;
/// Nodes whose addresses are kept: the members, and who is about to be one.
pub const PEER_ADDRESSES_KEPT: usize = 32;

/// How long a follower waits for a leader before it stands for election, at least; at most twice that. A
/// leader that has not heard a majority for that long gives up.
pub const ELECTION_MS: u64 = 300;

/// Between two rounds of a leader's heartbeats.
pub const HEARTBEAT_MS: u64 = 40;

/// How long a write may take until the disk counts as hung, and a leader gives up over it: within a second,
/// what it takes to be seen included, and longer than a disk that only stutters.
pub const DISK_HUNG_MS: u64 = 700;

/// Indexes between two hashes of the lock state that nodes compare.
pub const STATE_HASH_EVERY: u64 = 65_536;

/// How often a node of a cluster publishes what the admin address shows of the others.
pub const PUBLISH_CLUSTER_MS: u64 = 50;

/// How long an operator's order may take until it has begun.
pub const ORDER_WITHIN: Duration = Duration::from_secs(2);

/// How long a request waits for a leader that is about to serve, or that is being handed over to.
pub const PARKED_MS: u64 = 300;

/// Requests that wait so on one shard; beyond it they are told at once that no leader is known.
pub const PARKED_MOST: usize = 16_384;

/// How long to wait for an answer before a leader is asked again to release a grant that nobody wants.
pub const ORPHAN_RETRY_MS: u64 = 150;

/// Grants that one shard has released so; of more than that the leases end.
pub const ORPHANS_MOST: usize = 4_096;

/// Requests that an executor may have for its io_uring before it must make them.
pub const RING_DEPTH: u32 = 256;

/// Completions that the kernel keeps for an executor in its io_uring; more wait
/// in the kernel's own memory.
pub const RING_COMPLETIONS: u32 = 4_096;

/// Locked memory an executor's rings need, for a user who is not root.
pub const MEMLOCK_PER_EXECUTOR_BYTES: u64 = 512 * 1024;

/// Open files that are not client connections: log segments, rings, the
/// admin address.
pub const OPEN_FILES_RESERVE: u64 = 256;

/// Client connections of a whole node. Beyond it a new one is closed without a
/// byte, which a client takes as a reason to come back later.
pub const CONNECTIONS: RangeInclusive<u32> = 1..=1_000_000;
/// See [`CONNECTIONS`].
pub const CONNECTIONS_DEFAULT: u32 = 20_000;

/// Fewest connections a node starts with when the open-files limit leaves less
/// room than [`CONNECTIONS_DEFAULT`] and nothing was configured.
pub const CONNECTIONS_LEAST: u32 = 64;

/// Locks that may be held, or have a command in the log, on one shard. Beyond
/// it an acquire that would add one is answered Busy.
pub const LOCKS_PER_SHARD: RangeInclusive<u32> = 1..=1 << 28;
/// See [`LOCKS_PER_SHARD`].
pub const LOCKS_PER_SHARD_DEFAULT: u32 = 1 << 21;

/// Requests that may stand in line on one shard. Beyond it Busy.
pub const WAITERS_PER_SHARD: RangeInclusive<u32> = 0..=1 << 28;
/// See [`WAITERS_PER_SHARD`].
pub const WAITERS_PER_SHARD_DEFAULT: u32 = 1 << 19;

/// Requests that may stand in line for one key. Beyond it Busy.
pub const WAITERS_PER_KEY: RangeInclusive<u32> = 0..=1 << 28;
/// See [`WAITERS_PER_KEY`].
pub const WAITERS_PER_KEY_DEFAULT: u32 = 1 << 17;

/// How long before the end of its wait a request is told that it ran out.
pub const WAIT_MARGIN_MS: RangeInclusive<u32> = 0..=500;
/// See [`WAIT_MARGIN_MS`].
pub const WAIT_MARGIN_MS_DEFAULT: u32 = 50;

/// Connections of a whole node that have not yet proved that they know the
/// token. Beyond it a new one is closed without a byte.
pub const UNAUTHENTICATED: RangeInclusive<u32> = 1..=1_000_000;
/// See [`UNAUTHENTICATED`].
pub const UNAUTHENTICATED_DEFAULT: u32 = 16_384;

/// How long a connection may take to prove that it knows the token.
pub const HANDSHAKE_MS: RangeInclusive<u32> = 100..=60_000;
/// See [`HANDSHAKE_MS`].
pub const HANDSHAKE_MS_DEFAULT: u32 = 10_000;

/// Connections accepted in a row, and the pause after so many. The runtime
/// hands over whatever waits at once, so without the pause a burst of arrivals
/// would keep everybody who is connected already from being served.
pub const ACCEPTED_IN_A_ROW: u32 = 32;
/// See [`ACCEPTED_IN_A_ROW`]. Yielding would not do: the next connection waits
/// already, so the task would be the next one again.
pub const ACCEPT_BREATH: Duration = Duration::from_micros(100);

/// Connections that may wait for each shard to accept them; the kernel takes
/// the lower of this and `net.core.somaxconn`.
pub const LISTEN_BACKLOG: i32 = 16_384;

/// Ciphertext read at once from one connection.
pub const TLS_READ_BYTES: usize = 16 * 1024;

/// Plaintext encrypted at once for one connection: what one TLS record holds.
pub const TLS_RECORD_BYTES: usize = 16 * 1024;

/// Requests in flight on one connection. Beyond it acquires are answered Busy.
pub const IN_FLIGHT: RangeInclusive<u32> = 1..=262_144;
/// See [`IN_FLIGHT`].
pub const IN_FLIGHT_DEFAULT: u32 = 32_768;

/// Releases taken beyond [`IN_FLIGHT`]: a release is never refused for lack of
/// room. Beyond this too, the connection is not read for [`STALLED_READ`].
pub const IN_FLIGHT_RELEASE_RESERVE: u32 = 4_096;

/// How long a connection that has no room for a release may be left unread
/// before it is closed.
pub const STALLED_READ: Duration = Duration::from_secs(1);

/// Answers that wait for one connection's socket, in bytes. Beyond it the
/// connection is not read until the client takes some.
pub const OUTPUT_BYTES: RangeInclusive<u32> = 4_096..=64 * 1024 * 1024;
/// See [`OUTPUT_BYTES`].
pub const OUTPUT_BYTES_DEFAULT: u32 = 1024 * 1024;

/// How long a client may take no byte of what waits for it before it is closed.
pub const STALLED_WRITE: Duration = Duration::from_secs(10);

/// What one read may bring in: whole frames are parsed out of it in place.
pub const READ_BUFFER_BYTES: usize = 64 * 1024;

/// Messages in a lane; each carries a batch.
pub const LANE_MESSAGES: usize = 1_024;

/// Messages in the lane to the consensus role. A shard keeps up to
/// [`PROPOSAL_BYTES_WAITING`] together while it is full, so this many times that
/// is what may wait behind a disk that hangs.
pub const PROPOSAL_MESSAGES: usize = 64;

/// Requests that wait for a full lane to another shard. Beyond it acquires
/// for that shard are answered Busy.
pub const FORWARD_WAITING_ACQUIRES: usize = 8_192;

/// Bytes of proposals that wait for the consensus role. Beyond it acquires are
/// answered Busy; releases and expiries still go in.
pub const PROPOSAL_BYTES_WAITING: usize = 1024 * 1024;

/// Bytes of proposals that the consensus role holds for its next batches.
/// Beyond it the lanes fill, and the shards tighten admission.
pub const CONSENSUS_BYTES_WAITING: usize = 4 * 1024 * 1024;

/// Records in one message of committed entries to a shard.
pub const COMMITTED_RECORDS_PER_MESSAGE: usize = 4_096;

/// Committed entries that may be on their way to the shards and not yet
/// applied there, in messages for each shard.
pub const COMMITTED_MESSAGES_WAITING: usize = 64;

/// How long the log may be idle before a mark says that all of it is synced.
pub const IDLE_MARK_MS: u64 = 50;

/// Size of a log segment, in bytes: a multiple of the log's block size.
pub const SEGMENT_BYTES: RangeInclusive<u32> =
    ticketing_raftlog::limits::MIN_SEGMENT_BYTES..=ticketing_raftlog::limits::MAX_SEGMENT_BYTES;
/// See [`SEGMENT_BYTES`].
pub const SEGMENT_BYTES_DEFAULT: u32 = ticketing_raftlog::limits::DEFAULT_SEGMENT_BYTES;

/// Bytes of log after which a snapshot is taken: what a start reads at most, and
/// what the log keeps on the disk for about twice as long.
pub const SNAPSHOT_LOG_BYTES: RangeInclusive<u64> = 64 * 1024..=1 << 40;
/// See [`SNAPSHOT_LOG_BYTES`].
pub const SNAPSHOT_LOG_BYTES_DEFAULT: u64 = 256 * 1024 * 1024;

/// Entries of the log after which a snapshot is taken: what a start applies at
/// most.
pub const SNAPSHOT_LOG_ENTRIES: RangeInclusive<u64> = 16..=1 << 32;
/// See [`SNAPSHOT_LOG_ENTRIES`].
pub const SNAPSHOT_LOG_ENTRIES_DEFAULT: u64 = 1 << 20;

/// Segment files from which on a snapshot is taken whatever else is configured:
/// half of what the log may have.
pub const SNAPSHOT_SEGMENT_FILES: usize = ticketing_raftlog::limits::MAX_SEGMENTS / 2;

/// Locks that a shard looks at in one round while it writes a cut.
pub const SNAPSHOT_LOCKS_PER_CHUNK: u32 = 4_096;

/// Chunks of a snapshot that may wait to be written. Beyond it the shards keep
/// theirs, and try again.
pub const SNAPSHOT_CHUNKS_WAITING: usize = 4;

/// How long to wait before a snapshot is tried again that found no room.
pub const SNAPSHOT_RETRY_MS: u64 = 1_000;

/// How long to wait before trying again to make a log segment on a full disk.
pub const SPARE_RETRY_MS: u64 = 100;

/// How often a node whose disk is full says so again.
pub const FULL_REMINDER_MS: u64 = 60_000;

/// After a stop is asked for, how long a connection must be silent before it
/// is closed, and how long the stop waits for that at most.
pub const STOP_SILENCE: Duration = Duration::from_millis(250);
/// See [`STOP_SILENCE`].
pub const STOP_AT_MOST: Duration = Duration::from_secs(5);

/// Servers that may listen on one port, each on an address of its own.
pub const CLAIMS_PER_PORT: usize = 16;

/// How long a start waits for its client address to become free. After a
/// process has ended, the kernel takes its rings down in the background, and its
/// listening sockets with them: some 200 ms in which nobody listens, and the
/// address cannot be had.
pub const CLAIM_WITHIN: Duration = Duration::from_secs(2);

/// How often the watchdog wakes each executor, and how long an executor may go
/// without a sign of life before that is reported.
pub const WATCHDOG_EVERY: Duration = Duration::from_millis(250);
/// See [`WATCHDOG_EVERY`].
pub const WATCHDOG_STALL: Duration = Duration::from_secs(2);

/// Silence on a connection before the kernel asks whether the other side is
/// still there, and how it asks: a peer that vanished without a word is found
/// within idle + interval x probes.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// See [`KEEPALIVE_IDLE`].
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// See [`KEEPALIVE_IDLE`].
pub const KEEPALIVE_PROBES: u32 = 3;

// A frame that is complete in the buffer can always be parsed, so a read
// buffer that is full of one incomplete frame cannot happen.
const _: () = assert!(READ_BUFFER_BYTES >= 4 * ticketing_protocol::limits::REQUEST_FRAME_MAX);
// A chunk of a cut is a chunk of the file.
const _: () = assert!(
    SNAPSHOT_LOCKS_PER_CHUNK as usize * crate::locks::HELD_LOCK_BYTES_MAX
        <= ticketing_raftlog::limits::MAX_SNAPSHOT_CHUNK_BYTES
);
// A claim on a wildcard takes that many descriptors.
const _: () = assert!((CLAIMS_PER_PORT as u64) < OPEN_FILES_RESERVE / 4);
const _: () = assert!(PROPOSAL_BYTES_WAITING <= CONSENSUS_BYTES_WAITING);
const _: () = assert!(UNAUTHENTICATED_DEFAULT <= CONNECTIONS_DEFAULT);
const _: () = assert!(PEER_ALIVE_MS * 4 <= ticketing_raftlog::limits::PEER_SILENT_MS);
// The stop's silence must be able to happen within the stop.
const _: () = assert!(STOP_SILENCE.as_millis() < STOP_AT_MOST.as_millis());
