//! `ticketing status`

use super::Failure;
use super::admin::Nodes;
use crate::admin::NodeStatus;

/// Shows each member: role, term, indexes, lag; locks held and waiting.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    nodes: Nodes,
    /// For programs: the status of one node, or a list of those of several.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut answered = Vec::new();
    let mut failure = None;
    let statuses = args.nodes.find()?.statuses();
    let several = statuses.len() > 1;
    for (address, status) in statuses {
        match status {
            Ok(status) => answered.push((address, status)),
            Err(error) => {
                if several && !args.json {
                    eprintln!("ticketing: {error}");
                }
                failure = Some(error);
            }
        }
    }
    if args.json {
        let list: Vec<&NodeStatus> = answered.iter().map(|(_, status)| status).collect();
        let text = match (&list[..], several) {
            ([one], false) => serde_json::to_string_pretty(one),
            _ => serde_json::to_string_pretty(&list),
        };
        if !list.is_empty() {
            println!("{}", text.map_err(Failure::failed)?);
        }
    } else {
        for (at, (address, status)) in answered.iter().enumerate() {
            if at > 0 {
                println!();
            }
            if several {
                println!("http://{address}");
            }
            print(status);
        }
    }
    match failure {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
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
    if let Some(cluster) = &status.cluster {
        println!(
            "cluster {} · this node is slot {} · leader {}",
            cluster.cluster_id,
            cluster.slot,
            match cluster.leader_slot {
                Some(slot) => format!("slot {slot}"),
                None => "not known".to_owned(),
            }
        );
    }
    println!(
        "{:<4}  {:<32}  {:<9}  {:>6}  {:>17}  {:>17}  {:>17}  {:>6}  {:>9}",
        "slot", "node id", "role", "term", "committed", "applied", "synced", "lag", "last seen"
    );
    let shown = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
    for member in &status.members {
        println!(
            "{:<4}  {:<32}  {:<9}  {:>6}  {:>17}  {:>17}  {:>17}  {:>6}  {:>9}",
            member.slot.map_or("-".to_owned(), |slot| slot.to_string()),
            member.node_id,
            member.role,
            shown(member.term),
            shown(member.commit_index),
            shown(member.applied_index),
            shown(member.synced_index),
            shown(member.lag),
            match (member.is_self, member.last_contact_ms) {
                (true, _) => "here".to_owned(),
                (false, Some(ms)) => format!("{ms} ms"),
                (false, None) if member.is_connected => "connected".to_owned(),
                (false, None) => "away".to_owned(),
            }
        );
    }
}
