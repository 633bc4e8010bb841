//! The lock-free lanes between cores.
//!
//! A lane is a bounded multi-producer queue into one core, with that core's
//! [`Doorbell`] beside it. Sending never blocks: a full lane gives the item
//! back, and the sender keeps it until there is room. A receiver that sleeps is
//! woken; one that is already awake, or already told, costs the sender nothing.
//!
//! Lanes cannot deadlock as long as every core keeps draining what comes in
//! while something of its own waits to go out, which is how the shard and the
//! consensus role are written: a full outgoing lane parks the item, never the
//! executor.

pub mod messages;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use crossbeam_channel::{TryRecvError, TrySendError};

/// Wakes one core's main loop from anywhere, any number of times at the price
/// of one wake-up.
#[derive(Debug, Default)]
pub struct Doorbell {
    rung: AtomicBool,
    waker: AtomicWaker,
}

impl Doorbell {
    /// A doorbell that nobody waits at yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Asks the owner to look at its lanes. Cheap when it was already asked.
    pub fn ring(&self) {
        // The item was queued before this store, so whoever sees the flag sees
        // the item too.
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Ready once the bell has been rung since the last time this was ready.
    /// Only the owning core may poll.
    pub fn poll_rung(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.rung.swap(false, Ordering::AcqRel) {
            return Poll::Ready(());
        }
        self.waker.register(cx.waker());
        // A ring between the first look and the registration woke nobody, so
        // look again now that the waker is in place.
        if self.rung.swap(false, Ordering::AcqRel) {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

/// The shard, of `shards`, that owns a key of this hash.
pub fn owner_of(key_hash: u64, shards: usize) -> u16 {
    // The high half spreads the keys over shards, independent of how many there are of either.
    let owner = ((key_hash >> 32) * shards as u64) >> 32;
    u16::try_from(owner).unwrap_or(0)
}

/// The sending end of a lane; clone it for every core that sends.
#[derive(Debug)]
pub struct Sender<T> {
    queue: crossbeam_channel::Sender<T>,
    doorbell: Arc<Doorbell>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            doorbell: Arc::clone(&self.doorbell),
        }
    }
}

impl<T> Sender<T> {
    /// Queues `item` and rings the receiver's bell.
    ///
    /// # Errors
    /// Gives the item back when the lane is full, or its receiver has ended.
    pub fn try_send(&self, item: T) -> Result<(), T> {
        match self.queue.try_send(item) {
            Ok(()) => {
                self.doorbell.ring();
                Ok(())
            }
            Err(TrySendError::Full(item) | TrySendError::Disconnected(item)) => Err(item),
        }
    }

    /// How many items wait in the lane now.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.queue.len()
    }
}

/// The receiving end of a lane.
#[derive(Debug)]
pub struct Receiver<T> {
    queue: crossbeam_channel::Receiver<T>,
}

impl<T> Receiver<T> {
    /// The next item, if one waits.
    #[must_use]
    pub fn try_recv(&self) -> Option<T> {
        self.queue.try_recv().ok()
    }

    /// Waits for the next item, on a thread that is no executor and owns
    /// `doorbell`; none once every sender is gone. It sleeps at once: spinning
    /// first would take the core from those who make the next item.
    #[must_use]
    pub fn recv_parked(&self, doorbell: &Doorbell) -> Option<T> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        loop {
            match self.queue.try_recv() {
                Ok(item) => return Some(item),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            if doorbell.poll_rung(&mut cx).is_pending() {
                std::thread::park_timeout(PARKED_AT_MOST);
            }
        }
    }

    /// How many items wait in the lane now.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.queue.len()
    }
}

/// How long a parked receiver sleeps before it looks whether its senders are
/// gone, which rings nobody.
const PARKED_AT_MOST: Duration = Duration::from_secs(1);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A lane of at most `capacity` items into the core that owns `doorbell`.
#[must_use]
pub fn lane<T>(capacity: usize, doorbell: &Arc<Doorbell>) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = crossbeam_channel::bounded(capacity);
    (
        Sender {
            queue: sender,
            doorbell: Arc::clone(doorbell),
        },
        Receiver { queue: receiver },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_full_lane_gives_the_item_back_and_one_less_is_taken() {
        let (sender, receiver) = lane(2, &Doorbell::new());
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(sender.try_send(2), Ok(()));
        assert_eq!(sender.try_send(3), Err(3));
        assert_eq!(receiver.try_recv(), Some(1));
        assert_eq!(sender.try_send(3), Ok(()));
        assert_eq!(receiver.try_recv(), Some(2));
        assert_eq!(receiver.try_recv(), Some(3));
        assert_eq!(receiver.try_recv(), None);
    }

    #[test]
    fn a_sleeping_receiver_is_woken_once_and_a_busy_one_not_at_all() {
        let counter = Arc::new(CountingWaker::default());
        let waker = Waker::from(Arc::clone(&counter));
        let mut cx = Context::from_waker(&waker);
        let doorbell = Doorbell::new();
        let (sender, _receiver) = lane(8, &doorbell);

        assert!(sender.try_send(0).is_ok());
        assert_eq!(counter.0.load(Ordering::SeqCst), 0, "nobody slept");
        assert!(doorbell.poll_rung(&mut cx).is_ready());
        assert!(doorbell.poll_rung(&mut cx).is_pending());

        assert!(sender.try_send(1).is_ok());
        assert!(sender.try_send(2).is_ok());
        assert_eq!(counter.0.load(Ordering::SeqCst), 1, "one wake-up for both");
        assert!(doorbell.poll_rung(&mut cx).is_ready());
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        const ITEMS: u32 = 200_000;
        let doorbell = Doorbell::new();
        let (sender, receiver) = lane(64, &doorbell);
        let producer = std::thread::spawn(move || {
            for item in 0..ITEMS {
                let mut item = item;
                while let Err(back) = sender.try_send(item) {
                    item = back;
                    std::thread::yield_now();
                }
            }
        });
        for next in 0..ITEMS {
            assert_eq!(receiver.recv_parked(&doorbell), Some(next));
        }
        assert_eq!(receiver.recv_parked(&doorbell), None, "the sender is gone");
        assert!(producer.join().is_ok());
    }

    #[test]
    fn every_hash_has_an_owner_below_the_number_of_shards() {
        for shards in 1..=64 {
            for hash in [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
                assert!(usize::from(owner_of(hash, shards)) < shards);
            }
        }
    }

    #[test]
    fn keys_spread_evenly_over_shards() {
        let mut counts = [0_u32; 4];
        for key in 0..40_000_u32 {
            let hash = crate::locks::key_hash(7, &key.to_le_bytes());
            counts[usize::from(owner_of(hash, 4))] += 1;
        }
        assert!(counts.iter().all(|&count| (9_000..11_000).contains(&count)));
    }
}
