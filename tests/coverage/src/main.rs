//! Judges which regions of the Raft core and of the log's recovery the tests have run.
//!
//! Reads what `llvm-cov export` says of several programs that have the same code in them, and
//! prints each file's share and every region that none of them ran. Exit code 1 when less than the
//! least share was run, 2 when there is nothing to judge.

mod regions;

use std::fs;
use std::process::ExitCode;

use regions::{FileRegions, judge};

/// What is measured: the Raft core, and what a start reads a data folder with.
const MEASURED: &[&str] = &[
    "raftlog/src/raft/",
    "raftlog/src/batch.rs",
    "raftlog/src/folder.rs",
    "raftlog/src/hardstate.rs",
    "raftlog/src/index.rs",
    "raftlog/src/parse.rs",
    "raftlog/src/reader.rs",
    "raftlog/src/recovery.rs",
    "raftlog/src/scan.rs",
    "raftlog/src/snapshot/reader.rs",
];
/// Folders below those that hold tests.
const TESTS: &str = "/tests/";
/// The share of regions that must have run, in percent.
const LEAST_PERCENT: f64 = 95.0;

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: ticketing-coverage EXPORT.json, from the project's folder");
        return ExitCode::from(2);
    };
    match read(&path) {
        Ok(files) => report(&files),
        Err(why) => {
            eprintln!("coverage: {path}: {why}");
            ExitCode::from(2)
        }
    }
}

fn read(path: &str) -> Result<Vec<FileRegions>, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let export = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let here = std::env::current_dir().map_err(|error| error.to_string())?;
    let measured = |name: &str| {
        let name = name.strip_prefix(here.to_str()?)?.strip_prefix('/')?;
        let counts = MEASURED.iter().any(|start| name.starts_with(start)) && !name.contains(TESTS);
        counts.then(|| name.to_owned())
    };
    let files = judge(&export, &measured, &|name| fs::read_to_string(name))?;
    for start in MEASURED {
        if !files.iter().any(|file| file.name.starts_with(start)) {
            return Err(format!("nothing of {start} is in it"));
        }
    }
    Ok(files)
}

fn report(files: &[FileRegions]) -> ExitCode {
    for file in files {
        for miss in &file.missed {
            let text = miss.text.trim();
            println!("{}:{}:{}: {text}", file.name, miss.line, miss.column);
        }
    }
    println!();
    let percent = |run: usize, all: usize| 100.0 * run as f64 / all.max(1) as f64;
    let (mut run, mut all) = (0, 0);
    for file in files {
        let missed = file.missed.len();
        run += file.regions - missed;
        all += file.regions;
        let share = percent(file.regions - missed, file.regions);
        println!(
            "{share:6.2} %  {:4} of {:4}  {}",
            file.regions - missed,
            file.regions,
            file.name
        );
    }
    let share = percent(run, all);
    println!("{share:6.2} %  {run:4} of {all:4}  regions");
    if share > LEAST_PERCENT {
        ExitCode::SUCCESS
    } else {
        eprintln!("coverage: {share:.2} % is not over {LEAST_PERCENT} %");
        ExitCode::FAILURE
    }
}
