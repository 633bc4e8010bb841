//! The command line, one file per subcommand.

mod admin;
mod check_config;
mod cluster;
mod log;
mod member;
mod serve;
mod status;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Something that was asked for did not work.
pub const FAILED: u8 = 1;
/// What was asked for makes no sense: bad usage, or a bad configuration.
pub const BAD_USAGE: u8 = 2;

/// A distributed lock server for the moment a ticket sale opens.
///
/// It puts everybody who wants a key in a fair line, lets one through at a
/// time, gives each a fencing token that only grows, and takes the key back
/// when its lease runs out.
#[derive(Debug, Parser)]
#[command(name = "ticketing", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    CheckConfig(check_config::Args),
    #[command(subcommand)]
    Cluster(cluster::Command),
    Status(status::Args),
    #[command(subcommand)]
    Member(member::Command),
    TransferLeader(member::TransferLeader),
    Drain(member::Drain),
    #[command(subcommand)]
    Log(log::Command),
}

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl Failure {
    pub(crate) fn failed(message: impl std::fmt::Display) -> Self {
        Self {
            code: FAILED,
            message: message.to_string(),
        }
    }

    pub(crate) fn bad_usage(message: impl std::fmt::Display) -> Self {
        Self {
            code: BAD_USAGE,
            message: message.to_string(),
        }
    }
}

/// Runs the command line; the exit code is 0, 1 (failed), 2 (bad usage or
/// configuration), or one of [`crate::fatal::Fatal`].
#[must_use]
pub fn run() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::CheckConfig(args) => check_config::run(&args),
        Command::Cluster(command) => cluster::run(&command),
        Command::Status(args) => status::run(&args),
        Command::Member(command) => member::run(&command),
        Command::TransferLeader(args) => member::transfer(&args),
        Command::Drain(args) => member::drain(&args),
        Command::Log(command) => log::run(&command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("ticketing: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}
