//! The README's quick start works as printed, with its real output.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The commands of the README's quick start, each with the output under it.
fn quick_start() -> Vec<(String, Vec<String>)> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(readme).expect("the README");
    let block = readme
        .split("```console\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("the README has a quick start");
    let mut steps: Vec<(String, Vec<String>)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push((command.to_owned(), Vec::new())),
            (None, Some((_, output))) => output.push(line.to_owned()),
            (None, None) => panic!("output without a command: {line}"),
        }
    }
    steps
}

/// What differs from run to run (identities, tokens, shards of this machine),
/// made the same.
fn normal(line: &str) -> String {
    let words = line.split(' ').map(|word| {
        let varies = word.len() >= 12 && word.chars().all(|c| c.is_ascii_hexdigit() || c == ',');
        if varies {
            "#".to_owned()
        } else {
            word.replace("shards", "shard")
        }
    });
    let mut line = words.collect::<Vec<_>>().join(" ");
    if let Some(at) = line.find("token=") {
        line.truncate(at + "token=".len());
    }
    if let Some((before, after)) = line.split_once(" shard") {
        let kept = before.trim_end_matches(|c: char| c.is_ascii_digit());
        line = format!("{kept}N shard{after}");
    }
    line
}

#[test]
fn the_quick_start_works_as_printed() {
    let steps = quick_start();
    assert_eq!(steps[0].0, "cargo install --path . --locked");
    let folder = tempfile::tempdir().expect("a folder");
    // Installing is CI's part; here the binary that was just built is on the
    // path, and cargo finds the example in the project.
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_ticketing"));
    let path = format!(
        "{}:{}",
        binary.parent().expect("in a folder").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut script = String::from("set -u\n");
    for (command, _) in &steps[1..] {
        let command = command.replace(
            "cargo run",
            &format!(
                "cargo run --manifest-path {}/Cargo.toml",
                env!("CARGO_MANIFEST_DIR")
            ),
        );
        script.push_str("echo '@@@'\n");
        if command.ends_with('&') {
            // A person sees the ready line before typing on.
            script.push_str(&command.replace('&', "> served 2> log &\n"));
            script.push_str(
                "for i in $(seq 1 300); do grep -q ready served && break; sleep 0.1; done; cat served\n",
            );
        } else {
            script.push_str(&command);
            script.push('\n');
        }
    }
    script.push_str("wait\n");
    let script = format!("set -m\n{script}");
    let output = Command::new("timeout")
        .args(["300", "bash", "-c", &script])
        .current_dir(folder.path())
        .env("PATH", path)
        .output()
        .expect("bash runs");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    let printed: Vec<&str> = stdout.split("@@@\n").skip(1).collect();
    assert_eq!(printed.len(), steps.len() - 1, "{stdout}\n{stderr}");
    for ((command, expected), printed) in steps[1..].iter().zip(printed) {
        let printed: Vec<String> = printed.lines().map(normal).collect();
        let expected: Vec<String> = expected.iter().map(|line| normal(line)).collect();
        assert_eq!(printed, expected, "after `{command}`\n{stderr}");
    }
}
