//! Snapshots on their way between nodes.

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use ticketing_raftlog::raft::{ConfigEntry, EntryId, Input, Snapshot};
use ticketing_raftlog::snapshot::SNAPSHOT_TRAILER_BYTES;
use ticketing_raftlog::{Position, SnapshotMeta, SnapshotReader};
use xxhash_rust::xxh3::xxh3_64;

use crate::lanes::messages::FromConsensus;
use crate::locks::Fate;
use crate::runtime;

use super::restore::Restore;
use super::role::{Role, fatal_unless};

/// What tells a snapshot from every other of the same index: its file's trailer has the checksum of all
/// its chunks' checksums.
pub(super) fn identity_of(reader: &SnapshotReader) -> Snapshot {
    let meta = reader.meta();
    let identity = File::open(reader.path()).and_then(|file| identity_of_file(&file, &meta));
    identity.unwrap_or_else(|error| {
        fatal_unless(Err(error), "reading a snapshot");
        unreachable!("an error ends the process");
    })
}

fn identity_of_file(file: &File, meta: &SnapshotMeta) -> io::Result<Snapshot> {
    let bytes = file.metadata()?.len();
    let mut trailer = [0; SNAPSHOT_TRAILER_BYTES];
    let at = bytes.checked_sub(SNAPSHOT_TRAILER_BYTES as u64);
    let at = at.ok_or(io::ErrorKind::UnexpectedEof)?;
    file.read_exact_at(&mut trailer, at)?;
    Ok(Snapshot {
        last: EntryId {
            term: meta.term,
            index: meta.index,
        },
        bytes,
        id: xxh3_64(&trailer),
    })
}

/// Snapshots that peers are sent: open, so that they stay readable when a newer one takes their place.
#[derive(Debug, Default)]
pub(super) struct Sending {
    files: Vec<(Snapshot, File)>,
}

impl Sending {
    pub(super) fn new(newest: Option<&SnapshotReader>) -> Self {
        let mut sending = Self::default();
        if let Some(reader) = newest {
            sending.add(identity_of(reader), File::open(reader.path()));
        }
        sending
    }

    fn add(&mut self, snapshot: Snapshot, file: io::Result<File>) {
        match file {
            Ok(file) => self.files.push((snapshot, file)),
            Err(error) => fatal_unless(Err(error), "opening a snapshot"),
        }
    }
}

/// A snapshot that is coming in.
#[derive(Default)]
pub(super) struct Incoming {
    receiving: Option<(Snapshot, File)>,
    job: Option<Job>,
}

type Job = Pin<Box<dyn Future<Output = Installed>>>;

struct Installed {
    snapshot: Snapshot,
    // `None` when what came is no such snapshot.
    reader: io::Result<Option<SnapshotReader>>,
}

impl Role {
    /// Bytes of a snapshot that a peer is sent.
    pub(super) fn snapshot_bytes(
        &self,
        snapshot: &Snapshot,
        offset: u64,
        bytes: u32,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let cluster = self.cluster.as_ref()?;
        let mut files = cluster.sending.files.iter();
        let (_, file) = files.find(|(known, _)| known == snapshot)?;
        let start = out.len();
        out.resize(start + bytes as usize, 0);
        fatal_unless(
            file.read_exact_at(&mut out[start..], offset),
            "reading a snapshot",
        );
        Some(())
    }

    /// A snapshot of this node's own is written.
    pub(super) fn snapshot_written(&mut self, meta: &SnapshotMeta) {
        if self.cluster.is_none() {
            self.log.recycle(meta);
            return;
        }
        let path = self.log.snapshot_path(meta.index);
        let opened = File::open(&path).and_then(|file| {
            let snapshot = identity_of_file(&file, meta)?;
            Ok((snapshot, file))
        });
        let (snapshot, file) = match opened {
            Ok(opened) => opened,
            Err(error) => return fatal_unless(Err(error), "opening a snapshot"),
        };
        // What a peer that is heard still needs stays in the log, as far as it costs little.
        let keep_from = self.core.needed_from();
        let last = meta.index.min(keep_from.previous());
        if let Some(term) = self.log.term_at(last)
            && last > self.log.index().base()
        {
            self.log.recycle(&SnapshotMeta {
                index: last,
                term,
                ..*meta
            });
        }
        self.step(Input::Compacted {
            snapshot,
            first_index: self.log.index().base().next(),
        });
        self.keep_for_sending(snapshot, file);
    }

