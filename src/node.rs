//! One node from start to end: the order in which things come up, and go down.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ticketing_raftlog::Durability;

use crate::admin::{self, Desk, NodeView};
use crate::config::{Config, CoreChoice};
use crate::fatal::{Fatal, exit_on_failed_mapping, exit_on_panic};
use crate::lanes::Doorbell;
use crate::limits::CLAIM_WITHIN;
use crate::node_signals::NodeSignals;
use crate::probe;
use crate::requests::{Request, Requests};
use crate::runtime::Cores;
use crate::security::port::{self, Claim};
use crate::watchdog;

mod open;
mod parts;
mod random;
mod secrets;

use parts::Parts;
use secrets::Secrets;

/// How often a start looks whether the node serves yet.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Runs a node until it is told to stop by SIGTERM or SIGINT.
///
/// What makes it impossible to serve ends the process with the exit code of its
/// reason ([`Fatal`]).
pub fn serve(config: &Config) {
    exit_on_panic();
    if let Err(error) = exit_on_failed_mapping() {
        Fatal::Environment.exit(format_args!("signals cannot be caught: {error}"));
    }
    let stop = Requests::watch().unwrap_or_else(|error| {
        Fatal::Environment.exit(format_args!("signals cannot be caught: {error}"))
    });
    let room = probe::machine(config.executors(), config.limits.connections)
        .unwrap_or_else(|missing| Fatal::Environment.exit(missing));
    // A cluster's node takes its client port once it knows that its slot is its own: the node that it
    // replaces may still have it.
    let single = config.cluster.is_none();
    let mut claims = Vec::new();
    match &config.cluster {
        None => claims.push(claim(config.listen)),
        Some(cluster) => claims.push(claim(cluster.peer_listen)),
    }
    let listen = match (single, claims.first()) {
        (true, Some(claim)) => claim.address(),
        _ => config.listen,
    };
    let found = open::open(config);
    stop.opened();
    let signals = Arc::new(NodeSignals::default());

    let secrets = Secrets::of(config);
    let parts = Parts::new(config, listen, room.connections, &signals, &secrets);
    let view = Arc::new(parts.view(config, &found.opened));
    let admin = config
        .admin
        .map(|address| admin_address(address, &view, parts.desk(config)));
    let doorbells = parts.doorbells();
    let cores = cores_of(config);
    let (running, pulses) = parts.start(config, found, &cores);
    watchdog::start(pulses);

    let mut told = false;
    while signals.shards_listening() < config.shards {
        match stop.wait(LOOK_EVERY) {
            Some(Request::Stop) => {
                signals.ask_to_stop();
                break;
            }
            Some(Request::Reload) => secrets.reload(config),
            None => {}
        }
        if !single && signals.port_wanted() && !signals.port_open() {
            match port::claim(config.listen) {
                Ok(claim) => {
                    claims.push(claim);
                    signals.open_port();
                    ring(&doorbells);
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(
                            "{} is still in use, perhaps by the node that this one replaces: \
                             trying again until it is free",
                            config.listen
                        );
                    }
                }
                Err(error) => refused(config.listen, &error),
            }
        }
    }
    if !signals.stop_asked() {
        view.set_serving();
        announce(config, listen, admin);
        loop {
            match stop.wait(Duration::from_secs(3600)) {
                Some(Request::Stop) => break,
                Some(Request::Reload) => secrets.reload(config),
                None => {}
            }
        }
        tracing::info!("stopping: what is in the log finishes first");
        view.set_stopping();
        signals.ask_to_stop();
    }
    ring(&doorbells);
    for executor in running {
        if let Err(error) = executor.join() {
            Fatal::Executor.exit(error);
        }
    }
    tracing::info!("stopped");
}

fn ring(doorbells: &[Arc<Doorbell>]) {
    doorbells.iter().for_each(|doorbell| doorbell.ring());
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
    port::claim_within(listen, CLAIM_WITHIN).unwrap_or_else(|error| refused(listen, &error))
}

fn refused(listen: SocketAddr, error: &io::Error) -> ! {
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
}

fn admin_address(address: SocketAddr, view: &Arc<NodeView>, desk: Option<Desk>) -> SocketAddr {
    admin::start(address, Arc::clone(view), desk).unwrap_or_else(|error| {
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
    let mode = match &config.cluster {
        None => "single".to_owned(),
        Some(cluster) => format!("cluster slot {}", cluster.slot),
    };
    println!(
        "ticketing ready: listening on {listen} ({mode}, {durability}, {shards} shard{}{tls}{admin})",
        if shards == 1 { "" } else { "s" }
    );
}
