//! Where nodes listen for each other, as one of them knows it.

use super::body::NODE_ID_LEN;
use super::wire::Reader;
use crate::limits::PEER_ADDRESSES_MAX;

const IP_LEN: usize = 16;
/// Bytes of one entry: node id, IPv6 address (an IPv4 one as `::ffff:a.b.c.d`), port u16, 6 zeros.
pub const ENTRY_LEN: usize = NODE_ID_LEN + IP_LEN + 2 + 6;

/// Where a node listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The octets of its IPv6 address, or of its IPv4 address mapped into one; all zero: any of its own.
    pub ip: [u8; IP_LEN],
    /// The port; not 0.
    pub port: u16,
}

/// Nodes with the addresses that they listen on, encoded: at most [`PEER_ADDRESSES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses<'a>(&'a [u8]);

/// The encoding of a list, to make [`Addresses`] of.
#[derive(Clone, Debug, Default)]
pub struct AddressesBuffer(Vec<u8>);

impl AddressesBuffer {
    /// Adds a node; `false` when the list is full.
    pub fn push(&mut self, node_id: [u8; NODE_ID_LEN], address: Address) -> bool {
        if self.0.len() >= PEER_ADDRESSES_MAX * ENTRY_LEN {
            return false;
        }
        self.0.extend_from_slice(&node_id);
        self.0.extend_from_slice(&address.ip);
        self.0.extend_from_slice(&address.port.to_le_bytes());
        self.0.extend_from_slice(&[0; 6]);
        true
    }

    /// The list.
    #[must_use]
    pub fn addresses(&self) -> Addresses<'_> {
        Addresses(&self.0)
    }
}

impl<'a> Addresses<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let bytes = reader.rest();
        if !bytes.len().is_multiple_of(ENTRY_LEN) || bytes.len() > PEER_ADDRESSES_MAX * ENTRY_LEN {
            return None;
        }
        let all_sound = bytes
            .chunks_exact(ENTRY_LEN)
            .all(|entry| read_entry(entry).is_some());
        all_sound.then_some(Self(bytes))
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Each node with its address.
    pub fn iter(&self) -> impl Iterator<Item = ([u8; NODE_ID_LEN], Address)> + 'a {
        self.0.chunks_exact(ENTRY_LEN).filter_map(read_entry)
    }
}

fn read_entry(bytes: &[u8]) -> Option<([u8; NODE_ID_LEN], Address)> {
    let mut reader = Reader(bytes);
    let node_id = reader.array()?;
    let ip = reader.array()?;
    let port = u16::from_le_bytes(reader.array()?);
    reader.zeros::<6>()?;
    (port != 0).then_some((node_id, Address { ip, port }))
}
