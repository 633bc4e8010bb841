//! Where the other nodes listen: what they say themselves, what others and operators say, and what was kept.
//!
//! Configurations of the cluster carry no addresses. Each node tells those that it is connected with where it
//! listens, and where they do, so that whoever is reached by one is soon dialled by all. A wrong address does no
//! harm: who answers there has to prove who it is.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use ticketing_protocol::peer::{Address, Addresses, AddressesBuffer, Body, Frame};
use ticketing_raftlog::NodeId;
use ticketing_raftlog::raft::Config;

use crate::limits::{PEER_ADDRESSES_KEPT, PEER_OUTPUT_BYTES};
use crate::runtime::{self, spawn_local};

use super::connection::Connection;
use super::{Inner, dialling};

/// The file's name in the data folder.
const FILE: &str = "peer-addresses.json";

/// What is known of addresses.
#[derive(Debug, Default)]
pub(super) struct Book {
    places: BTreeMap<NodeId, SocketAddr>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    node_id: String,
    address: SocketAddr,
}

impl Book {
    /// What was kept in `folder`; nothing if that cannot be read, which is told.
    pub(super) fn load(folder: &Path) -> Self {
        let path = folder.join(FILE);
        let read =
            fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice::<Vec<Kept>>(&bytes)?));
        let kept = match read {
            Ok(kept) => kept,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                tracing::warn!(
                    "{}: {error}; going on without: other nodes are looked for at the configured addresses, \
                     and tell of the others",
                    path.display()
                );
                Vec::new()
            }
        };
        let place = |kept: Kept| Some((NodeId::parse(&kept.node_id)?, kept.address));
        Self {
            places: kept
                .into_iter()
                .filter_map(place)
                .take(PEER_ADDRESSES_KEPT)
                .collect(),
        }
    }

    /// Keeps it in `folder`. Blocks.
    fn save(folder: &Path, kept: &[Kept]) -> io::Result<()> {
        let unfinished = folder.join(format!("{FILE}.new"));
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec_pretty(kept)?)?;
        file.sync_all()?;
        fs::rename(&unfinished, folder.join(FILE))?;
        File::open(folder)?.sync_all()
    }

    /// Notes an address; `true` if that is news. Where there is no room, who is no member has to go.
    pub(super) fn note(&mut self, config: &Config, node: NodeId, address: SocketAddr) -> bool {
        if self.places.get(&node) == Some(&address) {
            return false;
        }
        if self.places.len() >= PEER_ADDRESSES_KEPT && !self.places.contains_key(&node) {
            self.places.retain(|&known, _| config.is_member(known));
        }
        if self.places.len() >= PEER_ADDRESSES_KEPT && !self.places.contains_key(&node) {
            return false;
        }
        self.places.insert(node, address);
        true
    }

    /// Where a node listens.
    pub(super) fn of(&self, node: NodeId) -> Option<SocketAddr> {
        self.places.get(&node).copied()
    }

    fn kept(&self) -> Vec<Kept> {
        let kept = |(node, &address): (&NodeId, _)| Kept {
            node_id: node.to_string(),
            address,
        };
        self.places.iter().map(kept).collect()
    }
}

impl Inner {
    /// The members' addresses that are to be dialled beside the configured ones.
    pub(super) fn wanted(&self) -> Vec<SocketAddr> {
        let own = self.setup.node_id;
        let members = self.known.config.members().filter(|&node| node != own);
        members
            .filter_map(|node| self.book.of(node))
            .filter(|address| !self.setup.dial.contains(address))
            .collect()
    }

    /// Says on a connection where this node listens, and where those do that it is connected with.
    pub(super) fn tell_addresses(&self, connection: &Connection) {
        let mut listed = AddressesBuffer::default();
        listed.push(self.setup.node_id.0, on_wire(self.setup.listen));
        for (&node, state) in &self.nodes {
            // Only what is known at first hand: what is only heard of would go round for ever.
            let told = state.connections.iter().any(|c| c.told_address.get());
            if let Some(address) = self
                .book
                .of(node)
                .filter(|_| told && node != connection.node)
                && !listed.push(node.0, on_wire(address))
            {
                break;
            }
        }
        let frame = Frame {
            term: self.known.term.0,
            body: Body::Addresses(listed.addresses()),
        };
        connection.write(PEER_OUTPUT_BYTES, |out| frame.encode(out));
    }
}

