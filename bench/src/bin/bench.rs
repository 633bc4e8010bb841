//! The published client's load against the ceiling and against Ticketing, by turns.

use std::error::Error;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use ticketing_bench::cluster::RunningCluster;
use ticketing_bench::hot_key::{self, HotKey, HotRun};
use ticketing_bench::load::{self, CONTENDED, Load, Measured, Shape, Target};
use ticketing_bench::machine::Machine;
use ticketing_bench::physical::{Physical, Sample};
use ticketing_bench::report::{Report, Run};
use ticketing_bench::servers::{Guarded, Programs, Running, System};

/// A run that is not over by then has failed: at 100 pairs/s the default load would be.
const LOAD_WITHIN: Duration = Duration::from_secs(450);

/// Compares a server with the most that the published client can be shown on this machine.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Sub>,
    #[command(flatten)]
    compare: Compare,
}

#[derive(Subcommand)]
enum Sub {
    /// Runs the load once against a server that is there already, and prints JSON.
    Load(LoadArgs),
}

#[derive(Args)]
struct Compare {
    /// The `ticketing` program. Without it, only the ceiling is measured.
    #[arg(long)]
    server: Option<PathBuf>,
    /// Clusters of three instead of single nodes, and no hot key.
    #[arg(long)]
    cluster: bool,
    /// Further arguments to `ticketing serve`, in one string, split at blanks.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    server_args: String,
    /// Rounds; in each, every system runs once.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Acquire and release pairs in each run.
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pairs: u64,
    /// Pairs before each measured part.
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u64).range(0..=10_000_000))]
    warm_up_pairs: u64,
    /// Acquire and release pairs in each run with one hot key; a tenth of it before.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    hot_pairs: u64,
    /// Where the temporary data folders go; a disk, if `sync` is to mean something.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    data_root: PathBuf,
    /// Where to write all figures as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct LoadArgs {
    /// The server, in single mode and without a token; or a cluster's nodes, by slot.
    #[arg(long, value_delimiter = ',', required = true)]
    connect: Vec<SocketAddr>,
    /// A cluster's identity fingerprint, 64 hex digits; its client token is in TICKETING_CLIENT_TOKEN.
    #[arg(long, value_parser = fingerprint)]
    identity: Option<[u8; 32]>,
    /// Acquire and release pairs to measure.
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pairs: u64,
    /// Pairs to run first, not measured.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000_000))]
    warm_up_pairs: u64,
    /// Tasks at work at once.
    #[arg(long, default_value_t = CONTENDED.tasks, value_parser = at_least_one)]
    tasks: usize,
    /// Keys they contend for.
    #[arg(long, default_value_t = CONTENDED.keys, value_parser = at_least_one)]
    keys: usize,
    /// The servers' processes, to read their CPU time; a cluster's leader first.
    #[arg(long, value_delimiter = ',')]
    server_pid: Vec<u32>,
    /// Where the shuffle of the keys starts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn fingerprint(text: &str) -> Result<[u8; 32], String> {
    let mut bytes = [0; 32];
    let digits = text.as_bytes().chunks_exact(2);
    if text.len() != 64 || !text.is_ascii() {
        return Err("64 hex digits".to_owned());
    }
    for (byte, pair) in bytes.iter_mut().zip(digits) {
        let pair = std::str::from_utf8(pair).map_err(|error| error.to_string())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|error| error.to_string())?;
    }
    Ok(bytes)
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..) => Ok(number),
        _ => Err(format!("{text} is no whole number above 0")),
    }
}

