//! `ticketing status`

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::Failure;
use crate::admin::NodeStatus;
use crate::config::{self, Config};

/// How long a node may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Shows each member: role, term, indexes, lag; locks held and waiting.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The node's configuration, which names its admin address.
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    config: Option<PathBuf>,
    /// The node's admin address.
    #[arg(long, value_name = "ADDR", required_unless_present = "config", value_parser = config::address)]
    admin: Option<SocketAddr>,
    /// For programs.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let admin = match (&args.config, args.admin) {
        (Some(file), _) => Config::from_file(file)
            .map_err(Failure::bad_usage)?
            .admin
            .ok_or_else(|| {
                Failure::bad_usage(format!(
                    "{} has no admin address: add admin = \"127.0.0.1:7225\"",
                    file.display()
                ))
            })?,
        (None, Some(admin)) => admin,
        (None, None) => {
            return Err(Failure::bad_usage(
                "--admin ADDR or --config FILE is needed",
            ));
        }
    };
    let status = ask(admin)?;
    if args.json {
        let text = serde_json::to_string_pretty(&status).map_err(Failure::failed)?;
        println!("{text}");
    } else {
        print(&status);
    }
    Ok(())
}

fn ask(admin: SocketAddr) -> Result<NodeStatus, Failure> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(ANSWER_WITHIN))
        .build()
        .into();
    let unreachable = |error: ureq::Error| {
        Failure::failed(format!(
            "no status from http://{admin}/status: {error}; is the node running with --admin {admin}?"
        ))
    };
    let text = agent
        .get(format!("http://{admin}/status"))
        .call()
        .map_err(unreachable)?
        .body_mut()
        .read_to_string()
        .map_err(unreachable)?;
    serde_json::from_str(&text).map_err(|error| {
        Failure::failed(format!(
            "http://{admin}/status is not a node of this version: {error}"
        ))
    })
}

fn print(status: &NodeStatus) {
    println!(
        "ticketing {} · {} · {} · {} · {} shard{}",
        status.version,
        status.mode,
        status.durability,
        status.phase,
        status.shards,
        if status.shards == 1 { "" } else { "s" }
    );
    println!(
        "locks held {} · waiting {} · connections {}",
        status.locks_held, status.waiting, status.connections
    );
    println!(
        "{:<4}  {:<32}  {:<8}  {:>6}  {:>17}  {:>17}  {:>17}  {:>6}",
        "slot", "node id", "role", "term", "committed", "applied", "synced", "lag"
    );
    for member in &status.members {
        println!(
            "{:<4}  {:<32}  {:<8}  {:>6}  {:>17}  {:>17}  {:>17}  {:>6}",
            member.slot.map_or("-".to_owned(), |slot| slot.to_string()),
            member.node_id,
            member.role,
            member.term,
            member.commit_index,
            member.applied_index,
            member.synced_index,
            member.lag
        );
    }
}
