//! Jitter from a seed: the same seed, the same run.

/// SplitMix64 (Steele, Lea, Flood 2014): spreads timeouts, nothing more.
#[derive(Debug)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from `low` on and below `high`; `low` if there is none.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        low + mixed % high.saturating_sub(low).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_up_and_no_other() {
        let mut jitter = Jitter::new(7);
        let mut seen = [0; 5];
        for _ in 0..1_000 {
            seen[jitter.between(5, 10) as usize - 5] += 1;
        }
        assert!(seen.iter().all(|times| *times > 100), "{seen:?}");
        assert_eq!(jitter.between(9, 9), 9);
        let of = |seed| Jitter::new(seed).between(0, u64::MAX);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
