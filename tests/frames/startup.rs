//! What a start refuses: with which exit code, and whether it says what to do.

use std::ffi::OsStr;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use socket2::{Domain, Socket, Type};

use crate::support::server::{BINARY, EXIT_FOLDER, EXIT_LISTEN, finished, run};
use crate::support::{Options, RawClient, Server, wait_until};

/// Bad usage, or a bad configuration.
const EXIT_USAGE: i32 = 2;

#[test]
fn a_port_that_is_taken_is_refused_and_the_first_server_serves_on() {
    let first = Server::start(Options::shards(2));
    let address = first.address.to_string();
    let dir = tempfile::tempdir().expect("a folder");
    assert_refused(&address, dir.path(), EXIT_LISTEN, "another process listens");
    RawClient::connect(first.address).assert_usable();

    let foreign = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = foreign.local_addr().expect("its address").to_string();
    assert_refused(&address, dir.path(), EXIT_LISTEN, "another process listens");

    // One that would share its port with anybody who asks for that.
    let sharing = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    sharing.set_reuse_port(true).expect("the option is set");
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    sharing.bind(&any_port.into()).expect("a port");
    sharing.listen(1).expect("listening");
    let address = sharing.local_addr().expect("its address").as_socket();
    let address = address.expect("an internet address").to_string();
    assert_refused(&address, dir.path(), EXIT_LISTEN, "another process listens");
}

#[test]
fn an_admin_port_that_is_taken_is_refused() {
    let foreign = TcpListener::bind("127.0.0.1:0").expect("a port");
    let admin = foreign.local_addr().expect("its address").to_string();
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let data = data.to_str().expect("text");
    let output = run(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        data,
        "--admin",
        &admin,
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(EXIT_LISTEN), "{stderr}");
    assert!(
        stderr.contains(&admin) && stderr.contains("choose another"),
        "{stderr}"
    );
}

#[test]
fn a_folder_in_use_is_refused_and_the_first_server_serves_on() {
    let first = Server::start(Options::shards(2));
    let mut client = RawClient::connect(first.address);
    let token = client.hold("key", 60);
    let stderr = assert_refused("127.0.0.1:0", &first.data_dir(), EXIT_FOLDER, "stop");
    assert!(
        stderr.contains(&first.data_dir().display().to_string()),
        "{stderr}"
    );
    client.give_back("key", token);
}

#[test]
fn a_folder_of_something_else_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("precious.txt");
    fs::write(&file, "not ours").expect("written");
    assert_refused("127.0.0.1:0", dir.path(), EXIT_FOLDER, "folder");
    assert_eq!(fs::read_to_string(&file).expect("still there"), "not ours");
    let entries: Vec<_> = fs::read_dir(dir.path()).expect("readable").collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
}

#[test]
fn bad_usage_and_bad_configuration_exit_with_2_and_touch_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let data = data.to_str().expect("text");
    let config = dir.path().join("bad.toml");
    fs::write(
        &config,
        "mode = \"single\"\nlisten = \"127.0.0.1:0\"\ndata_dir = \"data\"\nshards = 0\n\
         [limits]\nhandshake_ms = 99\n",
    )
    .expect("written");
    let config = config.to_str().expect("text");
    let cases: [(&[&str], &str); 13] = [
        (&[], "Usage"),
        (&["serv"], "serv"),
        (&["serve"], "--data-dir"),
        (
            &["serve", "--data-dir", data, "--frobnicate"],
            "--frobnicate",
        ),
        (
            &["serve", "--data-dir", data, "--listen", "nowhere"],
            "nowhere",
        ),
        (
            &["serve", "--data-dir", data, "--shards", "0"],
            "shards = 0",
        ),
        (
            &["serve", "--data-dir", data, "--shards", "65"],
            "shards = 65",
        ),
        (
            &["serve", "--data-dir", data, "--durability", "maybe"],
            "maybe",
        ),
        (
            &["serve", "--data-dir", data, "--admin", "0.0.0.0:7225"],
            "loopback",
        ),
        (&["serve", "--config", config, "--shards", "2"], "--shards"),
        (&["serve", "--config", config], "handshake_ms = 99"),
        (&["check-config", config], "shards = 0"),
        (&["status"], "--admin"),
    ];
    for (args, expected) in cases {
        let output = run(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(EXIT_USAGE), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    }
    assert!(!Path::new(data).exists(), "a refused start made a folder");
    println!("{} kinds of bad usage", cases.len());
}

