//! Deliberate mistakes, each of which a checker must find.

#[cfg(feature = "bugs")]
use ticketing::locks::TableBug;
#[cfg(feature = "bugs")]
use ticketing_raftlog::raft::Bug;

use crate::cluster::host::DiskBug;
use crate::node::bugs::ShellBug;
use crate::plan::{Fault, MS, Plan, SECOND};

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// In the Raft core.
    #[cfg(feature = "bugs")]
    Core(Bug),
    /// In the lock tables.
    #[cfg(feature = "bugs")]
    Table(TableBug),
    /// In the shell.
    Shell(ShellBug),
    /// In recovery, or of the disk.
    Disk(DiskBug),
}

impl Mutant {
    /// The mistakes that must be found, and in how many seeds.
    #[cfg(feature = "bugs")]
    pub const ALL: &[(Self, u64)] = &[
        (Self::Core(Bug::VotesTwice), 200),
        (Self::Core(Bug::AnswersBeforePersisting), 400),
        (Self::Core(Bug::LeaderCountsUnpersisted), 400),
        (Self::Core(Bug::NoNoop), 200),
        (Self::Core(Bug::JointCountsOneMajority), 100),
        (Self::Core(Bug::LearnersVote), 100),
        (Self::Core(Bug::CommitsEarlierTermByCounting), 50),
        (Self::Table(TableBug::TakesTheLastFirst), 50),
        (Self::Table(TableBug::GrantsAfterTimedOut), 400),
        (Self::Table(TableBug::KeepsGhosts), 200),
        (Self::Shell(ShellBug::ServesBeforeApplied), 1_000),
        (Self::Shell(ShellBug::AcquiredFromSnapshot), 1_000),
        (Self::Shell(ShellBug::MovedAtTruncation), 50),
        (Self::Shell(ShellBug::ExpireWithoutToken), 50),
        (Self::Shell(ShellBug::NotFoundUnapplied), 200),
        (Self::Shell(ShellBug::HandOverInTwo), 50),
        (Self::Shell(ShellBug::OrphansForgotten), 1_000),
        (Self::Shell(ShellBug::LeaseRestarted), 1_000),
        (Self::Shell(ShellBug::NewcomerServesEarly), 100),
        (Self::Shell(ShellBug::ReplacedStays), 100),
        (Self::Shell(ShellBug::LeaderLookedUpOnce), 100),
        (Self::Shell(ShellBug::LetsCopyIn), 50),
        (Self::Shell(ShellBug::OldFolderVotes), 50),
        (Self::Disk(DiskBug::TrimsBelowMark), 400),
        (Self::Disk(DiskBug::SyncsNothing), 200),
        (Self::Disk(DiskBug::TruncatesWithoutRecord), 400),
        (Self::Disk(DiskBug::TakesStaleBytes), 400),
    ];

    /// The core's part.
    #[cfg(feature = "bugs")]
    #[must_use]
    pub fn core_bug(self) -> Option<Bug> {
        match self {
            Self::Core(bug) => Some(bug),
            _ => None,
        }
    }

    /// The tables' part.
    #[cfg(feature = "bugs")]
    #[must_use]
    pub fn table_bug(self) -> Option<TableBug> {
        match self {
            Self::Table(bug) => Some(bug),
            _ => None,
        }
    }

    /// The shell's part.
    #[must_use]
    pub fn shell_bug(self) -> Option<ShellBug> {
        match self {
            Self::Shell(bug) => Some(bug),
            _ => None,
        }
    }

    /// The disk's part.
    #[must_use]
    pub fn disk_bug(self) -> Option<DiskBug> {
        match self {
            Self::Disk(bug) => Some(bug),
            _ => None,
        }
    }

    /// Adds to the plan what may bring the mistake out.
    pub fn suits(self, plan: &mut Plan) {
        let faults: &[Fault] = match self {
            Self::Disk(DiskBug::TrimsBelowMark) => &[Fault::Rot],
            Self::Disk(_) => &[Fault::PowerCut, Fault::Blackout, Fault::Split],
            Self::Shell(ShellBug::MovedAtTruncation) => {
                plan.nodes = 5;
                plan.scene_every_us = Some(SECOND);
                plan.think_us = 20 * MS;
                &[]
            }
            #[cfg(feature = "bugs")]
            Self::Core(Bug::CommitsEarlierTermByCounting) => {
                plan.scene_every_us = Some(SECOND);
                plan.think_us = 20 * MS;
                &[]
            }
            Self::Shell(ShellBug::LetsCopyIn | ShellBug::OldFolderVotes) => {
                plan.mixes_folders(500 * MS);
                &[]
            }
            Self::Shell(ShellBug::ExpireWithoutToken) => {
                plan.late_expire_every_us = Some(500 * MS);
                &[]
            }
            Self::Shell(ShellBug::NotFoundUnapplied) => {
                plan.astray_per_mille = 400;
                plan.think_us = 20 * MS;
                plan.scene_every_us = Some(SECOND);
                &[]
            }
            Self::Shell(ShellBug::AcquiredFromSnapshot) => {
                plan.snapshot_every = 30;
                &[Fault::Split, Fault::Isolate, Fault::Heal]
            }
            Self::Shell(ShellBug::ServesBeforeApplied) => {
                plan.think_us = 10 * MS;
                plan.fault_every_us = 300 * MS;
                &[Fault::Transfer, Fault::SlowLane]
            }
            Self::Shell(ShellBug::LeaseRestarted) => {
                plan.calm_at_us = plan.calm_at_us.max(25 * SECOND);
                &[Fault::Transfer]
            }
            Self::Shell(
                ShellBug::NewcomerServesEarly
                | ShellBug::ReplacedStays
                | ShellBug::LeaderLookedUpOnce,
            ) => {
                plan.changes_members();
                &[]
            }
            #[cfg(feature = "bugs")]
            Self::Core(Bug::JointCountsOneMajority | Bug::LearnersVote) => {
                plan.changes_members();
                &[]
            }
            _ => &[],
        };
        for fault in faults {
            if !plan.faults.contains(fault) {
                plan.faults.push(*fault);
            }
        }
    }
}
