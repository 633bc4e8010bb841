//! TLS towards clients, with the published client.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use published::{TicketBroker, TicketError, TlsMode};
use support::{Options, Server, raw};

/// Writes a certificate for 127.0.0.1 and its key into `folder`.
fn certificate(folder: &Path) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("made");
    fs::write(folder.join("server.pem"), made.cert.pem()).expect("written");
    let key = folder.join("server.key");
    fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("mode set");
}

fn broker(server: &Server, tls: TlsMode) -> TicketBroker {
    TicketBroker::builder()
        .addrs([server.address.to_string()])
        .allow_loopback_no_auth()
        .tls(tls)
        .connect()
        .expect("a valid configuration")
}

fn tls_server(shards: u16, folder: &Path) -> Server {
    certificate(folder);
    let tls = format!(
        "[tls]\ncertificate_file = \"{0}/server.pem\"\nkey_file = \"{0}/server.key\"\n",
        folder.display()
    );
    Server::start(Options::shards(shards).tables(&tls))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_published_client_works_under_tls_on_several_shards() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = tls_server(2, folder.path());
    let broker = broker(&server, TlsMode::Ca(folder.path().join("server.pem")));
    assert!(broker.wait_ready(Duration::from_secs(10)).await);
    let second = Duration::from_secs(1);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16_u32 {
        let broker = broker.clone();
        tasks.spawn(async move {
            for round in 0..100_u32 {
                let key = format!("key-{}", (task + round) % 8);
                let ticket = broker
                    .acquire(&key, 30 * second, 30 * second, second)
                    .await
                    .expect("acquired");
                ticket.release().await.expect("released");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no task failed");
    }
    server.wait_metric("locks_held", 0);
    assert_eq!(server.metric("answers_total{kind=\"acquired\"}"), 1_600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_the_client_does_not_trust_gets_nowhere() {
    let (folder, other) = (
        tempfile::tempdir().expect("one"),
        tempfile::tempdir().expect("two"),
    );
    let server = tls_server(1, folder.path());
    certificate(other.path());
    let broker = broker(&server, TlsMode::Ca(other.path().join("server.pem")));
    assert!(!broker.wait_ready(Duration::from_secs(1)).await);
    let second = Duration::from_secs(1);
    let refused = broker.acquire("k", second, second, second).await;
    assert!(!matches!(refused, Ok(_) | Err(TicketError::Busy)));
}

#[test]
fn a_plain_client_gets_no_hello_from_a_tls_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = tls_server(1, folder.path());
    let mut stream = raw::open(server.address).expect("connected");
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .expect("the option");
    stream.write_all(&[b'A'; 64]).expect("sent");
    let mut answer = Vec::new();
    // An alert may come before the end; a hello never.
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.windows(7).any(|bytes| bytes == b"TCKCLI3"));
}

#[test]
fn unusable_certificates_and_keys_are_refused_with_the_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    certificate(folder.path());
    let check = || {
        let config = folder.path().join("ticketing.toml");
        fs::write(
            &config,
            "mode = \"single\"\nlisten = \"127.0.0.1:0\"\ndata_dir = \"d\"\n\
             [tls]\ncertificate_file = \"server.pem\"\nkey_file = \"server.key\"\n",
        )
        .expect("written");
        let done = support::server::run(&["check-config", &config.to_string_lossy()]);
        (
            done.status.code(),
            String::from_utf8_lossy(&done.stderr).into_owned(),
        )
    };
    assert_eq!(check().0, Some(0));
    let key = folder.path().join("server.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("mode set");
    let (code, said) = check();
    assert!(code == Some(2) && said.contains("chmod 600"), "{said}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("mode set");
    fs::write(folder.path().join("server.pem"), "nothing\n").expect("written");
    let (code, said) = check();
    assert!(code == Some(2) && said.contains("no certificate"), "{said}");
}
