//! State machine safety: all nodes commit and apply the same at an index, and are in the same state
//! behind it (Raft paper, figure 3 and section 5.4.3), which is also the state of a naive model.

use ticketing::locks::Applied;

use super::Check;
use super::history::History;

/// `node` knows an entry committed whose log up to there has that hash.
pub fn committed(node: usize, index: u64, chain: u64, history: &History) -> Check {
    match history.chain(index) {
        Some(known) if known != chain => Err(format!(
            "node {node} has another entry committed at {index} than was committed before"
        )),
        _ => Ok(()),
    }
}

/// `node` applied the entry at `index`.
pub fn applied(node: usize, index: u64, applied: Applied, history: &History) -> Check {
    let Some(entry) = history.at(index) else {
        return Err(format!(
            "node {node} applied {index}, which nobody knows committed"
        ));
    };
    if entry.applied != Some(applied) {
        return Err(format!(
            "node {node} applied {index} as {applied:?}, the model as {:?}",
            entry.applied
        ));
    }
    Ok(())
}

/// The sum over what `node` holds at `index`.
pub fn state(node: usize, index: u64, sum: u128, history: &History) -> Check {
    match history.sum(index) {
        Some(expected) if expected != sum => Err(format!(
            "the lock state of node {node} at {index} is not the model's"
        )),
        _ => Ok(()),
    }
}
