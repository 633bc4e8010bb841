//! The published client's own tests, unchanged, against the real server on the port they expect.
//!
//! The client's source is not ours to keep: cargo has it, and it is copied from there to a
//! folder under the target folder, built there and run there.

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::support::{Options, RawClient, Server};

/// Where the client's tests look for a server.
const ADDRESS: &str = "127.0.0.1:5225";
/// The version that is our dev-dependency.
const VERSION: &str = "0.4.0";

/// What to run of it: a test target, a test in it, and how many acquires that makes. Its other
/// targets need a cluster, and its unit tests need files that are not published. Each test has a
/// process of its own, because the tests of one target share a client that ends with the first.
const IN_SINGLE_MODE: [(&str, &str, u64); 4] = [
    ("nc_example_simple_test", "example_simple", 1),
    ("nc_bank_test", "example_bank", 800),
    ("nc_bench_test", "steady_state_bench", 40_000),
    ("nc_bench_test", "burst_40k_tasks", 40_000),
];

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
        let targets = IN_SINGLE_MODE.map(|(target, _, _)| ["--test", target]);
        let targets = targets.concat();
        let build = |more: &[&str]| self.test(&[&["--no-run"], more, &targets].concat());
        if !build(&["--offline"]).status.success() {
            let output = build(&[]);
            assert!(output.status.success(), "not built:\n{}", text_of(output));
        }
    }

    /// Runs one test, which must pass; what was printed.
    fn run(&self, target: &str, test: &str) -> String {
        let output = self.test(&[
            "--offline",
            "--test",
            target,
            "--",
            "--exact",
            test,
            "--include-ignored",
            "--test-threads=1",
        ]);
        let succeeded = output.status.success();
        let text = text_of(output);
        assert!(succeeded, "{target} {test}:\n{text}");
        text
    }

    /// `cargo test`: what carries the load is optimised, all else built as quickly as can be.
    fn test(&self, arguments: &[&str]) -> Output {
        let mut always = vec!["test", "--features", "tracing"];
        for setting in [
            "profile.dev.debug=0",
            "profile.dev.opt-level=1",
            "profile.dev.package.'*'.opt-level=0",
            "profile.dev.package.tokio.opt-level=1",
        ] {
            always.extend(["--config", setting]);
        }
        self.cargo(&[&always, arguments].concat())
    }

    fn cargo(&self, arguments: &[&str]) -> Output {
        cargo()
            .args(arguments)
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", &self.target)
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
