//! One answer for each request: what was told Indeterminate is never told anything else later
//! (behaviour, sections 5 and 9).

use std::collections::BTreeMap;

use super::Check;
use crate::node::messages::Verdict;

/// What was told.
#[derive(Debug, Default)]
pub struct OneAnswer {
    told: BTreeMap<(u32, u64), Verdict>,
}

impl OneAnswer {
    /// A request is answered.
    pub fn told(&mut self, request: (u32, u64), verdict: Verdict) -> Check {
        match self.told.insert(request, verdict) {
            Some(before) => Err(format!("{request:?} was told {before:?}, then {verdict:?}")),
            None => Ok(()),
        }
    }
}
