//! No lease is ended early, and elections do not stretch one (behaviour, section 4, "Leases").

use std::collections::BTreeMap;

use super::Check;
use super::history::Granted;
use crate::plan::{MS, SECOND};
use crate::world::events::Us;

/// How late an Expire may be committed that nothing held up.
const LATE_US: Us = 2 * SECOND;

/// When each node applied each grant, in the life of its process.
#[derive(Debug, Default)]
pub struct Leases {
    applied: BTreeMap<(usize, u64), Us>,
}

impl Leases {
    /// `node` applied the Grant.
    pub fn applied(&mut self, node: usize, token: u64, now_us: Us) {
        self.applied.insert((node, token), now_us);
    }

    /// What `node` counted is lost, or was held up.
    pub fn forget(&mut self, node: usize) {
        self.applied.retain(|(of, _), _| *of != node);
    }

    /// An Expire ended the grant of `token`. `ready_us`: since when its leader serves, if nothing
    /// has held it up since.
    pub fn expired(
        &self,
        token: u64,
        granted: &Granted,
        now_us: Us,
        leader: Option<(usize, Us)>,
    ) -> Check {
        let lease_us = granted.lease_s * SECOND;
        let lasted_us = now_us - granted.at_us;
        if lasted_us < lease_us {
            return Err(format!(
                "token {token} with a lease of {} s expired after {} ms",
                granted.lease_s,
                lasted_us / MS
            ));
        }
        let Some((node, ready_us)) = leader else {
            return Ok(());
        };
        let Some(&applied_us) = self.applied.get(&(node, token)) else {
            return Ok(());
        };
        let due_us = (applied_us + lease_us * 1_002 / 1_000).max(ready_us);
        if now_us > due_us + LATE_US {
            return Err(format!(
                "token {token}, applied at its leader {node} at {} ms with a lease of {} s, expired at \
                 {} ms; that leader was ready at {} ms",
                applied_us / MS,
                granted.lease_s,
                now_us / MS,
                ready_us / MS
            ));
        }
        Ok(())
    }
}
