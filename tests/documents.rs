//! The documents are true: what the README prints is what happens, and what the
//! guides list is what there is.

use std::fs;
use std::path::{Path, PathBuf};

use ticketing::fatal::Fatal;

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
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
fn the_reference_of_the_configuration_is_the_one_that_the_program_prints() {
    let page = document("docs/configuration.md");
    let shown = page.split("```toml\n").nth(1);
    let shown = shown.and_then(|rest| rest.split("```").next());
    assert_eq!(
        shown.expect("the file"),
        ticketing::config::reference(),
        "`make reference` writes it anew"
    );
}

#[test]
fn the_configuration_in_the_operations_guide_is_valid_and_its_values_the_defaults() {
    let guide = document("docs/operations.md");
    let chapter = guide.split("## The configuration file").nth(1);
    let example = chapter
        .expect("the chapter")
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
        .filter(|line| {
            // What names files of its own, or another number than this machine's.
            !["_file", "[tls]", "shards = 7"]
                .iter()
                .any(|left_out| line.contains(left_out))
        })
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

/// Every file of Rust below a folder.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("text");
            found.push((path, text));
        }
    }
}

#[test]
fn what_the_tables_about_the_raft_core_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["raftlog/src", "raftlog/tests", "tests/sim/src"] {
        sources(&root.join(folder), &mut files);
    }
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let is_there = |word: &str| {
        let script = root.join(format!("raftlog/tests/raft/{word}.txt"));
        script.exists()
            || files.iter().any(|(_, text)| {
                text.match_indices(word).any(|(at, _)| {
                    !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
                })
            })
    };
    let page = document("docs/raft.md");
    let (mut names, mut tests) = (0, 0);
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        // "`file.rs`: `test`" is a test of that file; "`test...`" begins like that.
        let mut file: Option<&str> = None;
        // The first column has the paper's words.
        let (_, row) = row.split_once(" | ").expect("columns");
        for name in row.split('`').skip(1).step_by(2) {
            names += 1;
            let begin = name.strip_suffix("...").map(|begin| format!("fn {begin}"));
            if name.ends_with(".rs") {
                assert!(files.iter().any(|(path, _)| path.ends_with(name)), "{name}");
                file = Some(name);
            } else if let (Some(file), true) = (file, name.matches('_').count() > 3) {
                let begin = begin.unwrap_or_else(|| format!("fn {name}("));
                let known = files
                    .iter()
                    .any(|(path, text)| path.ends_with(file) && text.contains(&begin));
                assert!(known, "{name} of {file}");
                tests += 1;
            } else if let Some(begin) = begin {
                assert!(
                    files.iter().any(|(_, text)| text.contains(&begin)),
                    "{name}"
                );
                tests += 1;
            } else {
                let words = name.split(|c| !is_part(c)).filter(|word| !word.is_empty());
                for word in words {
                    assert!(is_there(word), "{word}, in {row}");
                }
            }
        }
    }
    assert!(names > 100 && tests > 15, "{names} names, {tests} tests");
}
