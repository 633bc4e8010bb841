//! The shape of the running process: rings, mappings, threads, what an idle
//! server costs.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use support::{Options, RawClient, Server, wait_until};

fn rings(pid: u32) -> usize {
    descriptors(pid)
        .iter()
        .filter(|link| link.contains("io_uring"))
        .count()
}

fn descriptors(pid: u32) -> Vec<String> {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("the process lives")
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .collect()
}

fn thread_names(pid: u32) -> Vec<String> {
    fs::read_dir(format!("/proc/{pid}/task"))
        .expect("the process lives")
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .collect()
}

/// The executors' names: their helper threads carry the same ones.
fn executors(pid: u32) -> usize {
    thread_names(pid)
        .into_iter()
        .filter(|name| name.starts_with("shard-") || name == "consensus")
        .collect::<BTreeSet<String>>()
        .len()
}

#[test]
fn each_executor_has_a_ring_of_its_own_and_the_segment_is_mapped() {
    for shards in [1_u16, 2, 3] {
        let server = Server::start(Options::shards(shards));
        let mut client = RawClient::connect(server.address);
        let token = client.hold("k", 5);
        client.give_back("k", token);
        let pid = server.pid();
        let (rings, executors) = (rings(pid), executors(pid));
        assert!(executors >= usize::from(shards), "{:?}", thread_names(pid));
        assert_eq!(rings, executors, "one ring for each executor");

        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process lives");
        let log = server.data_dir().join("log");
        let mapped: Vec<&str> = maps
            .lines()
            .filter(|line| line.contains(&*log.to_string_lossy()))
            .collect();
        assert!(
            !mapped.is_empty(),
            "no segment of {} is mapped",
            log.display()
        );
        assert!(
            mapped.iter().all(|line| line.contains(" r--s ")),
            "segments are mapped shared and read-only: {mapped:?}"
        );
    }
}

#[test]
fn the_consensus_role_has_an_executor_of_its_own_or_shares_the_first_shards() {
    for (top, executors_expected) in [
        ("consensus_core = \"own\"", 3),
        ("consensus_core = \"shared\"", 2),
    ] {
        let server = Server::start(Options::shards(2).top(top));
        let mut client = RawClient::connect(server.address);
        for key in ["a", "b", "c", "d"] {
            let token = client.hold(key, 5);
            client.give_back(key, token);
        }
        assert_eq!(executors(server.pid()), executors_expected, "{top}");
    }
}

#[test]
fn closed_connections_leave_no_descriptor_and_an_idle_server_costs_nothing() {
    let server = Server::start(Options::shards(2));
    let pid = server.pid();
    let before = descriptors(pid).len();
    let clients: Vec<RawClient> = (0..200)
        .map(|_| RawClient::connect(server.address))
        .collect();
    assert!(descriptors(pid).len() >= before + 200);
    drop(clients);
    wait_until("all descriptors are given back", || {
        descriptors(pid).len() <= before
    });

    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split(' ').collect();
        let number = |at: usize| fields[at].parse::<u64>().expect("a number");
        number(12) + number(13)
    };
    // A tick is 10 ms, so this is at most 2 % of a core; it is far less.
    let (start, watched) = (ticks(), Duration::from_secs(3));
    std::thread::sleep(watched);
    let used = ticks() - start;
    println!("idle: {} ms of CPU in {watched:?}", used * 10);
    assert!(used <= 6, "an idle server used {used} ticks in {watched:?}");
}

#[test]
fn a_mapping_that_cannot_be_read_ends_the_process_with_a_code_of_its_own() {
    let mut server = Server::start(Options::shards(1));
    let pid = rustix::process::Pid::from_raw(i32::try_from(server.pid()).expect("a pid"))
        .expect("not zero");
    rustix::process::kill_process(pid, rustix::process::Signal::BUS).expect("it runs");
    let (status, _) = server.wait_exit();
    assert_eq!(
        status.code(),
        Some(ticketing::fatal::Fatal::MappedRead.code())
    );
}

/// The cores each thread of a process may run on, as the kernel writes them, by the thread's name.
fn cores_of_threads(pid: u32) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    tasks
        .map(|task| {
            let status = fs::read_to_string(task.expect("listed").path().join("status"));
            let status = status.expect("the thread lives");
            let field = |name: &str| {
                let line = status.lines().find(|line| line.starts_with(name));
                let value = line.and_then(|line| line.split_once(':'));
                value.map_or(String::new(), |(_, value)| value.trim().to_owned())
            };
            (field("Name"), field("Cpus_allowed_list"))
        })
        .collect()
}

#[test]
fn the_executor_and_its_append_thread_stay_on_the_named_core_and_the_others_do_not() {
    let everywhere = cores_of_threads(std::process::id()).remove(0).1;
    let last = everywhere
        .rsplit(['-', ','])
        .next()
        .expect("one core")
        .to_owned();
    for (cores, expected) in [
        (format!("cores = [{last}]"), &last),
        ("cores = \"any\"".to_owned(), &everywhere),
    ] {
        let top = format!("consensus_core = \"shared\"\n{cores}");
        let server = Server::start(Options::shards(1).top(top.leak()));
        let mut client = RawClient::connect(server.address);
        let token = client.hold("a", 5);
        client.give_back("a", token);
        let threads = cores_of_threads(server.pid());
        for (name, on) in &threads {
            let stays = matches!(name.as_str(), "shard-0" | "log");
            let on_expected = if stays { expected } else { &everywhere };
            assert_eq!(on, on_expected, "{cores}: {name} of {threads:?}");
        }
        assert!(threads.iter().any(|(name, _)| name == "log"), "{threads:?}");
    }
}
