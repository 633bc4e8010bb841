//! `ticketing cluster`: making a cluster's identity and its nodes' folders.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use ticketing_protocol::handshake::cluster_fingerprint;
use ticketing_raftlog::raft::Config as Members;
use ticketing_raftlog::{ClusterId, Folder, Genesis, NewMember, NodeId};

use super::Failure;
use crate::limits::SEGMENT_BYTES_DEFAULT;

const CLUSTER_FILE: &str = "cluster.json";
const CONFIG_FILE: &str = "ticketing.toml";
const TOKENS: [&str; 3] = ["client.token", "peer.token", "admin.token"];
/// Ports of a node that is added on the host of the one it is to replace are so far from that one's.
const ADDED_PORT_OFFSET: u16 = 100;

/// Makes a cluster: its identity, its configuration files, its nodes' data folders.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    Init(Init),
    Fingerprint(Fingerprint),
    AddNode(AddNode),
}

/// A new cluster: a new identity, and for each node a folder with its configuration, its tokens and its data
/// folder. Copy each `slot-K` folder to its host.
#[derive(Debug, clap::Args)]
pub(super) struct Init {
    /// Where to make it; must not exist, or be empty.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// How many nodes: 3 or 5.
    #[arg(long, value_name = "N")]
    nodes: usize,
    /// Each node's address, by slot [default: all on 127.0.0.1, slot K on ports + K].
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    hosts: Vec<IpAddr>,
    /// Where clients connect.
    #[arg(long, value_name = "PORT", default_value_t = 5225)]
    client_port: u16,
    /// Where the nodes connect to each other.
    #[arg(long, value_name = "PORT", default_value_t = 6225)]
    peer_port: u16,
    /// Where metrics, health and status are served, on 127.0.0.1 of each node.
    #[arg(long, value_name = "PORT", default_value_t = 7225)]
    admin_port: u16,
}

/// Prints the 64 hex digits that clients of the cluster are configured with.
#[derive(Debug, clap::Args)]
pub(super) struct Fingerprint {
    /// The folder that `cluster init` made.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// A folder for a node that is to take a slot over: with a new identity, and nothing in its log.
#[derive(Debug, clap::Args)]
pub(super) struct AddNode {
    /// The folder that `cluster init` made.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The slot that it is to fill.
    #[arg(long, value_name = "K")]
    slot: u8,
    /// Its address [default: that of the slot's node, with ports 100 higher].
    #[arg(long, value_name = "ADDR")]
    host: Option<IpAddr>,
    /// Where it listens for the other nodes.
    #[arg(long, value_name = "PORT")]
    peer_port: Option<u16>,
    /// Where metrics, health and status are served.
    #[arg(long, value_name = "PORT")]
    admin_port: Option<u16>,
}

/// `cluster.json`: what a cluster was made with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ClusterFile {
    cluster_id: String,
    identity_fingerprint: String,
    client_addrs: Vec<SocketAddr>,
    peer_addrs: Vec<SocketAddr>,
    admin_addrs: Vec<SocketAddr>,
    /// The first node of each slot.
    node_ids: Vec<String>,
}

pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Init(args) => init(args),
        Command::Fingerprint(args) => {
            println!("{}", load(&args.dir)?.identity_fingerprint);
            Ok(())
        }
        Command::AddNode(args) => add_node(args),
    }
}

