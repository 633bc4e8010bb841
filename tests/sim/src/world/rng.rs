//! Chance from a seed.

/// xoshiro256**, seeded by splitmix64 (Blackman and Vigna): the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Self {
            state: [next(), next(), next(), next()],
        }
    }

    /// A stream of its own for one part of the world, so that what one part draws does not shift
    /// what another one gets.
    #[must_use]
    pub fn fork(&mut self, label: u64) -> Self {
        Self::new(self.draw() ^ label.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        let result = self.state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = self.state[1] << 17;
        self.state[2] ^= self.state[0];
        self.state[3] ^= self.state[1];
        self.state[1] ^= self.state[2];
        self.state[0] ^= self.state[3];
        self.state[2] ^= t;
        self.state[3] = self.state[3].rotate_left(45);
        result
    }

    /// A number below `bound`; 0 when the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both possible.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True in that many of a thousand cases.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1_000) < u64::from(per_mille)
    }

    /// An index into something of that length, which must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        assert!(len > 0, "nothing to choose from");
        self.below(len as u64) as usize
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// Puts `items` in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            let other = self.index(end + 1);
            items.swap(end, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn a_seed_has_one_stream() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| a.draw() == b.draw()));
        assert_ne!(Rng::new(7).draw(), Rng::new(8).draw());
        let mut fork = a.fork(1);
        assert_ne!(fork.draw(), b.fork(2).draw());
    }

    #[test]
    fn numbers_stay_inside_and_reach_both_ends() {
        let mut rng = Rng::new(1);
        let mut seen = [0_u32; 3];
        for _ in 0..3_000 {
            seen[rng.range(5, 7) as usize - 5] += 1;
        }
        assert!(seen.iter().all(|count| (800..1_200).contains(count)));
        assert!((0..100).all(|_| !rng.chance(0) && rng.chance(1_000)));
    }
}