    fn keep_for_sending(&mut self, snapshot: Snapshot, file: File) {
        let core = &self.core;
        if let Some(cluster) = &mut self.cluster {
            let files = &mut cluster.sending.files;
            files.retain(|(known, _)| core.sends_snapshot(known));
            files.push((snapshot, file));
        }
    }

    /// Stores bytes of a snapshot that came in.
    pub(super) fn store_chunk(&mut self, snapshot: Snapshot, offset: u64, bytes: u32) {
        let path = self.log.install_spec().received_path();
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let known = cluster.incoming.receiving.as_ref().map(|(known, _)| *known);
        if offset == 0 || known != Some(snapshot) {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path);
            match file {
                Ok(file) => cluster.incoming.receiving = Some((snapshot, file)),
                Err(error) => return fatal_unless(Err(error), "storing a snapshot"),
            }
        }
        let Some((_, file)) = &cluster.incoming.receiving else {
            unreachable!("it was opened above");
        };
        let chunk = &self.received[..bytes as usize];
        fatal_unless(file.write_all_at(chunk, offset), "storing a snapshot");
        self.inputs.push_back(Input::SnapshotChunkStored {
            snapshot,
            next_offset: offset + u64::from(bytes),
        });
    }

    /// Checks a snapshot that came in, and puts it in the place of the newest.
    pub(super) fn install(&mut self, snapshot: Snapshot, config: ConfigEntry) {
        let spec = self.log.install_spec();
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let Some((_, file)) = cluster.incoming.receiving.take() else {
            unreachable!("what is installed was stored");
        };
        tracing::info!(index = %snapshot.last.index, bytes = snapshot.bytes, "installing the leader's snapshot");
        cluster.incoming.job = Some(Box::pin(async move {
            let reader = runtime::blocking(move || {
                file.sync_all()?;
                let meta = SnapshotMeta {
                    index: snapshot.last.index,
                    term: snapshot.last.term,
                    position: Position::ZERO,
                };
                if identity_of_file(&file, &meta)? != snapshot {
                    return Ok(None);
                }
                spec.install(&snapshot.last, &config)
            })
            .await;
            Installed { snapshot, reader }
        }));
    }

    /// Polls an installation; ready when it has ended.
    pub(super) fn poll_install(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(cluster) = &mut self.cluster else {
            return Poll::Pending;
        };
        let Some(job) = &mut cluster.incoming.job else {
            return Poll::Pending;
        };
        let Poll::Ready(installed) = job.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        cluster.incoming.job = None;
        let snapshot = installed.snapshot;
        let reader = match installed.reader {
            Ok(Some(reader)) => reader,
            Ok(None) => {
                tracing::warn!(index = %snapshot.last.index, "the snapshot that came is not the one announced");
                self.step(Input::SnapshotInstalled {
                    snapshot,
                    valid: false,
                });
                return Poll::Ready(());
            }
            Err(error) => {
                fatal_unless(Err(error), "installing a snapshot");
                return Poll::Ready(());
            }
        };
        let decided = cluster
            .fates
            .covered(snapshot.last.index, snapshot.last.term);
        let decided = decided.into_iter().map(|(pending, dropped)| {
            let fate = if dropped {
                Fate::Dropped
            } else {
                Fate::Unknown
            };
            (pending, fate)
        });
        self.tell_fates(decided.collect());
        let file = File::open(reader.path());
        self.snapshots.forget();
        if let Some(cluster) = &mut self.cluster {
            cluster.hashes.forget();
        }
        self.fan_out.tell_all(|| FromConsensus::Reset);
        self.fan_out.go_on_behind(snapshot.last.index);
        self.restore = Some(Restore::new(reader));
        match file {
            Ok(file) => self.keep_for_sending(snapshot, file),
            Err(error) => fatal_unless(Err(error), "opening a snapshot"),
        }
        self.step(Input::SnapshotInstalled {
            snapshot,
            valid: true,
        });
        Poll::Ready(())
    }
}
