//! A full disk, a small ext4 of its own: acquires are answered Busy, releases and expiries go on,
//! nothing crashes, and the service resumes when there is room.

mod support;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use support::raw::{acquire, release};
use support::server::{run, verify_log};
use support::{Options, RawClient, Server, wait_until};
use ticketing_protocol::Reply;

/// Requests sent before their answers are read.
const AT_ONCE: usize = 500;

/// A disk of its own at a server's data folder, until it is dropped.
struct SmallDisk {
    at: PathBuf,
    image: PathBuf,
}

impl SmallDisk {
    /// `None` where this process may not mount one.
    fn mount(at: &Path, mib: u64) -> Option<Self> {
        let image = at.with_extension("ext4");
        File::create(&image)
            .and_then(|file| file.set_len(mib << 20))
            .expect("an image");
        // Without blocks that only root may use: the server may be root or not.
        let done = |program: &str, args: &[&str]| {
            Command::new(program)
                .args(args)
                .arg(&image)
                .args((program == "mount").then_some(at))
                .output()
                .is_ok_and(|output| output.status.success())
        };
        let made = done("mkfs.ext4", &["-q", "-m", "0"]);
        (made && done("mount", &["-o", "loop"])).then(|| Self {
            at: at.to_path_buf(),
            image: image.clone(),
        })
    }

    fn filler(&self) -> PathBuf {
        self.at.join("filler")
    }

    /// Takes every block there is.
    fn fill(&self) {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(self.filler())
            .expect("a file");
        let mut part = vec![1; 1 << 20];
        while part.len() >= 512 {
            match file.write(&part) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => {
                    part.truncate(part.len() / 2);
                }
                Err(error) => panic!("{error}"),
            }
        }
        file.sync_all().expect("synced");
    }

    /// Gives them back.
    fn make_room(&self) {
        fs::remove_file(self.filler()).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        let _ = fs::remove_file(&self.image);
    }
}

/// A server on a small disk of its own.
fn server_on_small_disk(mib: u64, log: &'static str) -> Option<(Server, SmallDisk)> {
    let mut server = Server::start(Options::shards(2).limits(log));
    server.kill9();
    let disk = SmallDisk::mount(&server.data_dir(), mib);
    if disk.is_none() {
        println!("skipped: only root can mount a small disk");
        return None;
    }
    server.restart();
    disk.map(|disk| (server, disk))
}

/// A key as long as keys may be.
fn long_key(number: usize) -> String {
    format!("{number:0>128}")
}

