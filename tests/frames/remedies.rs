//! A start that cannot be: each says in one line what is wrong and what to do, with its exit code,
//! and leaves what it found as it was.

use std::fs;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::geteuid;
use tempfile::TempDir;
use ticketing_raftlog::format::{
    FORMAT_VERSION, IDENTITY_MAGIC, IdentityLayout, open_block, seal_block,
};

use crate::support::server::{BINARY, EXIT_FOLDER, finished};
use crate::support::{Options, RawClient, Server, wait_until};

/// Bad usage, or a bad configuration.
const EXIT_USAGE: i32 = 2;
/// A user and a group without any rights, by convention.
const NOBODY: u32 = 65_534;
/// Shows a folder read-only to what runs behind it.
const READ_ONLY: &str =
    "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && shift && exec \"$@\"";

fn serve(data_dir: &Path) -> Command {
    let mut command = Command::new(BINARY);
    add_serve(&mut command, data_dir);
    command
}

fn add_serve(command: &mut Command, data_dir: &Path) {
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--shards", "1"])
        .arg("--data-dir")
        .arg(data_dir)
        .env_remove("TICKETING_CLIENT_TOKEN");
}

/// Runs what must be refused with that code, in one line that has all these parts.
fn assert_refused(command: &mut Command, code: i32, parts: &[&str]) {
    let output = finished(command);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let said = |line: &&str| line.starts_with("ticketing: ") || line.starts_with("error: ");
    let line = stderr.lines().find(said).unwrap_or_default();
    for part in parts {
        assert!(line.contains(part), "no {part:?} in: {stderr}");
    }
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("readable");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<String> = entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A folder that everybody can get into, with the binary: its own may be out of reach.
struct Reachable {
    folder: TempDir,
    binary: PathBuf,
}

impl Reachable {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        set_mode(folder.path(), 0o755);
        let binary = folder.path().join("ticketing");
        fs::copy(BINARY, &binary).expect("copied");
        set_mode(&binary, 0o755);
        Self { folder, binary }
    }

    fn join(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The binary, run by somebody who is not root: who runs the test, or nobody.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the mode is set");
}

#[test]
fn names_instead_of_numbers_are_refused_in_flags_and_in_files() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let remedy = ["\"localhost:5225\"", "127.0.0.1:5225", "not looked up"];
    for flag in ["--listen", "--admin"] {
        let mut command = Command::new(BINARY);
        command.args(["serve", flag, "localhost:5225", "--data-dir"]);
        assert_refused(command.arg(&data), EXIT_USAGE, &remedy);
    }
    let mut status = Command::new(BINARY);
    status.args(["status", "--admin", "localhost:5225"]);
    assert_refused(&mut status, EXIT_USAGE, &remedy);
    let config = dir.path().join("ticketing.toml");
    for (line, text) in [
        ("line 2", "mode = \"single\"\nlisten = \"localhost:5225\"\n"),
        (
            "line 3",
            "mode = \"single\"\nlisten = \"127.0.0.1:0\"\nadmin = \"localhost:5225\"\n",
        ),
    ] {
        fs::write(&config, format!("{text}data_dir = \"data\"\n")).expect("written");
        let parts = [&remedy[..], &[line]].concat();
        let mut command = Command::new(BINARY);
        command.arg("serve").arg("--config").arg(&config);
        assert_refused(&mut command, EXIT_USAGE, &parts);
        let mut command = Command::new(BINARY);
        command.arg("check-config").arg(&config);
        assert_refused(&mut command, EXIT_USAGE, &parts);
    }
    assert!(!data.exists(), "a refused start made a folder");
}

