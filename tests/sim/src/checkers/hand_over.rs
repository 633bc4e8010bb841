//! A hand-over is two neighbours in the log (behaviour, section 2): who stood in line when a removal
//! was proposed, and gets the key next in that term, has its Grant right behind it.

use std::collections::BTreeMap;

use super::Check;
use crate::node::journal::Payload;

/// When removals were proposed, counted in requests that had come before a table.
#[derive(Debug, Default)]
pub struct HandOver {
    proposed: BTreeMap<(u64, Payload), u64>,
    removals: BTreeMap<u64, u64>,
}

impl HandOver {
    /// A removal is proposed in `term`; `came` requests have come before.
    pub fn proposed(&mut self, term: u64, payload: &Payload, came: u64) {
        self.proposed.entry((term, payload.clone())).or_insert(came);
    }

    /// A removal is committed at `index`.
    pub fn removed(&mut self, index: u64, term: u64, payload: &Payload) {
        if let Some(came) = self.proposed.remove(&(term, payload.clone())) {
            self.removals.insert(index, came);
        }
    }

    /// A Grant at `index` follows the removal at `removal` on its key, both of one term; the
    /// request came before the table as the `came`th, and waits if need be.
    pub fn granted(&self, index: u64, removal: u64, came: u64) -> Check {
        match self.removals.get(&removal) {
            Some(before) if came <= *before && index != removal + 1 => Err(format!(
                "the Grant at {index} belongs right behind the removal at {removal}"
            )),
            _ => Ok(()),
        }
    }
}
