//! The published client's own tests, unchanged, against the real server on the port they expect.
//!
//! The client's source is not ours to keep: cargo has it, and it is copied from there to a
//! folder under the target folder, built there and run there.

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::server::BINARY;
use crate::support::{Options, PATIENCE, RawClient, Server};

/// Where the client's tests look for a server.
const ADDRESS: &str = "127.0.0.1:5225";
/// The version that is our dev-dependency.
const VERSION: &str = "0.4.0";

/// What to run of it: a test target, a test in it, and how many acquires that makes. Its unit tests need files
/// that are not published. Each test has a process of its own, because the tests of one target share a client
/// that ends with the first.
const IN_SINGLE_MODE: [(&str, &str, u64); 4] = [
    ("nc_example_simple_test", "example_simple", 1),
    ("nc_bank_test", "example_bank", 800),
    ("nc_bench_test", "steady_state_bench", 40_000),
    ("nc_bench_test", "burst_40k_tasks", 40_000),
];

/// What to run of it against a cluster of three on the ports it expects.
const IN_A_CLUSTER: [(&str, &str); 2] = [
    ("nc_cluster_test", "cluster_acquire_release_and_fencing"),
    (
        "nc_cluster_chaos_test",
        "cluster_stays_safe_during_fresh_node_replacements",
    ),
];
/// How long its chaos load runs, and how often a node is killed under it.
const CHAOS_S: u64 = 20;
const KILL_EVERY: Duration = Duration::from_secs(4);

#[test]
fn the_published_clients_own_tests_pass() {
    let copy = copy_of_the_client();
    // Built before the server starts, so that nothing is measured meanwhile.
    copy.build();
    let server = Server::start(Options::shards(2).listen(ADDRESS));
    let mut expected = 0;
    for (target, test, acquires) in IN_SINGLE_MODE {
        let started = Instant::now();
        let text = copy.run(target, test);
        assert_eq!(passed(&text), 1, "{target} {test}:\n{text}");
        println!("{target} {test}: passed in {:.1?}", started.elapsed());
        expected += acquires;
    }
    server.wait_metric("locks_held", 0);
    // They did talk to this server, and it granted each request once.
    let acquired = server.metric("answers{kind=\"acquired\"}");
    assert_eq!(acquired, expected);
    RawClient::connect(server.address).assert_usable();
    println!("{} tests, {acquired} acquires", IN_SINGLE_MODE.len());
    drop(server);

    let mut cluster = Cluster::start();
    let settings = [
        (
            "TICKETING_CLIENT_TOKEN",
            cluster.read("slot-0/client.token"),
        ),
        ("TICKETING_IDENTITY_FINGERPRINT", cluster.fingerprint()),
        ("TICKETING_CHAOS_SECS", CHAOS_S.to_string()),
    ];
    for (target, test) in IN_A_CLUSTER {
        let text = std::thread::scope(|scope| {
            let running = scope.spawn(|| copy.run_with(target, test, &settings));
            let mut slot = 0;
            let mut killed = Instant::now();
            while !running.is_finished() {
                std::thread::sleep(Duration::from_millis(50));
                if killed.elapsed() > KILL_EVERY {
                    cluster.kill(slot);
                    std::thread::sleep(Duration::from_secs(1));
                    cluster.run(slot);
                    slot = (slot + 1) % NODES;
                    killed = Instant::now();
                }
            }
            running.join().expect("it ran")
        });
        assert_eq!(passed(&text), 1, "{target} {test}:\n{text}");
        let result = text.lines().find(|line| line.contains("RESULT"));
        println!("{target} {test}: passed {}", result.unwrap_or_default());
    }
}

const NODES: usize = 3;

/// A cluster on the default ports. Dropped, it is killed and reaped.
struct Cluster {
    dir: tempfile::TempDir,
    nodes: [Option<Child>; NODES],
}

