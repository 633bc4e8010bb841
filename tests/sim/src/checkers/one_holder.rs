//! One holder at a time: while a client's lease lasts by its own, conservative count, nobody else is
//! told that the key is theirs (behaviour: "a key has one holder at a time"; leases).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::Check;
use crate::world::events::Us;

/// Who believes to hold what.
#[derive(Debug, Default)]
pub struct OneHolder {
    holders: BTreeMap<Rc<[u8]>, BTreeMap<u64, Us>>,
    /// Tokens that somebody guessed: who knows a token may release it.
    guessed: BTreeSet<u64>,
}

impl OneHolder {
    /// A client believes that it holds `key` until `until_us`.
    pub fn holds(&mut self, key: &Rc<[u8]>, token: u64, until_us: Us, now_us: Us) -> Check {
        let holders = self.holders.entry(key.clone()).or_default();
        holders.retain(|_, until_us| *until_us > now_us);
        let other = holders
            .keys()
            .find(|other| !self.guessed.contains(other))
            .copied();
        holders.insert(token, until_us);
        match other {
            Some(other) => Err(format!(
                "{} is held under {other} and under {token} at once",
                String::from_utf8_lossy(key)
            )),
            None => Ok(()),
        }
    }

    /// It lets go.
    pub fn lets_go(&mut self, key: &Rc<[u8]>, token: u64) {
        if let Some(holders) = self.holders.get_mut(key) {
            holders.remove(&token);
        }
    }

    /// Somebody sends a release with a token, perhaps not its own; who sends its own has let go.
    pub fn guesses(&mut self, token: u64) {
        self.guessed.insert(token);
    }
}