#[test]
fn files_of_the_configuration_that_are_missing_or_unreadable_are_named() {
    let place = Reachable::new();
    let config = place.join("ticketing.toml");
    let check = |command: &mut Command, parts: &[&str]| {
        command.arg("check-config").arg(&config);
        assert_refused(
            command.env_remove("TICKETING_CLIENT_TOKEN"),
            EXIT_USAGE,
            parts,
        );
    };
    check(
        &mut place.command(),
        &["configuration file", "correct the path"],
    );
    let with_token = "client_token_file = \"client.token\"\n";
    let with_tls = "[tls]\ncertificate_file = \"server.pem\"\nkey_file = \"server.key\"\n";
    let write = |rest: &str| {
        let text =
            format!("mode = \"single\"\nlisten = \"127.0.0.1:0\"\ndata_dir = \"data\"\n{rest}");
        fs::write(&config, text).expect("written");
        set_mode(&config, 0o644);
    };
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a key");
    let pem = certified.cert.pem();
    for (rest, what, file) in [
        (with_token, "token file", "client.token"),
        (with_tls, "certificate file", "server.pem"),
        (with_tls, "key file", "server.key"),
    ] {
        write(rest);
        let file = place.join(file);
        let shown = file.display().to_string();
        check(&mut place.command(), &[what, &shown, "correct the path"]);
        fs::create_dir(&file).expect("made");
        check(&mut place.command(), &[what, &shown, "name a file"]);
        fs::remove_dir(&file).expect("removed");
        fs::write(&file, &pem).expect("written");
        set_mode(&file, 0o000);
        check(
            &mut place.command(),
            &[what, &shown, "property of the user"],
        );
        // So that the next one is what is wrong.
        set_mode(&file, 0o644);
    }
    set_mode(&config, 0o000);
    check(
        &mut place.command(),
        &["configuration file", "property of the user"],
    );
}

#[test]
fn what_is_no_folder_and_what_has_nothing_to_be_made_in_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    fs::write(&file, "not ours").expect("written");
    let dangling = dir.path().join("dangling");
    symlink("nowhere", &dangling).expect("linked");
    for path in [file.clone(), file.join("below"), dangling] {
        let shown = path.display().to_string();
        assert_refused(&mut serve(&path), EXIT_FOLDER, &[&shown, "name a folder"]);
    }
    let orphan = dir.path().join("absent/data");
    let shown = orphan.display().to_string();
    assert_refused(
        &mut serve(&orphan),
        EXIT_FOLDER,
        &[&shown, "make that one first"],
    );
    assert_eq!(entries(dir.path()), ["dangling", "file"]);
    assert_eq!(fs::read_to_string(&file).expect("still there"), "not ours");
}

#[test]
fn a_folder_without_the_rights_is_refused() {
    let place = Reachable::new();
    let remedy = ["read and write access"];
    // Nobody may make a folder in this one, and nobody may do anything in that one.
    let parent = place.join("parent");
    let closed = place.join("closed");
    for (folder, mode) in [(&parent, 0o555), (&closed, 0o000)] {
        fs::create_dir(folder).expect("made");
        set_mode(folder, mode);
    }
    for path in [parent.join("data"), closed.clone()] {
        let mut command = place.command();
        add_serve(&mut command, &path);
        let shown = path.display().to_string();
        assert_refused(&mut command, EXIT_FOLDER, &[&shown, remedy[0]]);
    }
    // So that it can be looked into, and removed.
    for folder in [&parent, &closed] {
        set_mode(folder, 0o755);
        assert!(entries(folder).is_empty());
    }
}

#[test]
fn a_folder_that_is_mounted_read_only_is_refused_and_intact() {
    let unshare = || {
        let mut command = Command::new("unshare");
        if !geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.arg("--mount");
        command
    };
    if !unshare()
        .arg("true")
        .status()
        .is_ok_and(|status| status.success())
    {
        println!("skipped: this process may not mount anything, even for itself");
        return;
    }
    let mut server = Server::start(Options::shards(1));
    RawClient::connect(server.address).hold("key", 60);
    server.terminate();
    server.wait_exit();
    let data = server.data_dir();
    let empty = data.with_file_name("empty");
    fs::create_dir(&empty).expect("made");
    for folder in [&data, &empty] {
        let before = entries(folder);
        let mut command = unshare();
        command
            .args(["sh", "-c", READ_ONLY, "sh"])
            .arg(folder)
            .arg(BINARY);
        add_serve(&mut command, folder);
        let shown = folder.display().to_string();
        assert_refused(&mut command, EXIT_FOLDER, &[&shown, "mounted read-write"]);
        assert_eq!(entries(folder), before);
    }
    server.restart();
    RawClient::connect(server.address).assert_usable();
}

