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
