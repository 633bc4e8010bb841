//! A cluster of real processes.

use std::cell::Cell;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::load::Shape;

/// How long anything may take that takes milliseconds on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The exit code of a node whose place another has taken.
const EXIT_REPLACED: i32 = 18;

/// What fills a slot.
struct Node {
    folder: PathBuf,
    admin: String,
    child: Option<Child>,
}

/// A node whose folder is made, and that is to fill a slot.
pub struct Newcomer {
    slot: usize,
    id: String,
    folder: PathBuf,
    peer_addr: String,
    admin: String,
}

/// A cluster. Dropped, its processes are killed and reaped.
pub struct Cluster {
    binary: PathBuf,
    dir: TempDir,
    description: Value,
    nodes: Vec<Node>,
    // Nodes that were replaced, for their logs.
    left: Vec<Node>,
    replaced: u16,
    environment: Vec<(String, String)>,
    logs_printed: Cell<bool>,
}

impl Cluster {
    /// Makes a cluster, one node on each of 127.0.1.1, 127.0.1.2 and so on, and starts it.
    pub fn start(binary: &Path, nodes: usize) -> Result<Self, String> {
        let mut cluster = Self::make(binary, nodes)?;
        for slot in 0..nodes {
            cluster.run(slot)?;
        }
        for slot in 0..nodes {
            cluster.wait_listening(slot)?;
        }
        Ok(cluster)
    }

    /// Makes a cluster and starts none of it.
    pub fn make(binary: &Path, nodes: usize) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let root = dir.path().join("cluster");
        let hosts: Vec<String> = (0..nodes).map(host).collect();
        let output = Command::new(binary)
            .args(["cluster", "init", "--dir"])
            .arg(&root)
            .args(["--nodes", &nodes.to_string(), "--hosts", &hosts.join(",")])
            .output()
            .map_err(|error| format!("{}: {error}", binary.display()))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let text =
            fs::read_to_string(root.join("cluster.json")).map_err(|error| error.to_string())?;
        let description: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let admins = description["admin_addrs"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let nodes = admins.iter().enumerate().map(|(slot, admin)| Node {
            folder: root.join(format!("slot-{slot}")),
            admin: admin.as_str().unwrap_or_default().to_owned(),
            child: None,
        });
        Ok(Self {
            binary: binary.to_path_buf(),
            nodes: nodes.collect(),
            dir,
            description,
            left: Vec::new(),
            replaced: 0,
            environment: Vec::new(),
            logs_printed: Cell::new(false),
        })
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.nodes.len()
    }

