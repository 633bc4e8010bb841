//! Nodes that are not who they say: copies, old backups, lost folders, wrong places; and clusters that have
//! lost their majority.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::load::Load;
use crate::nodes::{Cluster, PATIENCE, copy_folder, edit};

/// The exit code of a folder that cannot be used.
const EXIT_FOLDER: i32 = 12;
/// The exit code of a node that most others do not believe.
const EXIT_UNWELCOME: i32 = 19;
/// An acquire is answered in this time, whatever state the cluster is in: the client's wait, and a bit.
const ANSWER_WITHIN: Duration = Duration::from_secs(6);

/// Runs every case, each with a cluster of its own.
pub fn run(binary: &Path) -> Result<(), String> {
    type Case = fn(&Path) -> Result<(), String>;
    let cases: [(&str, Case); 7] = [
        ("a copy beside its original", copy_beside_its_original),
        ("an old backup", old_backup),
        (
            "a lost folder, and one that is another's",
            lost_and_foreign_folders,
        ),
        ("a wrong slot, a wrong number of voters", wrong_place),
        ("the majority is gone, and comes back", majority_gone),
        ("two of three folders are lost", majority_lost),
        ("every member is another one, elsewhere", all_moved),
    ];
    for (name, case) in cases {
        case(binary).map_err(|why| format!("{name}: {why}"))?;
        println!("{name}: holds");
    }
    Ok(())
}

fn copy_beside_its_original(binary: &Path) -> Result<(), String> {
    let mut cluster = Cluster::start(binary, 3)?;
    let load = Load::start(&cluster.shape())?;
    let slot = (cluster.leader()? + 1) % 3;
    // Of a follower that runs, with other ports, so that only its name is the same.
    let copy = cluster.root().join("copy");
    copy_folder(&cluster.folder(slot), &copy)?;
    fs::remove_file(copy.join("log.txt")).map_err(|error| error.to_string())?;
    edit(
        &copy,
        &[
            (":5225\"\ndata_dir", ":5299\"\ndata_dir"),
            (":6225\"\n#", ":6299\"\n#"),
            (":7225\"", ":7299\""),
        ],
    )?;
    let before = cluster.own(slot, "term");
    let at = cluster.run_other(&copy)?;
    // While the original lives the copy keeps trying, as it cannot know which of the two it is.
    std::thread::sleep(Duration::from_secs(5));
    let log = fs::read_to_string(copy.join("log.txt")).unwrap_or_default();
    if !log.contains("another process") || log.contains("connected peer") {
        return Err(format!("the copy does not say that it is refused:\n{log}"));
    }
    let after = cluster.own(slot, "term");
    if !cluster.is_running(slot) || before != after {
        return Err(format!("the original was disturbed: {before:?}, {after:?}"));
    }
    load.wait_for_grant(PATIENCE)?;
    cluster.kill_other(at)
}

fn old_backup(binary: &Path) -> Result<(), String> {
    let mut cluster = Cluster::start(binary, 3)?;
    let load = Load::start(&cluster.shape())?;
    let slot = (cluster.leader()? + 1) % 3;
    stop(&mut cluster, slot)?;
    let backup = cluster.root().join("backup");
    copy_folder(&cluster.folder(slot).join("data"), &backup)?;
    cluster.run(slot)?;
    cluster.wait_listening(slot)?;
    std::thread::sleep(Duration::from_secs(1));
    stop(&mut cluster, slot)?;
    let data = cluster.folder(slot).join("data");
    fs::remove_dir_all(&data).map_err(|error| error.to_string())?;
    copy_folder(&backup, &data)?;
    cluster.run(slot)?;
    let status = cluster.reap(slot)?;
    expect(status, EXIT_UNWELCOME, &cluster.folder(slot))?;
    // However often it is started: its counter would pass what the others have seen.
    for _ in 0..5 {
        cluster.run(slot)?;
        let status = cluster.reap(slot)?;
        expect(status, EXIT_UNWELCOME, &cluster.folder(slot))?;
    }
    says(&cluster, slot, "this folder is not used any more")?;
    load.wait_for_grant(PATIENCE)?;
    // Its slot can be filled again.
    cluster.replace(slot)?;
    load.wait_for_grant(PATIENCE).map(drop)
}

