//! A newcomer serves clients only once it knows that the configuration with its vote is committed
//! (behaviour, section 7).

use super::Check;
use super::history::History;
use crate::cluster::host::node_id;

/// `node` opens its port, or answers a client, and knows everything up to `known` committed.
pub fn serves(node: usize, known: u64, history: &History) -> Check {
    let mut configs = history.configs().iter();
    let had_slot = configs
        .any(|entry| entry.index.0 <= known && entry.config.voters().contains(&node_id(node)));
    // Whether it still has one is another checker's part.
    if had_slot {
        return Ok(());
    }
    Err(format!(
        "node {node} serves, and no configuration that it knows committed has a slot for it"
    ))
}
