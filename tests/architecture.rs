//! The shape of the code, held by a test: who may know whom, and what the pure
//! parts may not touch.

use std::fs;
use std::path::{Path, PathBuf};

/// Every Rust file below `path` (or the file itself), with its text without
/// comments and without its own tests.
fn code_of(path: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut files = Vec::new();
    collect(&root, &mut files);
    assert!(
        !files.is_empty(),
        "{path} has moved: this test looks for it"
    );
    files
        .into_iter()
        .filter(|file| !file.ends_with("tests.rs"))
        .map(|file| {
            let text = fs::read_to_string(&file).expect("readable source");
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            let code: Vec<&str> = text
                .lines()
                .map(|line| line.split("//").next().unwrap_or_default())
                .collect();
            (file, code.join("\n"))
        })
        .collect()
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_file() {
        files.push(path.to_path_buf());
        return;
    }
    let mut entries: Vec<PathBuf> = fs::read_dir(path)
        .expect("a folder of the project")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    entries.sort();
    for entry in entries {
        if entry.is_dir() && entry.file_name().is_some_and(|name| name != "tests") {
            collect(&entry, files);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            files.push(entry);
        }
    }
}

/// True when `word` stands in `code` as a word of its own.
fn mentions(code: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

fn forbid(path: &str, words: &[&str], why: &str) {
    for (file, code) in code_of(path) {
        for word in words {
            assert!(
                !mentions(&code, word),
                "{} mentions `{word}`: {why}",
                file.display()
            );
        }
    }
}

#[test]
fn words_are_found_as_words() {
    assert!(mentions("use std::sync::Mutex;", "Mutex"));
    assert!(!mentions("use our::MutexLike;", "Mutex"));
    assert!(!mentions("a_tokio_b", "tokio"));
}

#[test]
fn what_a_core_owns_is_never_locked() {
    for path in [
        "src/locks",
        "src/shard",
        "src/consensus",
        "src/lanes.rs",
        "src/lanes",
    ] {
        forbid(
            path,
            &["Mutex", "RwLock", "Condvar", "tokio"],
            "what one core owns needs no lock, and no other runtime",
        );
    }
}

#[test]
fn pure_parts_have_no_clock_no_randomness_no_io_and_no_random_order() {
    const IMPURE: &[&str] = &[
        "Instant",
        "SystemTime",
        "rand",
        "getrandom",
        "HashMap",
        "HashSet",
        "thread",
        "async",
        "File",
        "fs",
        "net",
        "io",
        "io_uring",
        "tokio",
        "tracing",
        "unsafe",
        "println",
    ];
    for path in [
        "src/locks",
        "raftlog/src/raft",
        "raftlog/src/batch.rs",
        "raftlog/src/format.rs",
        "raftlog/src/index.rs",
        "raftlog/src/peers",
        "raftlog/src/scan.rs",
        "raftlog/src/snapshot/format.rs",
        "raftlog/src/writer.rs",
        "tests/sim/src/node",
    ] {
        forbid(
            path,
            IMPURE,
            "it must be a plain function of state and input",
        );
    }
    forbid(
        "protocol/src",
        &[
            "Instant",
            "SystemTime",
            "thread",
            "async",
            "File",
            "fs",
            "net",
            "tokio",
            "unsafe",
        ],
        "the protocol is bytes in, bytes out",
    );
}

#[test]
fn imports_go_one_way() {
    forbid(
        "src/locks",
        &["ticketing_raftlog", "consensus", "lanes", "runtime", "node"],
        "the lock table knows nothing of the log, the executors or sockets",
    );
    forbid(
        "raftlog/src",
        &["ticketing_protocol", "io_uring"],
        "the log knows nothing of locks, the protocol or the runtime",
    );
    forbid(
        "protocol/src",
        &["ticketing_raftlog", "io_uring"],
        "the protocol imports nothing of ours",
    );
    for path in ["raftlog/src", "protocol/src"] {
        for (file, code) in code_of(path) {
            assert!(
                !code.contains("ticketing::"),
                "{} imports the server",
                file.display()
            );
        }
    }
    // They meet only through the messages of the lanes.
    for (path, word) in [("src/shard", "consensus"), ("src/consensus", "shard")] {
        for (file, code) in code_of(path) {
            let import = format!("crate::{word}");
            assert!(
                !code.contains(&import),
                "{} imports {import}: they meet only through the lanes",
                file.display()
            );
        }
    }
}

#[test]
fn one_folder_knows_the_ring_and_two_files_may_be_unsafe() {
    for (file, code) in code_of("src") {
        let name = file
            .strip_prefix(env!("CARGO_MANIFEST_DIR"))
            .expect("below the root");
        assert!(
            name.starts_with("src/runtime") || !code.contains("io_uring::"),
            "{} knows the ring",
            name.display()
        );
        assert!(
            name == Path::new("src/runtime/ring.rs") || !mentions(&code, "unsafe"),
            "{} is unsafe",
            name.display()
        );
        let may_use_tokio = name.starts_with("src/cli") || name.starts_with("src/admin");
        assert!(
            may_use_tokio || !mentions(&code, "tokio"),
            "{} uses tokio",
            name.display()
        );
    }
    for (file, code) in code_of("raftlog/src") {
        assert!(
            file.ends_with("segment.rs") || !mentions(&code, "unsafe"),
            "{} is unsafe",
            file.display()
        );
    }
}

#[test]
fn no_file_has_a_thousand_lines() {
    for path in ["src", "protocol/src", "raftlog/src", "bench/src", "tests"] {
        let mut files = Vec::new();
        collect(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join(path),
            &mut files,
        );
        for file in files {
            let lines = fs::read_to_string(&file)
                .expect("readable source")
                .lines()
                .count();
            assert!(lines < 1_000, "{} has {lines} lines", file.display());
        }
    }
}