/// Takes in what a node says of addresses, its own among them.
pub(super) fn told(inner: &Rc<RefCell<Inner>>, connection: &Connection, addresses: Addresses<'_>) {
    let own = inner.borrow().setup.node_id;
    let mut news = false;
    for (node, address) in addresses.iter() {
        let (node, address) = (NodeId(node), from_wire(address));
        let mut inner = inner.borrow_mut();
        let config = inner.known.config;
        if node == connection.node {
            let address = match address.ip().is_unspecified() {
                // It listens on all of its addresses: the one that it is reached at is one of them.
                true => connection
                    .remote_ip
                    .map(|ip| SocketAddr::new(ip, address.port())),
                false => Some(address),
            };
            if let Some(address) = address {
                let first = !connection.told_address.replace(true);
                news |= inner.book.note(&config, node, address) || first;
            }
        } else if node != own && !inner.is_told(node) && !address.ip().is_unspecified() {
            news |= inner.book.note(&config, node, address);
        }
    }
    if news {
        for (node, state) in &inner.borrow().nodes {
            if let Some(sending) = state.sending().filter(|_| *node != connection.node) {
                inner.borrow().tell_addresses(sending);
            }
        }
        changed(inner);
    }
}

/// Keeps the book on the disk, and dials who is not dialled yet.
pub(super) fn changed(inner: &Rc<RefCell<Inner>>) {
    dial_wanted(inner);
    inner.borrow_mut().book_unsaved = true;
    if std::mem::replace(&mut inner.borrow_mut().book_saving, true) {
        return;
    }
    let inner = Rc::clone(inner);
    spawn_local(async move {
        while std::mem::replace(&mut inner.borrow_mut().book_unsaved, false) {
            let kept = inner.borrow().book.kept();
            let folder = inner.borrow().setup.folder.clone();
            let saved = runtime::blocking(move || Book::save(&folder, &kept)).await;
            if let Err(error) = saved {
                tracing::warn!(
                    "where the other nodes listen was not kept in {FILE}: {error}; after a start they are looked \
                     for at the configured addresses"
                );
            }
        }
        inner.borrow_mut().book_saving = false;
    });
}

/// Dials the members that are not dialled yet.
pub(super) fn dial_wanted(inner: &Rc<RefCell<Inner>>) {
    let wanted = inner.borrow().wanted();
    for address in wanted {
        if inner.borrow_mut().dialled.insert(address) {
            spawn_local(dialling::dial(Rc::clone(inner), address));
        }
    }
}

fn on_wire(address: SocketAddr) -> Address {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    Address {
        ip: ip.octets(),
        port: address.port(),
    }
}

fn from_wire(address: Address) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(address.ip).to_canonical(), address.port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: usize) -> NodeId {
        NodeId([number as u8 + 1; 16])
    }

    fn address(number: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 6_000 + number as u16))
    }

    #[test]
    fn addresses_of_both_families_come_back_from_the_wire() {
        for text in [
            "10.0.0.1:6225",
            "[2001:db8::1]:1",
            "0.0.0.0:6225",
            "[::]:65535",
        ] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(from_wire(on_wire(address)), address);
        }
    }

    #[test]
    fn what_was_kept_is_read_again_and_what_is_no_list_is_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(Book::load(folder.path()).places.is_empty());
        let mut book = Book::default();
        assert!(book.note(&Config::unknown(), node(0), address(0)));
        assert!(!book.note(&Config::unknown(), node(0), address(0)));
        assert!(book.note(&Config::unknown(), node(0), address(1)));
        Book::save(folder.path(), &book.kept()).expect("room for a file");
        let read = Book::load(folder.path());
        assert_eq!(read.places, BTreeMap::from([(node(0), address(1))]));
        for damaged in [
            "",
            "[{]",
            "[{\"node_id\":\"x\",\"address\":\"127.0.0.1:1\"}]",
        ] {
            fs::write(folder.path().join(FILE), damaged).expect("room for a file");
            assert!(Book::load(folder.path()).places.is_empty(), "{damaged}");
        }
    }

    #[test]
    fn where_the_book_is_full_who_is_no_member_goes() {
        let members = [node(0), node(1), node(2)];
        let config = Config::new(&members, &[]).expect("three voters");
        let mut book = Book::default();
        for number in 0..PEER_ADDRESSES_KEPT {
            assert!(book.note(&config, node(number), address(number)));
        }
        let newcomer = PEER_ADDRESSES_KEPT;
        assert!(book.note(&config, node(newcomer), address(newcomer)));
        assert_eq!(book.places.len(), members.len() + 1);
        assert_eq!(book.of(node(newcomer)), Some(address(newcomer)));
        for (number, &member) in members.iter().enumerate() {
            assert_eq!(book.of(member), Some(address(number)));
        }
    }
}
