//! The two programs together: a short load against the ceiling.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ticketing_bench::load::Measured;
use ticketing_bench::servers::{Programs, Running, System};

const BENCH: &str = env!("CARGO_BIN_EXE_bench");

fn start_ceiling(root: &Path) -> Running {
    let programs = Programs {
        ceiling: env!("CARGO_BIN_EXE_ceiling").into(),
        server: PathBuf::new(),
        server_args: Vec::new(),
    };
    Running::start(System::Ceiling, &programs, root).unwrap()
}

fn bench(args: &[&str]) -> Output {
    Command::new(BENCH).args(args).output().unwrap()
}

#[test]
fn a_short_load_is_exact_and_measured() {
    let root = tempfile::tempdir().unwrap();
    let ceiling = start_ceiling(root.path());
    let addr = ceiling.addr().to_string();
    let pid = ceiling.pid().to_string();
    let args = [
        "load",
        "--connect",
        &addr,
        "--pairs",
        "640",
        "--warm-up-pairs",
        "64",
    ];
    let output = bench(&[&args[..], &["--server-pid", &pid]].concat());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let measured: Measured = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(measured.pairs, 640);
    assert!(measured.pairs_per_s > 0.0 && measured.p50_us > 0);
    assert!(measured.p50_us <= measured.p99_us && measured.p99_us <= measured.max_us);
    assert!(measured.server_cpu_us_per_pair.is_some());
    ceiling.stop().unwrap();
}

#[test]
fn one_hot_key_is_handed_from_task_to_task() {
    let root = tempfile::tempdir().unwrap();
    let ceiling = start_ceiling(root.path());
    let addr = ceiling.addr().to_string();
    let load = |tasks: &str| {
        let shape = ["--tasks", tasks, "--keys", "1", "--pairs", "600"];
        bench(&[&["load", "--connect", &addr], &shape[..]].concat())
    };
    let output = load("257");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let measured: Measured = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(measured.pairs, 600);
    let none = load("0");
    assert_eq!(none.status.code(), Some(2));
    ceiling.stop().unwrap();
}

#[test]
fn rounds_end_in_a_table_and_json() {
    let root = tempfile::tempdir().unwrap();
    let json = root.path().join("figures.json");
    let output = bench(&[
        "--rounds",
        "2",
        "--pairs",
        "320",
        "--warm-up-pairs",
        "32",
        "--json",
        json.to_str().unwrap(),
        "--data-root",
        root.path().to_str().unwrap(),
    ]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("ceiling (nothing kept)"), "{table}");
    let figures: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(figures["runs"].as_array().unwrap().len(), 2);
    assert_eq!(figures["summary"][0]["of_ceiling"], 1.0);
    // Every server and every folder is gone.
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
}

#[test]
fn a_server_that_is_not_one_fails_the_run() {
    let root = tempfile::tempdir().unwrap();
    let output = bench(&[
        "--server",
        "/bin/false",
        "--rounds",
        "1",
        "--pairs",
        "64",
        "--data-root",
        root.path().to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("ended before it was ready"), "{stderr}");
}
