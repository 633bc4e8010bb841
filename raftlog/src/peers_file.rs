//! The file of what is remembered of peers. Replaced as a whole: what it says is small and changes
//! together.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk;
use crate::error::OpenError;
use crate::format::{FORMAT_VERSION, PEERS_MAGIC, PeersLayout, open_block, seal_block};
use crate::limits::{BLOCK_BYTES, PEERS_SAVE_MS};
use crate::peers::{Memories, Memory};
use crate::raft::Config;
use crate::types::{ClusterId, LogIndex, NodeId, Term};

/// The file's name in the data folder.
pub(crate) const PEERS_FILE: &str = "peers";
/// Its name before it is whole.
pub(crate) const UNFINISHED_FILE: &str = "peers.new";

/// What is remembered of peers, and its file in the data folder.
///
/// Who is let in, and who left, is synced before it counts. What a peer acknowledged is exact in memory
/// and reaches the disk [`PEERS_SAVE_MS`] later: an acknowledgement cannot wait for a file that is
/// rewritten, and it takes a crash of this node as well for the difference to be forgotten.
///
/// After an error what is on the disk is the file before or the new one; exit, as for any other
/// failed sync.
#[derive(Debug)]
pub struct PeersFile {
    dir: PathBuf,
    cluster_id: ClusterId,
    node_id: NodeId,
    memories: Memories,
    /// Since when something that was acknowledged is not on the disk.
    unsaved_since_ms: Option<u64>,
}

impl PeersFile {
    /// Makes the file of a new node, which remembers nobody, and syncs it, but not its name. Blocks.
    ///
    /// # Errors
    /// Whatever the system reports.
    pub fn create(dir: &Path, cluster_id: ClusterId, node_id: NodeId) -> io::Result<()> {
        let bytes = encode(cluster_id, node_id, &Memories::default());
        disk::write_synced(&dir.join(PEERS_FILE), &bytes)
    }

    /// Reads the file in a folder that this process has to itself, and removes what a replacement
    /// that was cut short has left. Blocks.
    ///
    /// # Errors
    /// [`OpenError::Corrupt`] when it is missing, damaged, or another node's; each with its remedy.
    pub fn open(dir: &Path, cluster_id: ClusterId, node_id: NodeId) -> Result<Self, OpenError> {
        let path = dir.join(PEERS_FILE);
        let unfinished = dir.join(UNFINISHED_FILE);
        disk::remove_if_present(&unfinished)
            .map_err(|e| OpenError::io(&unfinished, "remove what was not finished", e))?;
        let bytes = disk::read(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                OpenError::corrupt(&path, 0, "the file is missing beside the identity file")
            }
            _ => OpenError::io(&path, "read what is remembered of peers", error),
        })?;
        Ok(Self {
            dir: dir.to_path_buf(),
            cluster_id,
            node_id,
            memories: judge(&bytes, &path, cluster_id, node_id)?,
            unsaved_since_ms: None,
        })
    }

    /// What is remembered.
    #[must_use]
    pub fn memories(&self) -> &Memories {
        &self.memories
    }

    /// A node is let in as [`crate::peers::Known::judge`] says; `config` has the members. Synced if
    /// anything is new. Blocks.
    ///
    /// # Errors
    /// Whatever the system reports.
    pub fn let_in(&mut self, config: &Config, node: NodeId, memory: Memory) -> io::Result<()> {
        if self.memories.of(node) == Some(&memory) {
            return Ok(());
        }
        self.memories.remember(config, node, memory);
        self.save()
    }

    /// A configuration is committed, behind the committed one `before`. Synced if anybody left. Blocks.
    ///
    /// # Errors
    /// Whatever the system reports.
    pub fn committed(&mut self, before: &Config, now: &Config) -> io::Result<()> {
        match self.memories.committed(before, now) {
            true => self.save(),
            false => Ok(()),
        }
    }

    /// A node acknowledges its log up to `up_to` to this one, which leads in `term` and knows what is
    /// before `commit` committed. To be saved when [`PeersFile::is_save_due`]. `now_ms`: a monotonic
    /// clock.
    pub fn acknowledged(
        &mut self,
        node: NodeId,
        term: Term,
        up_to: LogIndex,
        commit: LogIndex,
        now_ms: u64,
    ) {
        let Some(memory) = self.memories.of_mut(node) else {
            return;
        };
        let before = *memory;
        memory.acknowledges(term, up_to);
        memory.commits(term, commit);
        if *memory != before {
            self.unsaved_since_ms.get_or_insert(now_ms);
        }
    }

    /// Whether something that was acknowledged waits for the disk long enough.
    #[must_use]
    pub fn is_save_due(&self, now_ms: u64) -> bool {
        self.unsaved_since_ms
            .is_some_and(|since_ms| now_ms >= since_ms + PEERS_SAVE_MS)
    }

    /// Replaces the file, synced, with all that is remembered; before a planned stop too. Blocks.
    ///
    /// # Errors
    /// Whatever the system reports.
    pub fn save(&mut self) -> io::Result<()> {
        let unfinished = self.dir.join(UNFINISHED_FILE);
        let bytes = encode(self.cluster_id, self.node_id, &self.memories);
        disk::write_synced(&unfinished, &bytes)?;
        disk::rename(&unfinished, &self.dir.join(PEERS_FILE))?;
        disk::sync_dir(&self.dir)?;
        self.unsaved_since_ms = None;
        Ok(())
    }
}

