//! What waits to leave a shard for another one: batches that are sent once per
//! wake-up, and kept when the lane is full.

use crate::lanes::Sender;
use crate::lanes::messages::{Forwarded, ForwardedRequest, ToShard};
use crate::locks::{Answer, GrantRef, Origin};

/// The outbox towards one other shard.
#[derive(Debug, Default)]
pub struct Outbox {
    forwarded: Forwarded,
    acquires: usize,
    answers: Vec<(Origin, Answer)>,
}

impl Outbox {
    /// Acquires that wait in it.
    #[must_use]
    pub fn acquires_waiting(&self) -> usize {
        self.acquires
    }

    /// True when nothing waits in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.forwarded.is_empty()
    }

    /// Adds a request for a key that the other shard owns.
    pub fn forward(
        &mut self,
        origin: Origin,
        key_hash: u64,
        key: &[u8],
        request: ForwardedRequest,
    ) {
        if matches!(request, ForwardedRequest::Acquire { .. }) {
            self.acquires += 1;
        }
        self.forwarded.push(origin, key_hash, key, request);
    }

    /// Adds the answer to a request that came in on the other shard.
    pub fn answer(&mut self, origin: Origin, answer: Answer) {
        self.answers.push((origin, answer));
    }

    /// Hands a grant back to the shard that owns its key.
    pub fn undelivered(&mut self, origin: Origin, grant: GrantRef) {
        self.forward(origin, 0, &[], ForwardedRequest::Undelivered(grant));
    }

    /// Sends what waits, as far as there is room; the rest stays, in order.
    /// True when nothing stayed.
    pub fn flush(&mut self, own: u16, lane: &Sender<ToShard>) -> bool {
        if !self.answers.is_empty() {
            let message = ToShard::Answers {
                owner: own,
                answers: std::mem::take(&mut self.answers),
            };
            if let Err(ToShard::Answers { answers, .. }) = lane.try_send(message) {
                self.answers = answers;
                return false;
            }
        }
        if !self.forwarded.is_empty() {
            let message = ToShard::Forwarded(std::mem::take(&mut self.forwarded));
            match lane.try_send(message) {
                Ok(()) => self.acquires = 0,
                Err(ToShard::Forwarded(forwarded)) => {
                    self.forwarded = forwarded;
                    return false;
                }
                Err(ToShard::Answers { .. }) => {
                    unreachable!("the lane gives back what it was given")
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{Doorbell, lane};

    fn origin(request_id: u64) -> Origin {
        Origin {
            shard: 0,
            connection: 0,
            generation: 0,
            request_id,
        }
    }

    #[test]
    fn a_full_lane_keeps_everything_in_order_for_the_next_time() {
        let (sender, receiver) = lane(1, &Doorbell::new());
        let mut outbox = Outbox::default();
        outbox.answer(origin(1), Answer::Released);
        assert!(outbox.flush(0, &sender));
        outbox.answer(origin(2), Answer::Busy);
        outbox.forward(
            origin(3),
            5,
            b"k",
            ForwardedRequest::Acquire {
                arrived_ms: 0,
                wait_s: 0,
                lease_s: 1,
            },
        );
        assert!(!outbox.flush(0, &sender), "the lane holds one message");
        outbox.answer(origin(4), Answer::NotFound);
        assert_eq!(outbox.acquires_waiting(), 1);

        assert!(matches!(receiver.try_recv(), Some(ToShard::Answers { .. })));
        assert!(!outbox.flush(0, &sender), "answers went, requests did not");
        match receiver.try_recv() {
            Some(ToShard::Answers { answers, .. }) => assert_eq!(
                answers,
                vec![(origin(2), Answer::Busy), (origin(4), Answer::NotFound)]
            ),
            other => panic!("expected answers, got {other:?}"),
        }
        assert!(outbox.flush(0, &sender));
        assert_eq!(outbox.acquires_waiting(), 0);
    }
}
