//! Newtypes for what must not be mixed up.

use std::fmt;

/// A Raft term. 0 is the term before the first election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Term(pub u64);

/// The place of an entry in the log; an entry's index is its fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogIndex(pub u64);

impl LogIndex {
    /// The index after this one.
    #[must_use]
    pub fn next(self) -> Self {
        self.plus(1)
    }

    /// The index before this one; 0 stays 0.
    #[must_use]
    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The index `count` places further.
    ///
    /// # Panics
    /// When that is beyond [`crate::limits::MAX_INDEX`], two centuries of tokens away.
    #[must_use]
    pub fn plus(self, count: u64) -> Self {
        let index = self.0.saturating_add(count);
        assert!(
            index <= crate::limits::MAX_INDEX,
            "log indexes are used up at {}",
            self.0
        );
        Self(index)
    }
}

/// One incarnation of a cluster's member: 128 random bits, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeId(pub [u8; 16]);

/// A cluster's identity, 128 random bits. A single node has one of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClusterId(pub [u8; 16]);

/// What the kernel calls this boot of the machine (`/proc/sys/kernel/random/boot_id`), as bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BootId(pub [u8; 16]);

/// Which use of a segment file: grows by one each time a segment is put to use, for the whole
/// life of the log, so that bytes left over from an earlier use are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UseNumber(pub u32);

/// A byte position in the log: the segment's use number, then the offset in its file.
///
/// Positions compare in the order in which the log was written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(u64);

impl Position {
    /// Before everything.
    pub const ZERO: Self = Self(0);

    /// The position `offset` bytes into the segment with that use number.
    #[must_use]
    pub const fn new(use_number: UseNumber, offset: u32) -> Self {
        Self((use_number.0 as u64) << 32 | offset as u64)
    }

    /// As stored: the use number in the upper half, the offset in the lower.
    #[must_use]
    pub const fn from_u64(raw: u64) -> Self {
        Self(raw)
    }

    /// As stored: the use number in the upper half, the offset in the lower.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The segment's use number.
    #[must_use]
    pub const fn use_number(self) -> UseNumber {
        UseNumber((self.0 >> 32) as u32)
    }

    /// The offset in the segment's file, in bytes.
    #[must_use]
    pub const fn offset(self) -> u32 {
        self.0 as u32
    }
}

/// Term and vote: what a node must never forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HardState {
    /// The latest term this node has seen.
    pub term: Term,
    /// Whom it voted for in that term.
    pub voted_for: Option<NodeId>,
}

/// When an appended entry counts as persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Once it is synced to the disk.
    #[default]
    Sync,
    /// Once it is in the kernel's page cache: it survives the process, not the machine.
    Memory,
}

/// How a node takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One node alone.
    Single,
    /// One of 3 or 5 voters, or a learner.
    Cluster,
}

macro_rules! hex_id {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

/// 32 lower-case hex digits, as they are printed.
fn parse_id(text: &str) -> Option<[u8; 16]> {
    let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    if text.len() != 32 || !text.chars().all(is_digit) {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

impl NodeId {
    /// Parses what `Display` prints: 32 lower-case hex digits. `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        parse_id(text).map(Self)
    }
}

impl ClusterId {
    /// Parses what `Display` prints: 32 lower-case hex digits. `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        parse_id(text).map(Self)
    }
}

hex_id!(NodeId);
hex_id!(ClusterId);
hex_id!(BootId);

impl BootId {
    /// Parses the kernel's text: 32 hex digits, dashes and white space ignored.
    ///
    /// Gives `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        let mut digits = 0;
        for c in text
            .chars()
            .filter(|c| *c != '-' && !c.is_ascii_whitespace())
        {
            let digit = u8::try_from(c.to_digit(16)?).ok()?;
            let byte = bytes.get_mut(digits / 2)?;
            *byte = *byte << 4 | digit;
            digits += 1;
        }
        (digits == 32).then_some(Self(bytes))
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for UseNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Position({}+{})", self.use_number().0, self.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_ids_are_read_from_the_kernels_text() {
        let id = BootId::parse("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\n").expect("valid");
        assert_eq!(id.to_string(), "0f1e2d3c4b5a69788796a5b4c3d2e1f0");
        assert_eq!(BootId::parse("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f"), None);
        assert_eq!(BootId::parse("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f00"), None);
        assert_eq!(BootId::parse("zf1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"), None);
    }

    #[test]
    fn positions_order_by_use_then_offset() {
        let a = Position::new(UseNumber(1), u32::MAX);
        let b = Position::new(UseNumber(2), 0);
        assert!(Position::ZERO < a && a < b);
        assert_eq!((a.use_number(), a.offset()), (UseNumber(1), u32::MAX));
        assert_eq!(Position::from_u64(b.as_u64()), b);
    }

    #[test]
    fn the_last_index_is_reached_and_not_passed() {
        let last = LogIndex(crate::limits::MAX_INDEX);
        assert_eq!(last.previous().next(), last);
        assert!(std::panic::catch_unwind(|| last.next()).is_err());
        assert_eq!(LogIndex(0).previous(), LogIndex(0));
    }
}
