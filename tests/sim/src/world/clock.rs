//! A node's own monotonic clock: it has a rate, and in wild runs it jumps.

use super::events::Us;

/// Parts in a million.
const MILLION: i128 = 1_000_000;

/// A clock that never goes back.
#[derive(Clone, Debug)]
pub struct Clock {
    rate_ppm: i64,
    /// True time and shown time where the rate was last set.
    since_us: Us,
    shown_us: Us,
}

impl Clock {
    /// Shows `shown_us` at the start of the run, and gains `rate_ppm` microseconds a second.
    #[must_use]
    pub fn new(shown_us: Us, rate_ppm: i64) -> Self {
        Self {
            rate_ppm,
            since_us: 0,
            shown_us,
        }
    }

    /// What it shows at the true time `now_us`, in microseconds.
    #[must_use]
    pub fn shown_us(&self, now_us: Us) -> Us {
        let passed = i128::from(now_us.saturating_sub(self.since_us));
        let shown = passed * (MILLION + i128::from(self.rate_ppm)) / MILLION;
        self.shown_us + u64::try_from(shown).unwrap_or(0)
    }

    /// What it shows, in milliseconds.
    #[must_use]
    pub fn shown_ms(&self, now_us: Us) -> u64 {
        self.shown_us(now_us) / 1_000
    }

    /// The true time at which it shows `shown_ms`; now if it has.
    #[must_use]
    pub fn when_us(&self, now_us: Us, shown_ms: u64) -> Us {
        let ahead = (shown_ms.saturating_mul(1_000)).saturating_sub(self.shown_us(now_us));
        let wait = i128::from(ahead) * MILLION / (MILLION + i128::from(self.rate_ppm));
        now_us + u64::try_from(wait).unwrap_or(0) + u64::from(ahead > 0)
    }

    /// From now on it runs at another rate.
    pub fn set_rate(&mut self, now_us: Us, rate_ppm: i64) {
        self.shown_us = self.shown_us(now_us);
        self.since_us = now_us;
        self.rate_ppm = rate_ppm;
    }

    /// Moves on by `by_us` at once.
    pub fn jump(&mut self, by_us: Us) {
        self.shown_us += by_us;
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;

    #[test]
    fn a_clock_keeps_its_rate_and_never_goes_back() {
        let mut clock = Clock::new(5_000_000, 500);
        assert_eq!(clock.shown_us(1_000_000), 6_000_500);
        let when = clock.when_us(1_000_000, 7_000);
        assert!(clock.shown_ms(when) == 7_000 && clock.shown_ms(when - 2_000) < 7_000);
        let mut last = clock.shown_us(1_000_000);
        for (step, rate) in [(1, -400), (2, 900), (3, 0)] {
            clock.set_rate(1_000_000 + step, rate);
            assert!(clock.shown_us(1_000_000 + step) >= last);
            clock.jump(10);
            last = clock.shown_us(1_000_000 + step);
        }
    }
}
