//! What the core wants done.

use std::collections::VecDeque;
use std::rc::Rc;

use ticketing::locks::Fate;
use ticketing_raftlog::raft::{
    AppendKind, Body, ConfigEntry, EntryId, Input, Output, Role, Slot, Source,
};
use ticketing_raftlog::{NodeId, Position, Term};
use xxhash_rust::xxh3::xxh3_64;

use super::{Consensus, NO_SHARD, Payloads, Stop};
use crate::node::bugs::ShellBug;
use crate::node::fates::Pending;
use crate::node::journal::{Journal, Payload};
use crate::node::messages::{Effect, Lead, PeerFrame, Seen, SnapshotFile, ToShard};

impl Consensus {
    pub(super) fn carry_out(
        &mut self,
        output: Output,
        source: &mut Payloads,
        inputs: &mut VecDeque<Input>,
        journal: &mut impl Journal,
        effects: &mut Vec<Effect>,
    ) {
        match output {
            Output::PersistHardState(hard) => effects.push(Effect::PersistHardState(hard)),
            Output::Truncate {
                from,
                previous_term,
                epoch,
            } => {
                journal.truncate(from, previous_term, epoch);
                effects.push(Effect::Seen(Seen::Truncated(from)));
                if self.bug == Some(ShellBug::MovedAtTruncation) {
                    self.fates.truncated(from, |pending| {
                        let dropped = ToShard::Dropped(pending.payload, Fate::Dropped);
                        effects.push(Effect::ToShard(pending.shard, dropped));
                    });
                }
            }
            Output::Reset { index, term, epoch } => {
                journal.reset(EntryId { term, index }, epoch);
                effects.push(Effect::Seen(Seen::ResetTo(EntryId { term, index })));
            }
            Output::Append {
                first,
                count,
                term,
                kind,
                source: from,
            } => {
                let payloads = match (from, kind) {
                    (Source::Received { skip }, _) => {
                        source.received[skip as usize..][..count as usize].to_vec()
                    }
                    (Source::Own, AppendKind::Commands) => {
                        let own = std::mem::take(&mut source.own);
                        let pending = |(at, (shard, payload)): (usize, &(u16, Payload))| Pending {
                            index: first.plus(at as u64),
                            term,
                            shard: *shard,
                            payload: payload.clone(),
                        };
                        own.iter()
                            .enumerate()
                            .map(pending)
                            .filter(|p| p.shard != NO_SHARD)
                            .for_each(|p| self.fates.appended(p));
                        own.into_iter().map(|(_, payload)| payload).collect()
                    }
                    (Source::Own, _) => vec![Payload::from(&b""[..])],
                };
                assert_eq!(
                    payloads.len(),
                    count as usize,
                    "an append without its payloads"
                );
                journal.append(term, kind, &payloads, self.core.epoch());
                let last = first.plus(u64::from(count) - 1);
                effects.push(Effect::Seen(Seen::Appended(last)));
            }
            Output::Send { to, message } => {
                let mut payloads = Vec::new();
                let mut chunk = Rc::from(&b""[..]);
                match message.body {
                    Body::Append { previous, run, .. } => {
                        for at in 1..=u64::from(run.count) {
                            let entry = journal.entry(previous.index.plus(at));
                            payloads.extend(entry.map(|entry| entry.payload.clone()));
                        }
                        assert_eq!(
                            payloads.len(),
                            run.count as usize,
                            "the log has what is sent"
                        );
                    }
                    Body::SnapshotChunk {
                        snapshot,
                        offset,
                        bytes,
                        ..
                    } => {
                        let file = self.snapshots.iter().find(|file| file.snapshot == snapshot);
                        let Some(file) = file else {
                            return;
                        };
                        let at = offset as usize;
                        chunk = Rc::from(&file.locks[at..at + bytes as usize]);
                    }
                    _ => {}
                }
                let frame = PeerFrame::Raft {
                    message,
                    payloads,
                    chunk,
                };
                effects.push(Effect::Send(to, frame));
            }
            Output::Commit { up_to } => effects.push(Effect::Seen(Seen::Committed(up_to))),
            Output::RoleChanged { role, term, leader } => {
                effects.push(Effect::Seen(Seen::Role { role, term, leader }));
                self.role_changed(role, term, leader, effects);
            }
            // The queue keeps what was refused.
            Output::ProposalRefused { .. } => {}
            Output::Confirmed { request, index } => {
                if let Some((shard, request)) = self.confirms.remove(&request) {
                    effects.push(Effect::ToShard(shard, ToShard::Confirmed(request, index)));
                }
            }
            Output::NotConfirmed { request } => {
                if let Some((shard, request)) = self.confirms.remove(&request) {
                    effects.push(Effect::ToShard(shard, ToShard::NotConfirmed(request)));
                }
            }
            Output::ConfigChanged {
                config,
                index,
                committed,
            } => {
                if committed {
                    self.config_committed(ConfigEntry { index, config }, effects);
                }
                self.tell_slot(effects);
            }
            Output::ConfigCommitted { config, index } => {
                self.config_committed(ConfigEntry { index, config }, effects);
            }
            Output::ChangeRefused { change, reason } => {
                effects.push(Effect::Seen(Seen::ChangeRefused(change, reason)));
            }
            Output::TransferEnded { .. } => {
                if self.stop == Stop::HandingOver {
                    self.stop = Stop::Over;
                    effects.push(Effect::Stopped);
                }
            }
            Output::StoreSnapshotChunk {
                snapshot,
                offset,
                bytes,
            } => {
                let Some(chunk) = &source.chunk else {
                    unreachable!("a chunk is stored when it is received");
                };
                self.staged.truncate(offset as usize);
                self.staged.extend_from_slice(&chunk[..bytes as usize]);
                inputs.push_back(Input::SnapshotChunkStored {
                    snapshot,
                    next_offset: self.staged.len() as u64,
                });
            }
            Output::InstallSnapshot { snapshot, config } => {
                let bytes = std::mem::take(&mut self.staged);
                if xxh3_64(&bytes) != snapshot.id {
                    return inputs.push_back(Input::SnapshotInstalled {
                        snapshot,
                        valid: false,
                    });
                }
                let file = SnapshotFile {
                    snapshot,
                    config,
                    locks: Rc::from(bytes),
                    position: Position::ZERO,
                };
                effects.push(Effect::SaveSnapshot(file, true));
            }
            Output::SnapshotWanted => self.snapshot_wanted = true,
        }
    }

