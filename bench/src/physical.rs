//! What the machine itself takes for the two things that a hand-over of a key cannot do without:
//! an append to a log, and a round trip over loopback.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Instant;

/// What an append writes: one block of the log.
const BLOCK_BYTES: usize = 4_096;
/// Blocks of the file, all written beforehand like those of a log's segment.
const BLOCKS: u64 = 2_048;
/// About what a release and the grant behind it take on the wire.
const FRAME_BYTES: usize = 32;
/// Appends and round trips in one sample of each.
const TIMES: usize = 200;

/// A file to append to, and a connection to a thread that sends back what it gets.
#[derive(Debug)]
pub struct Physical {
    file: File,
    block: u64,
    stream: TcpStream,
}

/// Single times, in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// A block written, and synced if that was asked for.
    pub appends_us: Vec<f64>,
    /// A frame there and back.
    pub round_trips_us: Vec<f64>,
}

impl Physical {
    /// Makes its file below `data_root`, where the servers' folders are too.
    ///
    /// # Errors
    /// The kernel's, when there is no file or no connection to be had.
    pub fn new(data_root: &Path) -> io::Result<Physical> {
        let file = tempfile::tempfile_in(data_root)?;
        for block in 0..BLOCKS {
            file.write_all_at(&[0; BLOCK_BYTES], block * BLOCK_BYTES as u64)?;
        }
        file.sync_all()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let (echo, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        echo.set_nodelay(true)?;
        // Ends with the other side of its connection.
        thread::spawn(move || send_back(echo));
        Ok(Physical {
            file,
            block: 0,
            stream,
        })
    }

    /// Measures both, one after the other by turns, and adds to `sample`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn measure(&mut self, is_synced: bool, sample: &mut Sample) -> io::Result<()> {
        for _ in 0..TIMES {
            let started = Instant::now();
            let offset = self.block * BLOCK_BYTES as u64;
            self.file.write_all_at(&[1; BLOCK_BYTES], offset)?;
            if is_synced {
                self.file.sync_data()?;
            }
            sample.appends_us.push(us_since(started));
            self.block = (self.block + 1) % BLOCKS;

            let mut frame = [0; FRAME_BYTES];
            let started = Instant::now();
            self.stream.write_all(&frame)?;
            self.stream.read_exact(&mut frame)?;
            sample.round_trips_us.push(us_since(started));
        }
        Ok(())
    }
}

fn send_back(mut stream: TcpStream) {
    let mut frame = [0; FRAME_BYTES];
    while stream.read_exact(&mut frame).is_ok() && stream.write_all(&frame).is_ok() {}
}

fn us_since(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_measured_and_a_sample_grows() {
        let root = tempfile::tempdir().unwrap();
        let mut physical = Physical::new(root.path()).unwrap();
        let mut sample = Sample::default();
        for (is_synced, times) in [(true, TIMES), (false, 2 * TIMES)] {
            physical.measure(is_synced, &mut sample).unwrap();
            assert_eq!(sample.appends_us.len(), times);
            assert_eq!(sample.round_trips_us.len(), times);
        }
        let all = sample.appends_us.iter().chain(&sample.round_trips_us);
        assert!(all.into_iter().all(|&us| us > 0.0));
        // The file has no name to be left behind.
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
