//! First come, first served within one leader's time (behaviour, section 2: "nobody can jump the
//! queue").

use std::collections::BTreeMap;
use std::rc::Rc;

use super::Check;

type Line = (usize, u64, u64, Rc<[u8]>);

/// In what order requests came before the table, and what they got.
#[derive(Debug, Default)]
pub struct Fifo {
    came: u64,
    places: BTreeMap<(u32, u64), (Line, u64)>,
    granted: BTreeMap<Line, BTreeMap<u64, u64>>,
}

impl Fifo {
    /// A request comes before the table of `node` in one life and term.
    pub fn came(
        &mut self,
        request: (u32, u64),
        node: usize,
        life: u64,
        term: u64,
        key: &Rc<[u8]>,
    ) -> u64 {
        self.came += 1;
        let line = (node, life, term, key.clone());
        self.places.insert(request, (line, self.came));
        self.came
    }

    /// When a request came, counted in requests.
    #[must_use]
    pub fn place(&self, request: (u32, u64)) -> Option<u64> {
        self.places.get(&request).map(|(_, place)| *place)
    }

    /// How many have come.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.came
    }

    /// A request is granted.
    pub fn granted(&mut self, request: (u32, u64), token: u64) -> Check {
        let Some((line, place)) = self.places.get(&request).cloned() else {
            return Ok(());
        };
        let granted = self.granted.entry(line).or_default();
        let before = granted
            .range(..place)
            .next_back()
            .is_none_or(|(_, other)| *other < token);
        let behind = granted
            .range(place..)
            .next()
            .is_none_or(|(_, other)| *other > token);
        granted.insert(place, token);
        if before && behind {
            return Ok(());
        }
        Err(format!(
            "{request:?} got token {token} out of turn: {granted:?}"
        ))
    }
}
