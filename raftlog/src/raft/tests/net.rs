//! Several cores, with messages in queues, disks that persist when told, and clocks that the test
//! moves. What must hold in every run is checked at every step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::api::{
    AppendKind, Body, Change, Config, ConfigEntry, Core, EntryId, Epoch, Extent, ExtentKind,
    HardState, Input, LogIndex, Message, NodeId, Output, Role, Snapshot, Source, Start, Term,
    Timing,
};

/// An entry as the state machine sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub term: Term,
    /// Different for each proposal; 0 for what the core adds itself.
    pub value: u64,
    pub kind: AppendKind,
}

/// A log: what it goes on behind, and the entries there.
#[derive(Debug, Clone, Default)]
pub struct Log {
    pub base: EntryId,
    pub entries: Vec<Entry>,
}

impl Log {
    pub fn last(&self) -> u64 {
        self.base.index.0 + self.entries.len() as u64
    }

    pub fn get(&self, index: u64) -> Option<&Entry> {
        let place = index.checked_sub(self.base.index.0 + 1)?;
        self.entries.get(place as usize)
    }

    fn has(&self, entry: EntryId) -> bool {
        self.base == entry
            || self
                .get(entry.index.0)
                .is_some_and(|e| e.term == entry.term)
    }

    fn truncate(&mut self, from: u64) {
        self.entries
            .truncate((from - self.base.index.0 - 1) as usize);
    }
}

/// What was given to the disk and is not on it yet.
#[derive(Debug, Clone)]
enum Write {
    Hard(HardState),
    Append(Vec<Entry>, Epoch),
    Truncate(u64),
    Reset(EntryId),
}

/// What survives a crash.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    pub hard: HardState,
    pub log: Log,
    pub snapshot: Option<Snapshot>,
    /// The configuration at the snapshot's last entry, or the one the folder was made with, and its
    /// index.
    pub config: Config,
    pub config_index: u64,
}

/// One node: a core, and the shell around it.
pub struct Node {
    pub id: NodeId,
    /// `None` while it is down.
    pub core: Option<Core>,
    pub disk: Disk,
    /// The log as written, persisted or not.
    pub log: Log,
    writes: VecDeque<Write>,
    /// Its disk persists only when told.
    pub held: bool,
    pub now_ms: u64,
    pub outputs: Vec<Output>,
    /// The configuration that its outputs say is in force.
    pub config: Config,
    starts: u64,
}

/// A message on its way, with what travels beside it.
#[derive(Debug, Clone)]
pub struct Envelope {
    pub from: NodeId,
    pub to: NodeId,
    pub message: Message,
    entries: Vec<Entry>,
}

pub struct Net {
    pub nodes: Vec<Node>,
    pub queue: VecDeque<Envelope>,
    pub timing: Timing,
    /// Links that lose everything, in this direction.
    pub cut: BTreeSet<(NodeId, NodeId)>,
    /// Which messages are lost wherever they go.
    pub loses: fn(&Envelope) -> bool,
    next_value: u64,
    /// Every entry that any node knew committed.
    committed: BTreeMap<u64, Entry>,
    leaders: BTreeMap<u64, NodeId>,
    /// What was committed anywhere when each confirmation was asked for.
    asked: BTreeMap<u64, u64>,
    #[cfg(feature = "bugs")]
    pub bug: Option<super::api::Bug>,
}

pub fn node_id(n: u8) -> NodeId {
    NodeId([n; 16])
}

impl Net {
    /// Voters 1 to `voters`, in their slots, and learners behind them, none of them with any log.
    pub fn new(voters: u8, learners: u8) -> Self {
        let ids: Vec<NodeId> = (1..=voters).map(node_id).collect();
        let others: Vec<NodeId> = (voters + 1..=voters + learners).map(node_id).collect();
        let config = Config::new(&ids, &others).expect("a valid configuration");
        let mut net = Self {
            nodes: Vec::new(),
            queue: VecDeque::new(),
            timing: Timing::default(),
            cut: BTreeSet::new(),
            loses: |_| false,
            next_value: 1,
            committed: BTreeMap::new(),
            leaders: BTreeMap::new(),
            asked: BTreeMap::new(),
            #[cfg(feature = "bugs")]
            bug: None,
        };
        for id in config.members() {
            net.add(id, config);
        }
        net
    }