/// Takes that many keys, so many that a snapshot of them fits no reserve; their tokens.
fn hold_many(client: &mut RawClient, count: usize) -> Vec<u64> {
    let mut tokens = vec![0; count];
    for part in (0..count).collect::<Vec<_>>().chunks(AT_ONCE) {
        let mut bytes = Vec::new();
        let first = client.new_id();
        for (place, number) in part.iter().enumerate() {
            let id = if place == 0 { first } else { client.new_id() };
            bytes.extend(acquire(id, &long_key(*number), 0, 250));
        }
        client.send_bytes(&bytes);
        for _ in part {
            match client.reply() {
                Reply::Acquired { request_id, token } => {
                    let place = usize::try_from(request_id - first).expect("small");
                    tokens[part[place]] = token;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    tokens
}

fn release_all(client: &mut RawClient, numbers: std::ops::Range<usize>, tokens: &[u64]) {
    let mut bytes = Vec::new();
    for number in numbers.clone() {
        bytes.extend(release(client.new_id(), &long_key(number), tokens[number]));
    }
    client.send_bytes(&bytes);
    for _ in numbers {
        let reply = client.reply();
        assert!(matches!(reply, Reply::Released { .. }), "{reply:?}");
    }
}

/// Takes and gives back one key until an acquire is answered Busy for want of room.
fn churn_until_full(server: &Server, client: &mut RawClient) {
    wait_until("an acquire is answered Busy", || {
        match client.acquire("churn", 0, 250) {
            Reply::Acquired { token, .. } => {
                client.give_back("churn", token);
                false
            }
            Reply::Busy { .. } => true,
            other => panic!("{other:?}"),
        }
    });
    server.wait_metric("log_full", 1);
}

#[test]
fn acquires_are_busy_releases_and_expiries_go_on_and_the_service_resumes() {
    // A segment holds some 250 batches, and the reserve as much as a segment.
    let log = "\n[log]\nsegment_bytes = 1048576\nsnapshot_log_bytes = 1000000000\n\
               snapshot_log_entries = 1000000000\n";
    let Some((mut server, disk)) = server_on_small_disk(48, log) else {
        return;
    };
    let mut client = RawClient::connect(server.address);
    let tokens = hold_many(&mut client, 16_000);
    client.hold("expires", 8);
    let mut waiter = RawClient::connect(server.address);
    let waiting = waiter.send_acquire("expires", 60, 250);
    disk.fill();
    churn_until_full(&server, &mut client);

    // Whether they would have to wait or not, and for as long as there is no room.
    for number in 0..20 {
        for (key, wait_s) in [("free", 0), ("free", 5), ("expires", 5)] {
            let reply = client.acquire(key, wait_s, 10);
            assert!(matches!(reply, Reply::Busy { .. }), "{key}: {reply:?}");
        }
        release_all(&mut client, number * 100..(number + 1) * 100, &tokens);
        std::thread::sleep(Duration::from_millis(30));
    }
    // Whoever stands in line already is served when the lease before it ends.
    let granted = waiter.reply();
    assert!(
        matches!(granted, Reply::Acquired { request_id, .. } if request_id == waiting),
        "{granted:?}"
    );
    assert_eq!(server.metric("log_full"), 1);
    assert_eq!(server.metric("snapshots"), 0, "there was no room for one");
    let said = server.stderr();
    assert_eq!(
        said.matches("no room for the next log segment").count(),
        1,
        "{said}"
    );

    // It comes back on a full disk too, with everything.
    server.kill9();
    server.restart();
    let mut client = RawClient::connect(server.address);
    release_all(&mut client, 2_000..2_100, &tokens);
    server.wait_metric("log_full", 1);
    let reply = client.acquire("free", 0, 10);
    assert!(matches!(reply, Reply::Busy { .. }), "{reply:?}");
    release_all(&mut client, 2_100..2_200, &tokens);

    disk.make_room();
    server.wait_metric("log_full", 0);
    client.hold("free", 10);
    for number in [0, 1_999, 2_199] {
        client.hold(&long_key(number), 10);
    }
    let reply = client.acquire(&long_key(2_200), 0, 10);
    assert!(matches!(reply, Reply::Busy { .. }), "it is held: {reply:?}");
    wait_until("the snapshot that a full disk asked for", || {
        server.metric("snapshots") > 0
    });
    drop(client);
    server.terminate();
    let (status, stderr) = server.wait_exit();
    assert!(status.success(), "{stderr}");
    assert_eq!(verify_log(&server.data_dir())["verdict"], "clean");
}

#[test]
fn the_reserve_lets_a_snapshot_make_room_for_ever() {
    let log = "\n[log]\nsegment_bytes = 65536\nsnapshot_log_bytes = 1000000000\n\
               snapshot_log_entries = 1000000000\n";
    let Some((mut server, disk)) = server_on_small_disk(24, log) else {
        return;
    };
    let mut client = RawClient::connect(server.address);
    let held = client.hold("held", 250);
    disk.fill();
    let mut granted = 0;
    wait_until("the log goes round and round", || {
        match client.acquire("churn", 0, 250) {
            Reply::Acquired { token, .. } => {
                granted += 1;
                client.give_back("churn", token);
            }
            Reply::Busy { .. } => {}
            other => panic!("{other:?}"),
        }
        server.metric("snapshots") >= 5
    });
    assert!(granted >= 5, "each time there was room for some: {granted}");
    drop(client);
    server.kill9();
    server.restart();
    RawClient::connect(server.address).give_back("held", held);
    drop(disk);
}

#[test]
fn a_node_started_on_a_used_up_log_serves_from_the_reserve() {
    let log = "\n[log]\nsegment_bytes = 65536\nsnapshot_log_bytes = 1000000000\n\
               snapshot_log_entries = 1000000000\n";
    let Some((mut server, disk)) = server_on_small_disk(24, log) else {
        return;
    };
    let mut client = RawClient::connect(server.address);
    let tokens = hold_many(&mut client, 4_000);
    disk.fill();
    churn_until_full(&server, &mut client);
    let log = server.data_dir().join("log");
    let segments = || fs::read_dir(&log).expect("a folder").count();
    let before = segments();

    // Each start appends a block or two of its own, and each release one.
    let mut released = 0;
    wait_until("the last segment is used up, and there is one more", || {
        server.kill9();
        server.restart();
        let mut client = RawClient::connect(server.address);
        release_all(&mut client, released..released + 1, &tokens);
        released += 1;
        segments() > before
    });
    assert!(released > 1, "there was some of the last segment left");
    let mut client = RawClient::connect(server.address);
    release_all(&mut client, released..released + 1, &tokens);
    let reply = client.acquire("free", 0, 10);
    assert!(matches!(reply, Reply::Busy { .. }), "{reply:?}");

    disk.make_room();
    server.wait_metric("log_full", 0);
    client.hold(&long_key(0), 10);
    let reserve = server.data_dir().join("snapshots/reserve");
    wait_until("the reserve is kept again", || reserve.exists());
}

#[test]
fn a_stop_does_not_wait_for_room() {
    let log = "\n[log]\nsegment_bytes = 65536\nsnapshot_log_bytes = 1000000000\n\
               snapshot_log_entries = 1000000000\n";
    let Some((mut server, disk)) = server_on_small_disk(24, log) else {
        return;
    };
    let mut client = RawClient::connect(server.address);
    let tokens = hold_many(&mut client, 4_000);
    disk.fill();
    churn_until_full(&server, &mut client);
    // One at a time, so that each takes a block, until the last segment is used up too.
    let mut released = 0;
    wait_until("a release cannot be told any more", || {
        match client.release(&long_key(released), tokens[released]) {
            Reply::Released { .. } => {
                released += 1;
                false
            }
            Reply::Indeterminate { .. } => true,
            other => panic!("{other:?}"),
        }
    });
    server.terminate();
    let (status, stderr) = server.wait_exit();
    assert!(status.success(), "{stderr}");
    assert!(stderr.contains("no room"), "{stderr}");

    let data = server.data_dir();
    let output = run(&["log", "verify", data.to_str().expect("text")]);
    assert!(output.status.success(), "{output:?}");
    disk.make_room();
    server.restart();
    let mut client = RawClient::connect(server.address);
    if released > 0 {
        client.hold(&long_key(released - 1), 10);
    }
    client.give_back(&long_key(released + 1), tokens[released + 1]);
}
