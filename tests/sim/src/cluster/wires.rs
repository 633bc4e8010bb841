//! What goes over the network: frames between nodes, and clients' connections.

use super::sim::{ClientSays, Connection, Event, LAST_REQUEST_US, NodeSays, Sim};
use crate::clients::Heard;
use crate::node::messages::{PeerFrame, Reply, ToShard};
use crate::plan::MS;
use crate::world::events::Us;

impl Sim {
    pub(super) fn send_frame(&mut self, from: usize, to: usize, frame: PeerFrame) {
        if self.scene_loses(to, &frame) || !self.connected(from, to) {
            return;
        }
        let now_us = self.events.now_us();
        for at_us in self
            .net
            .send(now_us, from, to, &mut self.net_rng)
            .into_iter()
            .flatten()
        {
            let frame = frame.clone();
            self.events.at(at_us, Event::Frame { to, from, frame });
        }
    }

    pub(super) fn client(&mut self, client: usize, heard: Heard) {
        let now_us = self.events.now_us();
        let mut wants = Vec::new();
        let last_us = self.plan.calm_at_us + LAST_REQUEST_US;
        self.clients[client].hear(now_us, last_us, heard, &mut wants);
        for want in wants {
            self.want(client, want);
        }
    }

    pub(super) fn want(&mut self, client: usize, want: crate::clients::Want) {
        use crate::clients::Want;
        let now_us = self.events.now_us();
        match want {
            Want::Timer(after_us, timer) => {
                self.events.after(after_us, Event::Client(client, timer));
            }
            Want::Connect(slot) => {
                let node = self.addresses[slot].node;
                self.connections_made += 1;
                let connection = self.connections_made;
                self.connections.insert(
                    connection,
                    Connection {
                        client,
                        slot,
                        node,
                        open_at_client: true,
                    },
                );
                self.client_sends(connection, ClientSays::Open);
            }
            Want::Send(connection, request) => {
                self.checks.sent(now_us, connection, &request);
                self.tell(|| format!("client {client} on {connection}: {request}"));
                self.client_sends(connection, ClientSays::Ask(request));
            }
            Want::Close(connection) => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    connection.open_at_client = false;
                }
                self.client_sends(connection, ClientSays::Close);
            }
            Want::Tell(event) => {
                self.tell(|| format!("client {client} {event}"));
                self.checks.client(now_us, &event);
            }
        }
    }

    pub(super) fn client_sends(&mut self, connection: u32, says: ClientSays) {
        let now_us = self.events.now_us();
        let Some(&Connection { client, node, .. }) = self.connections.get(&connection) else {
            return;
        };
        let place = self.hosts.len() + client;
        match self.net.send(now_us, place, node, &mut self.net_rng)[0] {
            Some(at_us) => self.events.at(at_us, Event::ToNode(connection, says)),
            None => self.break_connection(connection),
        }
    }

    pub(super) fn send_to_client(&mut self, connection: u32, says: NodeSays) {
        let now_us = self.events.now_us();
        let Some(&Connection { client, node, .. }) = self.connections.get(&connection) else {
            return;
        };
        let place = self.hosts.len() + client;
        match self.net.send(now_us, node, place, &mut self.net_rng)[0] {
            Some(at_us) => self.events.at(at_us, Event::ToClient(connection, says)),
            None => self.break_connection(connection),
        }
    }

    /// Both ends find out, each in its own time.
    pub(super) fn break_connection(&mut self, connection: u32) {
        let seen_us = self.net_rng.range(10, 1_500) * MS;
        self.close_at_client(connection, seen_us);
        let seen_us = self.net_rng.range(10, 1_500) * MS;
        self.events
            .after(seen_us, Event::ToNode(connection, ClientSays::Close));
    }

    pub(super) fn close_at_client(&mut self, connection: u32, least_us: Us) {
        let seen_us = least_us + self.net_rng.range(1_000, 20_000);
        self.events
            .after(seen_us, Event::ToClient(connection, NodeSays::Closed));
    }

    pub(super) fn client_says(&mut self, connection: u32, says: ClientSays) {
        let Some(&Connection { node, .. }) = self.connections.get(&connection) else {
            return;
        };
        if self.hosts[node].frozen {
            self.deferred[node].push(Event::ToNode(connection, says));
            return;
        }
        let shard = self.rng.draw();
        let Some(process) = &mut self.hosts[node].process else {
            if matches!(says, ClientSays::Open) {
                self.close_at_client(connection, 0);
            }
            return;
        };
        self.story
            .note(&[11, u64::from(connection), self.events.now_us()]);
        if matches!(says, ClientSays::Open) {
            if process.stopping || !process.open {
                return self.close_at_client(connection, 0);
            }
            let shard = (shard % process.shards.len() as u64) as u16;
            process.connections.insert(connection, shard);
        }
        let Some(&shard) = process.connections.get(&connection) else {
            return;
        };
        let message = match says {
            ClientSays::Open => ToShard::Connected(connection),
            ClientSays::Ask(request) => ToShard::Requested(connection, request),
            ClientSays::Close => {
                process.connections.remove(&connection);
                ToShard::Closed(connection)
            }
        };
        let opened = matches!(message, ToShard::Connected(_));
        if let ToShard::Requested(_, request) = &message {
            let now_us = self.events.now_us();
            let now_ms = self.hosts[node].clock.shown_ms(now_us);
            self.checks
                .arrived(now_us, now_ms, node, connection, request);
        }
        if let ToShard::Closed(_) = &message {
            self.checks.disconnected(connection);
        }
        if let Some(process) = &mut self.hosts[node].process {
            process.shard_inbox[usize::from(shard)].push_back(message);
        }
        self.wake_shard(node, usize::from(shard));
        if opened {
            self.send_to_client(connection, NodeSays::Opened);
        }
    }

    pub(super) fn node_says(&mut self, connection: u32, says: NodeSays) {
        let now_us = self.events.now_us();
        let Some(entry) = self.connections.get_mut(&connection) else {
            return;
        };
        if !entry.open_at_client {
            return;
        }
        let Connection { client, slot, .. } = *entry;
        self.story.note(&[12, u64::from(connection), now_us]);
        let heard = match says {
            NodeSays::Opened => Heard::Opened(slot, connection),
            NodeSays::Reply(reply) => {
                if let Reply::Answer(id, verdict) = reply {
                    self.checks.answered(now_us, connection, id, verdict);
                }
                Heard::Reply(connection, reply)
            }
            NodeSays::Closed => {
                entry.open_at_client = false;
                // The other end hears of it as well.
                self.client_sends(connection, ClientSays::Close);
                Heard::Closed(slot, connection)
            }
        };
        self.client(client, heard);
    }
}
