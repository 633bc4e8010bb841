//! Once the faults stop, the cluster serves again, and everything that was begun comes to an end
//! (Raft paper, section 5.6; behaviour, section 7: a dead leader is replaced without help).

use super::Check;
use crate::cluster::host::Process;
use crate::plan::{MS, SECOND};
use crate::world::events::Us;

/// A leader is ready this long after the faults stop, at the latest: processes start, a few
/// elections may fail.
const READY_US: Us = 6 * SECOND;

/// What became of the cluster.
#[derive(Debug, Default)]
pub struct Liveness {
    calm_us: Option<Us>,
    served_us: Option<Us>,
    asked_in_vain: u64,
}

impl Liveness {
    /// The faults stop.
    pub fn calm(&mut self, now_us: Us) {
        self.calm_us = Some(now_us);
    }

    /// A client asks.
    pub fn asked(&mut self, now_us: Us) {
        if self.served_us.is_none() && self.calm_us.is_some_and(|calm_us| now_us > calm_us) {
            self.asked_in_vain += 1;
        }
    }

    /// A leader that is ready answers a client.
    pub fn served(&mut self, now_us: Us) {
        if self.calm_us.is_some() {
            self.served_us.get_or_insert(now_us);
        }
    }

    /// At the end.
    pub fn finish(&self, processes: &[(usize, &Process)], unfinished: usize) -> Check {
        if let Some(served_us) = self.served_us
            && let Some(calm_us) = self.calm_us
            && served_us > calm_us + READY_US
            && self.asked_in_vain > 2
        {
            let after_ms = (served_us - calm_us) / MS;
            return Err(format!(
                "the first request was served {after_ms} ms after the faults"
            ));
        }
        if self.asked_in_vain > 0 && self.served_us.is_none() {
            return Err("no request was served after the faults".to_owned());
        }
        let ready = processes
            .iter()
            .filter(|(_, process)| process.role.is_ready())
            .count();
        if ready != 1 {
            return Err(format!("{ready} nodes are ready in the end"));
        }
        let ends: Vec<u64> = processes
            .iter()
            .map(|(_, process)| process.role.handed_out().0)
            .collect();
        if ends.iter().any(|end| *end != ends[0]) {
            return Err(format!("the nodes have applied up to {ends:?} in the end"));
        }
        if unfinished > 0 {
            return Err(format!(
                "{unfinished} tasks of clients have not come to an end"
            ));
        }
        Ok(())
    }
}