    pub(super) fn role_changed(
        &mut self,
        role: Role,
        term: Term,
        leader: Option<NodeId>,
        effects: &mut Vec<Effect>,
    ) {
        let leading = (role == Role::Leader).then_some(term);
        if leading.is_none() || leading != self.leading {
            let lead = match leading {
                Some(term) if self.bug == Some(ShellBug::ServesBeforeApplied) => {
                    self.ready = true;
                    Lead::Ready(term)
                }
                Some(_) => Lead::Elected,
                None => {
                    self.told_slot = self.slot_of_leader(leader);
                    Lead::Follows(self.told_slot.map(|slot| slot.0))
                }
            };
            if !matches!(lead, Lead::Ready(_)) {
                self.ready = false;
            }
            self.tell_all(&ToShard::Lead(lead), effects);
        }
        self.leading = leading;
        if leading.is_none() && self.stop == Stop::Draining {
            self.stop = Stop::Over;
            effects.push(Effect::Stopped);
        }
    }

    /// Where clients are sent. Never by another leader to the node's own slot: while a voter is being
    /// replaced the newcomer, which may lead, has the same.
    pub(super) fn slot_of_leader(&self, leader: Option<NodeId>) -> Option<Slot> {
        let config = self.core.config().config;
        let slot = leader.and_then(|leader| config.slot_of(leader));
        slot.filter(|slot| {
            leader == Some(self.node_id) || config.slot_of(self.node_id) != Some(*slot)
        })
    }

    /// Another configuration may say where the leader is.
    fn tell_slot(&mut self, effects: &mut Vec<Effect>) {
        if self.bug == Some(ShellBug::LeaderLookedUpOnce) {
            return;
        }
        let slot = self.slot_of_leader(self.core.leader());
        if self.leading.is_none() && self.core.role() != Role::Leader && slot != self.told_slot {
            self.told_slot = slot;
            let lead = Lead::Follows(slot.map(|slot| slot.0));
            self.tell_all(&ToShard::Lead(lead), effects);
        }
    }

    fn config_committed(&mut self, now: ConfigEntry, effects: &mut Vec<Effect>) {
        if now.index <= self.committed.index {
            return;
        }
        let before = std::mem::replace(&mut self.committed, now);
        let (before, now) = (Box::new(before), Box::new(now));
        let is_member = now.config.is_member(self.node_id);
        effects.push(Effect::Seen(Seen::ConfigCommitted { before, now }));
        if is_member {
            self.was_member = true;
        } else if self.was_member && self.bug != Some(ShellBug::ReplacedStays) {
            self.leaving = true;
        }
    }
}
