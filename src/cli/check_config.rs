//! `ticketing check-config`

use std::path::PathBuf;

use super::Failure;
use crate::config::{self, Config};

/// Says "ok", or every problem of a configuration at once.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file to check.
    #[arg(value_name = "FILE", required_unless_present = "reference")]
    file: Option<PathBuf>,
    /// Print every key that a file may have instead, with its default and bounds, as a file to start from.
    #[arg(long, conflicts_with = "file")]
    reference: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let Some(file) = &args.file else {
        print!("{}", config::reference());
        return Ok(());
    };
    let problems = match Config::from_file(file) {
        Ok(_) => {
            println!("ok");
            return Ok(());
        }
        Err(problems) => problems,
    };
    let lines: Vec<&str> = problems.iter().collect();
    Err(Failure::bad_usage(lines.join("\nticketing: ")))
}
