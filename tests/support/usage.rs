//! What a running process uses, as the kernel counts it.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// Its anonymous memory (`RssAnon`), in KiB: what it allocated, without the mapped log.
pub fn anonymous_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .expect("a number of KiB")
}

/// Its open descriptors, by what they are: sockets, files, rings.
pub fn descriptors(pid: u32) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives") {
        // One that is closed meanwhile cannot be read.
        let link = entry.and_then(|entry| fs::read_link(entry.path()));
        if let Ok(link) = link {
            let link = link.to_string_lossy();
            let kind = link.split(":[").next().unwrap_or(&link);
            *kinds.entry(kind.to_owned()).or_default() += 1;
        }
    }
    kinds
}

/// The CPU time that all its threads have used. A thread that has ended no longer counts.
pub fn cpu_time(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    let nanoseconds = tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .sum();
    Duration::from_nanos(nanoseconds)
}

/// Lets this process open as many files as it may; that number.
pub fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("the soft limit may be raised to the hard one");
    limit.maximum.unwrap_or(u64::MAX)
}
