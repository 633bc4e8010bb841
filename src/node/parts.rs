//! The parts of a node, before and while they are given to its cores.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ticketing_protocol::handshake::{Mode, cluster_fingerprint};
use ticketing_raftlog::Opened;
use ticketing_raftlog::peers::ProcessId;
use ticketing_raftlog::raft::Timing;

use crate::admin::{Desk, NodeView};
use crate::cluster_view::ClusterView;
use crate::config::Config;
use crate::consensus::{self, ClusterSetup, SnapshotPolicy};
use crate::counters::{ConsensusCounters, ShardCounters};
use crate::fatal::Fatal;
use crate::lanes::messages::{FromConsensus, SnapshotChunk, ToConsensus, ToShard};
use crate::lanes::{Doorbell, Receiver, Sender, lane};
use crate::limits::{
    COMMITTED_MESSAGES_WAITING, DISK_HUNG_MS, ELECTION_MS, HEARTBEAT_MS, LANE_MESSAGES,
    PROPOSAL_MESSAGES, SNAPSHOT_CHUNKS_WAITING,
};
use crate::locks::TableLimits;
use crate::node_signals::NodeSignals;
use crate::peers;
use crate::probe;
use crate::runtime::{Clock, Cores, Executor};
use crate::security::handshake::Gate;
use crate::shard::{self, ConnectionLimits};
use crate::watchdog::Pulse;

use super::open::{Found, Member};
use super::random::{random_id, secret_seed};
use super::secrets::Secrets;

/// The lanes and counters of a node, before they are given to its cores.
pub(super) struct Parts {
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
    cluster_view: Arc<ClusterView>,
    listen: SocketAddr,
    connections: u32,
    signals: Arc<NodeSignals>,
    secrets: Secrets,
}

struct ShardPart {
    doorbell: Arc<Doorbell>,
    from_shards: Receiver<ToShard>,
    from_consensus: Receiver<FromConsensus>,
    counters: Arc<ShardCounters>,
}

impl Parts {
    pub(super) fn new(
        config: &Config,
        listen: SocketAddr,
        connections: u32,
        signals: &Arc<NodeSignals>,
        secrets: &Secrets,
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
            cluster_view: Arc::default(),
            listen,
            connections,
            signals: Arc::clone(signals),
            secrets: secrets.clone(),
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

    pub(super) fn view(&self, config: &Config, opened: &Opened) -> NodeView {
        NodeView::new(
            opened.identity.node_id,
            config.durability,
            self.shards
                .iter()
                .map(|shard| Arc::clone(&shard.counters))
                .collect(),
            Arc::clone(&self.consensus_counters),
            config
                .cluster
                .as_ref()
                .map(|_| Arc::clone(&self.cluster_view)),
        )
    }

    /// Where operators' orders are taken in; none of a node that has no token for them.
    pub(super) fn desk(&self, config: &Config) -> Option<Desk> {
        let cluster = config.cluster.as_ref()?;
        (!cluster.admin_token.is_none()).then(|| Desk {
            to_consensus: self.to_consensus.clone(),
            token: self.secrets.admin_token.clone(),
        })
    }

    pub(super) fn doorbells(&self) -> Vec<Arc<Doorbell>> {
        self.shards
            .iter()
            .map(|shard| Arc::clone(&shard.doorbell))
            .chain([Arc::clone(&self.consensus_doorbell)])
            .collect()
    }

    pub(super) fn start(
        self,
        config: &Config,
        found: Found,
        cores: &Cores,
    ) -> (Vec<Executor>, Vec<Pulse>) {
        let gate = gate(config, &self.secrets, &found.opened);
        let cluster = self.cluster_setup(config, &found.opened, found.member);
        let opened = found.opened;
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
            cluster,
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
                is_cluster: config.cluster.is_some(),
                gate: gate.clone(),
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

    /// What this node is given to be one of a cluster's.
    fn cluster_setup(
        &self,
        config: &Config,
        opened: &Opened,
        member: Option<Member>,
    ) -> Option<ClusterSetup> {
        let (cluster, member) = (config.cluster.as_ref()?, member?);
        let own = |address: &&SocketAddr| **address != cluster.peer_listen;
        Some(ClusterSetup {
            slot: cluster.slot,
            peers: peers::Setup {
                cluster_id: opened.identity.cluster_id,
                node_id: opened.identity.node_id,
                slot: Some(cluster.slot),
                incarnation: member.incarnation,
                starts: opened.store.state().starts,
                process: ProcessId(random_id()),
                listen: cluster.peer_listen,
                dial: cluster.addresses.iter().filter(own).copied().collect(),
                folder: config.data_dir.clone(),
                tokens: self.secrets.peer_tokens.clone(),
                tls: self.secrets.peer_tls.clone(),
                clock: self.clock,
                doorbell: Arc::clone(&self.consensus_doorbell),
            },
            file: member.peers,
            configs: member.configs,
            seed: secret_seed(),
            timing: Timing {
                election_ms: ELECTION_MS,
                heartbeat_ms: HEARTBEAT_MS,
                disk_hung_ms: DISK_HUNG_MS,
            },
            view: Arc::clone(&self.cluster_view),
        })
    }
}

/// What clients must prove.
fn gate(config: &Config, secrets: &Secrets, opened: &Opened) -> Gate {
    let deadline = Duration::from_millis(u64::from(config.limits.handshake_ms));
    let single = Gate::single(
        secrets.client_tokens.clone(),
        deadline,
        secrets.client_tls.clone(),
    );
    match &config.cluster {
        None => single,
        Some(cluster) => Gate {
            fingerprint: cluster_fingerprint(&opened.identity.cluster_id.0),
            mode: Mode::Cluster,
            slot: cluster.slot,
            ..single
        },
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
