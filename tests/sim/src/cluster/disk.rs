//! What goes to the disks and comes back.

use ticketing_raftlog::raft::Input;

use super::host::{DiskBug, Host, Job, Reported, RoleIn, Working};
use super::sim::{Event, IDLE_MARK_US, Inside, Sim};
use crate::memlog::Write;

impl Sim {
    pub(super) fn take_writes(&mut self, node: usize) {
        if let Some(process) = &mut self.hosts[node].process {
            while let Some(write) = process.log.take_write() {
                process.jobs.push_back(Job::Write(write));
            }
        }
        self.work(node);
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
                    if write.new_segment {
                        let bytes = ticketing_raftlog::limits::MIN_SEGMENT_BYTES;
                        disk.add(write.use_number, bytes, None);
                    }
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
                self.checks.hard_state(node, hard);
            }
            Some(Working::Sync(sync, reported)) => {
                host.disk.end_sync(&sync);
                for (at, one) in reported.iter().enumerate() {
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
                process.log.recycle(&mut host.disk);
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
