//! `ticketing log`

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use ticketing_raftlog::raft::Config;
use ticketing_raftlog::{BootId, LogReader, LogReport, NodeId, RecordKind, RecordRef, Verdict};

use super::Failure;
use crate::locks::{Command as LockCommand, held_locks};

/// Reads a stopped or a live node's log.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    Verify(VerifyArgs),
    Dump(DumpArgs),
}

/// Says whether the log is whole, as a start of the node would judge it.
#[derive(Debug, clap::Args)]
pub(super) struct VerifyArgs {
    /// The data folder.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// For programs.
    #[arg(long)]
    json: bool,
}

/// Prints what is in the snapshot and the log: who got what when.
#[derive(Debug, clap::Args)]
pub(super) struct DumpArgs {
    /// The data folder.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Start at this log index; without it, with what the newest snapshot holds and then what
    /// came behind it.
    #[arg(long, value_name = "I")]
    from: Option<u64>,
    /// Only what concerns this key.
    #[arg(long, value_name = "K")]
    key: Option<String>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Verify(args) => verify(args),
        Command::Dump(args) => dump(args),
    }
}

fn verify(args: &VerifyArgs) -> Result<(), Failure> {
    let (reader, report) = open(&args.dir)?;
    let (verdict, at) = match &report.verdict {
        Verdict::Clean => ("clean", None),
        Verdict::TornTail { at, why } => ("torn tail", Some((*at, *why))),
        Verdict::Corrupt { at, why } => ("corrupt", Some((*at, *why))),
    };
    let place = at.map(|(at, why)| (reader.path_of(at), at.offset(), why));
    if args.json {
        let place = place.as_ref().map(
            |(file, offset, why)| json!({ "file": file.display().to_string(), "offset": offset, "why": why }),
        );
        println!(
            "{}",
            json!({
                "verdict": verdict,
                "at": place,
                "segments": report.segments,
                "batches": report.batches,
                "entries": report.entries,
                "first_index": report.first_index.0,
                "last_index": report.last_index.0,
                "last_term": report.last_term.0,
                "clean_stop": report.clean_stop,
                "snapshot": report.snapshot.map(|snapshot| json!({
                    "index": snapshot.index.0,
                    "term": snapshot.term.0,
                    "locks": report.snapshot_items,
                })),
                "damaged_snapshot": report.damaged_snapshot,
            })
        );
    } else {
        println!(
            "{verdict}: {} entries in {} batches in {} segments, indexes {} to {}, last term {}{}",
            report.entries,
            report.batches,
            report.segments,
            report.first_index,
            report.last_index,
            report.last_term,
            if report.clean_stop {
                ", stopped cleanly"
            } else {
                ""
            }
        );
        if let Some(snapshot) = &report.snapshot {
            println!(
                "snapshot up to index {}, term {}: {} locks held",
                snapshot.index, snapshot.term, report.snapshot_items
            );
        }
        if let Some(damaged) = &report.damaged_snapshot {
            println!("a newer snapshot is damaged, and not needed: {damaged}");
        }
        if let Some((file, offset, why)) = &place {
            println!("{} at offset {offset}: {why}", file.display());
        }
    }
    match report.verdict {
        Verdict::Corrupt { .. } => Err(Failure::failed(
            "acknowledged data is damaged: keep the folder for inspection and replace this node",
        )),
        Verdict::Clean | Verdict::TornTail { .. } => Ok(()),
    }
}

fn dump(args: &DumpArgs) -> Result<(), Failure> {
    let (reader, report) = open(&args.dir)?;
    let from = match (args.from, report.snapshot) {
        (Some(from), _) => from,
        (None, None) => 0,
        (None, Some(covered)) => {
            show_snapshot(args, &reader)?;
            covered.index.next().0
        }
    };
    reader
        .for_each(&report, |_, batch| {
            for (_, record) in batch.records() {
                if record.index.0 >= from {
                    show(args, &record);
                }
            }
        })
        .map_err(Failure::failed)
}

/// Every lock that the newest snapshot holds.
fn show_snapshot(args: &DumpArgs, reader: &LogReader) -> Result<(), Failure> {
    let Some(mut snapshot) = reader.snapshot().map_err(Failure::failed)? else {
        return Ok(());
    };
    let meta = snapshot.meta();
    if args.key.is_none() {
        let locks = Some(("locks", snapshot.items()));
        print_line(args, meta.index.0, meta.term.0, "snapshot", None, locks);
    }
    let mut body = Vec::new();
    while let Some(_locks) = snapshot.next_chunk(&mut body).map_err(Failure::failed)? {
        for lock in held_locks(&body) {
            let lock = lock.map_err(|error| {
                Failure::failed(format!("{}: {error}", snapshot.path().display()))
            })?;
            let key = String::from_utf8_lossy(lock.key);
            if args.key.as_deref().is_none_or(|wanted| wanted == key) {
                let token = Some(("token", lock.token));
                print_line(args, meta.index.0, meta.term.0, "held", Some(&key), token);
            }
        }
    }
    Ok(())
}

