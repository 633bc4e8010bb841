//! The documents are true: what the README prints is what happens, and what the
//! guides list is what there is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ticketing::fatal::Fatal;

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The commands of the README's quick start, each with the output under it.
fn quick_start() -> Vec<(String, Vec<String>)> {
    let readme = document("README.md");
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

#[test]
fn every_exit_code_is_in_the_operations_guide_and_no_other() {
    let guide = document("docs/operations.md");
    let table = guide.split("## Exit codes").nth(1).expect("the table");
    let listed: Vec<i32> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok())
        .collect();
    let mut expected = vec![0, 1, 2];
    expected.extend(Fatal::ALL.iter().map(|fatal| fatal.code()));
    assert_eq!(listed, expected);
}

#[test]
fn the_configuration_in_the_operations_guide_is_valid_and_its_values_the_defaults() {
    let guide = document("docs/operations.md");
    let example = guide
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("the example");
    let folder = tempfile::tempdir().expect("a folder");
    let with = |text: &str| {
        let path = folder.path().join("ticketing.toml");
        fs::write(&path, text).expect("written");
        ticketing::config::Config::from_file(&path).expect("a valid configuration")
    };
    let plain = with(example);
    // The commented lines show the defaults, except where a token would be read.
    let uncommented: Vec<String> = example
        .lines()
        .filter(|line| !line.contains("client_token_file") && !line.contains("shards = 7"))
        .map(|line| line.trim_start_matches("# ").to_owned())
        .collect();
    let full = with(&uncommented.join("\n"));
    assert_eq!(plain.durability, full.durability);
    assert_eq!(plain.consensus_shared, full.consensus_shared);
    assert_eq!(plain.log, full.log);
    assert_eq!(
        ticketing::config::Limits {
            connections: None,
            ..full.limits
        },
        plain.limits
    );
    assert_eq!(
        full.limits.connections,
        Some(ticketing::limits::CONNECTIONS_DEFAULT)
    );
}

#[test]
fn every_document_that_is_linked_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = vec![PathBuf::from("README.md"), PathBuf::from("CHANGELOG.md")];
    for folder in ["docs", "docs/adr"] {
        for entry in fs::read_dir(root.join(folder)).expect("a folder of documents") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                names.push(
                    path.strip_prefix(root)
                        .expect("below the root")
                        .to_path_buf(),
                );
            }
        }
    }
    assert!(names.len() > 5);
    for name in names {
        let text = document(&name.to_string_lossy());
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let beside = root.join(&name).parent().expect("in a folder").join(target);
            assert!(beside.exists(), "{} links to {target}", name.display());
        }
    }
}
