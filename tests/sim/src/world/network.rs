//! The network between nodes, and between clients and nodes: who reaches whom, and when.

use super::events::Us;
use super::rng::Rng;

/// What a network does to what is sent.
#[derive(Clone, Debug)]
pub struct Manners {
    /// Shortest and longest way, in microseconds.
    pub delay_us: (Us, Us),
    /// Once in a while the way takes that long; 0: never.
    pub slow_us: Us,
    /// Messages of a thousand that are lost.
    pub lose_per_mille: u32,
    /// Messages of a thousand that arrive twice.
    pub repeat_per_mille: u32,
    /// Whether one message may overtake another; otherwise each pair has a stream.
    pub reorders: bool,
}

impl Manners {
    /// A network that loses nothing.
    #[must_use]
    pub fn calm() -> Self {
        Self {
            delay_us: (30, 400),
            slow_us: 0,
            lose_per_mille: 0,
            repeat_per_mille: 0,
            reorders: false,
        }
    }
}

/// When copies of one message arrive: none, one or two.
pub type Arrivals = [Option<Us>; 2];

/// Directed links between `size` places.
#[derive(Debug)]
pub struct Network {
    size: usize,
    manners: Manners,
    blocked: Vec<bool>,
    last_us: Vec<Us>,
    /// Links that always keep their order, lose and repeat nothing: a client's connections break
    /// instead.
    streams_from: usize,
}

impl Network {
    /// `nodes` places that misbehave by `manners`, then `clients` whose links are streams.
    #[must_use]
    pub fn new(nodes: usize, clients: usize, manners: Manners) -> Self {
        let size = nodes + clients;
        Self {
            size,
            manners,
            blocked: vec![false; size * size],
            last_us: vec![0; size * size],
            streams_from: nodes,
        }
    }

    /// From now on it behaves otherwise.
    pub fn set_manners(&mut self, manners: Manners) {
        self.manners = manners;
    }

    /// Whether `from` reaches `to`.
    #[must_use]
    pub fn reaches(&self, from: usize, to: usize) -> bool {
        !self.blocked[from * self.size + to]
    }

    /// Cuts, or mends, the way from `from` to `to`.
    pub fn block(&mut self, from: usize, to: usize, blocked: bool) {
        self.blocked[from * self.size + to] = blocked;
    }

    /// Mends every link.
    pub fn heal(&mut self) {
        self.blocked.fill(false);
    }

    /// When what is sent now arrives.
    pub fn send(&mut self, now_us: Us, from: usize, to: usize, rng: &mut Rng) -> Arrivals {
        let link = from * self.size + to;
        let stream = from.max(to) >= self.streams_from;
        if self.blocked[link] || (!stream && rng.chance(self.manners.lose_per_mille)) {
            return [None, None];
        }
        let first = self.arrival(now_us, link, stream, rng);
        let again = !stream && rng.chance(self.manners.repeat_per_mille);
        let second = again.then(|| self.arrival(now_us, link, stream, rng));
        [Some(first), second]
    }

    fn arrival(&mut self, now_us: Us, link: usize, stream: bool, rng: &mut Rng) -> Us {
        let (low, high) = self.manners.delay_us;
        let slow = if self.manners.slow_us > 0 && rng.chance(20) {
            rng.below(self.manners.slow_us)
        } else {
            0
        };
        let at_us = now_us + rng.range(low, high) + slow;
        if !stream && self.manners.reorders {
            return at_us;
        }
        let at_us = at_us.max(self.last_us[link]);
        self.last_us[link] = at_us;
        at_us
    }
}

#[cfg(test)]
mod tests {
    use super::{Manners, Network};
    use crate::world::rng::Rng;

    #[test]
    fn a_cut_is_one_way_and_heals() {
        let (mut net, mut rng) = (Network::new(2, 0, Manners::calm()), Rng::new(1));
        net.block(0, 1, true);
        assert_eq!(net.send(0, 0, 1, &mut rng), [None, None]);
        assert!(net.send(0, 1, 0, &mut rng)[0].is_some());
        net.heal();
        assert!(net.reaches(0, 1));
    }

    #[test]
    fn streams_keep_their_order_and_rude_links_do_not() {
        let manners = Manners {
            delay_us: (10, 9_000),
            slow_us: 0,
            lose_per_mille: 100,
            repeat_per_mille: 100,
            reorders: true,
        };
        let (mut net, mut rng) = (Network::new(2, 1, manners), Rng::new(3));
        let mut rude = Vec::new();
        let mut stream = Vec::new();
        for now in 0..1_000 {
            rude.extend(net.send(now, 0, 1, &mut rng).into_iter().flatten());
            stream.extend(net.send(now, 0, 2, &mut rng).into_iter().flatten());
        }
        assert!(!rude.is_sorted() && rude.len() != 1_000);
        assert!(stream.is_sorted() && stream.len() == 1_000);
    }
}