#[test]
fn a_folder_of_a_newer_format_is_refused_and_left_alone() {
    let mut server = Server::start(Options::shards(1));
    server.terminate();
    server.wait_exit();
    let file = server.data_dir().join("identity");
    let original = fs::read(&file).expect("readable");
    let mut layout: IdentityLayout = open_block(&original, IDENTITY_MAGIC).expect("an identity");
    layout.version = FORMAT_VERSION + 1;
    let newer = seal_block(&layout);
    fs::write(&file, &newer).expect("written");
    let version = format!("format version {}", FORMAT_VERSION + 1);
    let shown = file.display().to_string();
    assert_refused(
        &mut serve(&server.data_dir()),
        EXIT_FOLDER,
        &[&shown, &version, "start the newer program"],
    );
    assert_eq!(fs::read(&file).expect("readable"), newer);
    fs::write(&file, original).expect("written");
    server.restart();
}

#[test]
fn of_two_that_start_at_once_on_one_folder_one_serves_and_the_other_names_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    for _ in 0..5 {
        let mut running: Vec<Started> = (0..2)
            .map(|_| {
                let mut command = serve(&data);
                command.stdin(Stdio::null()).stdout(Stdio::null());
                Started(command.stderr(Stdio::piped()).spawn().expect("it starts"))
            })
            .collect();
        let mut refused = None;
        wait_until("one of them has ended", || {
            refused = running
                .iter_mut()
                .position(|started| started.0.try_wait().expect("its status").is_some());
            refused.is_some()
        });
        let refused = refused.expect("waited for it");
        let other = running[1 - refused].0.try_wait().expect("its status");
        assert_eq!(other, None, "neither serves");
        let Started(child) = &mut running[refused];
        let mut stderr = String::new();
        let mut pipe = child.stderr.take().expect("piped");
        std::io::Read::read_to_string(&mut pipe, &mut stderr).expect("text");
        let status = child.wait().expect("ended");
        assert_eq!(status.code(), Some(EXIT_FOLDER), "{stderr}");
        assert!(stderr.contains("stop that one first"), "{stderr}");
    }
}

#[test]
fn a_signal_while_the_folder_is_read_ends_it_at_once_and_in_peace() {
    let mut server = Server::start(Options::shards(2));
    let mut client = RawClient::connect(server.address);
    let token = client.hold("key", 250);
    server.kill9();
    // A start that reads its identity from a pipe which nobody fills stays right there.
    let file = server.data_dir().join("identity");
    let aside = file.with_file_name("../identity");
    fs::rename(&file, &aside).expect("put aside");
    mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut started = Started(
            serve(&server.data_dir())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts"),
        );
        let mut writer = None;
        wait_until("it reads its identity", || {
            let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).expect("a flag");
            let opened = fs::File::options()
                .write(true)
                .custom_flags(nonblocking)
                .open(&file);
            writer = opened.ok();
            writer.is_some()
        });
        let pid = rustix::process::Pid::from_child(&started.0);
        rustix::process::kill_process(pid, signal).expect("it runs");
        let mut ended = None;
        wait_until("it has ended", || {
            ended = started.0.try_wait().expect("its status");
            ended.is_some()
        });
        assert_eq!(ended.and_then(|status| status.code()), Some(0));
        drop(writer);
    }
    assert!(fs::metadata(&file).expect("there").file_type().is_fifo());
    fs::rename(&aside, &file).expect("put back");
    server.restart();
    RawClient::connect(server.address).give_back("key", token);
}

/// Killed and reaped when dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
