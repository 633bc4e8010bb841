//! A node that was replaced or removed neither leads nor serves after it could know, and ends for
//! good (behaviour, section 7: on learning of it, it closes its clients' connections and exits; a
//! leader hands over first).

use std::collections::BTreeMap;

use super::Check;
use super::history::History;
use crate::cluster::host::node_id;
use crate::plan::{MS, SECOND};
use crate::world::events::Us;

/// A leader hands over for an election timeout at most, and a process that runs loses no time.
const LEAVE_US: Us = SECOND;

#[derive(Debug, Default)]
struct Node {
    /// Everything up to here was looked at.
    known: u64,
    was_member: bool,
    /// It could know that it is no member any more.
    out: bool,
    /// Since when nothing has kept it from ending.
    since_us: Option<Us>,
}

/// What the processes could know.
#[derive(Debug, Default)]
pub struct Replaced {
    nodes: BTreeMap<usize, Node>,
}

impl Replaced {
    /// A process starts with a log behind `base`.
    pub fn started(&mut self, node: usize, base: u64, history: &History) {
        let config = history.config_at(base);
        let known = Node {
            known: base,
            was_member: config.is_some_and(|entry| entry.config.is_member(node_id(node))),
            ..Node::default()
        };
        self.nodes.insert(node, known);
    }

    /// A process ends.
    pub fn ended(&mut self, node: usize) {
        self.nodes.remove(&node);
    }

    /// A process stands still: it ends some time after it goes on.
    pub fn froze(&mut self, node: usize) {
        if let Some(known) = self.nodes.get_mut(&node) {
            known.since_us = None;
        }
    }

    /// `node` knows everything up to `index` committed; from a snapshot it knows the last
    /// configuration only.
    pub fn knows(
        &mut self,
        node: usize,
        index: u64,
        snapshot: bool,
        now_us: Us,
        history: &History,
    ) {
        let Some(known) = self.nodes.get_mut(&node) else {
            return;
        };
        let seen = if snapshot { index } else { known.known };
        let first = history.config_at(seen).map_or(0, |entry| entry.index.0);
        for entry in history.configs() {
            let at = entry.index.0;
            if at < first || at > index {
                continue;
            }
            let is_member = entry.config.is_member(node_id(node));
            known.out = known.was_member && !is_member;
            known.was_member |= is_member;
        }
        known.known = index;
        if known.out {
            known.since_us.get_or_insert(now_us);
        }
    }

    /// Something happened inside the process of `node`.
    pub fn goes_on(&self, node: usize, now_us: Us) -> Check {
        let known = self.nodes.get(&node);
        match known.and_then(|known| known.since_us) {
            Some(since_us) if now_us > since_us + LEAVE_US => Err(format!(
                "node {node} was replaced, could know it for {} ms, and goes on",
                (now_us - since_us) / MS
            )),
            _ => Ok(()),
        }
    }

    /// `node` answers a client, or comes to lead.
    pub fn acts(&self, node: usize, what: &str) -> Check {
        if self.nodes.get(&node).is_some_and(|known| known.out) {
            return Err(format!(
                "node {node} {what}, and could know that it was replaced"
            ));
        }
        Ok(())
    }
}

/// `node` comes to lead in `term`: it was not replaced in an earlier one.
pub fn leads(node: usize, term: u64, history: &History) -> Check {
    let known_before = |index: u64| {
        let entry = history.at(index);
        entry.is_none_or(|entry| entry.known_in_term < term)
    };
    let mut was_voter = false;
    for entry in history.configs() {
        if !known_before(entry.index.0) {
            break;
        }
        let is_voter = entry.config.is_voter(node_id(node));
        if was_voter && !is_voter {
            return Err(format!(
                "node {node} leads in term {term}, and was replaced at {} before",
                entry.index
            ));
        }
        was_voter = is_voter;
    }
    Ok(())
}