    /// Where `cluster init` made it.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("cluster")
    }

    /// The folder of what fills a slot.
    pub fn folder(&self, slot: usize) -> PathBuf {
        self.nodes[slot].folder.clone()
    }

    /// Whether a slot has a process that has not ended.
    pub fn is_running(&mut self, slot: usize) -> bool {
        match &mut self.nodes[slot].child {
            Some(child) => matches!(child.try_wait(), Ok(None)),
            None => false,
        }
    }

    /// Starts a node in a folder that is no slot's; gives its number.
    pub fn run_other(&mut self, folder: &Path) -> Result<usize, String> {
        self.left.push(Node {
            folder: folder.to_path_buf(),
            admin: String::new(),
            child: Some(spawn(&self.binary, folder, &self.environment)?),
        });
        Ok(self.left.len() - 1)
    }

    /// Kills such a node.
    pub fn kill_other(&mut self, number: usize) -> Result<(), String> {
        let child = self.left[number].child.as_mut().ok_or("it does not run")?;
        child.kill().map_err(|error| error.to_string())?;
        child.wait().map(drop).map_err(|error| error.to_string())
    }

    /// Runs the command line and gives what it printed.
    pub fn command(&self, arguments: &[&str]) -> Result<String, String> {
        let token =
            fs::read_to_string(self.nodes[0].folder.join("admin.token")).unwrap_or_default();
        let output = Command::new(&self.binary)
            .args(arguments)
            .env("TICKETING_ADMIN_TOKEN", token.trim_end())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(format!(
            "{}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        ))
    }

    /// The admin addresses of all slots' nodes, as the command line takes them.
    fn admins(&self) -> String {
        let all: Vec<&str> = self.nodes.iter().map(|node| node.admin.as_str()).collect();
        all.join(",")
    }

    /// Asks for another slot's node to lead; gives what came of it.
    pub fn transfer(&self, to: usize) -> String {
        let admins = self.admins();
        let to = to.to_string();
        let done = self.command(&["transfer-leader", "--to", &to, "--admin", &admins]);
        done.unwrap_or_else(|why| why)
    }

    /// Replaces what fills a slot by a new node, as an operator would; the old one may run or not.
    pub fn replace(&mut self, slot: usize) -> Result<(), String> {
        let newcomer = self.add_node(slot)?;
        self.take_place(newcomer)
    }

    /// Makes the folder of a node that is to fill a slot.
    pub fn add_node(&mut self, slot: usize) -> Result<Newcomer, String> {
        self.replaced += 1;
        let number = self.replaced;
        let root = self.root();
        let dir = root.to_string_lossy().into_owned();
        let place = slot.to_string();
        // Ports that nobody has had: the old node's may still be in use.
        let (peer, admin) = ((16_225 + number).to_string(), (17_225 + number).to_string());
        let said = self.command(&[
            "cluster",
            "add-node",
            "--dir",
            &dir,
            "--slot",
            &place,
            "--peer-port",
            &peer,
            "--admin-port",
            &admin,
        ])?;
        let words: Vec<&str> = said.split_whitespace().collect();
        let id = words.get(1).ok_or("add-node said nothing")?.to_string();
        let prefix = id.get(..8).ok_or("add-node named no node")?;
        Ok(Newcomer {
            slot,
            folder: root.join(format!("slot-{slot}-{prefix}")),
            peer_addr: format!("{}:{peer}", host(slot)),
            admin: format!("{}:{admin}", host(slot)),
            id,
        })
    }

    /// Starts a node that takes its slot over, and waits until it serves and the old one has ended.
    pub fn take_place(&mut self, newcomer: Newcomer) -> Result<(), String> {
        let Newcomer {
            slot,
            id,
            folder,
            peer_addr,
            admin,
        } = newcomer;
        let new = Node {
            folder,
            admin,
            child: None,
        };
        let old = std::mem::replace(&mut self.nodes[slot], new);
        self.run(slot)?;
        let mut admins = self.admins();
        if old.child.is_some() {
            admins = format!("{admins},{}", old.admin);
        }
        let replaced = self
            .command(&[
                "member",
                "add-learner",
                "--node-id",
                &id,
                "--peer-addr",
                &peer_addr,
                "--admin",
                &admins,
            ])
            .and_then(|_| {
                self.command(&[
                    "member",
                    "replace",
                    "--slot",
                    &slot.to_string(),
                    "--node-id",
                    &id,
                    "--admin",
                    &admins,
                ])
            });
        self.left.push(old);
        replaced?;
        // Who was replaced ends by itself, with a code of its own.
        let at = self.left.len() - 1;
        if let Some(mut child) = self.left[at].child.take() {
            let status = wait(&mut child)?;
            if status.code() != Some(EXIT_REPLACED) {
                return Err(format!(
                    "the replaced node of slot {slot} ended with {status}"
                ));
            }
        }
        self.wait_listening(slot)
    }

    /// The load that the published client's own tests make.
    pub fn shape(&self) -> Shape {
        let fingerprint = self.description["identity_fingerprint"]
            .as_str()
            .unwrap_or_default();
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            let digits = fingerprint.get(at * 2..at * 2 + 2).unwrap_or_default();
            *byte = u8::from_str_radix(digits, 16).unwrap_or_default();
        }
        let token =
            fs::read_to_string(self.nodes[0].folder.join("client.token")).unwrap_or_default();
        Shape {
            addresses: (0..self.slots())
                .map(|slot| format!("{}:5225", host(slot)))
                .collect(),
            fingerprint: bytes,
            token: token.trim_end().to_owned(),
            workers: 32,
            keys: 4,
            hold: Duration::from_millis(5),
            authority: None,
        }
    }

    /// The load of the throughput figures: 64 tasks, 32 keys, given back at once.
    pub fn full_load(&self) -> Shape {
        Shape {
            workers: 64,
            keys: 32,
            hold: Duration::ZERO,
            ..self.shape()
        }
    }

    /// The term that each slot's node says it is in; none of those that do not answer.
    pub fn terms(&self) -> Vec<Option<u64>> {
        (0..self.slots())
            .map(|slot| self.own(slot, "term"))
            .collect()
    }

    /// A number that a slot's node says of itself, if it answers.
    pub fn own(&self, slot: usize, number: &str) -> Option<u64> {
        let status = self.status(slot)?;
        let mut members = status["members"].as_array()?.iter();
        members.find(|member| member["is_self"] == true)?[number].as_u64()
    }

    /// Where a slot's node listens for clients.
    pub fn client_address(&self, slot: usize) -> SocketAddr {
        SocketAddr::from((ip(slot), 5225))
    }

    /// Gives every process that is started from now on these variables.
    pub fn set_environment(&mut self, variables: Vec<(String, String)>) {
        self.environment = variables;
    }

    /// Starts a slot's process.
    pub fn run(&mut self, slot: usize) -> Result<(), String> {
        let node = &mut self.nodes[slot];
        node.child = Some(spawn(&self.binary, &node.folder, &self.environment)?);
        Ok(())
    }

    /// Waits until a slot's node takes clients.
    pub fn wait_listening(&self, slot: usize) -> Result<(), String> {
        self.wait_until(&format!("slot {slot} listens for clients"), || {
            std::net::TcpStream::connect(format!("{}:5225", host(slot))).is_ok()
        })
    }

    /// The slot of the node that serves, as the nodes that can be asked see it.
    pub fn leader(&self) -> Result<usize, String> {
        let mut found = None;
        self.wait_until("a leader is ready", || {
            found = (0..self.slots()).find(|&slot| self.says_it_leads(slot));
            found.is_some()
        })?;
        found.ok_or_else(|| "no leader".to_owned())
    }

    /// Waits until a slot's node has nearly everything that the leader has committed.
    pub fn wait_caught_up(&self, slot: usize) -> Result<(), String> {
        const NEARLY: u64 = 2_000;
        let committed = |slot| self.own(slot, "commit_index");
        self.wait_until(&format!("slot {slot} has caught up"), || {
            let most = (0..self.slots()).filter_map(committed).max();
            let own = committed(slot).filter(|own| own + NEARLY >= most.unwrap_or(u64::MAX));
            own.is_some()
        })
    }

    /// Whether a slot's node says that it leads and serves.
    pub fn says_it_leads(&self, slot: usize) -> bool {
        self.status(slot).is_some_and(|status| {
            let members = status["members"].as_array().cloned().unwrap_or_default();
            members.iter().any(|member| {
                member["role"] == "leader"
                    && member["slot"] == slot
                    && member["last_contact_ms"].is_null()
            })
        })
    }

    /// What a node says of itself, if its process runs and answers.
    pub fn status(&self, slot: usize) -> Option<Value> {
        let node = &self.nodes[slot];
        node.child.as_ref()?;
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_millis(500)))
            .build()
            .into();
        let mut answer = agent
            .get(format!("http://{}/status", node.admin))
            .call()
            .ok()?;
        let text = answer.body_mut().read_to_string().ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Sends a signal to a slot's process.
    pub fn signal(&self, slot: usize, signal: Signal) -> Result<(), String> {
        let child = self.nodes[slot].child.as_ref().ok_or("it does not run")?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or("a process has no id")?;
        kill_process(pid, signal).map_err(|error| error.to_string())
    }

    /// Kills a slot's process.
    pub fn kill(&mut self, slot: usize) -> Result<(), String> {
        self.signal(slot, Signal::KILL)?;
        self.reap(slot).map(drop)
    }

    /// Waits for the end of a slot's process.
    pub fn reap(&mut self, slot: usize) -> Result<ExitStatus, String> {
        let Some(mut child) = self.nodes[slot].child.take() else {
            return Err(format!("slot {slot} does not run"));
        };
        wait(&mut child).map_err(|why| format!("slot {slot}: {why}"))
    }

    /// What a slot's processes have written so far.
    pub fn log(&self, slot: usize) -> String {
        fs::read_to_string(self.nodes[slot].folder.join("log.txt")).unwrap_or_default()
    }

    /// Looks again and again until `holds`.
    pub fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            if Instant::now() > deadline {
                self.print_logs();
                return Err(format!("not within {PATIENCE:?}: {what}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Prints the end of every node's log, once: what led to a failure.
    pub fn print_logs(&self) {
        if self.logs_printed.replace(true) {
            return;
        }
        for slot in 0..self.slots() {
            let log = self.log(slot);
            let lines: Vec<&str> = log.lines().collect();
            println!("--- the end of slot {slot}'s log");
            for line in &lines[lines.len().saturating_sub(40)..] {
                println!("{line}");
            }
        }
        for node in &self.left {
            println!("--- the end of the log in {}", node.folder.display());
            let log = fs::read_to_string(node.folder.join("log.txt")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(20)..] {
                println!("{line}");
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in self.nodes.iter_mut().chain(&mut self.left) {
            if let Some(mut child) = node.child.take() {
                // A process that has ended already is no news.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

fn spawn(binary: &Path, folder: &Path, environment: &[(String, String)]) -> Result<Child, String> {
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join("log.txt"))
        .map_err(|error| error.to_string())?;
    let out = log.try_clone().map_err(|error| error.to_string())?;
    Command::new(binary)
        .args(["serve", "--config"])
        .arg(folder.join("ticketing.toml"))
        .envs(environment.iter().cloned())
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(log)
        .spawn()
        .map_err(|error| error.to_string())
}

/// Writes other values into the configuration in a node's folder.
pub fn edit(folder: &Path, changes: &[(&str, &str)]) -> Result<(), String> {
    let config = folder.join("ticketing.toml");
    let mut text = fs::read_to_string(&config).map_err(|error| error.to_string())?;
    for (from, to) in changes {
        if !text.contains(from) {
            return Err(format!("{} has no {from:?}", config.display()));
        }
        text = text.replace(from, to);
    }
    fs::write(&config, text).map_err(|error| error.to_string())
}

/// Copies a folder with all that is in it.
pub fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", from.display());
    fs::create_dir(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let target = to.join(entry.file_name());
        if entry.file_type().map_err(failed)?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target).map_err(failed)?;
        }
    }
    Ok(())
}

fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let began = Instant::now();
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => return Ok(status),
            None if began.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it did not end within {PATIENCE:?}"));
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The address of a slot's node.
pub fn host(slot: usize) -> String {
    ip(slot).to_string()
}

fn ip(slot: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, slot as u8 + 1)
}
