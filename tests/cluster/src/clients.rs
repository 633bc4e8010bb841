//! Clients of raw frames, which follow the leader.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ticketing_protocol::Reply;

use crate::load::Shape;
use crate::nodes::{Cluster, PATIENCE};
use crate::raw::RawClient;

/// Whom clients of a cluster connect to, and as whom.
#[derive(Clone, Debug)]
pub struct Clients {
    shape: Shape,
    leader: SocketAddr,
}

impl Clients {
    /// Those of the cluster's leader of now.
    pub fn of(cluster: &Cluster) -> Result<Self, String> {
        let leader = cluster.leader()?;
        Ok(Self {
            shape: cluster.shape(),
            leader: cluster.client_address(leader),
        })
    }

    /// One connection to the leader.
    pub fn connect(&self) -> Result<RawClient, String> {
        let (token, fingerprint) = (self.shape.token.as_bytes(), &self.shape.fingerprint);
        RawClient::try_connect_to(self.leader, token, fingerprint)
            .map_err(|error| format!("{}: {error}", self.leader))
    }
}

/// The next answer to a request; what servers say of the leader by themselves is left out.
pub fn answer(client: &mut RawClient, within: Duration) -> io::Result<Reply> {
    loop {
        match client.try_reply(within)? {
            Reply::Leader { .. } => {}
            reply => return Ok(reply),
        }
    }
}

/// Acquires a key that must be free; its token.
pub fn hold(client: &mut RawClient, key: &str, lease_s: u8) -> Result<u64, String> {
    client.send_acquire(key, 0, lease_s);
    match answer(client, PATIENCE) {
        Ok(Reply::Acquired { token, .. }) => Ok(token),
        other => Err(format!("{key} is not free: {other:?}")),
    }
}
