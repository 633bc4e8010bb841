//! A disk that promises only what was synced: what it holds now, what is durable, and what a cut
//! leaves of the difference. No I/O, no clock; chance comes from a seed.
//!
//! It is harsher than ext4: syncing a file makes its content and size durable and never its name;
//! syncing a folder makes the names in that folder durable.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use crate::rng::Rng;

/// What is written as one piece at best.
const BLOCK_BYTES: usize = 4096;
/// What a real disk writes as one piece: a torn block breaks between two of them.
const SECTOR_BYTES: usize = 512;
/// The folder that everything is in.
pub const ROOT: u64 = 1;

/// Everything on the disk.
#[derive(Debug)]
pub struct Disk {
    nodes: BTreeMap<u64, Node>,
    next_ino: u64,
}

/// A file or a folder.
#[derive(Debug)]
pub enum Node {
    File(File),
    Folder(Folder),
}

/// The content of a file, now and durably.
#[derive(Debug, Default)]
pub struct File {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Numbers of the blocks in which the two may differ.
    unsynced: BTreeSet<usize>,
}

/// The names in a folder.
#[derive(Clone, Debug, Default)]
pub struct Folder {
    now: BTreeMap<OsString, u64>,
    durable: BTreeMap<OsString, u64>,
    /// What leads from the durable names to those of now, in order.
    unsynced: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Add(OsString, u64),
    Remove(OsString),
    Rename(OsString, OsString),
}

/// What cuts did so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Damage {
    /// Unsynced blocks that were on the disk all the same.
    pub kept: u64,
    /// Unsynced blocks that never reached it.
    pub lost: u64,
    /// Unsynced blocks of which a part did.
    pub torn: u64,
    /// Changes of names that were undone.
    pub names_lost: u64,
}

impl Disk {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            nodes: BTreeMap::from([(ROOT, Node::Folder(Folder::default()))]),
            next_ino: ROOT + 1,
        }
    }

    /// The file or folder with that number.
    pub fn node(&self, ino: u64) -> Option<&Node> {
        self.nodes.get(&ino)
    }

    /// The file with that number.
    pub fn file(&mut self, ino: u64) -> Option<&mut File> {
        match self.nodes.get_mut(&ino) {
            Some(Node::File(file)) => Some(file),
            _ => None,
        }
    }

    /// What a name in a folder stands for.
    pub fn lookup(&self, folder: u64, name: &OsStr) -> Option<u64> {
        match self.nodes.get(&folder) {
            Some(Node::Folder(folder)) => folder.now.get(name).copied(),
            _ => None,
        }
    }

    /// A new, empty file or folder under a name; `None` when there is no such parent.
    pub fn create(&mut self, parent: u64, name: &OsStr, node: Node) -> Option<u64> {
        let ino = self.next_ino;
        self.change(parent, Change::Add(name.to_owned(), ino))?;
        self.next_ino += 1;
        self.nodes.insert(ino, node);
        Some(ino)
    }

    /// Takes a name away.
    pub fn remove(&mut self, parent: u64, name: &OsStr) -> Option<()> {
        self.change(parent, Change::Remove(name.to_owned()))
    }

    /// Gives a file another name in the same folder.
    pub fn rename(&mut self, parent: u64, from: &OsStr, to: &OsStr) -> Option<()> {
        self.change(parent, Change::Rename(from.to_owned(), to.to_owned()))
    }

    /// Makes the content of a file, or the names in a folder, durable.
    pub fn sync(&mut self, ino: u64) -> Option<()> {
        match self.nodes.get_mut(&ino)? {
            Node::File(file) => file.sync(),
            Node::Folder(folder) => {
                folder.durable.clone_from(&folder.now);
                folder.unsynced.clear();
            }
        }
        Some(())
    }

    /// The power goes: of what was not synced, chance decides what is there afterwards.
    pub fn cut(&mut self, rng: &mut Rng, damage: &mut Damage) {
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) => file.cut(rng, damage),
                Node::Folder(folder) => folder.cut(rng, damage),
            }
        }
        let mut reached = BTreeSet::new();
        let mut next = vec![ROOT];
        while let Some(ino) = next.pop() {
            if reached.insert(ino)
                && let Some(Node::Folder(folder)) = self.nodes.get(&ino)
            {
                next.extend(folder.now.values());
            }
        }
        self.nodes.retain(|ino, _| reached.contains(ino));
    }

    fn change(&mut self, parent: u64, change: Change) -> Option<()> {
        let Some(Node::Folder(folder)) = self.nodes.get_mut(&parent) else {
            return None;
        };
        change.apply(&mut folder.now)?;
        folder.unsynced.push(change);
        Some(())
    }
}

