//! A disk whose sync fails. What it holds is not known any more, so the server ends: at once, with
//! the exit code for that, and without another answer.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use ticketing_protocol::Reply;

use crate::PATIENCE;
use crate::disk::Damage;
use crate::fuse::{Powered, SharedDisk, Syncs, locked, mount};
use crate::known::LEASE_S;
use crate::raw::{RawClient, is_closed};
use crate::rng::Rng;
use crate::server::{Machine, Server};

/// A write or a sync failed: the code in the operations guide.
const EXIT_DISK: i32 = 14;
/// From the failed sync to the end of the process: milliseconds, on an idle machine.
const AT_ONCE: Duration = Duration::from_secs(5);
const LOG: &str = "segment_bytes = 1048576\n";

struct Setup {
    machine: Machine,
    disk: SharedDisk,
    at: PathBuf,
    rng: Rng,
}

/// Lets a sync fail under load, and another one while the server stops; the reason when something
/// does not hold.
pub fn run(binary: &Path, seed: u64) -> Result<(), String> {
    let folder = TempDir::with_prefix("powercut-").map_err(|error| error.to_string())?;
    let at = folder.path().join("disk");
    std::fs::create_dir(&at).map_err(|error| error.to_string())?;
    let mut setup = Setup {
        machine: Machine {
            binary: binary.to_path_buf(),
            folder: folder.path().to_path_buf(),
        },
        disk: Arc::new(Mutex::new(Powered::new())),
        at,
        rng: Rng::new(seed),
    };
    let (held, took) = setup.until_cut("sync", under_load)?;
    println!("powercut: a failed sync ends the server with exit code {EXIT_DISK} after {took:?}");
    setup.until_cut("sync", |_, server| {
        let mut client = RawClient::connect(server.address);
        for (key, token) in &held {
            match (client.acquire(key, 0, LEASE_S), client.release(key, *token)) {
                (Reply::Busy { .. }, Reply::Released { .. }) => {}
                other => return Err(format!("{key} was held by {token}, and now: {other:?}")),
            }
        }
        Ok(())
    })?;
    setup.until_cut("memory", |disk, mut server| {
        RawClient::connect(server.address).hold("key", LEASE_S);
        locked(disk).syncs = Syncs::Fail;
        server.terminate();
        ends_for_the_disk(&mut server)
    })
}

/// What was acknowledged before and not given back, and how long the end took.
fn under_load(
    disk: &SharedDisk,
    mut server: Server,
) -> Result<(Vec<(String, u64)>, Duration), String> {
    let mut client = RawClient::connect(server.address);
    let keys = ["held", "given-back"].map(str::to_owned);
    let mut held: Vec<_> = keys
        .map(|key| (key.clone(), client.hold(&key, LEASE_S)))
        .into();
    locked(disk).syncs = Syncs::Hang;
    for number in 0..8 {
        client.send_acquire(&format!("late-{number}"), 0, LEASE_S);
    }
    // It may be given back or not, but nobody may say so.
    let (key, token) = held.pop().expect("two of them");
    client.send_release(&key, token);
    let deadline = Instant::now() + PATIENCE;
    while locked(disk).syncs_met == 0 {
        if Instant::now() > deadline {
            return Err("nothing was synced".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    locked(disk).syncs = Syncs::Fail;
    let failed = Instant::now();
    match client.try_reply(PATIENCE) {
        Err(error) if is_closed(&error) => {}
        other => return Err(format!("an answer, or none and no end either: {other:?}")),
    }
    ends_for_the_disk(&mut server)?;
    let took = failed.elapsed();
    if took > AT_ONCE {
        return Err(format!("it ended only after {took:?}"));
    }
    Ok((held, took))
}

fn ends_for_the_disk(server: &mut Server) -> Result<(), String> {
    let code = server.exit_code()?;
    let stderr = server.stderr();
    if code != EXIT_DISK || !stderr.contains("check the disk") {
        return Err(format!("it ended with exit code {code}:\n{stderr}"));
    }
    Ok(())
}

impl Setup {
    /// Starts the server on the disk for `f`; then the power goes, and comes again.
    fn until_cut<T>(
        &mut self,
        durability: &str,
        f: impl FnOnce(&SharedDisk, Server) -> Result<T, String>,
    ) -> Result<T, String> {
        self.machine.boot(&mut self.rng);
        self.machine
            .configure(&self.at.join("data"), durability, LOG);
        let session = mount(&self.disk, &self.at).map_err(|error| format!("mount: {error}"))?;
        let done = self
            .machine
            .start()
            .and_then(|server| f(&self.disk, server));
        // Whatever happened, the file system must not stay mounted.
        locked(&self.disk).is_on = false;
        let unmounted = session.umount_and_join();
        let done = done?;
        unmounted.map_err(|error| format!("unmount: {error}"))?;
        let mut disk = locked(&self.disk);
        disk.disk.cut(&mut self.rng, &mut Damage::default());
        disk.is_on = true;
        disk.syncs = Syncs::Work;
        disk.syncs_met = 0;
        Ok(done)
    }
}
