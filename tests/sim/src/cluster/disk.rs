//! What goes to the disks and comes back.

use ticketing_raftlog::raft::Input;

use super::host::{DiskBug, Host, Job, Reported, RoleIn, Working};
use super::sim::{Event, IDLE_MARK_US, Inside, Sim};
use crate::memlog::Write;
use crate::node::messages::SnapshotFile;
use crate::plan::MS;
use crate::world::events::Us;

/// Most that filling a segment takes, and its names.
const SPARE_US: Us = 20 * MS;
/// As the server does.
const SPARE_RETRY_US: Us = ticketing::limits::SPARE_RETRY_MS * MS;
/// As the server does.
const SNAPSHOT_RETRY_US: Us = ticketing::limits::SNAPSHOT_RETRY_MS * MS;
/// What a snapshot takes beside the locks in it: its header, and what pads it.
const SNAPSHOT_BYTES: u64 = 3 * 4096;

impl Sim {
    pub(super) fn take_writes(&mut self, node: usize) {
        if let Some(process) = &mut self.hosts[node].process {
            while let Some(write) = process.log.take_write() {
                process.jobs.push_back(Job::Write(write));
            }
        }
        self.want_spare(node);
        self.work(node);
    }

    /// Has the next segment made, unless there is one.
    fn want_spare(&mut self, node: usize) {
        let delay_us = self.disk_rng.range(200, SPARE_US);
        let Host { process, life, .. } = &mut self.hosts[node];
        if let Some(process) = process
            && process.log.wants_spare()
            && !process.spare_due
        {
            process.spare_due = true;
            self.events
                .after(delay_us, Event::Process(node, *life, Inside::Spare));
        }
    }

    /// Makes it, or finds the disk full: then acquires are refused and a snapshot is to make room.
    pub(super) fn make_spare(&mut self, node: usize) {
        let Host {
            process,
            disk,
            life,
            ..
        } = &mut self.hosts[node];
        let Some(process) = process else {
            return;
        };
        let made = process.log.make_spare(disk).is_ok();
        process.spare_due = !made;
        let mut effects = Vec::new();
        if made {
            disk.hold_reserve();
            self.events
                .after(IDLE_MARK_US, Event::Process(node, *life, Inside::Mark));
        } else {
            self.events
                .after(SPARE_RETRY_US, Event::Process(node, *life, Inside::Spare));
            if process.log.could_recycle() {
                process.role.make_room(&mut process.log, &mut effects);
            }
        }
        let changed = process.full == made;
        process.full = !made;
        if changed {
            self.story.note(&[14, node as u64, u64::from(made)]);
            let what = if made { "has room" } else { "is full" };
            self.tell(|| format!("the disk of node {node} {what}"));
            self.core_input(node, Input::DiskRoom { has_room: made });
        }
        self.carry_out(node, effects);
    }

    /// A snapshot is written; one without room is tried again later.
    pub(super) fn save_snapshot(&mut self, node: usize, file: SnapshotFile, installed: bool) {
        let host = &mut self.hosts[node];
        let Some(process) = &mut host.process else {
            return;
        };
        let bytes = SNAPSHOT_BYTES + file.locks.len() as u64;
        if host.disk.save_snapshot(bytes, process.full).is_err() {
            self.tell(|| format!("node {node} has no room for a snapshot"));
            let life = self.hosts[node].life;
            let again = Inside::NotSaved(file, installed);
            self.events
                .after(SNAPSHOT_RETRY_US, Event::Process(node, life, again));
            return;
        }
        if installed {
            host.installing = Some(file.clone());
        } else {
            host.snapshot = Some(file.clone());
        }
        process.role_inbox.push_back(RoleIn::Saved(file, installed));
        self.wake_role(node);
    }

    pub(super) fn work(&mut self, node: usize) {
        let now_us = self.events.now_us();
        let syncs_nothing = self.setup.disk_bug == Some(DiskBug::SyncsNothing);
        let Host {
            process,
            disk,
            life,
            hung_until_us,
            ..
        } = &mut self.hosts[node];
        let Some(process) = process.as_mut().filter(|process| process.working.is_none()) else {
            return;
        };
        let working = match process.jobs.pop_front() {
            None => return,
            Some(Job::Hard(hard)) => Working::Hard(hard),
            Some(Job::Write(write)) => {
                let mut reported = Vec::new();
                let mut write_one = |write: Write| {
                    disk.write(write.use_number, write.offset, &write.bytes);
                    process.log.written(&write.summary);
                    reported.push(Reported {
                        summary: write.summary,
                        epoch: write.epoch,
                        up_to: write.up_to,
                        reset: write.reset,
                    });
                };
                write_one(write);
                while let Some(Job::Write(_)) = process.jobs.front() {
                    if let Some(Job::Write(write)) = process.jobs.pop_front() {
                        write_one(write);
                    }
                }
                let sync = if syncs_nothing {
                    crate::world::disk::Sync::default()
                } else {
                    disk.begin_sync()
                };
                Working::Sync(sync, reported)
            }
        };
        process.working = Some(working);
        let (low, high) = self.plan.sync_us;
        let mut done_us = now_us + self.disk_rng.range(low, high);
        if *hung_until_us > now_us {
            done_us = done_us.max(*hung_until_us);
        }
        self.events
            .at(done_us, Event::Process(node, *life, Inside::Disk));
    }

    pub(super) fn disk_done(&mut self, node: usize) {
        let now_us = self.events.now_us();
        self.story.note(&[10, node as u64, now_us]);
        let strange = self.folders.kind_of(node).is_some();
        let host = &mut self.hosts[node];
        let Some(process) = &mut host.process else {
            return;
        };
        let mut resets = Vec::new();
        match process.working.take() {
            Some(Working::Hard(hard)) => {
                host.hard = hard;
                process
                    .role_inbox
                    .push_back(RoleIn::Core(Input::HardStatePersisted(hard)));
                if !strange {
                    self.checks.hard_state(node, hard);
                }
            }
            Some(Working::Sync(sync, reported)) => {
                host.disk.end_sync(&sync);
                for (at, one) in reported.iter().enumerate() {
                    let position = one.summary.position;
                    let on_disk = host.disk.is_durable(
                        position.use_number(),
                        position.offset(),
                        one.summary.end().offset(),
                    );
                    if !strange && on_disk && one.epoch == process.role.core().epoch() {
                        self.checks.synced(node, one.up_to);
                    }
                    process.log.synced(one.summary.end());
                    resets.extend(one.reset);
                    let last_of_epoch = reported
                        .get(at + 1)
                        .is_none_or(|next| next.epoch != one.epoch);
                    if last_of_epoch {
                        let input = Input::Persisted {
                            epoch: one.epoch,
                            up_to: one.up_to,
                        };
                        process.role_inbox.push_back(RoleIn::Core(input));
                    }
                }
                let life = host.life;
                self.events
                    .after(IDLE_MARK_US, Event::Process(node, life, Inside::Mark));
            }
            None => {}
        }
        for index in resets {
            self.hosts[node].reset_is_durable(index);
        }
        self.wake_role(node);
        self.work(node);
    }
}