impl File {
    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.now.len()
    }

    /// What is there of a range.
    pub fn read(&self, offset: usize, bytes: usize) -> &[u8] {
        let end = self.now.len().min(offset.saturating_add(bytes));
        &self.now[offset.min(end)..end]
    }

    /// Writes, and grows as far as it must.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if end > self.now.len() {
            self.resize(end);
        }
        self.now[offset..end].copy_from_slice(bytes);
        self.unsynced
            .extend(offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES));
    }

    /// Cuts off, or adds zeros.
    pub fn resize(&mut self, size: usize) {
        let (least, most) = (self.now.len().min(size), self.now.len().max(size));
        self.now.resize(size, 0);
        self.unsynced
            .extend(least / BLOCK_BYTES..most.div_ceil(BLOCK_BYTES));
    }

    fn sync(&mut self) {
        self.durable.resize(self.now.len(), 0);
        for block in std::mem::take(&mut self.unsynced) {
            let range = range_of(block, self.now.len());
            self.durable[range.clone()].copy_from_slice(&self.now[range]);
        }
    }

    fn cut(&mut self, rng: &mut Rng, damage: &mut Damage) {
        let grown = self.now.len() != self.durable.len();
        let size = if grown && rng.one_in(2) {
            self.durable.len()
        } else {
            self.now.len()
        };
        self.now.resize(size, 0);
        self.durable.resize(size, 0);
        // Each block on its own, or all of a file alike: both happen.
        let alike = rng.one_in(4).then(|| rng.below(2));
        for block in std::mem::take(&mut self.unsynced) {
            let range = range_of(block, size);
            let sectors = range.len().div_ceil(SECTOR_BYTES) as u64;
            let arrived = match alike.unwrap_or_else(|| rng.below(3)) {
                0 => {
                    damage.lost += 1;
                    continue;
                }
                2 if sectors > 1 => {
                    damage.torn += 1;
                    let at = range.start + (1 + rng.below(sectors - 1)) as usize * SECTOR_BYTES;
                    if rng.one_in(2) {
                        range.start..at
                    } else {
                        at..range.end
                    }
                }
                _ => {
                    damage.kept += 1;
                    range
                }
            };
            self.durable[arrived.clone()].copy_from_slice(&self.now[arrived]);
        }
        self.now.clone_from(&self.durable);
    }
}

impl Folder {
    /// Its names, with what they stand for.
    pub fn names(&self) -> &BTreeMap<OsString, u64> {
        &self.now
    }

    fn cut(&mut self, rng: &mut Rng, damage: &mut Damage) {
        let changes = std::mem::take(&mut self.unsynced);
        let arrived = rng.below(changes.len() as u64 + 1) as usize;
        damage.names_lost += (changes.len() - arrived) as u64;
        for change in &changes[..arrived] {
            change
                .apply(&mut self.durable)
                .expect("a prefix of what led from the durable names on");
        }
        self.now.clone_from(&self.durable);
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<OsString, u64>) -> Option<()> {
        match self {
            Self::Add(name, ino) => {
                names.insert(name.clone(), *ino);
            }
            Self::Remove(name) => {
                names.remove(name)?;
            }
            Self::Rename(from, to) => {
                let ino = names.remove(from)?;
                names.insert(to.clone(), ino);
            }
        }
        Some(())
    }
}

fn range_of(block: usize, size: usize) -> std::ops::Range<usize> {
    let start = (block * BLOCK_BYTES).min(size);
    start..(start + BLOCK_BYTES).min(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(disk: &mut Disk, seed: u64) -> Damage {
        let mut damage = Damage::default();
        disk.cut(&mut Rng::new(seed), &mut damage);
        damage
    }

    #[test]
    fn what_is_synced_survives_and_what_is_not_is_kept_lost_or_torn() {
        let mut all = Damage::default();
        for seed in 0..50 {
            let mut disk = Disk::new();
            let name = OsStr::new("file");
            let ino = disk
                .create(ROOT, name, Node::File(File::default()))
                .expect("created");
            disk.file(ino)
                .expect("a file")
                .write(0, &[1; 3 * BLOCK_BYTES]);
            disk.sync(ino).expect("synced");
            disk.sync(ROOT).expect("synced");
            disk.file(ino)
                .expect("a file")
                .write(BLOCK_BYTES, &[2; BLOCK_BYTES]);
            let damage = cut(&mut disk, seed);
            assert_eq!(damage.kept + damage.lost + damage.torn, 1);
            assert_eq!(disk.lookup(ROOT, name), Some(ino));
            let file = disk.file(ino).expect("a file");
            assert_eq!(file.read(0, BLOCK_BYTES), [1; BLOCK_BYTES]);
            assert_eq!(file.read(2 * BLOCK_BYTES, BLOCK_BYTES), [1; BLOCK_BYTES]);
            let twos = file.read(BLOCK_BYTES, BLOCK_BYTES);
            let twos = twos.iter().filter(|&&byte| byte == 2).count();
            assert_eq!(twos == BLOCK_BYTES, damage.kept == 1);
            assert_eq!(twos == 0, damage.lost == 1);
            all.kept += damage.kept;
            all.lost += damage.lost;
            all.torn += damage.torn;
        }
        assert!(all.kept > 0 && all.lost > 0 && all.torn > 0, "{all:?}");
    }

    #[test]
    fn names_come_back_as_they_were_when_the_folder_is_not_synced() {
        let (old, new) = (OsStr::new("old"), OsStr::new("new"));
        let mut seen = BTreeSet::new();
        for seed in 0..20 {
            let mut disk = Disk::new();
            let ino = disk
                .create(ROOT, old, Node::File(File::default()))
                .expect("created");
            disk.sync(ROOT).expect("synced");
            disk.rename(ROOT, old, new).expect("renamed");
            disk.sync(ino).expect("synced");
            let damage = cut(&mut disk, seed);
            let name = if damage.names_lost == 1 { old } else { new };
            assert_eq!(disk.lookup(ROOT, name), Some(ino));
            seen.insert(name);
        }
        assert_eq!(seen.len(), 2);
    }
}
