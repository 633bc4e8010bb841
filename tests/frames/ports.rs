//! A client address is one server's alone, with all that overlaps it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ticketing::security::port::claim;

use crate::support::server::{BINARY, EXIT_LISTEN, finished};
use crate::support::{Options, RawClient, Server, wait_until};

const TOKEN: &str = "a-token-of-many-bytes";

fn serve(listen: &str, port: u16, data_dir: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command
        .args(["serve", "--shards", "1", "--listen"])
        .arg(format!("{listen}:{port}"))
        .arg("--data-dir")
        .arg(data_dir)
        .env("TICKETING_CLIENT_TOKEN", TOKEN);
    command
}

fn assert_refused(listen: &str, port: u16) {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let output = finished(&mut serve(listen, port, &data));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(EXIT_LISTEN),
        "{listen}:{port}: {stderr}"
    );
    assert!(
        stderr.contains(&format!("{listen}:{port}"))
            && stderr.contains("choose another address or port"),
        "{stderr}"
    );
    assert!(!data.exists(), "a refused start made a folder");
}

#[test]
fn overlapping_addresses_of_one_port_are_refused_while_a_server_runs() {
    for (first, others) in [
        ("127.0.0.1", &["0.0.0.0", "[::]"]),
        ("0.0.0.0", &["127.0.0.1", "[::]"]),
        ("[::]", &["0.0.0.0", "[::ffff:127.0.0.1]"]),
    ] {
        let options = Options::shards(2).listen(&format!("{first}:0"));
        let server = Server::start(options.token(TOKEN));
        let port = server.address.port();
        for other in others {
            assert_refused(other, port);
        }
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        RawClient::connect_with(address, TOKEN.as_bytes()).assert_usable();
    }
}

/// As between a start and its first connection, while the log is read.
#[test]
fn overlapping_addresses_of_one_port_are_refused_before_the_first_server_listens() {
    for (first, other) in [
        ("127.0.0.1", "0.0.0.0"),
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "[::]"),
        ("[::]", "[::1]"),
    ] {
        let address: SocketAddr = format!("{first}:0").parse().expect("an address");
        let first = claim(address).expect("a free port");
        assert_refused(other, first.address().port());
    }
}

#[test]
fn addresses_of_one_port_that_do_not_overlap_serve_side_by_side() {
    let one = Server::start(Options::shards(2));
    let port = one.address.port();
    let other = Server::start(Options::shards(2).listen(&format!("127.0.0.2:{port}")));
    assert_eq!(other.address.port(), port);
    let mut clients = [one.address, other.address].map(RawClient::connect);
    // One key, held on both: two servers.
    for client in &mut clients {
        client.hold("key", 60);
    }
}

#[test]
fn of_servers_that_start_at_once_on_one_port_one_serves() {
    let dir = tempfile::tempdir().expect("a folder");
    let port = claim(SocketAddr::from(([0, 0, 0, 0], 0)))
        .expect("a free port")
        .address()
        .port();
    let mut running: Vec<Started> = ["0.0.0.0", "127.0.0.1", "[::]", "0.0.0.0"]
        .iter()
        .enumerate()
        .map(|(number, listen)| {
            let child = serve(listen, port, &dir.path().join(number.to_string()))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn();
            Started(child.expect("it starts"))
        })
        .collect();
    wait_until("all but one have ended", || {
        running.retain_mut(|started| match started.0.try_wait().expect("its status") {
            Some(status) => {
                assert_eq!(status.code(), Some(EXIT_LISTEN));
                false
            }
            None => true,
        });
        running.len() <= 1
    });
    let mut serving = running.pop().expect("one is left");
    let mut line = String::new();
    let stdout = serving.0.stdout.take().expect("piped");
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("its ready line");
    assert!(line.contains("ready"), "{line:?}");
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    RawClient::connect_with(address, TOKEN.as_bytes()).assert_usable();
}

/// Killed and reaped when dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