    /// Every node's folder is made anew, for a log that begins behind `index`.
    pub fn begin_at(&mut self, index: u64) {
        for place in 0..self.nodes.len() {
            let id = self.nodes[place].id;
            self.crash(id);
            let disk = &mut self.node_mut(id).disk;
            disk.hard = HardState::default();
            disk.log.base.index = LogIndex(index);
            disk.config_index = index;
            self.start(id);
        }
    }

    /// A node with a new folder that knows this configuration.
    pub fn add(&mut self, id: NodeId, config: Config) {
        let disk = Disk {
            config,
            ..Disk::default()
        };
        self.nodes.push(Node {
            id,
            core: None,
            log: disk.log.clone(),
            disk,
            writes: VecDeque::new(),
            held: false,
            now_ms: 0,
            outputs: Vec::new(),
            config,
            starts: 0,
        });
        self.start(id);
    }

    pub fn node(&self, id: NodeId) -> &Node {
        let found = self.nodes.iter().find(|node| node.id == id);
        found.unwrap_or_else(|| panic!("no node {id}"))
    }

    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        let found = self.nodes.iter_mut().find(|node| node.id == id);
        found.unwrap_or_else(|| panic!("no node {id}"))
    }

    pub fn core(&self, id: NodeId) -> &Core {
        self.node(id).core.as_ref().expect("the node is up")
    }

    pub fn leader(&self) -> Option<NodeId> {
        let leads = |node: &&Node| node.core.as_ref().is_some_and(|c| c.role() == Role::Leader);
        let leaders = self.nodes.iter().filter(leads);
        let newest = leaders.max_by_key(|node| node.core.as_ref().map(Core::term));
        newest.map(|node| node.id)
    }

    /// Gives a node that is down a history: the terms of its entries, and its own term.
    pub fn write_log(&mut self, id: NodeId, terms: &[u64], term: u64) {
        let entries = terms.iter().zip(1..).map(|(term, index)| Entry {
            term: Term(*term),
            // One leader wrote one entry there.
            value: 1_000_000 + term * 1_000 + index,
            kind: AppendKind::Commands,
        });
        self.crash(id);
        let disk = &mut self.node_mut(id).disk;
        disk.log.entries = entries.collect();
        disk.hard.term = Term(term);
    }

    /// Starts a node from its disk.
    pub fn start(&mut self, id: NodeId) {
        let timing = self.timing;
        #[cfg(feature = "bugs")]
        let bug = self.bug;
        let node = self.node_mut(id);
        node.starts += 1;
        node.writes.clear();
        let disk = &mut node.disk;
        if let Some(snapshot) = disk.snapshot
            && !disk.log.has(snapshot.last)
        {
            // The crash came between a snapshot's install and the log's reset.
            disk.log.base = snapshot.last;
            disk.log.entries.clear();
        }
        node.log = disk.log.clone();
        let first = ConfigEntry {
            index: LogIndex(disk.config_index),
            config: disk.config,
        };
        let mut configs = Vec::new();
        if first.index <= disk.log.base.index {
            configs.push(first);
        }
        let mut extents = Vec::new();
        for (place, entry) in disk.log.entries.iter().enumerate() {
            let index = LogIndex(disk.log.base.index.0 + 1 + place as u64);
            if let AppendKind::Config(config) = entry.kind {
                configs.push(ConfigEntry { index, config });
            }
            extents.push(Extent {
                last_index: index,
                term: entry.term,
                bytes: 10,
                kind: match entry.kind {
                    AppendKind::Noop => ExtentKind::Noop,
                    AppendKind::Commands => ExtentKind::Commands,
                    AppendKind::Config(_) => ExtentKind::Config,
                },
            });
        }
        let start = Start {
            node_id: id,
            hard_state: disk.hard,
            base: disk.log.base,
            extents,
            snapshot: disk.snapshot,
            configs,
            timing,
            seed: u64::from(id.0[0]) * 1_000 + node.starts,
            #[cfg(feature = "bugs")]
            bug,
        };
        let core = Core::new(start).expect("one node's state");
        node.config = core.config().config;
        node.core = Some(core);
        let now_ms = node.now_ms;
        self.step(id, Input::Tick { now_ms });
    }

    /// Ends a node's process, with everything that is not on its disk.
    pub fn crash(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        node.core = None;
        node.writes.clear();
        node.log = node.disk.log.clone();
    }

    /// Gives a node an input, and does what it says.
    pub fn step(&mut self, id: NodeId, input: Input) {
        self.step_with(id, input, &[]);
    }

    fn step_with(&mut self, id: NodeId, input: Input, payloads: &[Entry]) {
        let Some(core) = &mut self.node_mut(id).core else {
            return;
        };
        let mut outputs = Vec::new();
        core.step(input, &mut outputs);
        for output in outputs {
            self.node_mut(id).outputs.push(output);
            self.carry_out(id, output, payloads);
        }
        let node = self.node(id);
        assert_eq!(self.core(id).last_index().0, node.log.last());
        assert_eq!(self.core(id).config().config, node.config);
        if !node.held {
            self.persist(id);
        }
    }

    pub fn propose(&mut self, id: NodeId, count: u32) {
        let payloads: Vec<Entry> = (0..count)
            .map(|_| {
                self.next_value += 1;
                Entry {
                    term: Term(0),
                    value: self.next_value,
                    kind: AppendKind::Commands,
                }
            })
            .collect();
        let bytes = 10 * u64::from(count);
        self.step_with(id, Input::Propose { count, bytes }, &payloads);
    }

    /// Asks a node whether it leads.
    pub fn confirm(&mut self, id: NodeId) {
        let request = self.asked.len() as u64;
        let committed = self.committed.keys().last().copied().unwrap_or(0);
        self.asked.insert(request, committed);
        self.step(id, Input::Confirm { request });
    }

    pub fn change(&mut self, id: NodeId, change: Change) {
        self.step(id, Input::Change(change));
    }

    /// Moves one node's clock.
    pub fn tick(&mut self, id: NodeId, ms: u64) {
        let node = self.node_mut(id);
        node.now_ms += ms;
        let now_ms = node.now_ms;
        self.step(id, Input::Tick { now_ms });
    }

    /// Puts all that a node's disk was given on it, and says so.
    pub fn persist(&mut self, id: NodeId) {
        while let Some(write) = self.node_mut(id).writes.pop_front() {
            let node = self.node_mut(id);
            match write {
                Write::Hard(hard) => {
                    node.disk.hard = hard;
                    self.step(id, Input::HardStatePersisted(hard));
                }
                Write::Append(entries, epoch) => {
                    node.disk.log.entries.extend(entries);
                    let up_to = LogIndex(node.disk.log.last());
                    self.step(id, Input::Persisted { epoch, up_to });
                }
                Write::Truncate(from) => node.disk.log.truncate(from),
                Write::Reset(base) => {
                    node.disk.log = Log {
                        base,
                        entries: Vec::new(),
                    };
                }
            }
        }
    }

    /// Delivers the oldest message that `wanted` picks. False if there is none.
    pub fn deliver_one(&mut self, wanted: impl Fn(&Envelope) -> bool) -> bool {
        let Some(place) = self.queue.iter().position(wanted) else {
            return false;
        };
        let envelope = self.queue.remove(place).expect("it is there");
        self.hand_over(envelope);
        true
    }

    /// Gives a message to its receiver.
    pub fn hand_over(&mut self, envelope: Envelope) {
        if (self.loses)(&envelope) {
            return;
        }
        let Envelope {
            from,
            to,
            message,
            entries,
        } = envelope;
        if self.nodes.iter().any(|node| node.id == to) {
            self.step_with(to, Input::Received { from, message }, &entries);
        }
    }

    /// Delivers until nothing is on its way.
    pub fn settle(&mut self) {
        let mut left = 100_000;
        while self.deliver_one(|_| true) {
            left -= 1;
            assert!(left > 0, "the messages never end");
        }
    }

    /// Lets `ms` pass for every node, a millisecond at a time, with a network that delivers.
    pub fn run(&mut self, ms: u64) {
        let ids: Vec<NodeId> = self.nodes.iter().map(|node| node.id).collect();
        for _ in 0..ms {
            for id in &ids {
                self.tick(*id, 1);
            }
            self.settle();
        }
    }

    /// Makes `id` the leader: its clock runs out first. What is on its way is delivered.
    pub fn elect(&mut self, id: NodeId) {
        for _ in 0..40 {
            // The others have not heard a leader for too long either.
            let others: Vec<NodeId> = self.nodes.iter().map(|node| node.id).collect();
            self.tick(id, self.timing.election_ms / 4);
            for other in others.into_iter().filter(|other| *other != id) {
                self.settle();
                if self.core_is_up(other) && self.core(other).leader().is_some() {
                    self.tick(other, self.timing.election_ms / 4);
                }
            }
            self.settle();
            if self.core(id).role() == Role::Leader {
                return;
            }
        }
        panic!("{id} was not elected");
    }

    pub fn core_is_up(&self, id: NodeId) -> bool {
        self.node(id).core.is_some()
    }

    pub fn cut_both(&mut self, a: NodeId, b: NodeId) {
        self.cut.insert((a, b));
        self.cut.insert((b, a));
        let cut = self.cut.clone();
        self.queue.retain(|e| !cut.contains(&(e.from, e.to)));
    }

    pub fn isolate(&mut self, id: NodeId) {
        let others: Vec<NodeId> = self.nodes.iter().map(|node| node.id).collect();
        for other in others {
            self.cut_both(id, other);
        }
    }

    /// A snapshot of all that a node has committed; its log loses all but the last `keep` entries
    /// of that.
    pub fn compact(&mut self, id: NodeId, keep: u64) {
        let commit = self.core(id).commit();
        let term = self.core(id).term_at(commit).expect("in the log");
        let config = self.core(id).config_at(commit).expect("known");
        let snapshot = Snapshot {
            last: EntryId {
                term,
                index: commit,
            },
            bytes: 700_000,
            id: u64::from(id.0[0]),
        };
        let node = self.node_mut(id);
        assert!(node.writes.is_empty(), "a snapshot of what is persisted");
        let first = (commit.0 + 1)
            .saturating_sub(keep)
            .max(node.log.base.index.0 + 1);
        let base = EntryId {
            index: LogIndex(first - 1),
            term: node
                .log
                .get(first - 1)
                .map_or(node.log.base.term, |e| e.term),
        };
        for log in [&mut node.log, &mut node.disk.log] {
            log.entries.drain(..(first - 1 - log.base.index.0) as usize);
            log.base = base;
        }
        node.disk.snapshot = Some(snapshot);
        node.disk.config = config.config;
        node.disk.config_index = config.index.0;
        let first_index = LogIndex(first);
        self.step(
            id,
            Input::Compacted {
                snapshot,
                first_index,
            },
        );
    }

    fn carry_out(&mut self, id: NodeId, output: Output, payloads: &[Entry]) {
        match output {
            Output::PersistHardState(hard) => self.write(id, Write::Hard(hard)),
            Output::Append {
                first,
                count,
                term,
                kind,
                source,
            } => {
                let node = self.node_mut(id);
                assert_eq!(first.0, node.log.last() + 1, "appended at the log's end");
                let epoch = node.core.as_ref().expect("up").epoch();
                let payloads = match source {
                    Source::Own => payloads,
                    Source::Received { skip } => {
                        assert_eq!(payloads.len(), (skip + count) as usize);
                        &payloads[skip as usize..]
                    }
                };
                let entries: Vec<Entry> = (0..count as usize)
                    .map(|place| {
                        let value = match kind {
                            AppendKind::Commands => payloads[place].value,
                            _ => 0,
                        };
                        Entry { term, value, kind }
                    })
                    .collect();
                node.log.entries.extend(entries.iter().copied());
                self.write(id, Write::Append(entries, epoch));
            }
            Output::Truncate { from, .. } => {
                let node = self.node_mut(id);
                node.log.truncate(from.0);
                self.write(id, Write::Truncate(from.0));
            }
            Output::Reset { index, term, .. } => {
                let base = EntryId { term, index };
                let entries = Vec::new();
                self.node_mut(id).log = Log { base, entries };
                self.write(id, Write::Reset(base));
            }
            Output::ConfigChanged { config, .. } => self.node_mut(id).config = config,
            // Linearizable reads (thesis 6.4).
            Output::Confirmed { request, index } => assert!(
                index.0 >= self.asked[&request],
                "{id} confirms {index}, and {} was committed before",
                self.asked[&request]
            ),
            Output::Send { to, message } => self.post(id, to, message),
            Output::Commit { up_to } => self.check_commit(id, up_to),
            Output::RoleChanged {
                role: Role::Leader,
                term,
                ..
            } => self.check_leader(id, term),
            Output::StoreSnapshotChunk {
                snapshot,
                offset,
                bytes,
            } => {
                let next_offset = offset + u64::from(bytes);
                self.step(
                    id,
                    Input::SnapshotChunkStored {
                        snapshot,
                        next_offset,
                    },
                );
            }
            Output::InstallSnapshot { snapshot, config } => {
                let node = self.node_mut(id);
                node.disk.snapshot = Some(snapshot);
                node.disk.config = config.config;
                node.disk.config_index = config.index.0;
                let valid = true;
                self.step(id, Input::SnapshotInstalled { snapshot, valid });
            }
            _ => {}
        }
    }

    fn write(&mut self, id: NodeId, write: Write) {
        self.node_mut(id).writes.push_back(write);
    }

    fn post(&mut self, from: NodeId, to: NodeId, message: Message) {
        let node = self.node(from);
        let mut entries = Vec::new();
        match message.body {
            // Persist before you vote or acknowledge (paper, figure 2).
            Body::VoteAnswer { granted: true } => {
                let vote = HardState {
                    term: message.term,
                    voted_for: Some(to),
                };
                assert_eq!(node.disk.hard, vote, "{from} votes before it has persisted");
            }
            Body::Matched { up_to } => {
                let covered = node.disk.snapshot.map_or(0, |s| s.last.index.0);
                let persisted = node.disk.log.last().max(covered);
                assert!(up_to.0 <= persisted, "{from} acknowledges {up_to} before");
                assert_eq!(node.disk.hard.term, message.term);
            }
            Body::Append { previous, run, .. } => {
                for place in 0..u64::from(run.count) {
                    let index = previous.index.0 + 1 + place;
                    let entry = node.log.get(index).expect("a leader sends what it has");
                    assert_eq!((entry.term, entry.kind), (run.term, run.kind));
                    entries.push(*entry);
                }
            }
            _ => {}
        }
        if self.cut.contains(&(from, to)) {
            return;
        }
        self.queue.push_back(Envelope {
            from,
            to,
            message,
            entries,
        });
    }

    /// State machine safety: no two nodes ever commit different entries at one index; and an entry
    /// that a leader commits is persisted on a majority, or on both.
    fn check_commit(&mut self, id: NodeId, up_to: LogIndex) {
        let node = self.node(id);
        let mut known = Vec::new();
        for index in node.log.base.index.0 + 1..=up_to.0 {
            let entry = *node.log.get(index).expect("committed entries are there");
            known.push((index, entry));
        }
        let core = self.core(id);
        if core.role() == Role::Leader {
            let entry = *node.log.get(up_to.0).expect("there");
            assert_eq!(
                entry.term,
                core.term(),
                "{id} counts copies of an earlier term"
            );
            let config = node.config;
            let has = |id: &&NodeId| {
                let node = self.nodes.iter().find(|node| node.id == **id);
                node.is_some_and(|n| {
                    n.disk.log.get(up_to.0) == Some(&entry)
                        || n.disk.snapshot.is_some_and(|s| s.last.index >= up_to)
                })
            };
            let old = config.voters().to_vec();
            let mut new = old.clone();
            if let Some(replacement) = config.replacement() {
                new[usize::from(replacement.slot.0)] = replacement.new;
            }
            for voters in [old, new] {
                let copies = voters.iter().filter(has).count();
                assert!(
                    copies > voters.len() / 2,
                    "{id} commits {up_to} with {copies} persisted copies on {voters:?}"
                );
            }
        }
        for (index, entry) in known {
            let other = self.committed.entry(index).or_insert(entry);
            assert_eq!(*other, entry, "two entries are committed at {index}");
        }
    }

    /// Election safety and leader completeness (paper, figure 3).
    fn check_leader(&mut self, id: NodeId, term: Term) {
        let other = self.leaders.insert(term.0, id);
        assert!(other.is_none(), "{other:?} and {id} lead in term {term}");
        let node = self.node(id);
        for (index, entry) in &self.committed {
            if *index > node.log.base.index.0 {
                assert_eq!(
                    node.log.get(*index),
                    Some(entry),
                    "{id} leads in term {term} without {index}, which is committed"
                );
            }
        }
    }
}
