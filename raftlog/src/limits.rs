//! Every bound of the log and the Raft core, with compile-time checks on how they relate.

/// A batch starts on, and is padded to, a multiple of this many bytes.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes at the start of a segment file that hold its header; batches begin behind them.
pub const SEGMENT_HEADER_BYTES: usize = BLOCK_BYTES;

/// Size of a segment file unless the options say otherwise.
pub const DEFAULT_SEGMENT_BYTES: u32 = 64 << 20;

/// Smallest segment the options may ask for.
pub const MIN_SEGMENT_BYTES: u32 = 64 << 10;

/// Largest segment the options may ask for; offsets are 32 bits wide.
pub const MAX_SEGMENT_BYTES: u32 = 1 << 30;

/// Most bytes one batch takes on disk: header, records, trailer and padding.
///
/// In a segment too small for that, the room behind its header is the bound.
pub const MAX_BATCH_BYTES: usize = 1 << 20;

/// Most records in one batch.
pub const MAX_RECORDS_PER_BATCH: u32 = 16 << 10;

/// Longest payload of one entry.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 10;

/// Most segments one log may have on disk, its spare included: no more are asked for, and more are
/// refused at start. Each one takes an open file and a mapping.
pub const MAX_SEGMENTS: usize = 4 << 10;

/// Most recycled segments a log keeps for its next spares, whatever it is told to keep; older ones
/// are removed.
pub const MAX_RETIRED_SEGMENTS: usize = 64;

/// Recycled segments a log keeps unless the options say otherwise.
pub const DEFAULT_RETIRED_SEGMENTS: usize = 4;

/// Longest body of one chunk of a snapshot.
pub const MAX_SNAPSHOT_CHUNK_BYTES: usize = 1 << 20;

/// A snapshot being written is synced each time that many more bytes of it were.
pub const SNAPSHOT_SYNC_BYTES: u64 = 8 << 20;

/// Indexes that a single node skips after any trim, so that a token which may have been in the
/// lost bytes is never issued again.
pub const GAP_INDEXES: u64 = 1 << 20;

/// A new log's first index is the Unix time in seconds times this.
pub const INDEXES_PER_SECOND: u64 = 1 << 20;

/// By how much the ceiling of a log kept in memory is raised.
pub const CEILING_STEP: u64 = 1 << 28;

/// The ceiling is raised before the log comes this close to it.
pub const CEILING_MARGIN: u64 = 1 << 27;

/// Largest index a log may reach: tokens are exact in a double-precision number.
pub const MAX_INDEX: u64 = 1 << 53;

/// Largest index that is believed when a peer names one to append at: behind it there is room for
/// what this node appends itself.
pub const MAX_PEER_INDEX: u64 = MAX_INDEX - (1 << 32);

/// Most entries that a leader holds uncommitted; proposals beyond are refused.
pub const MAX_UNCOMMITTED_ENTRIES: u64 = 1 << 20;

/// Most payload bytes that a leader holds uncommitted; proposals beyond are refused.
pub const MAX_UNCOMMITTED_BYTES: u64 = 256 << 20;

/// Most payload bytes of one proposal: it fits one batch.
pub const MAX_PROPOSAL_BYTES: u64 = MAX_BATCH_BYTES as u64;

/// Most voters of a cluster.
pub const MAX_VOTERS: usize = 5;

/// Most members without a vote.
pub const MAX_LEARNERS: usize = 4;

/// Most entries in one message.
pub const MAX_APPEND_ENTRIES: u32 = MAX_RECORDS_PER_BATCH;

/// Most payload bytes of the entries in one message.
pub const MAX_APPEND_BYTES: u64 = MAX_PROPOSAL_BYTES;

/// Most entries on their way to one peer, or waiting for its disk; a message begun below it may
/// end above.
pub const WINDOW_ENTRIES: u64 = 64 << 10;

/// Bytes that are read of why a folder is not used any more.
pub const MAX_RETIRED_BYTES: u64 = 4 << 10;

/// Most entries in one message to a learner, so that one that lacks much of the log holds nobody up.
pub const LEARNER_APPEND_ENTRIES: u64 = 2 << 10;

/// Most entries on their way to a learner, or waiting for its disk; a message begun below it may end above.
pub const LEARNER_WINDOW_ENTRIES: u64 = 4 << 10;

/// Most payload bytes on their way to one peer, or waiting for its disk; a message begun below it
/// may end above.
pub const WINDOW_BYTES: u64 = 8 << 20;

/// Most bytes of a snapshot in one message.
pub const SNAPSHOT_CHUNK_BYTES: u32 = 256 << 10;

/// Most bytes of an encoded configuration; what one counts for among payload bytes.
pub const CONFIG_BYTES: u64 = 256;

/// Largest term that is believed when a peer names it: real ones grow by one an election.
pub const MAX_TERM: u64 = 1 << 60;

