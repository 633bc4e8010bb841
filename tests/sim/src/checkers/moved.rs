//! No node sends clients to its own slot, or to one that is not below the number of voters
//! (behaviour, section 7).

use super::Check;
use super::logs::Shadow;
use crate::cluster::host::node_id;
use crate::node::messages::Verdict;

/// `node`, whose log is `log`, tells a client that.
pub fn told(node: usize, log: &Shadow, verdict: Verdict) -> Check {
    let (Verdict::Moved(Some(slot)), Some(entry)) = (verdict, log.config()) else {
        return Ok(());
    };
    let own = entry.config.slot_of(node_id(node));
    if own.is_none_or(|own| own.0 != slot) && usize::from(slot) < entry.config.voters().len() {
        return Ok(());
    }
    Err(format!(
        "node {node}, in {own:?}, sends a client to slot {slot}"
    ))
}