fn lost_and_foreign_folders(binary: &Path) -> Result<(), String> {
    let mut cluster = Cluster::start(binary, 3)?;
    stop(&mut cluster, 0)?;
    let data = cluster.folder(0).join("data");
    fs::remove_dir_all(&data).map_err(|error| error.to_string())?;
    for make in [false, true] {
        if make {
            fs::create_dir(&data).map_err(|error| error.to_string())?;
        }
        cluster.run(0)?;
        let status = cluster.reap(0)?;
        expect(status, EXIT_FOLDER, &cluster.folder(0))?;
        says(&cluster, 0, "ticketing cluster add-node")?;
    }
    // Another cluster's node, with the tokens of this one.
    let other = Cluster::make(binary, 3)?;
    fs::remove_dir(&data).map_err(|error| error.to_string())?;
    copy_folder(&other.folder(0).join("data"), &data)?;
    cluster.run(0)?;
    std::thread::sleep(Duration::from_secs(2));
    if cluster.is_running(0) {
        cluster.kill(0)?;
    }
    says(&cluster, 0, "another cluster")?;
    // Nobody else minds.
    let load = Load::start(&cluster.shape())?;
    load.wait_for_grant(PATIENCE).map(drop)
}

fn wrong_place(binary: &Path) -> Result<(), String> {
    let mut cluster = Cluster::make(binary, 3)?;
    edit(&cluster.folder(0), &[("slot = 0", "slot = 1")])?;
    cluster.run(0)?;
    let status = cluster.reap(0)?;
    expect(status, EXIT_FOLDER, &cluster.folder(0))?;
    says(&cluster, 0, "slot 0")?;
    edit(&cluster.folder(0), &[("slot = 1", "slot = 0")])?;
    let config = cluster.folder(1).join("ticketing.toml");
    let text = fs::read_to_string(&config).map_err(|error| error.to_string())?;
    let start = text.find("addresses = [").ok_or("no addresses")?;
    let end = text[start..].find(']').ok_or("no addresses")? + start;
    for voters in [1, 2, 4, 6, 7] {
        let all: Vec<String> = (1..=voters)
            .map(|at| format!("\"127.0.1.{at}:6225\""))
            .collect();
        let edited = format!(
            "{}addresses = [{}{}",
            &text[..start],
            all.join(", "),
            &text[end..]
        );
        fs::write(&config, edited).map_err(|error| error.to_string())?;
        cluster.run(1)?;
        let status = cluster.reap(1)?;
        expect(status, 2, &cluster.folder(1))?;
        says(&cluster, 1, "3 or 5")?;
    }
    for nodes in ["1", "2", "4", "6", "7"] {
        let dir = cluster.root().join("never").to_string_lossy().into_owned();
        match cluster.command(&["cluster", "init", "--dir", &dir, "--nodes", nodes]) {
            Err(why) if why.contains("3 or 5") => {}
            other => return Err(format!("cluster init --nodes {nodes}: {other:?}")),
        }
    }
    Ok(())
}

