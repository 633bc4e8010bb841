//! Clients: polite ones, which follow the rules of the official libraries, and rude ones.
//!
//! A polite client sends to the leader it knows, else to the next node in turn. It tries an
//! acquire again only after an answer that proves that it was not granted, and only within what is
//! left of its wait; an acquire without an answer is never sent again. It retries a release for
//! five seconds. Every attempt asks for a lease that no other attempt of that key asks for, so that
//! a Grant in the log names the request it came from.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use crate::node::messages::{Reply, Request, Verdict};
use crate::plan::{MS, Plan, SECOND};
use crate::world::events::Us;
use crate::world::rng::Rng;

/// A release is retried that long after it was asked for.
const RELEASE_US: Us = 5 * SECOND;
/// Different leases under one name of a key; then it gets another name.
const LEASES: u64 = 40;
/// Shortest and longest pause before a broken connection is opened again.
const BACKOFF_US: (Us, Us) = (100 * MS, 3_200 * MS);
/// A release without an answer costs the connection after that long.
const RELEASE_PATIENCE_US: Us = 2_500 * MS;
/// An acquire without an answer costs the connection that long after its wait.
const ACQUIRE_PATIENCE_US: Us = SECOND;
/// An acquire that does not wait costs the connection after that long.
const TRY_PATIENCE_US: Us = 5 * SECOND;
/// Timers from here on are for connecting; the node comes on top.
const CONNECT_TIMER: u64 = 1 << 60;
/// In the place of a request's id in a timer: a rude client acts.
const MOOD: u64 = 1;

/// What a client notices.
#[derive(Debug)]
pub enum Heard {
    /// A timer that it set; 0 comes at the start.
    Timer(u64),
    /// A connection is open.
    Opened(usize, u32),
    /// A reply.
    Reply(u32, Reply),
    /// A connection is closed.
    Closed(usize, u32),
}

/// What a client wants done.
#[derive(Debug)]
pub enum Want {
    /// Ring in that time.
    Timer(Us, u64),
    /// Open a connection with a node.
    Connect(usize),
    /// Send on a connection.
    Send(u32, Request),
    /// Close a connection.
    Close(u32),
    /// Tell what it believes.
    Tell(Believes),
}

/// What a client believes.
#[derive(Clone, Debug)]
pub enum Believes {
    /// It holds the key until it lets go or its lease ends, counted from before it asked.
    Holds {
        /// The key.
        key: Rc<[u8]>,
        /// The token.
        token: u64,
        /// When it sent the request.
        sent_us: Us,
        /// The lease's end by its own count.
        until_us: Us,
    },
    /// It does not hold the key any more.
    LetGo {
        /// The key.
        key: Rc<[u8]>,
        /// The token.
        token: u64,
    },
    /// An acquire came to an end without a grant.
    GaveUp,
    /// A release was confirmed.
    Released {
        /// The token.
        token: u64,
    },
}

impl fmt::Display for Believes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds {
                key,
                token,
                until_us,
                ..
            } => {
                let key = String::from_utf8_lossy(key);
                write!(f, "holds {key} under {token} until {} ms", until_us / MS)
            }
            Self::LetGo { key, token } => {
                write!(f, "lets {} go, token {token}", String::from_utf8_lossy(key))
            }
            Self::GaveUp => f.write_str("gives up"),
            Self::Released { token } => write!(f, "has released token {token}"),
        }
    }
}

/// Names of keys and leases that tell every attempt from every other one.
#[derive(Debug, Default)]
pub struct KeyBook {
    asked: BTreeMap<u64, u64>,
}

