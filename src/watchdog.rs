//! A thread that looks after the executors from outside.
//!
//! The runtime is known to be able to park an executor while tasks of it are
//! runnable. With the preemption timer at its default that has never been seen,
//! and this makes it harmless: every executor is woken now and then by a thread
//! that is none, and one that shows no sign of life is reported.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::counters::{ConsensusCounters, ShardCounters};
use crate::lanes::Doorbell;
use crate::limits::{WATCHDOG_EVERY, WATCHDOG_STALL};

/// Something that counts the rounds of an executor's main loop.
pub trait Rounds: Send + Sync {
    /// Rounds so far.
    fn rounds(&self) -> u64;
}

impl Rounds for ShardCounters {
    fn rounds(&self) -> u64 {
        self.rounds.get()
    }
}

impl Rounds for ConsensusCounters {
    fn rounds(&self) -> u64 {
        self.rounds.get()
    }
}

/// One executor under watch.
pub struct Pulse {
    name: String,
    doorbell: Arc<Doorbell>,
    rounds: Arc<dyn Rounds>,
    seen: u64,
    since: Instant,
    reported: bool,
}

/// What a look at a pulse found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// It goes on, or has not been still for long.
    Alive,
    /// It has been still for too long, and nobody was told yet.
    Stalled,
    /// It went on after a stall.
    Recovered,
}

impl Pulse {
    /// Watches the main loop behind `doorbell`.
    pub fn new(name: &str, doorbell: &Arc<Doorbell>, rounds: Arc<dyn Rounds>) -> Self {
        Self {
            name: name.to_owned(),
            doorbell: Arc::clone(doorbell),
            seen: rounds.rounds(),
            rounds,
            since: Instant::now(),
            reported: false,
        }
    }

    fn look(&mut self, now: Instant) -> Finding {
        let rounds = self.rounds.rounds();
        if rounds != self.seen {
            self.seen = rounds;
            self.since = now;
            if std::mem::take(&mut self.reported) {
                return Finding::Recovered;
            }
        } else if !self.reported && now.duration_since(self.since) >= WATCHDOG_STALL {
            self.reported = true;
            return Finding::Stalled;
        }
        Finding::Alive
    }
}

/// Watches `pulses` for as long as the process lives.
pub fn start(mut pulses: Vec<Pulse>) {
    std::thread::Builder::new()
        .name("watchdog".into())
        .spawn(move || {
            loop {
                std::thread::sleep(WATCHDOG_EVERY);
                let now = Instant::now();
                for pulse in &mut pulses {
                    match pulse.look(now) {
                        Finding::Alive => {}
                        Finding::Stalled => tracing::error!(
                            executor = pulse.name,
                            "no sign of life for {:?}",
                            Duration::from_secs(WATCHDOG_STALL.as_secs())
                        ),
                        Finding::Recovered => {
                            tracing::warn!(executor = pulse.name, "goes on again");
                        }
                    }
                    pulse.doorbell.ring();
                }
            }
        })
        .unwrap_or_else(|error| crate::fatal::Fatal::Executor.exit(error));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_still_executor_is_reported_once_and_its_recovery_too() {
        let counters = Arc::new(ShardCounters::default());
        let mut pulse = Pulse::new("shard-0", &Doorbell::new(), Arc::clone(&counters) as _);
        let start = pulse.since;
        let just_before = start + WATCHDOG_STALL - Duration::from_millis(1);
        assert_eq!(pulse.look(just_before), Finding::Alive);
        assert_eq!(pulse.look(start + WATCHDOG_STALL), Finding::Stalled);
        assert_eq!(pulse.look(start + 2 * WATCHDOG_STALL), Finding::Alive);
        counters.rounds.add(1);
        assert_eq!(pulse.look(start + 2 * WATCHDOG_STALL), Finding::Recovered);
        assert_eq!(pulse.look(start + 3 * WATCHDOG_STALL), Finding::Stalled);
    }
}
