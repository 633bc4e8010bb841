//! Opening the data folder, and saying what was found there.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ticketing_raftlog::limits::MAX_RETIRED_SEGMENTS;
use ticketing_raftlog::peers::Incarnation;
use ticketing_raftlog::raft::ConfigEntry;
use ticketing_raftlog::{
    BootId, ClusterId, Folder, NodeId, OpenError, OpenOptions, Opened, PeersFile, RecoveryReport,
};

use crate::config::{ClusterConfig, Config, LogConfig};
use crate::fatal::Fatal;

use super::random::random_id;

/// What is in the data folder, and what else a cluster's node needs.
pub(super) struct Found {
    pub(super) opened: Opened,
    pub(super) member: Option<Member>,
}

/// What a cluster's node has beside its log.
pub(super) struct Member {
    pub(super) incarnation: Incarnation,
    pub(super) peers: PeersFile,
    pub(super) configs: Vec<ConfigEntry>,
}

/// Opens the data folder and recovers the log.
pub(super) fn open(config: &Config) -> Found {
    let options = OpenOptions {
        durability: config.durability,
        segment_bytes: config.log.segment_bytes,
        retired_segments: retired_segments(&config.log),
        boot_id: boot_id(),
        now_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        new_cluster_id: ClusterId(random_id()),
        new_node_id: NodeId(random_id()),
        new_incarnation: Incarnation(random_id()),
    };
    let found = match config.cluster {
        None => Folder::open_single(&config.data_dir, &options).map(|opened| Found {
            opened,
            member: None,
        }),
        Some(_) => Folder::open_member(&config.data_dir, &options).map(|found| Found {
            opened: found.opened,
            member: Some(Member {
                incarnation: found.incarnation,
                peers: found.peers,
                configs: found.configs,
            }),
        }),
    };
    let found = found.unwrap_or_else(|error| {
        let fatal = match &error {
            OpenError::Corrupt { .. } => Fatal::Corrupt,
            OpenError::Retired { code, .. } => {
                code.and_then(Fatal::of_code).unwrap_or(Fatal::Folder)
            }
            _ => Fatal::Folder,
        };
        fatal.exit(error)
    });
    if let (Some(cluster), Some(member)) = (&config.cluster, &found.member) {
        check_place(cluster, found.opened.identity.node_id, member);
    }
    let opened = &found.opened;
    report(&opened.recovery, &config.data_dir);
    let reserve = opened.log.reserve();
    if let Err(error) = reserve.hold() {
        tracing::warn!(
            "no room to keep a reserve for snapshots ({error}): should the disk become full, old \
             segments may not come free by themselves; make room on the disk of the data folder"
        );
    }
    found
}

/// Stops a node whose configuration file does not fit the cluster that its folder knows.
fn check_place(cluster: &ClusterConfig, node_id: NodeId, member: &Member) {
    let Some(config) = member.configs.last().map(|entry| entry.config) else {
        return;
    };
    let (voters, addresses) = (config.voters().len(), cluster.addresses.len());
    if voters > 0 && voters != addresses {
        Fatal::Folder.exit(format_args!(
            "the configuration file names {addresses} peers' addresses, and the cluster of this folder has \
             {voters} voters: name one address for each"
        ));
    }
    if let Some(slot) = config.slot_of(node_id)
        && slot.0 != cluster.slot
    {
        Fatal::Folder.exit(format_args!(
            "the folder is that of the node in slot {}, and the configuration file says slot {}: correct one \
             of data_dir and slot",
            slot.0, cluster.slot
        ));
    }
}

/// As many as come free with each snapshot.
fn retired_segments(log: &LogConfig) -> usize {
    let freed = log.snapshot_log_bytes / u64::from(log.segment_bytes) + 1;
    usize::try_from(freed).map_or(MAX_RETIRED_SEGMENTS, |freed| {
        freed.min(MAX_RETIRED_SEGMENTS)
    })
}

fn report(recovery: &RecoveryReport, folder: &Path) {
    tracing::info!(
        folder = %folder.display(),
        created = recovery.created,
        entries = recovery.entries,
        last_index = recovery.last_index.0,
        clean_stop = recovery.clean_stop,
        snapshot = recovery.snapshot.map_or(0, |snapshot| snapshot.index.0),
        "log opened"
    );
    if let Some(damaged) = &recovery.damaged_snapshot {
        tracing::warn!(
            "the newest snapshot is damaged, and an older one or the log itself still has \
             everything: {damaged}"
        );
    }
    if let Some(index) = recovery.lost_memory_log {
        tracing::warn!(
            "the machine went down while the log was kept in memory only: every lock is lost; \
             starting empty at index {index}, above every token that was ever issued"
        );
    }
    if let Some(trimmed) = &recovery.trimmed {
        tracing::warn!(
            "a tail that was never acknowledged was removed at {:?} ({})",
            trimmed.at,
            trimmed.why
        );
    }
    if let Some((from, to)) = recovery.gap {
        tracing::warn!("indexes {from} up to {to} are skipped, so that no token comes twice");
    }
}

fn boot_id() -> BootId {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    fs::read_to_string(FILE)
        .ok()
        .and_then(|text| BootId::parse(&text))
        .unwrap_or_else(|| {
            Fatal::Environment.exit(format_args!(
                "{FILE} cannot be read: without it a crash of the machine cannot be told from one \
                 of the process; mount /proc"
            ))
        })
}
