//! One node from start to end: the order in which things come up, and go down.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ticketing_raftlog::limits::MAX_RETIRED_SEGMENTS;
use ticketing_raftlog::peers::Incarnation;
use ticketing_raftlog::{
    BootId, ClusterId, Durability, Folder, NodeId, OpenError, OpenOptions, Opened, RecoveryReport,
};

use crate::admin::{self, NodeView};
use crate::config::{Config, CoreChoice, LogConfig};
use crate::consensus::{self, SnapshotPolicy};
use crate::counters::{ConsensusCounters, ShardCounters};
use crate::fatal::{Fatal, exit_on_failed_mapping, exit_on_panic};
use crate::lanes::messages::{FromConsensus, SnapshotChunk, ToConsensus, ToShard};
use crate::lanes::{Doorbell, Receiver, Sender, lane};
use crate::limits::{
    CLAIM_WITHIN, COMMITTED_MESSAGES_WAITING, LANE_MESSAGES, PROPOSAL_MESSAGES,
    SNAPSHOT_CHUNKS_WAITING,
};
use crate::locks::TableLimits;
use crate::node_signals::NodeSignals;
use crate::probe;
use crate::runtime::{Clock, Cores, Executor};
use crate::security::handshake::Gate;
use crate::security::port::{self, Claim};
use crate::shard::{self, ConnectionLimits};
use crate::stop_request::StopRequest;
use crate::watchdog::{self, Pulse};

/// Runs a single node until it is told to stop by SIGTERM or SIGINT.
///
/// What makes it impossible to serve ends the process with the exit code of its
/// reason ([`Fatal`]).
pub fn serve(config: &Config) {
    exit_on_panic();
    if let Err(error) = exit_on_failed_mapping() {
        Fatal::Environment.exit(format_args!("signals cannot be caught: {error}"));
    }
    let stop = StopRequest::watch().unwrap_or_else(|error| {
        Fatal::Environment.exit(format_args!("signals cannot be caught: {error}"))
    });
    let room = probe::machine(config.executors(), config.limits.connections)
        .unwrap_or_else(|missing| Fatal::Environment.exit(missing));
    let claim = claim(config.listen);
    let opened = open(config);
    stop.opened();
    let signals = Arc::new(NodeSignals::default());

    let parts = Parts::new(config, claim.address(), room.connections, &signals);
    let view = Arc::new(parts.view(config, &opened));
    let admin = config.admin.map(|address| admin_address(address, &view));
    let doorbells = parts.doorbells();
    let cores = cores_of(config);
    let (running, pulses) = parts.start(config, opened, &cores);
    watchdog::start(pulses);

    while signals.shards_listening() < config.shards {
        if stop.came_within(Duration::from_millis(2)) {
            signals.ask_to_stop();
            break;
        }
    }
    if !signals.stop_asked() {
        view.set_serving();
        announce(config, claim.address(), admin);
        while !stop.came_within(Duration::from_secs(3600)) {}
        tracing::info!("stopping: what is in the log finishes first");
        view.set_stopping();
        signals.ask_to_stop();
    }
    doorbells.iter().for_each(|doorbell| doorbell.ring());
    for executor in running {
        if let Err(error) = executor.join() {
            Fatal::Executor.exit(error);
        }
    }
    tracing::info!("stopped");
}

fn cores_of(config: &Config) -> Cores {
    let executors = config.executors();
    let cores = match &config.cores {
        CoreChoice::Auto => Cores::free(executors),
        CoreChoice::Any => Cores::default(),
        CoreChoice::These(named) => Cores::named(named, executors)
            .unwrap_or_else(|problem| Fatal::Environment.exit(problem)),
    };
    tracing::info!(
        executors,
        cores = ?cores.list(),
        "executors stay on these cores, or run on any if none is named"
    );
    cores
}

fn claim(listen: SocketAddr) -> Claim {
    port::claim_within(listen, CLAIM_WITHIN).unwrap_or_else(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "another process listens there, on all addresses of that port, or on one of them \
                 if this asks for all: stop it, or choose another address or port"
            }
            io::ErrorKind::AddrNotAvailable => "this machine has no such address",
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need CAP_NET_BIND_SERVICE: choose another"
            }
            _ => "choose another address",
        };
        Fatal::Listen.exit(format_args!("cannot listen on {listen}: {error}; {remedy}"))
    })
}

