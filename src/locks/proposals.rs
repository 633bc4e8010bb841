//! A buffer of proposals on their way to the log.

use super::command::Command;

/// In front of every payload: its length (u32) and how many commands of its unit follow (u32).
const FRAME_BYTES: usize = 8;

/// Commands to append to the log, in order, in units of one or two neighbours.
///
/// A unit is proposed as one message: nothing else may come between its commands. The buffer
/// keeps its memory over [`Proposals::clear`], and adding a command allocates nothing once the
/// buffer is warm. Frame: length u32, commands of this unit that follow u32, payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proposals {
    bytes: Vec<u8>,
    commands: usize,
}

impl Proposals {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many commands are inside.
    pub fn len(&self) -> usize {
        self.commands
    }

    /// Whether nothing is inside.
    pub fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// Bytes used, frames included.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Empties the buffer, keeping its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.commands = 0;
    }

    /// Adds a unit of one command.
    pub fn push(&mut self, command: Command<'_>) {
        self.frame(command, 0);
    }

    /// Adds a unit of two neighbours: nothing comes between them.
    pub fn push_pair(&mut self, first: Command<'_>, second: Command<'_>) {
        self.frame(first, 1);
        self.frame(second, 0);
    }

    /// Moves everything in `other` behind what is here; `other` keeps its memory.
    pub fn append(&mut self, other: &mut Proposals) {
        self.bytes.extend_from_slice(&other.bytes);
        self.commands += other.commands;
        other.clear();
    }

    /// Adds a copy of `unit`, for a caller that forwards part of a buffer.
    pub fn push_unit(&mut self, unit: Unit<'_>) {
        self.bytes.extend_from_slice(unit.bytes);
        self.commands += unit.len();
    }

    /// The units, in order.
    pub fn units(&self) -> Units<'_> {
        Units { bytes: &self.bytes }
    }

    /// The payloads, in order, without the units' boundaries.
    pub fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        Frames { bytes: &self.bytes }.map(|(payload, _)| payload)
    }

    fn frame(&mut self, command: Command<'_>, following: u32) {
        // A command is at most `COMMAND_BYTES_MAX` long, so its length fits.
        self.bytes
            .extend_from_slice(&(command.encoded_len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&following.to_le_bytes());
        command.encode(&mut self.bytes);
        self.commands += 1;
    }
}

/// One unit: commands that are neighbours in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit<'a> {
    bytes: &'a [u8],
}

impl<'a> Unit<'a> {
    /// How many commands it has: 1 or 2.
    pub fn len(&self) -> usize {
        self.payloads().count()
    }

    /// Never: a unit has at least one command.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The payloads, in order.
    pub fn payloads(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        Frames { bytes: self.bytes }.map(|(payload, _)| payload)
    }
}

/// Iterator over the units of a [`Proposals`].
#[derive(Clone, Debug)]
pub struct Units<'a> {
    bytes: &'a [u8],
}

impl<'a> Iterator for Units<'a> {
    type Item = Unit<'a>;

    fn next(&mut self) -> Option<Unit<'a>> {
        let mut frames = Frames { bytes: self.bytes };
        while let Some((_, following)) = frames.next() {
            if following == 0 {
                let (unit, rest) = self.bytes.split_at(self.bytes.len() - frames.bytes.len());
                self.bytes = rest;
                return Some(Unit { bytes: unit });
            }
        }
        None
    }
}

/// Iterator over payload and number of commands of its unit that follow.
struct Frames<'a> {
    bytes: &'a [u8],
}

impl<'a> Iterator for Frames<'a> {
    type Item = (&'a [u8], u32);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, rest) = self.bytes.split_first_chunk::<FRAME_BYTES>()?;
        let [l0, l1, l2, l3, following @ ..] = *header;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        // Only this module writes frames, so the length is right; a wrong one ends the iteration.
        let (payload, rest) = rest.split_at_checked(len)?;
        self.bytes = rest;
        Some((payload, u32::from_le_bytes(following)))
    }
}
