//! Leader append-only: a leader never drops an entry of its own log (Raft paper, figure 3).

use super::Check;

/// `node` cut its log at `from` while it led and goes on leading in the same term.
pub fn cut(node: usize, from: u64, leads: bool) -> Check {
    if leads {
        return Err(format!("node {node} leads and cut its log at {from}"));
    }
    Ok(())
}