fn init(args: &Init) -> Result<(), Failure> {
    let nodes = args.nodes;
    if nodes != 3 && nodes != 5 {
        return Err(Failure::bad_usage(format!(
            "--nodes {nodes}: 3 or 5 (an even number costs more and tolerates no more faults)"
        )));
    }
    if !args.hosts.is_empty() && args.hosts.len() != nodes {
        return Err(Failure::bad_usage(format!(
            "--hosts names {} addresses for {nodes} nodes: one for each, in the order of the slots",
            args.hosts.len()
        )));
    }
    for (name, port) in [
        ("--client-port", args.client_port),
        ("--peer-port", args.peer_port),
        ("--admin-port", args.admin_port),
    ] {
        if port == 0 || usize::from(port) + nodes > usize::from(u16::MAX) {
            return Err(Failure::bad_usage(format!(
                "{name} {port}: must be 1 to {}",
                usize::from(u16::MAX) - nodes
            )));
        }
    }
    let places = Places::of(args);
    places.check()?;
    let now_unix_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let cluster_id = ClusterId(random_id()?);
    let node_ids = (0..nodes)
        .map(|_| random_id().map(NodeId))
        .collect::<Result<Vec<_>, _>>()?;
    let members = Members::new(&node_ids, &[]).map_err(Failure::failed)?;
    let genesis = Genesis {
        first_index: NewMember::first_index_at(now_unix_s),
        config: members,
    };
    let file = ClusterFile {
        cluster_id: cluster_id.to_string(),
        identity_fingerprint: hex(&cluster_fingerprint(&cluster_id.0)),
        client_addrs: places.client.clone(),
        peer_addrs: places.peer.clone(),
        admin_addrs: places.admin.clone(),
        node_ids: node_ids.iter().map(ToString::to_string).collect(),
    };
    let dir = &args.dir;
    make_empty(dir)?;
    let tokens = [new_token()?, new_token()?, new_token()?];
    for (slot, &node_id) in node_ids.iter().enumerate() {
        let node = NodeFolder {
            dir: dir.join(format!("slot-{slot}")),
            slot,
            listen: places.client[slot],
            peer_listen: places.peer[slot],
            admin: places.admin[slot],
            peers: &places.peer,
            tokens: &tokens,
        };
        let member = NewMember {
            cluster_id,
            node_id,
            genesis: Some(genesis),
            now_unix_s,
            segment_bytes: SEGMENT_BYTES_DEFAULT,
        };
        node.make(&member)?;
    }
    let json = serde_json::to_string_pretty(&file).map_err(Failure::failed)?;
    // Last: a folder without it was not finished.
    write_new(
        &dir.join(CLUSTER_FILE),
        format!("{json}\n").as_bytes(),
        0o644,
    )?;
    println!(
        "cluster {} of {nodes} nodes in {}",
        file.cluster_id,
        dir.display()
    );
    println!("identity fingerprint {}", file.identity_fingerprint);
    for slot in 0..nodes {
        println!(
            "ticketing serve --config {}",
            dir.join(format!("slot-{slot}")).join(CONFIG_FILE).display()
        );
    }
    Ok(())
}

fn add_node(args: &AddNode) -> Result<(), Failure> {
    let cluster = load(&args.dir)?;
    let slot = usize::from(args.slot);
    let (Some(client), Some(peer), Some(admin)) = (
        cluster.client_addrs.get(slot),
        cluster.peer_addrs.get(slot),
        cluster.admin_addrs.get(slot),
    ) else {
        return Err(Failure::bad_usage(format!(
            "--slot {slot}: this cluster has slots 0 to {}",
            cluster.client_addrs.len().saturating_sub(1)
        )));
    };
    let offset = if args.host.is_none_or(|host| host == peer.ip()) {
        ADDED_PORT_OFFSET
    } else {
        0
    };
    let port = |asked: Option<u16>, of: &SocketAddr| {
        asked
            .or_else(|| of.port().checked_add(offset))
            .ok_or_else(|| {
                Failure::bad_usage(
                    "the ports are too high to add 100: give --peer-port and --admin-port",
                )
            })
    };
    let host = args.host.unwrap_or(peer.ip());
    let peer_listen = SocketAddr::new(host, port(args.peer_port, peer)?);
    let admin_listen = SocketAddr::new(admin.ip(), port(args.admin_port, admin)?);
    let node_id = NodeId(random_id()?);
    let name = format!("slot-{slot}-{}", &node_id.to_string()[..8]);
    let tokens = read_tokens(&args.dir, cluster.client_addrs.len())?;
    let node = NodeFolder {
        dir: args.dir.join(name),
        slot,
        listen: SocketAddr::new(host, client.port()),
        peer_listen,
        admin: admin_listen,
        peers: &cluster.peer_addrs,
        tokens: &tokens,
    };
    let member = NewMember {
        cluster_id: ClusterId::parse(&cluster.cluster_id).ok_or_else(|| {
            Failure::failed(format!(
                "{CLUSTER_FILE}: \"{}\" is no cluster id",
                cluster.cluster_id
            ))
        })?,
        node_id,
        genesis: None,
        now_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        segment_bytes: SEGMENT_BYTES_DEFAULT,
    };
    node.make(&member)?;
    println!("node {node_id} for slot {slot} in {}", node.dir.display());
    println!(
        "ticketing serve --config {}",
        node.dir.join(CONFIG_FILE).display()
    );
    println!("ticketing member add-learner --node-id {node_id} --peer-addr {peer_listen}");
    println!("ticketing member replace --slot {slot} --node-id {node_id}");
    Ok(())
}

/// Where the nodes of a new cluster listen, by slot.
struct Places {
    client: Vec<SocketAddr>,
    peer: Vec<SocketAddr>,
    admin: Vec<SocketAddr>,
}

