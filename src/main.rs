//! The `ticketing` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    ticketing::cli::run()
}