#[test]
fn an_address_that_others_can_reach_needs_a_token_of_16_bytes() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let serve = |token: Option<&str>| {
        let mut command = std::process::Command::new(BINARY);
        command
            .args(["serve", "--listen", "0.0.0.0:0", "--data-dir"])
            .arg(&data)
            .env_remove("TICKETING_CLIENT_TOKEN");
        if let Some(token) = token {
            command.env("TICKETING_CLIENT_TOKEN", token);
        }
        let output = finished(&mut command);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(EXIT_USAGE),
            "{token:?}: {stderr}"
        );
        assert!(
            stderr.contains("TICKETING_CLIENT_TOKEN"),
            "{token:?}: {stderr}"
        );
    };
    serve(None);
    serve(Some(""));
    serve(Some("15-bytes-is-bad"));
    assert!(!data.exists(), "a refused start made a folder");

    // Bytes that are no text are a token too, not none at all: on loopback that
    // would let everybody in.
    let mut command = std::process::Command::new(BINARY);
    command
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--shards",
            "0",
            "--data-dir",
        ])
        .arg(&data)
        .env("TICKETING_CLIENT_TOKEN", OsStr::from_bytes(b"\xff\xfe"));
    let output = finished(&mut command);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(EXIT_USAGE), "{stderr}");
    assert!(stderr.contains("has 2 bytes"), "{stderr}");

    let token = "16-bytes-is-fine";
    let server = Server::start(Options::shards(1).listen("0.0.0.0:0").token(token));
    let address = ([127, 0, 0, 1], server.address.port()).into();
    RawClient::connect_with(address, token.as_bytes()).assert_usable();
    // Authenticated is not encrypted, and that is said loudly; on loopback there is no need.
    wait_until("a warning that clients are not encrypted", || {
        let stderr = server.stderr();
        stderr.contains("WARN") && stderr.contains("not encrypted")
    });
    let loopback = Server::start(Options::shards(1));
    assert!(!loopback.stderr().contains("WARN"), "{}", loopback.stderr());
}

#[test]
fn check_config_and_status_say_what_a_running_server_is() {
    let server = Server::start(Options::shards(3).limits("waiters_per_key = 9"));
    let config = server.data_dir().with_file_name("ticketing.toml");
    let output = run(&["check-config", config.to_str().expect("text")]);
    assert_eq!(output.stdout, b"ok\n", "{output:?}");
    RawClient::connect(server.address).hold("key", 60);
    server.wait_metric("locks_held", 1);
    server.wait_metric("connections", 0);

    let admin = server.admin.to_string();
    let output = run(&["status", "--admin", &admin, "--json"]);
    assert!(output.status.success(), "{output:?}");
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for (field, expected) in [
        ("mode", serde_json::json!("single")),
        ("durability", serde_json::json!("sync")),
        ("phase", serde_json::json!("serving")),
        ("shards", serde_json::json!(3)),
        ("locks_held", serde_json::json!(1)),
        ("waiting", serde_json::json!(0)),
    ] {
        assert_eq!(status[field], expected, "{field} of {status}");
    }
    let output = run(&["status", "--admin", &admin]);
    assert!(output.status.success(), "{output:?}");

    drop(server);
    let output = run(&["status", "--admin", &admin]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// Starts a second server, which must refuse with that code and name a remedy.
fn assert_refused(listen: &str, data_dir: &Path, code: i32, remedy: &str) -> String {
    let data_dir = data_dir.to_str().expect("text");
    let output = run(&["serve", "--listen", listen, "--data-dir", data_dir]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(remedy), "no remedy in: {stderr}");
    assert!(output.stdout.is_empty(), "{output:?}");
    stderr
}