fn open(config: &Config) -> Opened {
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
    let opened = Folder::open_single(&config.data_dir, &options).unwrap_or_else(|error| {
        let fatal = match &error {
            OpenError::Corrupt { .. } => Fatal::Corrupt,
            _ => Fatal::Folder,
        };
        fatal.exit(error)
    });
    report(&opened.recovery, &config.data_dir);
    let reserve = opened.log.reserve();
    if let Err(error) = reserve.hold() {
        tracing::warn!(
            "no room to keep a reserve for snapshots ({error}): should the disk become full, old \
             segments may not come free by themselves; make room on the disk of the data folder"
        );
    }
    opened
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

fn random_id() -> [u8; 16] {
    let mut id = [0; 16];
    random(&mut id);
    id
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

fn admin_address(address: SocketAddr, view: &Arc<NodeView>) -> SocketAddr {
    admin::start(address, Arc::clone(view)).unwrap_or_else(|error| {
        Fatal::Listen.exit(format_args!(
            "cannot serve the admin address {address}: {error}; choose another"
        ))
    })
}

fn announce(config: &Config, listen: SocketAddr, admin: Option<SocketAddr>) {
    if !listen.ip().is_loopback() && config.tls.is_none() {
        tracing::warn!(
            "clients on {listen} are not encrypted: whoever can read that network sees every key \
             and token, and can take over a connection; keep it to a network you trust"
        );
    }
    let durability = match config.durability {
        Durability::Sync => "sync",
        Durability::Memory => "memory",
    };
    let shards = config.shards;
    let tls = if config.tls.is_some() { ", TLS" } else { "" };
    let admin = admin.map_or(String::new(), |admin| format!(", admin {admin}"));
    println!(
        "ticketing ready: listening on {listen} (single, {durability}, {shards} shard{}{tls}{admin})",
        if shards == 1 { "" } else { "s" }
    );
}

/// The lanes and counters of a node, before they are given to its cores.
struct Parts {
    clock: Clock,
    key_seed: u64,
    shards: Vec<ShardPart>,
    to_shards: Vec<Sender<ToShard>>,
    commits: Vec<Sender<FromConsensus>>,
    consensus_doorbell: Arc<Doorbell>,
    to_consensus: Sender<ToConsensus>,
    from_shards: Receiver<ToConsensus>,
    to_snapshot: Sender<SnapshotChunk>,
    snapshot_chunks: Receiver<SnapshotChunk>,
    consensus_counters: Arc<ConsensusCounters>,
    listen: SocketAddr,
    connections: u32,
    signals: Arc<NodeSignals>,
}

struct ShardPart {
    doorbell: Arc<Doorbell>,
    from_shards: Receiver<ToShard>,
    from_consensus: Receiver<FromConsensus>,
    counters: Arc<ShardCounters>,
}

impl Parts {
    fn new(
        config: &Config,
        listen: SocketAddr,
        connections: u32,
        signals: &Arc<NodeSignals>,
    ) -> Self {
        let consensus_doorbell = Doorbell::new();
        let (to_consensus, from_shards) = lane(PROPOSAL_MESSAGES, &consensus_doorbell);
        let (to_snapshot, snapshot_chunks) = lane(SNAPSHOT_CHUNKS_WAITING, &consensus_doorbell);
        let mut parts = Self {
            to_snapshot,
            snapshot_chunks,
            clock: Clock::start(),
            key_seed: secret_seed(),
            shards: Vec::new(),
            to_shards: Vec::new(),
            commits: Vec::new(),
            consensus_doorbell,
            to_consensus,
            from_shards,
            consensus_counters: Arc::default(),
            listen,
            connections,
            signals: Arc::clone(signals),
        };
        for _ in 0..config.shards {
            let doorbell = Doorbell::new();
            let (to_shard, from_shards) = lane(LANE_MESSAGES, &doorbell);
            let (commits, from_consensus) = lane(COMMITTED_MESSAGES_WAITING, &doorbell);
            parts.to_shards.push(to_shard);
            parts.commits.push(commits);
            parts.shards.push(ShardPart {
                doorbell,
                from_shards,
                from_consensus,
                counters: Arc::default(),
            });
        }
        parts
    }

    fn view(&self, config: &Config, opened: &Opened) -> NodeView {
        NodeView::new(
            opened.identity.node_id,
            config.durability,
            self.shards
                .iter()
                .map(|shard| Arc::clone(&shard.counters))
                .collect(),
            Arc::clone(&self.consensus_counters),
        )
    }

    fn doorbells(&self) -> Vec<Arc<Doorbell>> {
        self.shards
            .iter()
            .map(|shard| Arc::clone(&shard.doorbell))
            .chain([Arc::clone(&self.consensus_doorbell)])
            .collect()
    }

    fn start(self, config: &Config, opened: Opened, cores: &Cores) -> (Vec<Executor>, Vec<Pulse>) {
        let mut pulses = vec![Pulse::new(
            "consensus",
            &self.consensus_doorbell,
            Arc::clone(&self.consensus_counters) as _,
        )];
        let consensus = consensus::Setup {
            clock: self.clock,
            key_seed: self.key_seed,
            durability: config.durability,
            node_id: opened.identity.node_id,
            hard_state: opened.hard_state,
            hard_state_store: opened.store,
            last: (opened.recovery.last_index, opened.recovery.last_term),
            log: opened.log,
            folder: opened.folder,
            doorbell: self.consensus_doorbell,
            from_shards: self.from_shards,
            snapshot: opened.snapshot,
            snapshots: SnapshotPolicy {
                log_bytes: config.log.snapshot_log_bytes,
                log_entries: config.log.snapshot_log_entries,
            },
            snapshot_chunks: self.snapshot_chunks,
            to_shards: self.commits,
            counters: self.consensus_counters,
            signals: Arc::clone(&self.signals),
        };
        let mut shared = Some(consensus);
        let mut running = Vec::new();
        if !config.consensus_shared
            && let Some(consensus) = shared.take()
        {
            running.push(executor("consensus", cores.of(0), move || {
                consensus::run(consensus)
            }));
        }
        for (id, part) in self.shards.into_iter().enumerate() {
            let name = format!("shard-{id}");
            pulses.push(Pulse::new(
                &name,
                &part.doorbell,
                Arc::clone(&part.counters) as _,
            ));
            let setup = shard::Setup {
                id: u16::try_from(id).unwrap_or(u16::MAX),
                clock: self.clock,
                key_seed: self.key_seed,
                listen: self.listen,
                gate: Gate::single(
                    config.client_token.clone(),
                    Duration::from_millis(u64::from(config.limits.handshake_ms)),
                    config.tls.clone(),
                ),
                table: table_limits(config),
                limits: ConnectionLimits {
                    connections: self.connections,
                    unauthenticated: config.limits.unauthenticated_connections,
                    in_flight: config.limits.requests_in_flight,
                    output_bytes: config.limits.output_bytes,
                },
                doorbell: part.doorbell,
                from_shards: part.from_shards,
                from_consensus: part.from_consensus,
                to_shards: self.to_shards.clone(),
                to_consensus: self.to_consensus.clone(),
                to_snapshot: self.to_snapshot.clone(),
                counters: part.counters,
                signals: Arc::clone(&self.signals),
            };
            let beside = shared.take();
            let core = cores.of(running.len());
            running.push(executor(&name, core, move || async move {
                match beside {
                    Some(consensus) => {
                        crate::runtime::both(shard::run(setup), consensus::run(consensus)).await;
                    }
                    None => shard::run(setup).await,
                }
            }));
        }
        (running, pulses)
    }
}

fn executor<F>(
    name: &str,
    core: Option<usize>,
    main: impl FnOnce() -> F + Send + 'static,
) -> Executor
where
    F: Future<Output = ()> + 'static,
{
    Executor::spawn(name, core, main).unwrap_or_else(|error| {
        Fatal::Environment.exit(probe::explain_executor_failure(&error.to_string()))
    })
}

fn table_limits(config: &Config) -> TableLimits {
    TableLimits {
        waiters_per_key: config.limits.waiters_per_key as usize,
        waiters_total: config.limits.waiters_per_shard as usize,
        locks_total: config.limits.locks_per_shard as usize,
        wait_margin_ms: u64::from(config.limits.wait_margin_ms),
        origin_seed: secret_seed(),
        ..TableLimits::default()
    }
}

/// Seeds hashes of what comes from outside, so that nobody can choose keys that
/// collide.
fn secret_seed() -> u64 {
    let mut seed = [0; 8];
    random(&mut seed);
    u64::from_le_bytes(seed)
}

fn random(bytes: &mut [u8]) {
    if let Err(error) = getrandom::fill(bytes) {
        Fatal::Environment.exit(format_args!("the kernel gives no random bytes: {error}"));
    }
}