impl Cluster {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let made = Command::new(BINARY)
            .args(["cluster", "init", "--nodes", "3", "--dir"])
            .arg(dir.path().join("cluster"))
            .output()
            .expect("it runs");
        assert!(made.status.success(), "{}", text_of(made));
        let mut cluster = Self {
            dir,
            nodes: [None, None, None],
        };
        for slot in 0..NODES {
            cluster.run(slot);
        }
        let is_ready = |slot: usize| {
            cluster
                .read(&format!("slot-{slot}/log.txt"))
                .contains("ready")
        };
        let deadline = Instant::now() + PATIENCE;
        while !(0..NODES).all(is_ready) {
            assert!(Instant::now() < deadline, "the cluster is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        cluster
    }

    fn run(&mut self, slot: usize) {
        let folder = self.dir.path().join("cluster").join(format!("slot-{slot}"));
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join("log.txt"));
        let log = log.expect("a log");
        let child = Command::new(BINARY)
            .args(["serve", "--config"])
            .arg(folder.join("ticketing.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn();
        self.nodes[slot] = Some(child.expect("it starts"));
    }

    fn kill(&mut self, slot: usize) {
        if let Some(mut child) = self.nodes[slot].take() {
            child.kill().expect("it was running");
            child.wait().expect("it is reaped");
        }
    }

    fn read(&self, name: &str) -> String {
        let text = fs::read_to_string(self.dir.path().join("cluster").join(name));
        text.unwrap_or_default().trim_end().to_owned()
    }

    fn fingerprint(&self) -> String {
        let said = Command::new(BINARY)
            .args(["cluster", "fingerprint", "--dir"])
            .arg(self.dir.path().join("cluster"))
            .output()
            .expect("it runs");
        String::from_utf8_lossy(&said.stdout).trim_end().to_owned()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().flatten() {
            // One that has ended already is no news.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A copy of the client's source that can be built.
struct Copy {
    folder: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Builds what will be run. What our own build has fetched is enough, unless the client's
    /// tests come to need more; then cargo fetches it.
    fn build(&self) {
        let single = IN_SINGLE_MODE.map(|(target, _, _)| ["--test", target]);
        let cluster = IN_A_CLUSTER.map(|(target, _)| ["--test", target]);
        let targets = [single.concat(), cluster.concat()].concat();
        let build = |more: &[&str]| self.test(&[&["--no-run"], more, &targets].concat());
        if !build(&["--offline"]).status.success() {
            let output = build(&[]);
            assert!(output.status.success(), "not built:\n{}", text_of(output));
        }
    }

    /// Runs one test, which must pass; what was printed.
    fn run(&self, target: &str, test: &str) -> String {
        self.run_with(target, test, &[])
    }

    /// The same, with settings in its environment.
    fn run_with(&self, target: &str, test: &str, settings: &[(&str, String)]) -> String {
        let output = self.test_with(
            settings,
            &[
                "--offline",
                "--test",
                target,
                "--",
                "--exact",
                test,
                "--include-ignored",
                "--test-threads=1",
                "--nocapture",
            ],
        );
        let succeeded = output.status.success();
        let text = text_of(output);
        assert!(succeeded, "{target} {test}:\n{text}");
        text
    }

    /// `cargo test`: what carries the load is optimised, all else built as quickly as can be.
    fn test(&self, arguments: &[&str]) -> Output {
        self.test_with(&[], arguments)
    }

    fn test_with(&self, settings: &[(&str, String)], arguments: &[&str]) -> Output {
        let mut always = vec!["test", "--features", "tracing"];
        for setting in [
            "profile.dev.debug=0",
            "profile.dev.opt-level=1",
            "profile.dev.package.'*'.opt-level=0",
            "profile.dev.package.tokio.opt-level=1",
        ] {
            always.extend(["--config", setting]);
        }
        self.cargo(settings, &[&always, arguments].concat())
    }

    fn cargo(&self, settings: &[(&str, String)], arguments: &[&str]) -> Output {
        cargo()
            .args(arguments)
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", &self.target)
            .envs(settings.iter().cloned())
            .output()
            .expect("cargo runs")
    }
}

/// Copies the client's source next to what is built of it, with our lock file, so that it is
/// built with the very dependencies that our own tests use.
fn copy_of_the_client() -> Copy {
    let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join("published-suite");
    let folder = base.join("source");
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("the last copy is removed");
    }
    let source = source_of_the_client();
    for part in ["src", "tests", "examples"] {
        copy_tree(&source.join(part), &folder.join(part));
    }
    let manifest = fs::read_to_string(source.join("Cargo.toml.orig")).expect("its manifest");
    // It lies inside our workspace and is none of it; and it pins its tests to one release of
    // serde_json, where any will do.
    let manifest = manifest.replace("serde_json = \"=1", "serde_json = \"1") + "\n[workspace]\n";
    fs::write(folder.join("Cargo.toml"), manifest).expect("written");
    let lock_file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock");
    fs::copy(lock_file, folder.join("Cargo.lock")).expect("our lock file is copied");
    Copy {
        folder,
        target: base.join("target"),
    }
}

/// Where cargo keeps the client's source.
fn source_of_the_client() -> PathBuf {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata failed");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let client = packages
        .iter()
        .find(|package| package["name"] == "ticketing" && package["version"] == VERSION)
        .expect("the published client is a dev-dependency");
    let manifest = client["manifest_path"].as_str().expect("a path");
    Path::new(manifest).parent().expect("a folder").to_owned()
}

/// The cargo that runs this test, without what it told this test about our own package.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_")
            || text.starts_with("CARGO_BIN_EXE_")
            || text.starts_with("TICKETING_")
            || text == "CARGO_MANIFEST_DIR"
            || text == "CARGO_TARGET_DIR"
        {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null());
    command
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).expect("copied");
        }
    }
}

fn text_of(output: Output) -> String {
    [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .join("\n")
}

/// How many tests passed, over all the targets that ran.
fn passed(text: &str) -> usize {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("test result: ok. "))
        .map(|rest| {
            let count = rest.split_whitespace().next().expect("a count");
            count.parse::<usize>().expect("a number")
        })
        .sum()
}
