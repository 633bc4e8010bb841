//! Noticing that a thread's core is wanted by others more than the thread gets of it, and leaving it.
//!
//! A thread that stays on one core waits there while other cores are idle. The kernel counts for how long each
//! thread could have run and did not (`/proc/thread-self/schedstat`): who waits most of the time goes anywhere,
//! and comes back after a while to see whether the core is free again.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::limits::{
    CORE_BACK_FIRST, CORE_BACK_MOST, CORE_LOOK_EVERY, CORE_STARVED_LOOKS, CORE_STARVED_SHARE,
    CORE_STARVED_WAIT,
};

use super::cores;

/// An executor's core, as threads beside the executor see it.
#[derive(Debug)]
pub struct OwnCore {
    core: usize,
    kept: AtomicBool,
}

impl OwnCore {
    pub(super) fn new(core: usize) -> Self {
        Self {
            core,
            kept: AtomicBool::new(true),
        }
    }

    pub(super) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    pub(super) fn keep(&self, kept: bool) {
        self.kept.store(kept, Ordering::Relaxed);
    }

    /// Has the calling thread, which was started on this core, go where the executor is; `was_kept` remembers
    /// where that was.
    pub fn follow(&self, was_kept: &mut bool) {
        let kept = self.is_kept();
        if std::mem::replace(was_kept, kept) != kept {
            // Where an administrator has put it since, it stays.
            let _ = match kept {
                true => cores::return_to(self.core),
                false => cores::leave(self.core),
            };
        }
    }
}

/// What the kernel has counted of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    ran: Duration,
    waited: Duration,
}

/// What is to be done about the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Leave,
    Return,
}

/// Judges what was counted. Pure.
#[derive(Debug)]
struct Judge {
    before: (Instant, Counted),
    starved_looks: u32,
    back_after: Duration,
    // It left the core, and comes back then.
    back_at: Option<Instant>,
    returned_at: Instant,
}

impl Judge {
    fn new(now: Instant, counted: Counted) -> Self {
        Self {
            before: (now, counted),
            starved_looks: 0,
            back_after: CORE_BACK_FIRST,
            back_at: None,
            returned_at: now,
        }
    }

    fn look(&mut self, now: Instant, counted: Counted) -> Option<Move> {
        let (then, before) = std::mem::replace(&mut self.before, (now, counted));
        if let Some(back_at) = self.back_at {
            if now < back_at {
                return None;
            }
            self.back_at = None;
            self.returned_at = now;
            self.starved_looks = 0;
            return Some(Move::Return);
        }
        let waited = counted.waited.saturating_sub(before.waited);
        let wanted = waited + counted.ran.saturating_sub(before.ran);
        let elapsed = now.saturating_duration_since(then);
        let starved = waited >= elapsed.mul_f64(CORE_STARVED_WAIT)
            && waited >= wanted.mul_f64(CORE_STARVED_SHARE);
        if !starved {
            self.starved_looks = 0;
            if now.saturating_duration_since(self.returned_at) >= self.back_after {
                self.back_after = CORE_BACK_FIRST;
            }
            return None;
        }
        self.starved_looks += 1;
        if self.starved_looks < CORE_STARVED_LOOKS {
            return None;
        }
        self.back_at = Some(now + self.back_after);
        self.back_after = (self.back_after * 2).min(CORE_BACK_MOST);
        Some(Move::Leave)
    }
}

/// The watch of one thread over its core.
#[derive(Debug)]
pub(super) struct CoreWatch {
    core: usize,
    // Where the kernel counts; without it the thread stays where it is.
    counts: Option<File>,
    judge: Judge,
    next_look: Instant,
}

impl CoreWatch {
    /// Of the calling thread, which stays on `core`.
    pub(super) fn new(core: usize, now: Instant) -> Self {
        let counts = File::open("/proc/thread-self/schedstat").ok();
        let counted = counts.as_ref().and_then(read).unwrap_or_default();
        Self {
            core,
            counts,
            judge: Judge::new(now, counted),
            next_look: now + CORE_LOOK_EVERY,
        }
    }