/// What each run of a server has to bear.
struct Work {
    shape: Shape,
    pairs: u64,
    warm_up_pairs: u64,
    seed: u64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Some(Sub::Load(args)) => run_load(args),
        None => compare(&cli.compare),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_load(args: &LoadArgs) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let target = match (args.identity, &args.connect[..]) {
        (Some(fingerprint), addrs) => Target::Cluster {
            addrs: addrs.to_vec(),
            token: std::env::var("TICKETING_CLIENT_TOKEN").unwrap_or_default(),
            fingerprint,
        },
        (None, [addr]) => Target::Single(*addr),
        (None, _) => return Err("several addresses are a cluster's: give --identity".into()),
    };
    let measured = runtime.block_on(load::run(Load {
        target,
        shape: Shape {
            tasks: args.tasks,
            keys: args.keys,
        },
        pairs: args.pairs,
        warm_up_pairs: args.warm_up_pairs,
        server_pids: args.server_pid.clone(),
        seed: args.seed,
    }))?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

fn compare(args: &Compare) -> Result<(), Box<dyn Error>> {
    let own = std::env::current_exe()?;
    let programs = Programs {
        ceiling: own.with_file_name("ceiling"),
        server: args.server.clone().unwrap_or_default(),
        server_args: args
            .server_args
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
    };
    let systems: &[System] = match (&args.server, args.cluster) {
        (None, _) => &[System::Ceiling],
        (Some(_), false) => &[System::Ceiling, System::Sync, System::Memory],
        (Some(_), true) => &[System::Ceiling, System::ClusterSync, System::ClusterMemory],
    };
    let machine = Machine::look(&args.data_root)?;
    let mut physical = Physical::new(&args.data_root)?;
    let mut runs: Vec<Run> = Vec::new();
    let mut hot_runs: Vec<HotRun> = Vec::new();
    for round in 1..=args.rounds {
        let mut ceiling_pairs_per_s = 0.0;
        for &system in systems {
            let work = Work {
                shape: CONTENDED,
                pairs: args.pairs,
                warm_up_pairs: args.warm_up_pairs,
                seed: u64::from(round),
            };
            let measured = measure(system, &programs, &own, &args.data_root, &work)
                .map_err(|error| format!("round {round}, {}: {error}", system.name()))?;
            // Each round begins with its own ceiling.
            if system == System::Ceiling {
                ceiling_pairs_per_s = measured.pairs_per_s;
            }
            let rate = measured.pairs_per_s;
            eprintln!("round {round}: {:<30} {rate:>9.0} pairs/s", system.name());
            if !measured.follower_cpu_us_per_pair.is_empty() {
                let followers: Vec<String> = measured
                    .follower_cpu_us_per_pair
                    .iter()
                    .map(|us| format!("{us:.1}"))
                    .collect();
                let leader = measured.server_cpu_us_per_pair.unwrap_or_default();
                eprintln!(
                    "  CPU us/pair: leader {leader:.1}, followers {}",
                    followers.join(" and ")
                );
            }
            runs.push(Run {
                round: round as usize,
                system: system.name().to_owned(),
                of_ceiling: rate / ceiling_pairs_per_s,
                measured,
            });
        }
        let single = |system: &&System| **system != System::Ceiling && !system.is_cluster();
        for &system in systems.iter().filter(single) {
            let work = Work {
                shape: hot_key::SHAPE,
                pairs: args.hot_pairs,
                warm_up_pairs: args.hot_pairs / 10,
                seed: u64::from(round),
            };
            let is_synced = system == System::Sync;
            let mut sample = Sample::default();
            physical.measure(is_synced, &mut sample)?;
            let measured = measure(system, &programs, &own, &args.data_root, &work)
                .map_err(|error| format!("round {round}, hot key, {}: {error}", system.name()))?;
            physical.measure(is_synced, &mut sample)?;
            let run = HotRun::new(round as usize, system.name(), measured, sample);
            let (rate, of_limit) = (run.measured.pairs_per_s, run.of_limit);
            eprintln!(
                "round {round}: {:<30} {rate:>9.0} pairs/s on one key, {of_limit:.2} of the limit",
                system.name()
            );
            hot_runs.push(run);
        }
    }
    let hot_key = args
        .server
        .as_ref()
        .filter(|_| !args.cluster)
        .map(|_| HotKey {
            pairs: args.hot_pairs,
            runs: hot_runs,
        });
    let report = Report::new(machine, args.pairs, programs.server_args, runs, hot_key);
    println!("{report}");
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    Ok(())
}

/// One system from start to stop, with the load in a process of its own.
fn measure(
    system: System,
    programs: &Programs,
    own: &Path,
    data_root: &Path,
    work: &Work,
) -> Result<Measured, Box<dyn Error>> {
    if system.is_cluster() {
        let mut cluster = RunningCluster::start(system, programs, data_root)?;
        let mut command = Command::new(own);
        command.args(["load", "--connect", &cluster.addresses()]);
        command.args(["--identity", &cluster.fingerprint()?]);
        command.env("TICKETING_CLIENT_TOKEN", cluster.token()?);
        let pids: Vec<String> = cluster.pids()?.iter().map(ToString::to_string).collect();
        command.args(["--server-pid", &pids.join(",")]);
        let measured = run_client(command, work, || cluster.stderr_end())?;
        cluster.stop()?;
        return Ok(measured);
    }
    let server = Running::start(system, programs, data_root)?;
    let mut command = Command::new(own);
    command.args(["load", "--connect", &server.addr().to_string()]);
    command.args(["--server-pid", &server.pid().to_string()]);
    let measured = run_client(command, work, || server.stderr_end())?;
    server.stop()?;
    Ok(measured)
}

/// Runs the load in a process of its own.
fn run_client(
    mut command: Command,
    work: &Work,
    stderr_end: impl Fn() -> String,
) -> Result<Measured, Box<dyn Error>> {
    command.args(["--pairs", &work.pairs.to_string()]);
    command.args(["--warm-up-pairs", &work.warm_up_pairs.to_string()]);
    command.args(["--tasks", &work.shape.tasks.to_string()]);
    command.args(["--keys", &work.shape.keys.to_string()]);
    command.args(["--seed", &work.seed.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut client = Guarded::start(&mut command)?;
    // One short line, which the pipe holds until the client is gone.
    let Some(status) = client.wait_at_most(LOAD_WITHIN)? else {
        return Err(format!("the load was not over within {LOAD_WITHIN:?}").into());
    };
    if !status.success() {
        let stderr = stderr_end();
        return Err(format!("the load failed; the server's stderr ends with:\n{stderr}").into());
    }
    let mut json = String::new();
    if let Some(stdout) = &mut client.child().stdout {
        stdout.read_to_string(&mut json)?;
    }
    Ok(serde_json::from_str(&json)?)
}
