//! `ticketing check-config`

use std::path::PathBuf;

use super::Failure;
use crate::config::Config;

/// Says "ok", or every problem of a configuration at once.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file to check.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let problems = match Config::from_file(&args.file) {
        Ok(_) => {
            println!("ok");
            return Ok(());
        }
        Err(problems) => problems,
    };
    let lines: Vec<&str> = problems.iter().collect();
    Err(Failure::bad_usage(lines.join("\nticketing: ")))
}
