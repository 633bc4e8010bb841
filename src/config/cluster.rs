//! What the configuration of a cluster's node has beside a single node's.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Config, FileAddress, TokenFiles, token};
use crate::security::tls::PeerTls;
use crate::security::token::{ADMIN_TOKEN_VARIABLE, PEER_TOKEN_VARIABLE, Token, Tokens};

/// How many voters a cluster may have.
pub const VOTERS: [usize; 2] = [3, 5];

/// What a cluster's node knows of the others, checked.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Its place in the clients' address list.
    pub slot: u8,
    /// Where it listens for the other nodes.
    pub peer_listen: SocketAddr,
    /// Where each slot's node listens for the others.
    pub addresses: Vec<SocketAddr>,
    /// What every node of the cluster knows.
    pub peer_tokens: Tokens,
    /// TLS between the nodes.
    pub peer_tls: Option<PeerTls>,
    /// What operators know; without it no orders are taken.
    pub admin_token: Token,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FilePeers {
    listen: FileAddress,
    addresses: Vec<FileAddress>,
    token_file: Option<PathBuf>,
    previous_token_file: Option<PathBuf>,
    tls: Option<FilePeerTls>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePeerTls {
    certificate_file: PathBuf,
    key_file: PathBuf,
    authority_file: PathBuf,
    #[serde(default)]
    mutual: bool,
}

impl FilePeers {
    pub(super) fn checked(
        self,
        slot: Option<u8>,
        admin_token_file: Option<PathBuf>,
        base: &Path,
        problems: &mut Vec<String>,
    ) -> Option<ClusterConfig> {
        let voters = self.addresses.len();
        if !VOTERS.contains(&voters) {
            problems.push(format!(
                "peers.addresses has {voters} addresses: a cluster has 3 or 5 voters, one address for \
                 each slot (an even number costs more and tolerates no more faults)"
            ));
        }
        let Some(slot) = slot else {
            problems.push(
                "slot is missing: the place of this node in the clients' address list".into(),
            );
            return None;
        };
        if usize::from(slot) >= voters {
            problems.push(format!(
                "slot = {slot}: with {voters} addresses slots are 0 to {}",
                voters.saturating_sub(1)
            ));
        }
        let files = TokenFiles {
            current: self.token_file.map(|file| base.join(file)),
            previous: self.previous_token_file.map(|file| base.join(file)),
        };
        let peer_tokens = files.read(PEER_TOKEN_VARIABLE, problems);
        let peer_tls = self.tls.and_then(|tls| {
            let read = PeerTls::from_files(
                &base.join(tls.certificate_file),
                &base.join(tls.key_file),
                &base.join(tls.authority_file),
                tls.mutual,
            );
            read.map_err(|problem| problems.push(problem)).ok()
        });
        if peer_tokens.current.is_none() {
            problems.push(format!(
                "the nodes of a cluster prove to each other that they know a peer token: set \
                 {PEER_TOKEN_VARIABLE}, or peers.token_file"
            ));
        }
        let file = admin_token_file.map(|file| base.join(file));
        let admin_token = token(file.as_deref(), ADMIN_TOKEN_VARIABLE, problems);
        Some(ClusterConfig {
            slot,
            peer_listen: self.listen.0,
            addresses: self
                .addresses
                .into_iter()
                .map(|address| address.0)
                .collect(),
            peer_tokens,
            peer_tls,
            admin_token,
        })
    }
}

impl ClusterConfig {
    pub(super) fn check(&self, config: &Config, problems: &mut Vec<String>) {
        let listen = self.peer_listen;
        if listen.port() == 0 || config.listen.port() == 0 {
            problems.push(
                "listen and peers.listen of a cluster's node need a port: others are told where it is"
                    .to_owned(),
            );
        }
        if listen == config.listen || Some(listen) == config.admin {
            problems.push(format!(
                "peers.listen = {listen}: give the other nodes a port of their own"
            ));
        }
        for (slot, address) in self.addresses.iter().enumerate() {
            if self.addresses[..slot].contains(address) {
                problems.push(format!(
                    "peers.addresses has {address} twice: each slot has an address of its own"
                ));
            }
        }
        let (client, peer) = (&config.client_tokens.current, &self.peer_tokens.current);
        let tokens = [client, peer, &self.admin_token];
        let same = |a: usize, b: usize| tokens[a] == tokens[b] && !tokens[a].is_none();
        if same(0, 1) || same(0, 2) || same(1, 2) {
            problems.push(
                "two of the client, the peer and the admin token are the same: a client could pose as a \
                 node or an operator; give each its own"
                    .to_owned(),
            );
        }
    }
}
