//! Carrying out what the Raft core decides.

use ticketing_raftlog::raft::{AppendKind, Body, Input, Message, Output, Role as RaftRole, Source};
use ticketing_raftlog::{Control, LogIndex, NodeId, RecordKind, RecordRef, Term};

use crate::lanes::messages::{FromConsensus, Lead};

use super::role::Role;
use super::stopping::Stop;
use super::tail::{Entries, Op, one};

impl Role {
    /// Gives the core an input, and carries out what it decides, in order.
    pub(super) fn step(&mut self, input: Input) {
        if self.stop != Stop::Serving && self.cluster.is_some() {
            // The log is being closed: nothing is to get into it any more.
            return;
        }
        self.inputs.push_back(input);
        while let Some(input) = self.inputs.pop_front() {
            let mut outputs = std::mem::take(&mut self.outputs);
            self.core.step(input, &mut outputs);
            for output in outputs.drain(..) {
                self.carry_out(output);
            }
            self.outputs = outputs;
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::PersistHardState(state) => self.hard_state_due = Some(state),
            Output::Truncate {
                from,
                previous_term,
                epoch,
            } => {
                self.capture_fates();
                tracing::info!(%from, "the log is cut: another leader's entries take the place");
                let control = Control::Truncate {
                    from,
                    previous_term,
                };
                self.tail.push(Op::Control(control), epoch);
                self.last = from.previous();
            }
            Output::Reset { index, term, epoch } => {
                let control = Control::Reset { index, term };
                self.tail.push(Op::Control(control), epoch);
                self.last = index;
            }
            Output::Append {
                first,
                count,
                term,
                kind,
                source,
            } => self.append(first, count, term, kind, source),
            Output::Send { to, message } => self.send(to, &message),
            // Read from the core.
            Output::Commit { .. } => {}
            Output::RoleChanged { role, term, leader } => self.role_changed(role, term, leader),
            Output::ProposalRefused { .. } => self.accepted = false,
            Output::Confirmed { request, index } => self.confirmed(request, Some(index)),
            Output::NotConfirmed { request } => self.confirmed(request, None),
            Output::ConfigChanged { config, index, .. } => {
                tracing::info!(%index, members = ?config, "members");
            }
            Output::ConfigCommitted { config, .. } => self.config_committed(config),
            Output::ChangeRefused { change, reason } => {
                tracing::info!(?change, ?reason, "a change of members was not begun");
                self.change_refused(reason);
            }
            Output::TransferEnded { result } => {
                tracing::info!(?result, "handing leadership over");
                self.handed_over();
                self.transfer_ended(result);
            }
            Output::StoreSnapshotChunk {
                snapshot,
                offset,
                bytes,
            } => self.store_chunk(snapshot, offset, bytes),
            Output::InstallSnapshot { snapshot, config } => self.install(snapshot, config),
            Output::SnapshotWanted => self.snapshots.want(),
        }
    }

    fn append(
        &mut self,
        first: LogIndex,
        count: u32,
        term: Term,
        kind: AppendKind,
        source: Source,
    ) {
        let epoch = self.core.epoch();
        self.last = first.plus(u64::from(count)).previous();
        let entries = match (source, kind) {
            (Source::Own, AppendKind::Commands) => {
                // The batch is there already; here it becomes readable.
                self.accepted = true;
                let entries = self.proposing.take();
                return self.tail.writes_own(entries, epoch);
            }
            (Source::Own, AppendKind::Noop) => {
                self.fan_out.lead_from(first, term);
                self.reached = 0;
                one(RecordKind::Noop, term, first, &[])
            }
            (Source::Own, AppendKind::Config(config)) => {
                let mut bytes = Vec::new();
                config.encode(&mut bytes);
                one(RecordKind::Config, term, first, &bytes)
            }
            (Source::Received { skip }, _) => received_entries(&self.received, skip, first, count),
        };
        self.tail.push(Op::Entries(entries), epoch);
    }

    fn role_changed(&mut self, role: RaftRole, term: Term, leader: Option<NodeId>) {
        self.counters.term.set(term.0);
        tracing::info!(term = term.0, ?role, ?leader, "role");
        if leader.is_some() {
            self.signals.set_shut(false);
        }
        let leading = (role == RaftRole::Leader).then_some(term);
        if self.leading.is_some() && leading != self.leading {
            self.capture_fates();
            self.fan_out.lead_no_more();
        }
        let is_news = leading.is_none() || leading != self.leading;
        self.leading = leading;
        if !is_news {
            return;
        }
        self.ready = false;
        if self.cluster.is_none() {
            return;
        }
        let lead = match leading {
            Some(_) => Lead::Elected,
            None => {
                let slot = leader.and_then(|leader| self.core.config().config.slot_of(leader));
                // While it is being replaced, a node may follow the one in its own place.
                let own = self.core.config().config.slot_of(self.node_id);
                Lead::Follows(slot.filter(|_| slot != own).map(|slot| slot.0))
            }
        };
        self.fan_out.tell_all(|| FromConsensus::Lead(lead));
        if leading.is_none() {
            self.handed_over();
        }
    }

    /// The bytes that go with a message: its entries' records, or its part of a snapshot. `None` when
    /// they are not here any more.
    pub(super) fn bytes_of(&self, message: &Message, out: &mut Vec<u8>) -> Option<()> {
        match message.body {
            Body::Append { previous, run, .. } => {
                let first = previous.index.next();
                let count = u64::from(run.count);
                let all = self.tail.read(&self.log, first, count, |record| {
                    debug_assert_eq!(record.term, run.term, "a run has one term");
                    record.encode(out);
                });
                all.then_some(())
            }
            Body::SnapshotChunk {
                snapshot,
                offset,
                bytes,
                ..
            } => self.snapshot_bytes(&snapshot, offset, bytes, out),
            _ => Some(()),
        }
    }
}

/// The entries of a message behind the first `skip`; their records were checked when they came.
fn received_entries(received: &[u8], skip: u32, first: LogIndex, count: u32) -> Entries {
    let mut rest = received;
    let mut skipped = 0;
    while skipped < skip {
        let Some((_, bytes)) = RecordRef::read(rest) else {
            unreachable!("the core appends no more than was received");
        };
        rest = &rest[bytes..];
        skipped += 1;
    }
    let mut end = 0;
    for _ in 0..count {
        let Some((_, bytes)) = RecordRef::read(&rest[end..]) else {
            unreachable!("the core appends no more than was received");
        };
        end += bytes;
    }
    Entries {
        first,
        count,
        records: rest[..end].to_vec(),
    }
}
