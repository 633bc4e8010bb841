//! `ticketing member`, `transfer-leader` and `drain`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::Failure;
use super::admin::{Admins, Nodes};
use crate::admin::{MemberStatus, NodeStatus, OrderBody};
use crate::config;

/// How long to wait until a change has begun, and until it is committed.
const WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Shows and changes the cluster's members, one change at a time.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    List(List),
    AddLearner(AddLearner),
    Replace(Replace),
    Remove(Remove),
}

/// Lists the members.
#[derive(Debug, clap::Args)]
pub(super) struct List {
    #[command(flatten)]
    nodes: Nodes,
    /// For programs.
    #[arg(long)]
    json: bool,
}

/// Lets a node join, without a vote: it gets the log and keeps up.
#[derive(Debug, clap::Args)]
pub(super) struct AddLearner {
    #[command(flatten)]
    nodes: Nodes,
    /// The node's identity, as `cluster add-node` printed it.
    #[arg(long, value_name = "ID")]
    node_id: String,
    /// Where it listens for the other nodes.
    #[arg(long, value_name = "ADDR", value_parser = config::address)]
    peer_addr: SocketAddr,
}

/// Gives a voter's slot to a learner that has caught up; the voter leaves.
#[derive(Debug, clap::Args)]
pub(super) struct Replace {
    #[command(flatten)]
    nodes: Nodes,
    /// The slot.
    #[arg(long, value_name = "K")]
    slot: u8,
    /// The learner's identity.
    #[arg(long, value_name = "ID")]
    node_id: String,
}

/// Removes a learner.
#[derive(Debug, clap::Args)]
pub(super) struct Remove {
    #[command(flatten)]
    nodes: Nodes,
    /// The learner's identity.
    #[arg(long, value_name = "ID")]
    node_id: String,
}

/// Has another slot's node lead.
#[derive(Debug, clap::Args)]
pub(super) struct TransferLeader {
    #[command(flatten)]
    nodes: Nodes,
    /// The slot of the node that is to lead.
    #[arg(long, value_name = "SLOT")]
    to: u8,
}

/// Has a node hand leadership over and take none that is handed to it, until it is started again: before work
/// on its machine.
#[derive(Debug, clap::Args)]
pub(super) struct Drain {
    #[command(flatten)]
    nodes: Nodes,
}

pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::List(args) => list(args),
        Command::AddLearner(args) => {
            let order = OrderBody::AddLearner {
                node_id: args.node_id.clone(),
                peer_addr: args.peer_addr,
            };
            let is_in =
                |members: &[MemberStatus]| members.iter().any(|m| m.node_id == args.node_id);
            change(&args.nodes, &order, is_in)?;
            println!(
                "node {} is a learner; the others look for it at {}",
                args.node_id, args.peer_addr
            );
            Ok(())
        }
        Command::Replace(args) => {
            let order = OrderBody::Replace {
                slot: args.slot,
                node_id: args.node_id.clone(),
            };
            let slot = Some(args.slot);
            let has_it = |members: &[MemberStatus]| {
                let mut holders = members.iter().filter(|m| m.slot == slot);
                holders.all(|m| m.node_id == args.node_id)
            };
            change(&args.nodes, &order, has_it)?;
            println!("slot {} is node {}'s", args.slot, args.node_id);
            Ok(())
        }
        Command::Remove(args) => {
            let order = OrderBody::RemoveLearner {
                node_id: args.node_id.clone(),
            };
            let is_out =
                |members: &[MemberStatus]| members.iter().all(|m| m.node_id != args.node_id);
            change(&args.nodes, &order, is_out)?;
            println!("node {} is no member any more", args.node_id);
            Ok(())
        }
    }
}

fn list(args: &List) -> Result<(), Failure> {
    let status = best(&args.nodes.find()?)?;
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&status.members).map_err(Failure::failed)?
        );
        return Ok(());
    }
    for member in &status.members {
        println!(
            "{:<4}  {}  {}",
            member.slot.map_or("-".to_owned(), |slot| slot.to_string()),
            member.node_id,
            member.role
        );
    }
    Ok(())
}

pub(super) fn transfer(args: &TransferLeader) -> Result<(), Failure> {
    let admins = args.nodes.find()?;
    admins.order(&OrderBody::Transfer { slot: args.to }, WITHIN, say())?;
    wait(&admins, &format!("slot {} leads", args.to), |status| {
        let cluster = status.cluster.as_ref();
        cluster.is_some_and(|cluster| cluster.leader_slot == Some(args.to))
    })?;
    println!("slot {} leads", args.to);
    Ok(())
}

pub(super) fn drain(args: &Drain) -> Result<(), Failure> {
    let admins = args.nodes.find()?;
    if admins.len() != 1 {
        return Err(Failure::bad_usage(
            "drain is for one node: give one address",
        ));
    }
    admins.order(&OrderBody::Drain, WITHIN, say())?;
    wait(&admins, "another node leads", |status| {
        let cluster = status.cluster.as_ref();
        cluster.is_some_and(|c| c.leader_slot.is_some_and(|leader| leader != c.slot))
    })?;
    println!(
        "drained: another node leads, and this one takes no leadership until it is started again"
    );
    Ok(())
}

/// Orders a change, and waits until it is committed.
fn change(
    nodes: &Nodes,
    order: &OrderBody,
    is_done: impl Fn(&[MemberStatus]) -> bool,
) -> Result<(), Failure> {
    let admins = nodes.find()?;
    let already = |status: &NodeStatus| {
        let committed = status.cluster.as_ref().is_some_and(|c| c.config_committed);
        // A node that has not joined yet knows of nobody.
        let knows = status.members.iter().any(|member| member.slot.is_some());
        committed && knows && is_done(&status.members)
    };
    if best(&admins).is_ok_and(|status| already(&status)) {
        return Ok(());
    }
    admins.order(order, WITHIN, say())?;
    eprintln!("begun: waiting until it is committed");
    wait(&admins, "the change is committed", already)
}

fn wait(admins: &Admins, what: &str, holds: impl Fn(&NodeStatus) -> bool) -> Result<(), Failure> {
    let deadline = Instant::now() + WITHIN;
    loop {
        // Any node will do: what is committed on one is committed.
        let statuses = admins.statuses();
        if statuses
            .iter()
            .any(|(_, status)| status.as_ref().is_ok_and(&holds))
        {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Failure::failed(format!(
                "not within {WITHIN:?}: {what}; `ticketing status` shows how far it is"
            )));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The status of the node that leads, or else of any that answers.
fn best(admins: &Admins) -> Result<NodeStatus, Failure> {
    let mut found: Option<NodeStatus> = None;
    let mut failure = Failure::failed("no address was given");
    for (_, status) in admins.statuses() {
        match status {
            Ok(status) => {
                let leads = status
                    .cluster
                    .as_ref()
                    .is_none_or(|c| c.leader_slot == Some(c.slot));
                if leads || found.is_none() {
                    found = Some(status);
                }
            }
            Err(error) => failure = error,
        }
    }
    found.ok_or(failure)
}

/// Says each reason once.
fn say() -> impl FnMut(&str) {
    let mut said = String::new();
    move |why| {
        if why != said {
            eprintln!("not yet: {why}");
            said = why.to_owned();
        }
    }
}
