//! Tokens and certificates that are changed under load, with TLS to clients and between nodes: nothing closes,
//! nobody else is elected, no lock is lost.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::process::Signal;

use crate::load::{Load, Shape};
use crate::nodes::{Cluster, PATIENCE, edit, host};

/// Signs the nodes' certificates.
type Authority = CertifiedIssuer<'static, KeyPair>;

/// A wait for what a node does at once.
const MOMENT: Duration = Duration::from_millis(300);

/// Runs it.
pub fn run(binary: &Path) -> Result<(), String> {
    let mut cluster = Cluster::make(binary, 3)?;
    let authority = authority()?;
    let roots = cluster.root().join("authority.pem");
    write(&roots, authority.pem().as_bytes())?;
    for slot in 0..3 {
        certify(&cluster, &authority, slot)?;
        let folder = cluster.folder(slot);
        let tls = "\n[tls]\ncertificate_file = \"node.pem\"\nkey_file = \"node.key\"\n\
                   \n[peers.tls]\ncertificate_file = \"node.pem\"\nkey_file = \"node.key\"\n\
                   authority_file = \"../authority.pem\"\nmutual = true\n";
        append(&folder.join("ticketing.toml"), tls)?;
        cluster.run(slot)?;
    }
    for slot in 0..3 {
        cluster.wait_listening(slot)?;
    }
    let shape = Shape {
        authority: Some(roots),
        ..cluster.shape()
    };
    let load = Load::start(&shape)?;
    load.wait_for_grant(PATIENCE)?;
    let before = seen(&cluster)?;

    let old = shape.token.clone();
    let new = "a-new-client-token-for-the-test".to_owned();
    let renewed = Shape {
        token: new.clone(),
        ..shape.clone()
    };
    // Something is wrong: nothing is changed.
    for slot in 0..3 {
        write_secret(&cluster.folder(slot).join("client.token"), b"short\n")?;
    }
    reload(&cluster, &load)?;
    drop(Load::start(&shape)?);

    // Both tokens let in, then only the new one.
    for slot in 0..3 {
        let folder = cluster.folder(slot);
        write_secret(&folder.join("client.token"), new.as_bytes())?;
        write_secret(&folder.join("client-previous.token"), old.as_bytes())?;
        write_secret(
            &folder.join("peer-previous.token"),
            &read(&folder.join("peer.token"))?,
        )?;
        write_secret(&folder.join("peer.token"), b"a-new-peer-token-for-the-test")?;
        certify(&cluster, &authority, slot)?;
        edit(
            &folder,
            &[(
                "client_token_file = \"client.token\"",
                "client_token_file = \"client.token\"\nprevious_client_token_file = \"client-previous.token\"",
            )],
        )?;
        edit(
            &folder,
            &[(
                "token_file = \"peer.token\"",
                "token_file = \"peer.token\"\nprevious_token_file = \"peer-previous.token\"",
            )],
        )?;
        reload(&cluster, &load)?;
    }
    drop(Load::start(&shape)?);
    let new_load = Load::start(&renewed)?;
    new_load.wait_for_grant(PATIENCE)?;
    for slot in 0..3 {
        let folder = cluster.folder(slot);
        edit(
            &folder,
            &[(
                "\nprevious_client_token_file = \"client-previous.token\"",
                "",
            )],
        )?;
        edit(
            &folder,
            &[("\nprevious_token_file = \"peer-previous.token\"", "")],
        )?;
        reload(&cluster, &load)?;
    }
    if Load::start(&shape).is_ok() {
        return Err("the old client token still lets in".to_owned());
    }
    drop(Load::start(&renewed)?);

    // Who came with the old token is still there, and so is the leader.
    load.wait_for_grant(PATIENCE)?;
    let after = seen(&cluster)?;
    if after != before {
        return Err(format!(
            "terms and lost peers were {before:?}, and are {after:?}"
        ));
    }
    let lost = load.counts.other.load(Ordering::Relaxed)
        + load.counts.indeterminate.load(Ordering::Relaxed);
    if lost > 0 {
        return Err(format!("requests were lost: {}", load.counts.summary()));
    }
    // A node that starts now is let in by the others with what is new.
    let follower = (cluster.leader()? + 1) % 3;
    cluster.signal(follower, Signal::TERM)?;
    cluster.reap(follower)?;
    cluster.run(follower)?;
    cluster.wait_listening(follower)?;
    new_load.wait_for_grant(PATIENCE)?;
    println!(
        "tokens and certificates changed under load: {}",
        load.counts.summary()
    );
    Ok(())
}

/// Each node's term, and how often it has lost a peer.
fn seen(cluster: &Cluster) -> Result<Vec<(u64, usize)>, String> {
    let node = |slot: usize| {
        let term = cluster
            .own(slot, "term")
            .ok_or("a node does not tell its term")?;
        Ok((term, cluster.log(slot).matches("connection lost").count()))
    };
    (0..cluster.slots()).map(node).collect()
}

fn reload(cluster: &Cluster, load: &Load) -> Result<(), String> {
    for slot in 0..cluster.slots() {
        cluster.signal(slot, Signal::HUP)?;
    }
    std::thread::sleep(MOMENT);
    load.wait_for_grant(PATIENCE).map(drop)
}

fn authority() -> Result<Authority, String> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().map_err(|error| error.to_string())?;
    CertifiedIssuer::self_signed(params, key).map_err(|error| error.to_string())
}

/// A new certificate and key for a slot's node.
fn certify(cluster: &Cluster, authority: &Authority, slot: usize) -> Result<(), String> {
    let params = CertificateParams::new(vec![host(slot)]).map_err(|error| error.to_string())?;
    let key = KeyPair::generate().map_err(|error| error.to_string())?;
    let made = params
        .signed_by(&key, authority)
        .map_err(|error| error.to_string())?;
    let folder = cluster.folder(slot);
    write(&folder.join("node.pem"), made.pem().as_bytes())?;
    write_secret(&folder.join("node.key"), key.serialize_pem().as_bytes())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}

fn write_secret(path: &Path, bytes: &[u8]) -> Result<(), String> {
    write(path, bytes)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn append(path: &Path, text: &str) -> Result<(), String> {
    let mut all = read(path)?;
    all.extend_from_slice(text.as_bytes());
    write(path, &all)
}