fn encode(cluster_id: ClusterId, node_id: NodeId, memories: &Memories) -> Vec<u8> {
    let body = memories.encode();
    let (records, left) = memories.counts();
    let mut bytes = seal_block(&PeersLayout {
        magic: PEERS_MAGIC,
        version: FORMAT_VERSION,
        crc: 0,
        cluster_id: cluster_id.0,
        node_id: node_id.0,
        // Both bounded far below 2^32.
        records: records as u32,
        left: left as u32,
        body_crc: crc32c::crc32c(&body),
        reserved: 0,
    });
    bytes.extend_from_slice(&body);
    bytes
}

/// Reads the file's bytes. Pure.
fn judge(
    bytes: &[u8],
    path: &Path,
    cluster_id: ClusterId,
    node_id: NodeId,
) -> Result<Memories, OpenError> {
    let layout: PeersLayout =
        open_block(bytes, PEERS_MAGIC).map_err(|fault| OpenError::block(path, fault))?;
    if (layout.cluster_id, layout.node_id) != (cluster_id.0, node_id.0) {
        let why = "it is another node's: its ids are not the identity file's";
        return Err(OpenError::corrupt(path, 16, why));
    }
    let body = &bytes[BLOCK_BYTES..];
    if crc32c::crc32c(body) != layout.body_crc {
        let why = "the checksum of what is remembered is wrong";
        return Err(OpenError::corrupt(path, BLOCK_BYTES as u64, why));
    }
    Memories::decode(layout.records as usize, layout.left as usize, body).ok_or_else(|| {
        let why = "what is remembered is not as many nodes as the file says, each once";
        OpenError::corrupt(path, BLOCK_BYTES as u64, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::faults;
    use crate::peers::{Claim, Incarnation, ProcessId};

    const CLUSTER: ClusterId = ClusterId([7; 16]);
    const SELF: NodeId = node(1);

    const fn node(n: u8) -> NodeId {
        NodeId([n; 16])
    }

    fn members() -> Config {
        Config::new(&[SELF, node(2), node(3)], &[node(4)]).expect("valid")
    }

    fn memory(node_id: NodeId, starts: u64) -> Memory {
        Memory::first(&Claim {
            cluster_id: CLUSTER,
            node_id,
            incarnation: Incarnation([5; 16]),
            starts,
            process: ProcessId([starts as u8; 16]),
            term: Term(1),
            last_index: LogIndex(9),
        })
    }

    fn made(dir: &Path) -> PeersFile {
        PeersFile::create(dir, CLUSTER, SELF).expect("created");
        PeersFile::open(dir, CLUSTER, SELF).expect("whole")
    }

    fn reopened(dir: &Path) -> Memories {
        let file = PeersFile::open(dir, CLUSTER, SELF).expect("whole");
        file.memories
    }

    #[test]
    fn what_is_remembered_survives_a_restart() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = made(dir.path());
        assert_eq!(*file.memories(), Memories::default());
        file.let_in(&members(), node(2), memory(node(2), 3))
            .expect("synced");
        assert_eq!(reopened(dir.path()), file.memories);
        let without = Config::new(&[SELF, node(2), node(3)], &[]).expect("valid");
        file.committed(&members(), &without).expect("synced");
        assert_eq!(reopened(dir.path()), file.memories);
        assert!(file.memories().has_left(node(4)));
    }

    #[test]
    fn acknowledgements_are_saved_when_they_have_waited_and_only_then() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = made(dir.path());
        let known = memory(node(2), 3);
        file.let_in(&members(), node(2), known).expect("synced");
        file.acknowledged(node(3), Term(1), LogIndex(20), LogIndex(20), 0);
        assert!(!file.is_save_due(u64::MAX), "of one that is not known");
        for now_ms in [5_000, 5_500] {
            file.acknowledged(node(2), Term(1), LogIndex(20), LogIndex(10), now_ms);
        }
        let due_ms = 5_000 + PEERS_SAVE_MS;
        assert!(!file.is_save_due(due_ms - 1) && file.is_save_due(due_ms));
        assert_eq!(
            reopened(dir.path()).of(node(2)),
            Some(&known),
            "not yet there"
        );
        file.save().expect("synced");
        assert_eq!(reopened(dir.path()), file.memories);
        file.acknowledged(node(2), Term(1), LogIndex(19), LogIndex(10), 9_000);
        assert!(!file.is_save_due(u64::MAX), "nothing new");
    }

    #[test]
    fn a_replacement_cut_short_anywhere_leaves_the_old_file_or_the_new() {
        for keep_names in [false, true] {
            let mut steps = 0;
            loop {
                let dir = tempfile::tempdir().expect("a folder");
                let mut file = made(dir.path());
                disk::sync_dir(dir.path()).expect("synced");
                let before = file.memories.clone();
                faults::arm(steps);
                let result = file.let_in(&members(), node(2), memory(node(2), 3));
                faults::disarm().cut_power(|_, _| keep_names);
                let found = reopened(dir.path());
                if result.is_ok() {
                    assert_eq!(found, file.memories);
                    assert!(steps >= 5, "create, write, sync, rename, sync");
                    break;
                }
                assert!(found == before || found == file.memories, "step {steps}");
                let left = disk::exists(&dir.path().join(UNFINISHED_FILE));
                assert!(!left.expect("readable"), "swept");
                steps += 1;
            }
        }
    }

    #[test]
    fn damage_anywhere_is_refused_with_its_place_and_a_remedy() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(PEERS_FILE);
        let mut file = made(dir.path());
        file.let_in(&members(), node(2), memory(node(2), 3))
            .expect("synced");
        file.committed(&members(), &Config::new(&[SELF], &[]).expect("valid"))
            .expect("synced");
        let good = disk::read(&path).expect("readable");
        let refused = |bytes: &[u8]| {
            judge(bytes, &path, CLUSTER, SELF)
                .expect_err("damaged")
                .to_string()
        };
        for at in 0..good.len() {
            let mut flipped = good.clone();
            flipped[at] ^= 0x10;
            let why = refused(&flipped);
            assert!(why.contains("replace this node"), "byte {at}: {why}");
            assert!(why.contains("peers"), "byte {at}: {why}");
        }
        for length in 0..good.len() {
            refused(&good[..length]);
        }
        refused(&[&good[..], &[0]].concat());
        let other = judge(&good, &path, CLUSTER, node(2)).expect_err("another node's");
        assert!(other.to_string().contains("another node's"));
        judge(&good, &path, ClusterId([8; 16]), SELF).expect_err("another cluster's");
        // Sealed in good order, and more than may be there.
        let mut layout: PeersLayout =
            bytemuck::pod_read_unaligned(&good[..size_of::<PeersLayout>()]);
        layout.crc = 0;
        layout.records = u32::MAX;
        let forged = [&seal_block(&layout), &good[BLOCK_BYTES..]].concat();
        assert!(refused(&forged).contains("4096"));
        disk::remove_if_present(&path).expect("removed");
        let missing = PeersFile::open(dir.path(), CLUSTER, SELF).expect_err("missing");
        assert!(missing.to_string().contains("missing"));
    }
}