fn majority_gone(binary: &Path) -> Result<(), String> {
    let mut cluster = Cluster::start(binary, 3)?;
    let shape = cluster.shape();
    let mut load = Load::start(&shape)?;
    let leader = cluster.leader()?;
    let others: Vec<usize> = (0..3).filter(|&slot| slot != leader).collect();
    for &slot in &others {
        cluster.kill(slot)?;
    }
    // What was on its way is decided by now.
    std::thread::sleep(Duration::from_secs(2));
    let began = Instant::now();
    let refused = load.try_once("majority-gone", ANSWER_WITHIN)?;
    let took = began.elapsed();
    let granted = load.counts.grants_since(began);
    if refused.is_none() || !granted.is_empty() {
        return Err("a key was granted without a majority".to_owned());
    }
    println!(
        "  without a majority: {} after {:.1} s",
        refused.unwrap_or_default(),
        took.as_secs_f64()
    );
    for &slot in &others {
        cluster.run(slot)?;
    }
    let back = load.wait_for_grant(PATIENCE)?;
    println!(
        "  granted again {:.0} ms after the others were started",
        back.as_secs_f64() * 1e3
    );
    Ok(())
}

fn majority_lost(binary: &Path) -> Result<(), String> {
    let mut cluster = Cluster::start(binary, 3)?;
    let mut load = Load::start(&cluster.shape())?;
    for slot in [0, 1] {
        cluster.kill(slot)?;
        let data = cluster.folder(slot).join("data");
        fs::remove_dir_all(&data).map_err(|error| error.to_string())?;
        cluster.run(slot)?;
        let status = cluster.reap(slot)?;
        expect(status, EXIT_FOLDER, &cluster.folder(slot))?;
    }
    std::thread::sleep(Duration::from_secs(2));
    let began = Instant::now();
    if load.try_once("majority-lost", ANSWER_WITHIN)?.is_none()
        || !load.counts.grants_since(began).is_empty()
    {
        return Err("a key was granted by one of three".to_owned());
    }
    // No order brings it back either.
    let id = "00".repeat(16);
    match cluster.command(&[
        "member",
        "replace",
        "--slot",
        "0",
        "--node-id",
        &id,
        "--admin",
        "127.0.1.3:7225",
    ]) {
        Err(_) => Ok(()),
        Ok(said) => Err(format!(
            "a cluster without a majority has replaced a member: {said}"
        )),
    }
}

fn stop(cluster: &mut Cluster, slot: usize) -> Result<(), String> {
    cluster.signal(slot, Signal::TERM)?;
    let status = cluster.reap(slot)?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("a planned stop ended with {status}")),
    }
}

fn expect(status: std::process::ExitStatus, code: i32, folder: &Path) -> Result<(), String> {
    if status.code() == Some(code) {
        return Ok(());
    }
    let log = fs::read_to_string(folder.join("log.txt")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let end = lines[lines.len().saturating_sub(12)..].join("\n");
    Err(format!(
        "ended with {status} instead of code {code}:\n{end}"
    ))
}

fn says(cluster: &Cluster, slot: usize, what: &str) -> Result<(), String> {
    let log = cluster.log(slot);
    match log.contains(what) {
        true => Ok(()),
        false => Err(format!("slot {slot} does not say {what:?}:\n{log}")),
    }
}

/// Replaces every member by one at an address that is in nobody's configuration: they find each other, also when
/// all of them are started anew.
fn all_moved(binary: &Path) -> Result<(), String> {
    let mut cluster = Cluster::start(binary, 3)?;
    let load = Load::start(&cluster.shape())?;
    for slot in 0..3 {
        cluster.replace(slot)?;
        load.wait_for_grant(PATIENCE)?;
    }
    all_connected(&cluster)?;
    for slot in 0..3 {
        stop(&mut cluster, slot)?;
    }
    for slot in 0..3 {
        cluster.run(slot)?;
    }
    for slot in 0..3 {
        cluster.wait_listening(slot)?;
    }
    load.wait_for_grant(PATIENCE)?;
    all_connected(&cluster)
}

/// Waits until each of three nodes says that it is connected with both others.
fn all_connected(cluster: &Cluster) -> Result<(), String> {
    cluster.wait_until("every node is connected with every other", || {
        (0..3).all(|slot| {
            let status = cluster.status(slot).unwrap_or_default();
            let members = status["members"].as_array().cloned().unwrap_or_default();
            members.len() == 3 && members.iter().all(|member| member["is_connected"] == true)
        })
    })
}
