//! A network of this process's own, in which packets between nodes can be dropped, and mounts of its own.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::nodes::host;

const INSIDE: &str = "TICKETING_TEST_NETWORK";

/// Runs this program again in a network namespace of its own, with nothing in it but loopback, and in a mount
/// namespace of its own; returns when it is there.
pub fn enter() -> Result<(), String> {
    if std::env::var_os(INSIDE).is_none() {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root: it makes a network namespace".to_owned());
        }
        for program in ["unshare", "ip", "nft"] {
            if !in_path(program) {
                return Err(format!(
                    "needs the program {program} (Debian packages util-linux, iproute2, nftables)"
                ));
            }
        }
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let error = Command::new("unshare")
            .args(["--net", "--mount", "--"])
            .arg(own)
            .args(std::env::args_os().skip(1))
            .env(INSIDE, "1")
            .exec();
        return Err(format!("unshare: {error}"));
    }
    run("ip", &["link", "set", "lo", "up"])?;
    run("nft", &["add", "table", "inet", "cuts"])?;
    let chain = "{ type filter hook input priority 0; policy accept; }";
    run("nft", &["add", "chain", "inet", "cuts", "input", chain])
}

/// Drops every packet from one slot's node to another's.
pub fn cut(from: usize, to: usize) -> Result<(), String> {
    let (from, to) = (host(from), host(to));
    run(
        "nft",
        &[
            "add", "rule", "inet", "cuts", "input", "ip", "saddr", &from, "ip", "daddr", &to,
            "drop",
        ],
    )
}

/// Drops every packet between one slot's node and all others; clients still reach it.
pub fn cut_off(slot: usize, slots: usize) -> Result<(), String> {
    for other in (0..slots).filter(|&other| other != slot) {
        cut(slot, other)?;
        cut(other, slot)?;
    }
    Ok(())
}

/// Lets every packet through again.
pub fn heal() -> Result<(), String> {
    run("nft", &["flush", "chain", "inet", "cuts", "input"])
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([Path::new("/usr/sbin").into(), Path::new("/sbin").into()])
        .any(|folder| folder.join(program).exists())
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{program} {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    ))
}
