//! Real clusters under the published client's load, while nodes are killed, frozen, cut off and replaced.
//!
//! `cluster-tests --server BINARY failover` and so on; each prints its figures and fails when one falls
//! short. Needs root: everything happens in a network namespace that it makes.

mod chaos;
mod failover;
mod identity;
mod load;
mod network;
mod nodes;
#[path = "../../support/rng.rs"]
mod rng;
mod rotation;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
        Command::Identity => identity::run(&server),
        Command::Rotation => rotation::run(&server),
        Command::Chaos { seconds, seed } => chaos::run(&server, cli.nodes, seconds, seed),
    }
}
