//! `ticketing serve`

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use ticketing_raftlog::Durability;
use tracing_subscriber::EnvFilter;

use super::Failure;
use crate::config::{self, Config, SingleFlags};
use crate::node;

/// Runs a node until SIGTERM or SIGINT; prints one line when it serves.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Everything in a file, instead of flags.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "data_dir", "shards", "durability", "admin"])]
    config: Option<PathBuf>,
    /// Where clients connect; an address that others can reach needs a token in TICKETING_CLIENT_TOKEN.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:5225", value_parser = config::address)]
    listen: SocketAddr,
    /// The data folder; made when it does not exist.
    #[arg(long, value_name = "DIR", required_unless_present = "config")]
    data_dir: Option<PathBuf>,
    /// Cores that hold connections and keys [default: all cores but one, at least one].
    #[arg(long, value_name = "N")]
    shards: Option<u16>,
    /// What an acknowledgement means: on disk, or in the kernel's page cache.
    #[arg(long, value_enum, default_value_t = DurabilityFlag::Sync)]
    durability: DurabilityFlag,
    /// Where metrics, health and status are served; loopback only.
    #[arg(long, value_name = "ADDR", value_parser = config::address)]
    admin: Option<SocketAddr>,
    /// How the log on stderr looks.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DurabilityFlag {
    Sync,
    Memory,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    log_to_stderr(args.log_format);
    let config = match (args.config, args.data_dir) {
        (Some(file), _) => Config::from_file(&file),
        (None, Some(data_dir)) => Config::from_flags(SingleFlags {
            listen: args.listen,
            data_dir,
            shards: args.shards,
            durability: match args.durability {
                DurabilityFlag::Sync => Durability::Sync,
                DurabilityFlag::Memory => Durability::Memory,
            },
            admin: args.admin,
        }),
        (None, None) => {
            return Err(Failure::bad_usage(
                "--data-dir DIR or --config FILE is needed",
            ));
        }
    };
    node::serve(&config.map_err(Failure::bad_usage)?);
    Ok(())
}

/// `RUST_LOG` chooses what is logged; warnings and the node's own milestones
/// when it is not set.
fn log_to_stderr(format: LogFormat) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,ticketing=info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
}
