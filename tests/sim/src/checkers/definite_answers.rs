//! T, B, M, E 3 and E 4 say "not granted", N says "not current", R says "released": for ever
//! (behaviour, section 5).

use std::collections::BTreeMap;
use std::rc::Rc;

use super::Check;
use super::history::History;
use crate::node::messages::Verdict;
use crate::world::events::Us;

/// Attempts that were told that they were not granted.
#[derive(Debug, Default)]
pub struct DefiniteAnswers {
    refused: BTreeMap<(Rc<[u8]>, u64), Verdict>,
}

impl DefiniteAnswers {
    /// An acquire is answered.
    pub fn acquire(
        &mut self,
        key: &Rc<[u8]>,
        lease_s: u64,
        verdict: Verdict,
        history: &History,
    ) -> Check {
        if !verdict.is_refusal() {
            return Ok(());
        }
        self.refused.insert((key.clone(), lease_s), verdict);
        match history.granted_to(key, lease_s) {
            Some(token) => Err(contradiction(key, lease_s, verdict, token)),
            None => Ok(()),
        }
    }

    /// An attempt is granted.
    pub fn granted(&self, key: &Rc<[u8]>, lease_s: u64, token: u64) -> Check {
        match self.refused.get(&(key.clone(), lease_s)) {
            Some(verdict) => Err(contradiction(key, lease_s, *verdict, token)),
            None => Ok(()),
        }
    }
}

/// A release that arrived at `arrived_us` is answered.
pub fn release(
    key: &Rc<[u8]>,
    token: u64,
    arrived_us: Us,
    verdict: Verdict,
    history: &History,
) -> Check {
    let granted = history
        .grants()
        .get(&token)
        .filter(|granted| granted.key == *key);
    let key = String::from_utf8_lossy(key);
    match verdict {
        Verdict::NotFound
            if granted.is_some_and(|g| g.ended.is_none() && g.at_us <= arrived_us) =>
        {
            Err(format!(
                "a release of {key} got N, and its token {token} is current"
            ))
        }
        Verdict::Released if granted.is_none_or(|g| g.ended.is_none()) => Err(format!(
            "a release of {key} got R, and its token {token} was not removed"
        )),
        _ => Ok(()),
    }
}

fn contradiction(key: &[u8], lease_s: u64, verdict: Verdict, token: u64) -> String {
    format!(
        "an acquire of {} with a lease of {lease_s} s got {verdict:?}, and token {token} was granted to it",
        String::from_utf8_lossy(key)
    )
}
