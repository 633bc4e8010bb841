//! Leader completeness: what was committed in a term is in the log of every later leader (Raft
//! paper, figure 3 and section 5.4).

use super::Check;
use super::history::History;
use super::logs::Shadow;

/// `node`, whose log is `log`, leads in `term`.
pub fn leads(node: usize, term: u64, log: &Shadow, history: &History) -> Check {
    let mut index = history.last();
    while history
        .at(index)
        .is_some_and(|entry| entry.known_in_term >= term)
    {
        index -= 1;
    }
    let Some(committed) = history.chain(index) else {
        return Ok(());
    };
    if index > log.last() {
        return Err(format!(
            "node {node} leads in term {term} with a log up to {}, and {index} was committed before",
            log.last()
        ));
    }
    match log.chain(index) {
        Some(chain) if chain != committed => Err(format!(
            "node {node} leads in term {term} with another entry at {index} than was committed"
        )),
        // A base behind it is a snapshot, of what was committed.
        _ => Ok(()),
    }
}
