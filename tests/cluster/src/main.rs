//! Real clusters under the published client's load, while nodes are killed, frozen, cut off and replaced.
//!
//! `cluster-tests --server BINARY failover` and so on; each prints its figures and fails when one falls
//! short. Needs root: everything happens in a network namespace that it makes.

mod chaos;
mod clients;
mod disks;
mod diverged;
mod failover;
mod full_load;
mod identity;
mod leases;
mod line;
mod load;
mod network;
mod nodes;
#[path = "../../support/raw.rs"]
#[allow(dead_code, reason = "single nodes' tests use another part of it")]
mod raw;
#[path = "../../support/rng.rs"]
mod rng;
mod rotation;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

// What the client of raw frames waits for at most.
use nodes::PATIENCE;

#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The `ticketing` program.
    #[arg(long)]
    server: PathBuf,
    /// Nodes of the cluster.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// How long nobody is granted anything when the leader goes.
    Failover {
        /// Rounds of each event.
        #[arg(long, default_value_t = 20)]
        rounds: usize,
    },
    /// The throughput figures' load, in which nobody is to be elected.
    Calm {
        /// For how long.
        #[arg(long, default_value_t = 600)]
        seconds: u64,
    },
    /// A follower and the leader are replaced under the throughput figures' load.
    Replace {
        /// Rounds of each.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// A follower's and the leader's disk hang and are slow.
    Disks {
        /// Rounds of each.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// Many leases that end in the same second, clocks that jump, elections more frequent than a lease.
    Leases {
        /// Leases that end in the same second.
        #[arg(long, default_value_t = 100_000)]
        count: usize,
    },
    /// The leader dies with a long line of waiters.
    Line {
        /// Connections of waiters.
        #[arg(long, default_value_t = 100)]
        connections: usize,
        /// Waiters on each.
        #[arg(long, default_value_t = 100)]
        waiters: usize,
    },
    /// A node that holds other locks than the others.
    Diverged,
    /// Copies, old backups, lost folders, wrong places, lost majorities.
    Identity,
    /// Tokens and certificates that are changed under load.
    Rotation,
    /// The load under one fault after another.
    Chaos {
        /// For how long.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Draws the faults.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cluster-tests: FAILED: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let cli = Cli::parse();
    network::enter()?;
    let server = cli.server.canonicalize();
    let server = server.map_err(|error| format!("{}: {error}", cli.server.display()))?;
    match cli.command {
        Command::Failover { rounds } => failover::run(&server, cli.nodes, rounds),
        Command::Calm { seconds } => full_load::calm(&server, cli.nodes, seconds),
        Command::Replace { rounds } => full_load::replace(&server, cli.nodes, rounds),
        Command::Disks { rounds } => full_load::disks(&server, rounds),
        Command::Leases { count } => leases::run(&server, count),
        Command::Line {
            connections,
            waiters,
        } => line::run(&server, cli.nodes, connections, waiters),
        Command::Diverged => diverged::run(&server),
        Command::Identity => identity::run(&server),
        Command::Rotation => rotation::run(&server),
        Command::Chaos { seconds, seed } => chaos::run(&server, cli.nodes, seconds, seed),
    }
}
