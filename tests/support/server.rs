//! The real server, as a process of its own.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{PATIENCE, wait_until};

/// The server's binary.
pub const BINARY: &str = env!("CARGO_BIN_EXE_ticketing");

/// The exit code of an address that cannot be listened on.
pub const EXIT_LISTEN: i32 = 11;
/// The exit code of a folder that cannot be used.
pub const EXIT_FOLDER: i32 = 12;

const TOKEN_VARIABLE: &str = "TICKETING_CLIENT_TOKEN";
const READY: &str = "ticketing ready: listening on ";
const STARTS: usize = 3;

/// How a server is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub listen: String,
    /// Its shards.
    pub shards: u16,
    /// `sync` or `memory`.
    pub durability: &'static str,
    /// The client token, handed over in the environment.
    pub token: Option<&'static str>,
    /// Lines of the `[limits]` section; with any, the server gets a config file instead of flags.
    pub limits: &'static str,
    /// Lines at the top of the config file, which such a server gets instead of flags.
    pub top: &'static str,
    /// Further sections of the config file, which such a server gets instead of flags.
    pub tables: String,
}

impl Options {
    /// A server on any port with that many shards, in sync durability.
    pub fn shards(shards: u16) -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            shards,
            durability: "sync",
            token: None,
            limits: "",
            top: "",
            tables: String::new(),
        }
    }

    /// With another durability.
    pub fn durability(self, durability: &'static str) -> Self {
        Self { durability, ..self }
    }

    /// With a client token.
    pub fn token(self, token: &'static str) -> Self {
        Self {
            token: Some(token),
            ..self
        }
    }

    /// With these lines in the `[limits]` section of a config file.
    pub fn limits(self, limits: &'static str) -> Self {
        Self { limits, ..self }
    }

    /// With these lines at the top of a config file.
    pub fn top(self, top: &'static str) -> Self {
        Self { top, ..self }
    }

    /// With these sections in a config file.
    pub fn tables(self, tables: &str) -> Self {
        Self {
            tables: tables.to_owned(),
            ..self
        }
    }

    /// Listening there.
    pub fn listen(self, listen: &str) -> Self {
        Self {
            listen: listen.to_owned(),
            ..self
        }
    }
}

/// A server process and its folder. Dropped, it is killed and reaped.
pub struct Server {
    options: Options,
    folder: TempDir,
    running: Option<Running>,
    /// Where its clients connect.
    pub address: SocketAddr,
    /// Where its metrics are.
    pub admin: SocketAddr,
}

struct Running {
    child: Child,
    stderr: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts a server on a new folder and waits until it serves.
    pub fn start(options: Options) -> Self {
        let folder = TempDir::with_prefix_in("server-", env!("CARGO_TARGET_TMPDIR"))
            .expect("a folder for the server");
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self {
            options,
            folder,
            running: None,
            address: nowhere,
            admin: nowhere,
        };
        server.restart();
        server
    }

    /// Starts it on the folder that it had, after it has ended. On a port of its own choice it
    /// listens on another one than before.
    pub fn restart(&mut self) {
        assert!(self.running.is_none(), "the server still runs");
        // Between choosing a free port and listening on it, somebody else may take it.
        let attempts = if self.options.listen.ends_with(":0") {
            STARTS
        } else {
            1
        };
        for attempt in 1..=attempts {
            match self.try_start() {
                Ok(()) => return,
                Err((status, stderr)) => assert!(
                    attempt < attempts && status.code() == Some(EXIT_LISTEN),
                    "the server did not start ({status}) with {:?}:\n{stderr}",
                    self.options
                ),
            }
        }
    }

    /// The command that would start this server, on its folder and with its options.
    pub fn command(&self) -> Command {
        let mut command = Command::new(BINARY);
        command.arg("serve").env_remove(TOKEN_VARIABLE);
        if let Some(token) = self.options.token {
            command.env(TOKEN_VARIABLE, token);
        }
        let Options {
            listen,
            shards,
            durability,
            limits,
            top,
            tables,
            ..
        } = &self.options;
        if limits.is_empty() && top.is_empty() && tables.is_empty() {
            command
                .args(["--listen", listen, "--admin", "127.0.0.1:0"])
                .args(["--durability", durability])
                .args(["--shards", &shards.to_string()])
                .arg("--data-dir")
                .arg(self.data_dir());
        } else {
            let file = self.folder.path().join("ticketing.toml");
            let text = format!(
                "mode = \"single\"\nlisten = \"{listen}\"\nadmin = \"127.0.0.1:0\"\n\
                 data_dir = \"data\"\nshards = {shards}\ndurability = \"{durability}\"\n\
                 {top}\n[limits]\n{limits}\n{tables}\n"
            );
            fs::write(&file, text).expect("the config file is written");
            command.arg("--config").arg(file);
        }
        command
    }

    /// Has that many shards from its next start on.
    pub fn set_shards(&mut self, shards: u16) {
        self.options.shards = shards;
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("it runs").child.id()
    }

    /// Its data folder.
    pub fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// What it has said on stderr so far.
    pub fn stderr(&self) -> String {
        self.running
            .as_ref()
            .map_or(String::new(), |running| text_of(&running.stderr))
    }

    /// Asks it to stop, and does not wait.
    pub fn terminate(&self) {
        let child = &self.running.as_ref().expect("it runs").child;
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    }

    /// Kills it like `kill -9`, and reaps it.
    pub fn kill9(&mut self) {
        self.running = None;
    }

    /// Waits until it has ended by itself; its status and what it said on stderr.
    pub fn wait_exit(&mut self) -> (ExitStatus, String) {
        let mut running = self.running.take().expect("it runs");
        let mut ended = None;
        wait_until("the server ends", || {
            ended = running.child.try_wait().expect("its status");
            ended.is_some()
        });
        let stderr = running.finish();
        (ended.expect("waited for it"), stderr)
    }