/// Most requests for a confirmation of leadership that wait at once; more are answered no.
pub const MAX_CONFIRMS: usize = 1 << 10;

/// Farthest that a learner may be behind its leader's log when it is to become a voter, in
/// entries.
pub const PROMOTION_LAG_ENTRIES: u64 = 4 << 10;

/// A connection between nodes on which nothing came for this long, in milliseconds, is asked
/// something that every node answers, so that silence means something.
pub const PEER_ASK_MS: u64 = 200;

/// A connection between nodes on which nothing came for this long, in milliseconds, is dead: its
/// process gives up its name. Sockets of a process that ended close at once, so this is for a machine
/// that was cut off or froze. Shorter, and a process that was only held up would lose its name to a
/// copy; longer, and a node that is restarted elsewhere would wait.
pub const PEER_SILENT_MS: u64 = 1_000;

/// How long a process may be told that another one under its name is alive, in milliseconds, before
/// it counts as the second one: far longer than an earlier process takes to be found dead.
pub const SECOND_PROCESS_RETRY_MS: u64 = 10_000;

/// Most nodes whose folders are remembered; members are, and then the ones seen last.
pub const MAX_REMEMBERED_NODES: usize = 64;

/// Most nodes of which it is remembered that they left; the ones that left last are.
pub const MAX_LEFT_NODES: usize = 256;

/// What a peer acknowledged is on the disk after this long, in milliseconds: an acknowledgement does
/// not wait for it.
pub const PEERS_SAVE_MS: u64 = 1_000;

const _: () = {
    assert!(SEGMENT_HEADER_BYTES.is_multiple_of(BLOCK_BYTES));
    assert!(MAX_BATCH_BYTES.is_multiple_of(BLOCK_BYTES));
    assert!((MIN_SEGMENT_BYTES as usize).is_multiple_of(BLOCK_BYTES));
    assert!((DEFAULT_SEGMENT_BYTES as usize).is_multiple_of(BLOCK_BYTES));
    assert!(
        MIN_SEGMENT_BYTES <= DEFAULT_SEGMENT_BYTES && DEFAULT_SEGMENT_BYTES <= MAX_SEGMENT_BYTES
    );
    // The longest payload fits a batch even in the smallest segment: header block, then payload
    // with room to spare for the batch's header, a control record, a record header and the trailer.
    assert!(SEGMENT_HEADER_BYTES + MAX_PAYLOAD_BYTES + BLOCK_BYTES <= MIN_SEGMENT_BYTES as usize);
    assert!(MAX_PAYLOAD_BYTES + BLOCK_BYTES <= MAX_BATCH_BYTES);
    assert!(
        DEFAULT_RETIRED_SEGMENTS <= MAX_RETIRED_SEGMENTS && MAX_RETIRED_SEGMENTS < MAX_SEGMENTS
    );
    assert!(MAX_SNAPSHOT_CHUNK_BYTES as u64 <= SNAPSHOT_SYNC_BYTES);
    assert!(MAX_SNAPSHOT_CHUNK_BYTES <= u32::MAX as usize);
    // A trimmed memory log can take its gap before the ceiling is raised again.
    assert!(GAP_INDEXES < CEILING_MARGIN && CEILING_MARGIN < CEILING_STEP);
    assert!(MAX_RECORDS_PER_BATCH as u64 <= MAX_UNCOMMITTED_ENTRIES);
    assert!(MAX_RECORDS_PER_BATCH as u64 <= CEILING_MARGIN);
    // What fills a message fits a window, and what a learner may lack when it gets its vote is
    // less than one: the cluster does not wait for it long.
    assert!(MAX_APPEND_ENTRIES as u64 <= WINDOW_ENTRIES && MAX_APPEND_BYTES <= WINDOW_BYTES);
    assert!(WINDOW_ENTRIES <= MAX_UNCOMMITTED_ENTRIES && WINDOW_BYTES <= MAX_UNCOMMITTED_BYTES);
    assert!(PROMOTION_LAG_ENTRIES <= WINDOW_ENTRIES);
    assert!(LEARNER_APPEND_ENTRIES <= LEARNER_WINDOW_ENTRIES);
    assert!(LEARNER_APPEND_ENTRIES <= MAX_APPEND_ENTRIES as u64);
    assert!(MAX_PROPOSAL_BYTES <= MAX_APPEND_BYTES && MAX_RECORDS_PER_BATCH <= MAX_APPEND_ENTRIES);
    assert!(MAX_VOTERS + MAX_LEARNERS < u8::MAX as usize);
    // A live process has a few tries to answer before it counts as dead, and a restarted one to come
    // in after that.
    assert!(PEER_ASK_MS * 4 <= PEER_SILENT_MS && PEER_SILENT_MS * 4 <= SECOND_PROCESS_RETRY_MS);
    // There is always one to forget that is no member.
    assert!(MAX_VOTERS + 1 + MAX_LEARNERS < MAX_REMEMBERED_NODES);
};
