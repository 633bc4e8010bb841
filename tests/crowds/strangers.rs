//! Those who connect and do not behave: each comes again when it is thrown out.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use crate::clients::enter;
use crate::support::raw::frame;
use crate::support::rng::Rng;

/// Between being thrown out and coming again, at least and at most: not all at one instant, as
/// it would be if they came from one machine.
const PAUSE_MS: std::ops::Range<u64> = 500..1_500;

/// Strangers come from other machines: here they must not take the cores from the server and the
/// crowd.
const NICENESS: i32 = 19;

#[derive(Clone, Copy)]
enum Manner {
    /// Never sends a byte.
    Silent,
    /// Sends half of the handshake, and then nothing.
    HalfOpen,
    /// Sends a byte a second.
    ByteASecond,
    /// Passes the handshake and sends the head of a frame that is too large.
    Oversize,
    /// Sends random bytes, past the handshake and instead of it by turns.
    Random,
}

const MANNERS: [Manner; 5] = [
    Manner::Silent,
    Manner::HalfOpen,
    Manner::ByteASecond,
    Manner::Oversize,
    Manner::Random,
];

/// Strangers on a thread of their own.
pub struct Strangers {
    came: Arc<AtomicU64>,
    leave: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Strangers {
    /// Has that many come, in equal parts of each kind; returns once each has tried.
    pub fn let_loose(address: SocketAddr, number: usize) -> Self {
        let (leave, left) = oneshot::channel();
        let came = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&came);
        let (there, wait) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // On Linux this is about the calling thread alone.
            rustix::process::setpriority_process(None, NICENESS).expect("it may be nicer");
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let (first, mut arrived) = mpsc::unbounded_channel();
                for (seed, manner) in (0..).zip(MANNERS.iter().copied().cycle().take(number)) {
                    let (counter, first) = (Arc::clone(&counter), first.clone());
                    tokio::spawn(async move {
                        let mut rng = Rng::new(seed);
                        loop {
                            counter.fetch_add(1, Ordering::Relaxed);
                            if let Ok(stream) = TcpStream::connect(address).await {
                                let _ = first.send(());
                                // It is thrown out; that is what it comes for.
                                let _ = misbehave(manner, stream, address, &mut rng).await;
                            }
                            let pause_ms =
                                PAUSE_MS.start + rng.below(PAUSE_MS.end - PAUSE_MS.start);
                            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                        }
                    });
                }
                for _ in 0..number {
                    let _ = arrived.recv().await;
                }
                let _ = there.send(());
                let _ = left.await;
            });
        });
        wait.recv_timeout(crate::support::PATIENCE)
            .expect("every stranger connects");
        Self {
            came,
            leave,
            thread,
        }
    }

    /// Has them all go; how often they came.
    pub fn send_away(self) -> u64 {
        let _ = self.leave.send(());
        let _ = self.thread.join();
        self.came.load(Ordering::Relaxed)
    }
}

/// Until the server has had enough of it.
async fn misbehave(
    manner: Manner,
    mut stream: TcpStream,
    address: SocketAddr,
    rng: &mut Rng,
) -> io::Result<()> {
    match manner {
        Manner::Silent => {}
        Manner::HalfOpen => stream.write_all(&[7; 16]).await?,
        Manner::ByteASecond => loop {
            stream.write_all(&[7]).await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        },
        Manner::Oversize => {
            drop(stream);
            stream = enter(address).await?;
            stream.write_all(&frame(b'A', &[0; 4_000])).await?;
        }
        Manner::Random => {
            if rng.one_in(2) {
                drop(stream);
                stream = enter(address).await?;
            }
            let bytes: Vec<u8> = (0..256).map(|_| rng.below(256) as u8).collect();
            stream.write_all(&bytes).await?;
        }
    }
    let mut sink = [0; 64];
    while stream.read(&mut sink).await? > 0 {}
    Ok(())
}
