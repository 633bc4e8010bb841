//! A node that holds other locks than the others: it says so and stops, and nobody else minds.

use std::path::Path;

use server::fatal::Fatal;
use server::locks::HeldLock;
use ticketing_raftlog::snapshot::SNAPSHOT_DIR;
use ticketing_raftlog::{Folder, OpenOptions, SnapshotSpec, SnapshotWriter};

use crate::load::Load;
use crate::nodes::{Cluster, PATIENCE};

const SLOT: usize = 2;

/// Gives a follower, and then the leader, a lock that nobody else has.
pub fn run(binary: &Path) -> Result<(), String> {
    for leads in [false, true] {
        let mut cluster = Cluster::make(binary, 3)?;
        add_a_lock(&cluster)?;
        for slot in 0..3 {
            cluster.run(slot)?;
        }
        for slot in 0..3 {
            cluster.wait_listening(slot)?;
        }
        let leader = cluster.leader()?;
        let wanted = match leads {
            true => SLOT,
            false => (SLOT + 1) % 3,
        };
        if (leader == SLOT) != leads {
            // Refused as long as that node has not served for a while.
            cluster.wait_until("the wanted node leads", || {
                cluster.transfer(wanted);
                cluster.says_it_leads(wanted)
            })?;
        }
        let load = Load::start(&cluster.full_load())?;
        let done = stops(&mut cluster, &load, leads);
        done.inspect_err(|_| cluster.print_logs())?;
    }
    Ok(())
}

fn stops(cluster: &mut Cluster, load: &Load, leads: bool) -> Result<(), String> {
    // At the next index at which hashes are compared.
    let status = cluster.reap(SLOT)?;
    if status.code() != Some(Fatal::Diverged.code()) {
        return Err(format!("the node that is wrong ended with {status}"));
    }
    let log = cluster.log(SLOT);
    if !log.contains("this node is wrong") {
        return Err("the node that is wrong does not say so".to_owned());
    }
    for slot in (0..3).filter(|&slot| slot != SLOT) {
        if !cluster.is_running(slot) {
            return Err(format!("slot {slot} was right and has stopped too"));
        }
    }
    load.wait_for_grant(PATIENCE)?;
    // Its slot can be filled again, and what the others hold is what the new node holds.
    cluster.replace(SLOT)?;
    load.wait_for_grant(PATIENCE)?;
    let whose = if leads { "the leader" } else { "a follower" };
    println!(
        "diverged: {whose} with one lock more than the others stops; {}",
        load.counts.summary()
    );
    match load.counts.violation() {
        Some(violation) => Err(violation),
        None => Ok(()),
    }
}

/// Puts a lock that nobody was granted into the snapshot that a node begins with.
fn add_a_lock(cluster: &Cluster) -> Result<(), String> {
    let data = cluster.folder(SLOT).join("data");
    let opened = Folder::open_member(&data, &OpenOptions::default());
    let opened = opened.map_err(|error| error.to_string())?.opened;
    let snapshot = opened.snapshot.ok_or("a new node has no snapshot")?;
    let spec = SnapshotSpec {
        dir: data.join(SNAPSHOT_DIR),
        cluster_id: opened.identity.cluster_id,
        meta: snapshot.meta(),
        config: snapshot.config(),
    };
    let mut body = Vec::new();
    let lock = HeldLock {
        key: b"granted-to-nobody",
        token: 1,
        lease_ms: 250_000,
        left_ms: 250_000,
    };
    lock.encode(&mut body);
    let failed = |error: std::io::Error| error.to_string();
    let mut writer = SnapshotWriter::create(&spec).map_err(failed)?;
    writer.chunk(1, &body).map_err(failed)?;
    writer.finish().map(drop).map_err(failed)
}
