//! The connections' side.

use ticketing::lanes::owner_of;
use ticketing::locks::{Origin, key_hash};

use super::Shard;
use crate::node::messages::{Asked, Effect, Reply, Request, Seen, ToShard, Verdict};

impl Shard {
    pub(super) fn requested(
        &mut self,
        now_ms: u64,
        connection: u32,
        request: Request,
        effects: &mut Vec<Effect>,
    ) {
        let (Request::Acquire { id, ref key, .. } | Request::Release { id, ref key, .. }) = request;
        let owner = owner_of(key_hash(self.setup.key_seed, key), self.setup.shards);
        let Some(in_flight) = self.connections.get_mut(&connection) else {
            return;
        };
        if in_flight.insert(id, owner).is_some() {
            // A request id in use: the connection is not served any further.
            effects.push(Effect::Close(connection));
            return self.closed(now_ms, connection, effects);
        }
        let origin = Origin {
            shard: self.setup.id,
            connection,
            generation: 0,
            request_id: id,
        };
        let asked = Asked::Request {
            request,
            arrived_ms: now_ms,
        };
        self.ask(now_ms, owner, origin, asked, effects);
    }

    pub(super) fn closed(&mut self, now_ms: u64, connection: u32, effects: &mut Vec<Effect>) {
        for (request_id, owner) in self.connections.remove(&connection).unwrap_or_default() {
            let origin = Origin {
                shard: self.setup.id,
                connection,
                generation: 0,
                request_id,
            };
            self.ask(now_ms, owner, origin, Asked::Disconnect, effects);
        }
    }

    pub(super) fn ask(
        &mut self,
        now_ms: u64,
        owner: u16,
        origin: Origin,
        asked: Asked,
        effects: &mut Vec<Effect>,
    ) {
        if owner == self.setup.id {
            self.asked(now_ms, origin, asked, effects);
        } else {
            effects.push(Effect::ToShard(owner, ToShard::Asked(origin, asked)));
        }
    }

    pub(super) fn answered(
        &mut self,
        now_ms: u64,
        owner: u16,
        origin: Origin,
        verdict: Verdict,
        effects: &mut Vec<Effect>,
    ) {
        let in_flight = self.connections.get_mut(&origin.connection);
        if in_flight.is_some_and(|in_flight| in_flight.remove(&origin.request_id).is_some()) {
            effects.push(Effect::Seen(Seen::Told { origin, verdict }));
            let reply = Reply::Answer(origin.request_id, verdict);
            effects.push(Effect::Reply(origin.connection, reply));
        } else if let Verdict::Acquired { grant, .. } = verdict {
            self.ask(now_ms, owner, origin, Asked::Undelivered(grant), effects);
        }
    }
}