    /// All its metrics, as text.
    pub fn metrics(&self) -> String {
        http_get(self.admin, "/metrics").expect("metrics")
    }

    /// One metric by its name, without `ticketing_` and `_total`, with its labels.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.metrics();
        let (name, labels) = name
            .find('{')
            .map_or((name, ""), |brace| name.split_at(brace));
        for name in [
            format!("ticketing_{name}{labels} "),
            format!("ticketing_{name}_total{labels} "),
        ] {
            let value = text.lines().find_map(|line| line.strip_prefix(&name));
            if let Some(value) = value {
                return value.parse().expect("a whole number");
            }
        }
        panic!("no metric {name}{labels} in:\n{text}");
    }

    /// Waits until a metric has exactly this value: gauges are published a moment after the answer
    /// that they go with.
    pub fn wait_metric(&self, name: &str, value: u64) {
        let mut last = None;
        let deadline = Instant::now() + PATIENCE;
        while last != Some(value) {
            assert!(
                Instant::now() < deadline,
                "{name} is {last:?} and never became {value}"
            );
            last = Some(self.metric(name));
        }
    }

    fn try_start(&mut self) -> Result<(), (ExitStatus, String)> {
        let mut child = self
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stderr = Arc::new(Mutex::new(String::new()));
        let (lines, first_line) = mpsc::channel();
        let stdout = child.stdout.take().expect("piped");
        let from_stderr = child.stderr.take().expect("piped");
        let said = Arc::clone(&stderr);
        let readers = vec![
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let _ = lines.send(line);
                }
            }),
            std::thread::spawn(move || {
                for line in BufReader::new(from_stderr).lines().map_while(Result::ok) {
                    let mut said = said.lock().expect("nobody panics holding it");
                    said.push_str(&line);
                    said.push('\n');
                }
            }),
        ];
        let mut running = Running {
            child,
            stderr,
            readers,
        };
        let Some(line) = line_within(&first_line, PATIENCE) else {
            let ended = running.child.try_wait().expect("its status");
            let _ = running.child.kill();
            let status = running.child.wait().expect("reaped");
            let stderr = running.finish();
            assert!(
                ended.is_some(),
                "no ready line within {PATIENCE:?}:\n{stderr}"
            );
            return Err((status, stderr));
        };
        (self.address, self.admin) = self.parse_ready(&line);
        self.running = Some(running);
        Ok(())
    }

    /// The whole ready line, word by word: scripts rely on it.
    fn parse_ready(&self, line: &str) -> (SocketAddr, SocketAddr) {
        let Options {
            shards,
            durability,
            tables,
            ..
        } = &self.options;
        let tls = if tables.contains("[tls]") {
            ", TLS"
        } else {
            ""
        };
        let plural = if *shards == 1 { "" } else { "s" };
        let parts = line
            .strip_prefix(READY)
            .and_then(|rest| rest.strip_suffix(')'))
            .and_then(|rest| {
                rest.split_once(&format!(
                    " (single, {durability}, {shards} shard{plural}{tls}, admin "
                ))
            });
        let Some((address, admin)) = parts else {
            panic!("not the ready line of {:?}: {line}", self.options);
        };
        (
            address.parse().expect("an address"),
            admin.parse().expect("an address"),
        )
    }
}

impl Running {
    /// All of stderr, once the process has ended.
    fn finish(&mut self) -> String {
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        text_of(&self.stderr)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let stderr = self.finish();
        if std::thread::panicking() {
            eprintln!("the server said:\n{stderr}");
        }
    }
}

/// Runs the binary to its end.
pub fn run(args: &[&str]) -> Output {
    finished(Command::new(BINARY).args(args).env_remove(TOKEN_VARIABLE))
}

/// Runs a command that must end by itself.
pub fn finished(command: &mut Command) -> Output {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let read = |mut pipe: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            bytes
        })
    };
    let stdout = read(Box::new(child.stdout.take().expect("piped")));
    let stderr = read(Box::new(child.stderr.take().expect("piped")));
    let deadline = Instant::now() + PATIENCE;
    let (status, in_time) = loop {
        if let Some(status) = child.try_wait().expect("its status") {
            break (status, true);
        }
        if Instant::now() >= deadline {
            let _ = child.kill();
            break (child.wait().expect("reaped"), false);
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let output = Output {
        status,
        stdout: stdout.join().expect("read"),
        stderr: stderr.join().expect("read"),
    };
    assert!(
        in_time,
        "{command:?} did not end within {PATIENCE:?}: {output:?}"
    );
    output
}

/// The report of `log verify --json` on the log in `folder`, which must not be damaged.
pub fn verify_log(folder: &Path) -> serde_json::Value {
    let folder = folder.to_str().expect("a path of text");
    let output = run(&["log", "verify", folder, "--json"]);
    assert!(output.status.success(), "log verify: {output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Every record of the log in `folder` from that index on, as `log dump --json` shows it.
pub fn dump_log(folder: &Path, from: u64) -> Vec<serde_json::Value> {
    let folder = folder.to_str().expect("a path of text");
    let output = run(&["log", "dump", folder, "--json", "--from", &from.to_string()]);
    assert!(output.status.success(), "log dump: {output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// A GET over plain HTTP; the body of a 200.
fn http_get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => Err(std::io::Error::other(answer)),
    }
}

fn line_within(lines: &Receiver<String>, within: Duration) -> Option<String> {
    lines.recv_timeout(within).ok()
}

fn text_of(text: &Mutex<String>) -> String {
    text.lock().expect("nobody panics holding it").clone()
}