impl Places {
    fn of(args: &Init) -> Self {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let on_one_host = args.hosts.is_empty();
        let place = |slot: usize, port: u16| {
            let host = args.hosts.get(slot).copied().unwrap_or(local);
            // Checked to be in range.
            let offset = if on_one_host { slot as u16 } else { 0 };
            SocketAddr::new(host, port + offset)
        };
        let all = |port| (0..args.nodes).map(|slot| place(slot, port)).collect();
        // The admin address stays on loopback whatever the host is.
        let admin = |slot: usize| {
            let address = place(slot, args.admin_port);
            let host = if address.ip().is_loopback() {
                address.ip()
            } else {
                local
            };
            SocketAddr::new(host, address.port())
        };
        Self {
            client: all(args.client_port),
            peer: all(args.peer_port),
            admin: (0..args.nodes).map(admin).collect(),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        let mut seen = Vec::new();
        for address in self.client.iter().chain(&self.peer) {
            if seen.contains(address) {
                return Err(Failure::bad_usage(format!(
                    "{address} would be listened on twice: give hosts or ports further apart"
                )));
            }
            seen.push(*address);
        }
        Ok(())
    }
}

/// What is made for one node.
struct NodeFolder<'a> {
    dir: PathBuf,
    slot: usize,
    listen: SocketAddr,
    peer_listen: SocketAddr,
    admin: SocketAddr,
    peers: &'a [SocketAddr],
    tokens: &'a [Vec<u8>; 3],
}

impl NodeFolder<'_> {
    fn make(&self, member: &NewMember) -> Result<(), Failure> {
        make_empty(&self.dir)?;
        for (name, token) in TOKENS.iter().zip(self.tokens) {
            write_new(&self.dir.join(name), token, 0o600)?;
        }
        write_new(&self.dir.join(CONFIG_FILE), self.config().as_bytes(), 0o644)?;
        Folder::create_member(&self.dir.join("data"), member).map_err(Failure::failed)
    }

    fn config(&self) -> String {
        let peers: Vec<String> = self
            .peers
            .iter()
            .map(|peer| format!("\"{peer}\""))
            .collect();
        format!(
            "# A node of a cluster. docs/operations.md explains every setting; `ticketing check-config` checks \
             them.\n\
             mode = \"cluster\"\n\
             # This node's place in the clients' address list.\n\
             slot = {}\n\
             listen = \"{}\"\n\
             data_dir = \"data\"\n\
             durability = \"sync\"\n\
             admin = \"{}\"\n\
             client_token_file = \"client.token\"\n\
             admin_token_file = \"admin.token\"\n\
             \n\
             [peers]\n\
             listen = \"{}\"\n\
             # Of each slot.\n\
             addresses = [{}]\n\
             token_file = \"peer.token\"\n",
            self.slot,
            self.listen,
            self.admin,
            self.peer_listen,
            peers.join(", "),
        )
    }
}

fn load(dir: &Path) -> Result<ClusterFile, Failure> {
    let path = dir.join(CLUSTER_FILE);
    let text = fs::read_to_string(&path).map_err(|error| {
        Failure::failed(format!(
            "{}: {error}; name the folder that `ticketing cluster init` made",
            path.display()
        ))
    })?;
    serde_json::from_str(&text)
        .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
}

/// The tokens of a cluster, from the first of its slots whose folder is still here.
fn read_tokens(dir: &Path, slots: usize) -> Result<[Vec<u8>; 3], Failure> {
    let found = (0..slots).find_map(|slot| {
        let dir = dir.join(format!("slot-{slot}"));
        let read = |name: &str| fs::read(dir.join(name)).ok();
        Some([read(TOKENS[0])?, read(TOKENS[1])?, read(TOKENS[2])?])
    });
    found.ok_or_else(|| {
        Failure::failed(format!(
            "no folder {}/slot-K has {}: keep one of them there, the new node needs the same tokens",
            dir.display(),
            TOKENS.join(", ")
        ))
    })
}

fn make_empty(dir: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::failed(format!("{}: {error}", dir.display()));
    let made = fs::DirBuilder::new().mode(0o700).create(dir);
    match made {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if fs::read_dir(dir).map_err(failed)?.next().is_none() {
                return Ok(());
            }
            Err(Failure::failed(format!(
                "{} has something in it already: name a folder that does not exist; nothing was changed",
                dir.display()
            )))
        }
        Err(error) => Err(failed(error)),
    }
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
    written.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
}

fn new_token() -> Result<Vec<u8>, Failure> {
    let id = [random_id()?, random_id()?].concat();
    Ok(format!("{}\n", hex(&id)).into_bytes())
}

fn random_id() -> Result<[u8; 16], Failure> {
    let mut id = [0; 16];
    getrandom::fill(&mut id)
        .map_err(|error| Failure::failed(format!("the kernel gives no random bytes: {error}")))?;
    Ok(id)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
