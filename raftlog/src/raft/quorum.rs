//! Majorities, what they commit, and the configuration that says whose (paper, section 6).

use super::bugs::Bug;
use super::config::{Config, ConfigEntry};
use super::core::Core;
use super::progress::Progress;
use super::types::Output;
use crate::limits::{MAX_LEARNERS, MAX_VOTERS};
use crate::types::{LogIndex, NodeId};

impl Core {
    pub(super) fn config_now(&self) -> &Config {
        &self.configs.current().config
    }

    /// The largest value that a majority has; while a voter is being replaced, a majority of the
    /// voters with the old node and one of those with the new (section 6).
    pub(super) fn quorum_value(&self, own: u64, value: impl Fn(&Progress) -> u64) -> u64 {
        let config = self.config_now();
        let of_node = |node: NodeId| {
            if node == self.node_id {
                return own;
            }
            let peer = self.peers.iter().find(|peer| peer.id == node);
            peer.map_or(0, &value)
        };
        let old = config.voters();
        let majority = old.len() / 2 + 1;
        let of_voters = |voters: &[NodeId]| {
            let learners = if self.makes(Bug::LearnersVote) {
                config.learners()
            } else {
                &[]
            };
            let mut values = [0; MAX_VOTERS + MAX_LEARNERS];
            let count = voters.len() + learners.len();
            for (place, node) in voters.iter().chain(learners).enumerate() {
                values[place] = of_node(*node);
            }
            values[..count].sort_unstable();
            // Nobody is a majority of no voters: a newcomer knows of none.
            let values = values.get(count.checked_sub(majority)?..)?;
            values.first().copied()
        };
        let by_old = of_voters(old).unwrap_or(0);
        let Some(incoming) = config.incoming() else {
            return by_old;
        };
        let by_new = of_voters(&incoming[..old.len()]).unwrap_or(0);
        if self.makes(Bug::JointCountsOneMajority) {
            return by_new;
        }
        by_old.min(by_new)
    }

    /// Sets the commit index, and tells what follows from it.
    pub(super) fn advance_commit(&mut self, to: LogIndex, outputs: &mut Vec<Output>) {
        debug_assert!(to > self.commit && to <= self.log.last().index);
        self.commit = to;
        self.verified = self.verified.max(to);
        outputs.push(Output::Commit { up_to: to });
        let told = self.configs_told;
        for entry in self.configs.within(told, to) {
            self.configs_told = entry.index;
            outputs.push(Output::ConfigCommitted {
                config: entry.config,
                index: entry.index,
            });
        }
    }

    /// A configuration takes effect as soon as it is in the log (section 6).
    pub(super) fn config_appended(&mut self, entry: ConfigEntry, outputs: &mut Vec<Output>) {
        self.configs.push(entry);
        self.tell_config(outputs);
    }

    pub(super) fn tell_config(&self, outputs: &mut Vec<Output>) {
        let ConfigEntry { config, index } = self.config();
        outputs.push(Output::ConfigChanged {
            config,
            index,
            committed: index <= self.commit,
        });
    }

    /// What was told of configurations up to here needs no telling again.
    pub(super) fn configs_known(&mut self, index: LogIndex) {
        self.configs_told = index;
    }
}