impl KeyBook {
    fn next(&mut self, key: u64) -> (Rc<[u8]>, u8) {
        let asked = self.asked.entry(key).or_default();
        let (version, lease) = (*asked / LEASES, 1 + (*asked * 17) % LEASES);
        *asked += 1;
        (
            Rc::from(format!("gate-{key}.{version}").as_bytes()),
            lease as u8,
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Polite,
    /// Stops wanting it while it waits.
    Cancels,
    /// Closes the connection at a bad moment.
    Vanishes,
    /// Releases twice.
    Repeats,
    /// Releases with a token that it made up.
    Lies,
    /// Never releases.
    Forgets,
}

#[derive(Debug)]
enum State {
    /// Wants a key and has not sent anything that may be granted.
    Wanting,
    /// An attempt is on its way.
    Asked,
    /// Holds it.
    Holding,
    /// Wants to give it back.
    Releasing,
}

#[derive(Debug)]
struct Task {
    manner: Manner,
    key: u64,
    state: State,
    wants_until_us: Us,
    once: bool,
    wanted: bool,
    sent_us: Us,
    attempt: Option<(Rc<[u8]>, u8)>,
    token: u64,
    request: Option<u64>,
    release_until_us: Us,
    repeats_left: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Down,
    Opening,
    Open(u32),
}

/// One client.
#[derive(Debug)]
pub struct Client {
    number: usize,
    rng: Rng,
    book: Rc<RefCell<KeyBook>>,
    keys: u64,
    think_us: Us,
    rude_per_mille: u32,
    astray_per_mille: u32,
    astray_rng: Rng,
    links: Vec<(Link, Us)>,
    leader: Option<usize>,
    turn: usize,
    tasks: BTreeMap<u64, Task>,
    tasks_made: u64,
    requests: BTreeMap<u64, (u64, u32)>,
    requests_made: u64,
}

impl Client {
    /// A client; all clients of a run share the book.
    #[must_use]
    pub fn new(
        number: usize,
        plan: &Plan,
        book: Rc<RefCell<KeyBook>>,
        rng: Rng,
        astray_rng: Rng,
    ) -> Self {
        Self {
            astray_per_mille: plan.astray_per_mille,
            astray_rng,
            number,
            rng,
            book,
            keys: plan.keys as u64,
            think_us: plan.think_us,
            rude_per_mille: plan.rude_per_mille,
            links: vec![(Link::Down, BACKOFF_US.0); plan.nodes],
            leader: None,
            turn: number,
            tasks: BTreeMap::new(),
            tasks_made: 0,
            requests: BTreeMap::new(),
            requests_made: 0,
        }
    }

    /// Tasks that have not come to an end.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.tasks.len()
    }

    /// Takes note of something. It begins nothing new after `last_us`.
    pub fn hear(&mut self, now_us: Us, last_us: Us, heard: Heard, wants: &mut Vec<Want>) {
        match heard {
            Heard::Timer(0) => {
                for (node, (link, _)) in self.links.iter_mut().enumerate() {
                    if *link == Link::Down && self.tasks_made == 0 {
                        *link = Link::Opening;
                        wants.push(Want::Connect(node));
                    }
                }
                if now_us < last_us {
                    self.begin(now_us, wants);
                    let think_us = self.rng.range(1, 2 * self.think_us);
                    wants.push(Want::Timer(think_us, 0));
                }
            }
            Heard::Timer(timer) if timer >= CONNECT_TIMER => {
                let node = (timer - CONNECT_TIMER) as usize;
                if self.links[node].0 == Link::Down {
                    self.links[node].0 = Link::Opening;
                    wants.push(Want::Connect(node));
                }
            }
            Heard::Timer(timer) => {
                let (task, request) = (timer % (1 << 20), timer >> 20);
                self.task_timer(now_us, task, request, wants);
            }
            Heard::Opened(node, connection) => {
                self.links[node] = (Link::Open(connection), BACKOFF_US.0)
            }
            Heard::Reply(_, Reply::Leader(slot)) => self.leader = Some(usize::from(slot)),
            Heard::Reply(_, Reply::Answer(id, verdict)) => {
                if let Some((task, _)) = self.requests.remove(&id) {
                    self.answered(now_us, task, id, verdict, wants);
                }
            }
            Heard::Closed(node, connection) => self.closed(now_us, node, connection, wants),
        }
    }

    fn begin(&mut self, now_us: Us, wants: &mut Vec<Want>) {
        if self.tasks.len() >= 12 {
            return;
        }
        self.tasks_made += 1;
        let manner = if self.rng.chance(self.rude_per_mille) {
            *self.rng.pick(&[
                Manner::Cancels,
                Manner::Vanishes,
                Manner::Repeats,
                Manner::Lies,
                Manner::Forgets,
            ])
        } else {
            Manner::Polite
        };
        let once = self.rng.chance(150);
        let wait_s = if once { 0 } else { self.rng.range(1, 12) };
        let task = Task {
            manner,
            key: self.rng.below(self.keys),
            state: State::Wanting,
            wants_until_us: now_us + wait_s * SECOND,
            once,
            wanted: true,
            sent_us: 0,
            attempt: None,
            token: 0,
            request: None,
            release_until_us: 0,
            repeats_left: u32::from(manner == Manner::Repeats) * 2,
        };
        let id = self.tasks_made;
        self.tasks.insert(id, task);
        if manner == Manner::Cancels || manner == Manner::Vanishes {
            let after_us = self.rng.range(1, 3_000) * MS;
            wants.push(Want::Timer(after_us, id | MOOD << 20));
        }
        self.go_on(now_us, id, wants);
    }

    /// A node to send to.
    fn link(&mut self) -> Option<(usize, u32)> {
        if let Some(leader) = self.leader
            && let Link::Open(connection) = self.links[leader].0
        {
            return Some((leader, connection));
        }
        for _ in 0..self.links.len() {
            self.turn = (self.turn + 1) % self.links.len();
            if let Link::Open(connection) = self.links[self.turn].0 {
                return Some((self.turn, connection));
            }
        }
        None
    }

    /// Any node that it is connected with: its connection to the leader may have broken just now.
    fn astray(&mut self) -> Option<(usize, u32)> {
        if self.astray_per_mille == 0 || !self.astray_rng.chance(self.astray_per_mille) {
            return None;
        }
        let node = self.astray_rng.index(self.links.len());
        match self.links[node].0 {
            Link::Open(connection) => Some((node, connection)),
            _ => None,
        }
    }

    /// Sends what the task needs sent next.
    fn go_on(&mut self, now_us: Us, id: u64, wants: &mut Vec<Want>) {
        let releases = |task: &Task| matches!(task.state, State::Releasing);
        let astray = match self.tasks.get(&id).is_some_and(releases) {
            true => self.astray(),
            false => None,
        };
        let link = self.link();
        let link = astray.or(link);
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let acquires = matches!(task.state, State::Wanting);
        let left_us = task.wants_until_us.saturating_sub(now_us);
        let over = if acquires {
            !task.wanted || (left_us == 0 && (!task.once || task.sent_us > 0))
        } else {
            now_us >= task.release_until_us
        };
        if over {
            self.tasks.remove(&id);
            return wants.push(Want::Tell(Believes::GaveUp));
        }
        let Some((_, connection)) = link else {
            return wants.push(Want::Timer(50 * MS, id));
        };
        self.requests_made += 1;
        let request_id = (self.requests_made << 8) | (self.number as u64 + 1);
        task.request = Some(request_id);
        self.requests.insert(request_id, (id, connection));
        let (request, patience_us) = if acquires {
            let (key, lease_s) = self.book.borrow_mut().next(task.key);
            task.state = State::Asked;
            task.sent_us = now_us;
            task.attempt = Some((key.clone(), lease_s));
            let wait_s = left_us.div_ceil(SECOND) as u8;
            let patience_us = match wait_s {
                0 => TRY_PATIENCE_US,
                wait_s => u64::from(wait_s) * SECOND + ACQUIRE_PATIENCE_US,
            };
            let request = Request::Acquire {
                id: request_id,
                wait_s,
                lease_s,
                key,
            };
            (request, patience_us)
        } else {
            let Some((key, _)) = task.attempt.clone() else {
                return;
            };
            let token = if task.manner == Manner::Lies && self.rng.chance(600) {
                let off = self.rng.range(1, 60);
                if self.rng.chance(500) {
                    task.token + off
                } else {
                    task.token - off
                }
            } else {
                task.token
            };
            let request = Request::Release {
                id: request_id,
                token,
                key,
            };
            (request, RELEASE_PATIENCE_US)
        };
        wants.push(Want::Send(connection, request));
        let timer = id | (request_id << 20);
        wants.push(Want::Timer(patience_us, timer));
    }

    fn answered(
        &mut self,
        now_us: Us,
        id: u64,
        request: u64,
        verdict: Verdict,
        wants: &mut Vec<Want>,
    ) {
        if let Verdict::Moved(slot) = verdict {
            self.leader = slot.map(usize::from);
        } else if matches!(verdict, Verdict::NoLeader | Verdict::NotActive) {
            self.leader = None;
        }
        let hold_us = self.rng.range(1, 600) * MS;
        let Some(task) = self
            .tasks
            .get_mut(&id)
            .filter(|task| task.request == Some(request))
        else {
            return;
        };
        task.request = None;
        match (&task.state, verdict) {
            (State::Asked, Verdict::Acquired { token, .. }) => {
                task.token = token;
                let Some((key, lease_s)) = task.attempt.clone() else {
                    return;
                };
                let until_us = task.sent_us + u64::from(lease_s) * SECOND;
                let late = now_us > task.wants_until_us && !task.once;
                if !task.wanted || late || now_us + 50 * MS > until_us {
                    task.state = State::Releasing;
                    task.release_until_us = now_us + RELEASE_US;
                    return self.go_on(now_us, id, wants);
                }
                task.state = State::Holding;
                wants.push(Want::Tell(Believes::Holds {
                    key,
                    token,
                    sent_us: task.sent_us,
                    until_us,
                }));
                let hold_us = match task.manner {
                    Manner::Forgets => until_us - now_us,
                    _ => hold_us.min(until_us - now_us),
                };
                wants.push(Want::Timer(hold_us, id));
            }
            (State::Asked, Verdict::Moved(_) | Verdict::NoLeader | Verdict::NotActive) => {
                task.state = State::Wanting;
                let pause_us = match verdict {
                    Verdict::Moved(Some(_)) => 1,
                    _ => self.rng.range(50, 400) * MS,
                };
                wants.push(Want::Timer(pause_us, id));
            }
            (State::Asked, _) => {
                self.tasks.remove(&id);
                wants.push(Want::Tell(Believes::GaveUp));
            }
            (State::Releasing, Verdict::Released | Verdict::NotFound) => {
                if task.manner == Manner::Lies {
                    task.manner = Manner::Polite;
                    return self.go_on(now_us, id, wants);
                }
                if task.repeats_left > 0 {
                    task.repeats_left -= 1;
                    return self.go_on(now_us, id, wants);
                }
                let token = task.token;
                self.tasks.remove(&id);
                wants.push(Want::Tell(Believes::Released { token }));
            }
            (State::Releasing, _) => {
                let pause_us = self.rng.range(1, 100) * MS;
                wants.push(Want::Timer(pause_us, id));
            }
            (State::Wanting | State::Holding, _) => {}
        }
    }

    fn task_timer(&mut self, now_us: Us, id: u64, request: u64, wants: &mut Vec<Want>) {
        let mood = request == MOOD;
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        if mood {
            task.wanted = false;
            if task.manner == Manner::Vanishes
                && let Some(request) = task.request
                && let Some(&(_, connection)) = self.requests.get(&request)
            {
                return self.close(now_us, connection, wants);
            }
            return;
        }
        if request != 0 {
            // Out of patience: the whole connection goes.
            if task.request == Some(request)
                && let Some(&(_, connection)) = self.requests.get(&request)
            {
                self.close(now_us, connection, wants);
            }
            return;
        }
        match task.state {
            State::Holding => {
                let Some((key, _)) = task.attempt.clone() else {
                    return;
                };
                let token = task.token;
                wants.push(Want::Tell(Believes::LetGo { key, token }));
                if task.manner == Manner::Forgets {
                    self.tasks.remove(&id);
                    return;
                }
                task.state = State::Releasing;
                task.release_until_us = now_us + RELEASE_US;
                self.go_on(now_us, id, wants);
            }
            State::Wanting => self.go_on(now_us, id, wants),
            State::Releasing if task.request.is_none() => self.go_on(now_us, id, wants),
            State::Asked | State::Releasing => {}
        }
    }

    fn close(&mut self, now_us: Us, connection: u32, wants: &mut Vec<Want>) {
        wants.push(Want::Close(connection));
        let link = Link::Open(connection);
        if let Some(node) = self.links.iter().position(|(open, _)| *open == link) {
            self.closed(now_us, node, connection, wants);
        }
    }

    fn closed(&mut self, now_us: Us, node: usize, connection: u32, wants: &mut Vec<Want>) {
        if let Link::Open(open) = self.links[node].0
            && open != connection
        {
            return;
        }
        let backoff_us = self.links[node].1;
        self.links[node] = (Link::Down, (backoff_us * 2).min(BACKOFF_US.1));
        wants.push(Want::Timer(backoff_us, CONNECT_TIMER + node as u64));
        if self.leader == Some(node) {
            self.leader = None;
        }
        let lost: Vec<(u64, u64)> = self
            .requests
            .iter()
            .filter(|(_, (_, on))| *on == connection)
            .map(|(&request, &(task, _))| (request, task))
            .collect();
        for (request, id) in lost {
            self.requests.remove(&request);
            let Some(task) = self
                .tasks
                .get_mut(&id)
                .filter(|task| task.request == Some(request))
            else {
                continue;
            };
            task.request = None;
            match task.state {
                // Sent without an answer: never sent again.
                State::Asked => {
                    self.tasks.remove(&id);
                    wants.push(Want::Tell(Believes::GaveUp));
                }
                State::Releasing => self.go_on(now_us, id, wants),
                State::Wanting | State::Holding => {}
            }
        }
    }
}