fn open(dir: &Path) -> Result<(LogReader, LogReport), Failure> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .ok()
        .and_then(|text| BootId::parse(&text))
        .ok_or_else(|| Failure::failed("/proc/sys/kernel/random/boot_id cannot be read"))?;
    let reader = LogReader::open(dir).map_err(Failure::failed)?;
    let report = reader.verify(boot_id).map_err(Failure::failed)?;
    Ok((reader, report))
}

fn show(args: &DumpArgs, record: &RecordRef<'_>) {
    let (index, term) = (record.index.0, record.term.0);
    let command = match record.kind {
        RecordKind::Command => LockCommand::decode(record.payload),
        RecordKind::Config => {
            if args.key.is_none() {
                match record.config() {
                    Some(entry) => print_config(args, index, term, &entry.config),
                    None => print_line(args, index, term, "unreadable", None, None),
                }
            }
            return;
        }
        other => {
            if args.key.is_none() {
                let what = format!("{other:?}").to_lowercase();
                print_line(args, index, term, &what, None, None);
            }
            return;
        }
    };
    let Ok(command) = command else {
        print_line(args, index, term, "unreadable", None, None);
        return;
    };
    let key = String::from_utf8_lossy(command.key());
    if args.key.as_deref().is_some_and(|wanted| wanted != key) {
        return;
    }
    let (what, detail) = match command {
        LockCommand::Grant { lease_ms, .. } => ("grant", ("lease_ms", u64::from(lease_ms))),
        LockCommand::Release { token, .. } => ("release", ("token", token)),
        LockCommand::Expire { token, .. } => ("expire", ("token", token)),
    };
    print_line(args, index, term, what, Some(&key), Some(detail));
}

/// The members, by slot, and who is about to take whose slot.
fn print_config(args: &DumpArgs, index: u64, term: u64, config: &Config) {
    println!("{}", config_line(args.json, index, term, config));
}

fn config_line(as_json: bool, index: u64, term: u64, config: &Config) -> String {
    let ids = |nodes: &[NodeId]| nodes.iter().map(NodeId::to_string).collect::<Vec<_>>();
    let (voters, learners) = (ids(config.voters()), ids(config.learners()));
    let replacing = config
        .replacement()
        .map(|replacement| (replacement.slot.0, replacement.new.to_string()));
    if as_json {
        let replacing = replacing.map(|(slot, by)| json!({ "slot": slot, "by": by }));
        return json!({
            "index": index,
            "term": term,
            "command": "config",
            "voters": voters,
            "learners": learners,
            "replacing": replacing,
        })
        .to_string();
    }
    let mut line = format!("{index} term={term} config voters={}", voters.join(","));
    if let Some((slot, by)) = replacing {
        line += &format!(" replacing={slot}:{by}");
    }
    if !learners.is_empty() {
        line += &format!(" learners={}", learners.join(","));
    }
    line
}

fn print_line(
    args: &DumpArgs,
    index: u64,
    term: u64,
    what: &str,
    key: Option<&str>,
    detail: Option<(&str, u64)>,
) {
    if args.json {
        let mut line = json!({ "index": index, "term": term, "command": what });
        if let Some(key) = key {
            line["key"] = json!(key);
        }
        if let Some((name, value)) = detail {
            line[name] = json!(value);
        }
        println!("{line}");
    } else {
        let key = key.map_or(String::new(), |key| format!(" {key}"));
        let detail = detail.map_or(String::new(), |(name, value)| format!(" {name}={value}"));
        println!("{index} term={term} {what}{key}{detail}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ticketing_raftlog::raft::{Replacement, Slot};

    #[test]
    fn a_configuration_is_shown_with_its_members_for_people_and_for_programs() {
        let id = |n| NodeId([n; 16]);
        let hex = |n: u8| format!("{n:02x}").repeat(16);
        let voters = [id(1), id(2), id(3)];
        let rest = Config::new(&voters, &[]).expect("valid");
        let [one, two, three] = [1, 2, 3].map(hex);
        assert_eq!(
            config_line(false, 70, 3, &rest),
            format!("70 term=3 config voters={one},{two},{three}")
        );
        let (slot, new) = (Slot(1), id(0x44));
        let joint = Config::joint(&voters, Some(Replacement { slot, new }), &[id(0x55)]);
        let joint = joint.expect("valid");
        let (four, five) = (hex(0x44), hex(0x55));
        assert_eq!(
            config_line(false, 71, 3, &joint),
            format!(
                "71 term=3 config voters={one},{two},{three} replacing=1:{four} learners={five}"
            )
        );
        let line: serde_json::Value =
            serde_json::from_str(&config_line(true, 71, 3, &joint)).expect("JSON");
        assert_eq!(
            line,
            json!({
                "index": 71,
                "term": 3,
                "command": "config",
                "voters": [one, two, three],
                "learners": [five],
                "replacing": { "slot": 1, "by": four },
            })
        );
    }
}