    /// Looks now and then, on the thread that is watched. Says whether the thread stays on its core from now
    /// on, if that changes.
    pub(super) fn look(&mut self, now: Instant) -> Option<bool> {
        if now < self.next_look {
            return None;
        }
        self.next_look = now + CORE_LOOK_EVERY;
        let counted = read(self.counts.as_ref()?)?;
        let core = self.core;
        match self.judge.look(now, counted)? {
            Move::Leave if cores::leave(core) => {
                tracing::warn!(
                    core,
                    "this executor's core is wanted by other processes more than it gets of it: it runs on any \
                     core until they are gone; to keep them away, or to choose other cores, see `cores` in \
                     docs/operations.md"
                );
                Some(false)
            }
            Move::Return if cores::return_to(core) => {
                tracing::info!(core, "this executor is back on its core");
                Some(true)
            }
            // Somebody else has said meanwhile where this thread runs: that stays so.
            Move::Leave | Move::Return => None,
        }
    }
}

fn read(counts: &File) -> Option<Counted> {
    let mut bytes = [0; 96];
    let length = counts.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..length]).ok()?;
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok().map(Duration::from_nanos);
    Some(Counted {
        ran: next()?,
        waited: next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread's life, look by look: what it ran and waited in each, in thousandths.
    struct Life {
        judge: Judge,
        now: Instant,
        counted: Counted,
    }

    impl Life {
        fn begin() -> Self {
            let now = Instant::now();
            Self {
                judge: Judge::new(now, Counted::default()),
                now,
                counted: Counted::default(),
            }
        }

        fn look(&mut self, ran: u32, waited: u32) -> Option<Move> {
            self.now += CORE_LOOK_EVERY;
            self.counted.ran += CORE_LOOK_EVERY * ran / 1_000;
            self.counted.waited += CORE_LOOK_EVERY * waited / 1_000;
            self.judge.look(self.now, self.counted)
        }
    }

    #[test]
    fn who_waits_most_of_the_time_leaves_and_who_waits_less_stays() {
        for (ran, waited, leaves) in [
            (200, 800, true),
            (100, 300, true),
            // It waits for half of what it wants.
            (500, 500, false),
            // It wants next to nothing.
            (10, 90, false),
            (0, 0, false),
        ] {
            let mut life = Life::begin();
            let moves: Vec<_> = (0..CORE_STARVED_LOOKS)
                .map(|_| life.look(ran, waited))
                .collect();
            let (last, before) = moves.split_last().expect("some");
            assert!(before.iter().all(Option::is_none), "{ran} {waited}");
            let expected = leaves.then_some(Move::Leave);
            assert_eq!(*last, expected, "{ran} {waited}");
        }
    }

    #[test]
    fn one_good_look_begins_the_count_anew() {
        let mut life = Life::begin();
        for _ in 0..3 {
            for _ in 1..CORE_STARVED_LOOKS {
                assert_eq!(life.look(100, 900), None);
            }
            assert_eq!(life.look(900, 100), None);
        }
    }

    #[test]
    fn who_left_comes_back_later_each_time_and_soon_again_after_a_good_while() {
        let mut life = Life::begin();
        let starve = |life: &mut Life| {
            let looks = (1..=CORE_STARVED_LOOKS).map(|_| life.look(100, 900));
            assert_eq!(looks.last().flatten(), Some(Move::Leave));
        };
        let away = |life: &mut Life| {
            let left = life.now;
            while life.look(900, 0) != Some(Move::Return) {}
            life.now - left
        };
        starve(&mut life);
        let first = away(&mut life);
        assert_eq!(first, CORE_BACK_FIRST);
        let mut longest = first;
        for _ in 0..8 {
            starve(&mut life);
            let next = away(&mut life);
            assert_eq!(next, (longest * 2).min(CORE_BACK_MOST));
            longest = next;
        }
        let returned = life.now;
        while life.now - returned < CORE_BACK_MOST {
            assert_eq!(life.look(900, 100), None);
        }
        starve(&mut life);
        assert_eq!(away(&mut life), CORE_BACK_FIRST);
    }
}
