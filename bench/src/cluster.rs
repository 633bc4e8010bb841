//! A cluster of three on this machine, as child processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::servers::{Guarded, Programs, ServerError, System};

const NODES: usize = 3;
/// Where slot 0 listens for clients, for nodes and for operators; the others one port further each.
const PORTS: [u16; 3] = [15_225, 16_225, 17_225];
const READY_WITHIN: Duration = Duration::from_secs(30);
const STOP_WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A cluster that serves, with a folder that goes when it goes.
pub struct RunningCluster {
    nodes: Vec<Guarded>,
    server: PathBuf,
    root: PathBuf,
    _folder: tempfile::TempDir,
}

impl RunningCluster {
    /// Makes a new cluster under `data_root` and waits until it serves.
    ///
    /// # Errors
    /// It cannot be made, or does not start in time.
    pub fn start(
        system: System,
        programs: &Programs,
        data_root: &Path,
    ) -> Result<Self, ServerError> {
        let folder = tempfile::Builder::new()
            .prefix("ticketing-bench-")
            .tempdir_in(data_root)?;
        let root = folder.path().join("cluster");
        let [client, peer, admin] = PORTS.map(|port| port.to_string());
        let made = Command::new(&programs.server)
            .args([
                "cluster",
                "init",
                "--nodes",
                &NODES.to_string(),
                "--client-port",
                &client,
            ])
            .args(["--peer-port", &peer, "--admin-port", &admin, "--dir"])
            .arg(&root)
            .output()?;
        if !made.status.success() {
            return Err(failed("cluster init", &made.stderr));
        }
        let mut nodes = Vec::new();
        for slot in 0..NODES {
            let config = root.join(format!("slot-{slot}")).join("ticketing.toml");
            if system == System::ClusterMemory {
                let text = fs::read_to_string(&config)?;
                let text = text.replace("durability = \"sync\"", "durability = \"memory\"");
                fs::write(&config, text)?;
            }
            let log = fs::File::create(root.join(format!("slot-{slot}")).join("log.txt"))?;
            let mut command = Command::new(&programs.server);
            command
                .args(["serve", "--config"])
                .arg(&config)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log);
            nodes.push(Guarded::start(&mut command)?);
        }
        let cluster = Self {
            nodes,
            server: programs.server.clone(),
            root,
            _folder: folder,
        };
        let until = Instant::now() + READY_WITHIN;
        while cluster.leader()?.is_none() {
            if Instant::now() > until {
                return Err(failed("serve --config", cluster.stderr_end().as_bytes()));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(cluster)
    }

    /// Clients' addresses by slot, with commas between.
    pub fn addresses(&self) -> String {
        let all = (0..NODES).map(|slot| format!("127.0.0.1:{}", usize::from(PORTS[0]) + slot));
        all.collect::<Vec<_>>().join(",")
    }

    /// The client token.
    ///
    /// # Errors
    /// The file is gone.
    pub fn token(&self) -> io::Result<String> {
        let text = fs::read_to_string(self.root.join("slot-0").join("client.token"))?;
        Ok(text.trim_end().to_owned())
    }

    /// What clients are configured with, in hex.
    ///
    /// # Errors
    /// The file is gone, or says something else.
    pub fn fingerprint(&self) -> io::Result<String> {
        let text = fs::read_to_string(self.root.join("cluster.json"))?;
        let json: serde_json::Value = serde_json::from_str(&text)?;
        let fingerprint = json["identity_fingerprint"].as_str();
        Ok(fingerprint.unwrap_or_default().to_owned())
    }

    /// The processes' ids, the leader's first.
    ///
    /// # Errors
    /// There is no leader any more.
    pub fn pids(&mut self) -> Result<Vec<u32>, ServerError> {
        let leader = self.leader()?;
        let leader = leader.ok_or_else(|| failed("status", b"no node leads"))?;
        let mut pids: Vec<u32> = self
            .nodes
            .iter_mut()
            .map(|node| node.child().id())
            .collect();
        pids.swap(0, leader);
        Ok(pids)
    }

    /// The slot of the node that leads and serves, if one says so.
    fn leader(&self) -> Result<Option<usize>, ServerError> {
        for slot in 0..NODES {
            let admin = format!("127.0.0.1:{}", usize::from(PORTS[2]) + slot);
            let status = Command::new(&self.server)
                .args(["status", "--json", "--admin", &admin])
                .stderr(Stdio::null())
                .output()?;
            let json: serde_json::Value =
                serde_json::from_slice(&status.stdout).unwrap_or_default();
            if json["cluster"]["is_ready"] == true {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// The end of what the nodes wrote to stderr.
    pub fn stderr_end(&self) -> String {
        let logs = (0..NODES).map(|slot| {
            let log = self.root.join(format!("slot-{slot}")).join("log.txt");
            let text = fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let end = lines[lines.len().saturating_sub(10)..].join("\n");
            format!("slot {slot}:\n{end}")
        });
        logs.collect::<Vec<_>>().join("\n")
    }

    /// Asks every node to stop with SIGTERM, and waits until all are gone.
    ///
    /// # Errors
    /// One had to be killed, or ended with a failure.
    pub fn stop(mut self) -> Result<(), ServerError> {
        for node in &mut self.nodes {
            kill_process(Pid::from_child(node.child()), Signal::TERM).map_err(io::Error::from)?;
        }
        let program = "ticketing serve --config".to_owned();
        for node in &mut self.nodes {
            match node.wait_at_most(STOP_WITHIN)? {
                None => return Err(ServerError::WouldNotStop { program }),
                Some(status) if status.success() => {}
                Some(status) => {
                    return Err(ServerError::StoppedBadly {
                        program,
                        status,
                        stderr: String::new(),
                    });
                }
            }
        }
        Ok(())
    }
}

fn failed(command: &str, stderr: &[u8]) -> ServerError {
    ServerError::Ended {
        program: format!("ticketing {command}"),
        stderr: String::from_utf8_lossy(stderr).into_owned(),
    }
}
