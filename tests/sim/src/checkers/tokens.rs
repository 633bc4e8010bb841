//! Fencing tokens: never 0, never given twice, the index of the Grant that asked for it, and above
//! every token that anybody had when the request was sent (behaviour, section 3).

use std::collections::BTreeMap;
use std::rc::Rc;

use super::Check;
use super::history::History;

/// The tokens that clients have.
#[derive(Debug, Default)]
pub struct Tokens {
    given: BTreeMap<u64, (u32, u64)>,
    highest: u64,
}

impl Tokens {
    /// The highest token that any client has.
    #[must_use]
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// A node tells a request, by connection and id, that it has the key under `token`.
    pub fn told(
        &mut self,
        request: (u32, u64),
        key: &Rc<[u8]>,
        lease_s: u64,
        token: u64,
        history: &History,
    ) -> Check {
        if let Some(other) = self.given.insert(token, request) {
            return Err(format!(
                "token {token} was given to {other:?} and to {request:?}"
            ));
        }
        let right = history
            .grants()
            .get(&token)
            .is_some_and(|granted| granted.key == *key && granted.lease_s == lease_s);
        if !right {
            return Err(format!(
                "token {token} was given to {request:?}, whose Grant is not committed there"
            ));
        }
        Ok(())
    }

    /// A client that asked when `before` was the highest token learns of its grant.
    pub fn learned(&mut self, token: u64, before: u64) -> Check {
        self.highest = self.highest.max(token);
        if token <= before {
            return Err(format!(
                "token {token} was asked for when {before} was out already"
            ));
        }
        Ok(())
    }
}
