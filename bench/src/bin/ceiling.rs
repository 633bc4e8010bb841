//! A responder that does the least a server can do: the most a client can be shown.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use ticketing_bench::ceiling::{Ceiling, CeilingError};

/// Answers Ticketing's client wire in single mode, from memory, with no token: an upper bound
/// for benchmarks, not a lock server. Serves until it is killed.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ceiling: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), CeilingError> {
    let ceiling = Ceiling::bind(args.listen)?;
    let mut out = std::io::stdout();
    writeln!(out, "ceiling ready: listening on {}", ceiling.local_addr()?)?;
    out.flush()?;
    ceiling.run()
}
