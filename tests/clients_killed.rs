//! Clients that die: holding a key, standing in line, and at the very instant of their grant.

#[path = "support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use ticketing_protocol::Reply;

use crate::support::rng::Rng;
use crate::support::{Options, PATIENCE, RawClient, SLACK, Server, wait_until};

/// A lease that no test lets run out.
const LONG_LEASE_S: u8 = 250;
const LONG_WAIT_S: u8 = 120;

/// How a client dies, as its server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// Its kernel says goodbye.
    Close,
    /// Its kernel resets the connection.
    Reset,
}

const DEATHS: [Death; 2] = [Death::Close, Death::Reset];

impl Death {
    fn of(self, client: RawClient) {
        match self {
            Death::Close => drop(client),
            Death::Reset => client.reset(),
        }
    }
}

#[test]
fn the_next_in_line_gets_a_dead_holders_key_when_its_lease_ends_and_not_before() {
    let server = Server::start(Options::shards(3));
    std::thread::scope(|scope| {
        for death in DEATHS {
            for lease_s in [1, 2] {
                let server = &server;
                scope.spawn(move || outlive_a_holder(server, death, lease_s));
            }
        }
    });
    server.wait_metric("locks_held", 4);
    server.wait_metric("expired", 4);
}

fn outlive_a_holder(server: &Server, death: Death, lease_s: u8) {
    let lease = Duration::from_secs(u64::from(lease_s));
    // Clock rates differ, so a server counts a lease a little longer than its holder does.
    let counted = lease.mul_f64(1.001) + Duration::from_millis(20);
    // Its clock has whole milliseconds.
    let rounding = Duration::from_millis(2);

    let key = format!("{death:?}-{lease_s}");
    let mut holder = RawClient::connect(server.address);
    let mut waiter = RawClient::connect(server.address);
    let asked = Instant::now();
    let token = holder.hold(&key, lease_s);
    let granted = Instant::now();
    waiter.send_acquire(&key, LONG_WAIT_S, LONG_LEASE_S);
    death.of(holder);
    let reply = waiter.reply();
    let (since_asked, since_granted) = (asked.elapsed(), granted.elapsed());
    assert!(
        matches!(reply, Reply::Acquired { token: next, .. } if next > token),
        "{key}: {reply:?}"
    );
    assert!(
        since_asked + rounding >= counted,
        "{key}: handed on after {since_asked:?}"
    );
    assert!(
        since_granted < counted + SLACK,
        "{key}: handed on only after {since_granted:?}"
    );
    println!("{death:?} with a lease of {lease:?}: handed on after {since_granted:?}");
}

#[test]
fn a_client_that_dies_in_line_is_passed_over() {
    let server = Server::start(Options::shards(3));
    let mut holder = RawClient::connect(server.address);
    for death in DEATHS {
        for others in [0, 1, 5] {
            let key = format!("{death:?}-{others}");
            let token = holder.hold(&key, LONG_LEASE_S);
            let mut dying = RawClient::connect(server.address);
            dying.send_acquire(&key, LONG_WAIT_S, LONG_LEASE_S);
            server.wait_metric("waiting", 1);
            let mut waiters: Vec<RawClient> = (0..others)
                .map(|_| RawClient::connect(server.address))
                .collect();
            for (place, waiter) in waiters.iter_mut().enumerate() {
                waiter.send_acquire(&key, LONG_WAIT_S, LONG_LEASE_S);
                server.wait_metric("waiting", place as u64 + 2);
            }
            death.of(dying);
            server.wait_metric("waiting", others);
            holder.give_back(&key, token);
            for waiter in &mut waiters {
                match waiter.reply() {
                    Reply::Acquired { token, .. } => waiter.give_back(&key, token),
                    other => panic!("{key}: {other:?}"),
                }
            }
            server.wait_metric("locks_held", 0);
        }
    }
    assert_eq!(server.metric("ghosts"), 0, "nobody was granted after death");
    assert_eq!(server.metric("expired"), 0);
}

/// Kills of each of the four kinds below.
const KILLS_OF_A_KIND: u64 = 250;
const SEED: u64 = 20_260_417;

/// Places in [`Stage::aims_us`].
const FREE: usize = 0;
const HAND_OVER: usize = 1;

/// What is tried out on a server, and what came of it.
struct Stage {
    server: Server,
    /// Holds what others wait for.
    holder: RawClient,
    /// Looks whether a key is free.
    checker: RawClient,
    rng: Rng,
    /// When an answer is expected after an acquire of a free key, and after a hand-over, in
    /// microseconds: kills are aimed around it, and it follows where they hit.
    aims_us: [u64; 2],
    keys: Vec<String>,
    answered: u64,
    released: u64,
}

#[test]
fn a_client_killed_at_the_instant_of_its_grant_leaves_nothing_held() {
    let mut stage = Stage::new();
    for _ in 0..KILLS_OF_A_KIND {
        stage.stops_talking_after_asking();
        stage.stops_talking_at_a_hand_over();
        stage.is_reset_before_a_hand_over();
        stage.dies_somehow_with_a_short_lease();
    }
    let (answered, released) = (stage.answered, stage.released);
    // The kills were aimed well enough to fall on both sides of the answer.
    assert!(answered > 50 && released > 50, "{answered} and {released}");

    // Whoever died with its answer kept its key for its lease of 1 s, and nobody any longer.
    let deadline = Instant::now() + Duration::from_millis(1_021) + SLACK;
    while stage.server.metric("locks_held") > 0 {
        assert!(Instant::now() < deadline, "still held after its lease");
    }
    for key in &stage.keys {
        let token = stage.checker.hold(key, LONG_LEASE_S);
        stage.checker.give_back(key, token);
    }
    assert_eq!(stage.server.metric("grants_rejected"), 0);
    println!(
        "{} kills around {:?} us, seed {SEED}: {answered} just after the answer, {released} \
         before it; {} ghosts, {} expired",
        stage.keys.len(),
        stage.aims_us,
        stage.server.metric("ghosts"),
        stage.server.metric("expired"),
    );
}

impl Stage {
    fn new() -> Self {
        let server = Server::start(Options::shards(3));
        let holder = RawClient::connect(server.address);
        let checker = RawClient::connect(server.address);
        Self {
            server,
            holder,
            checker,
            rng: Rng::new(SEED),
            aims_us: [500; 2],
            keys: Vec::new(),
            answered: 0,
            released: 0,
        }
    }

    /// A free key. Whether the answer was handed to the kernel can be read off the half that is
    /// still open, so what must become of the lock is known exactly.
    fn stops_talking_after_asking(&mut self) {
        let key = self.new_key();
        let mut client = RawClient::connect(self.server.address);
        client.send_acquire(&key, 0, LONG_LEASE_S);
        self.pause(FREE);
        client.half_close();
        self.judge(FREE, &key, client);
    }

    /// A key that is handed on just then; as exact.
    fn stops_talking_at_a_hand_over(&mut self) {
        let key = self.new_key();
        let (mut client, token) = self.in_line(&key, LONG_LEASE_S);
        let release = self.holder.send_release(&key, token);
        self.pause(HAND_OVER);
        client.half_close();
        self.judge(HAND_OVER, &key, client);
        self.expect_released(release);
    }

    /// After a reset the kernel takes no answer any more: whatever the server knew when it
    /// handed the key on, the lock must not stay.
    fn is_reset_before_a_hand_over(&mut self) {
        let key = self.new_key();
        let (client, token) = self.in_line(&key, LONG_LEASE_S);
        client.reset();
        if self.rng.one_in(2) {
            self.pause(HAND_OVER);
        }
        let release = self.holder.send_release(&key, token);
        self.expect_released(release);
        self.expect_free(&key);
        self.released += 1;
    }

    /// Nobody can tell whether the answer was handed over: its lease decides in the end.
    fn dies_somehow_with_a_short_lease(&mut self) {
        let death = DEATHS[self.rng.below(2) as usize];
        let key = self.new_key();
        if self.rng.one_in(2) {
            let mut client = RawClient::connect(self.server.address);
            client.send_acquire(&key, 0, 1);
            self.pause(FREE);
            death.of(client);
        } else {
            let (client, token) = self.in_line(&key, 1);
            let release = self.holder.send_release(&key, token);
            self.pause(HAND_OVER);
            death.of(client);
            self.expect_released(release);
        }
    }

    fn new_key(&mut self) -> String {
        let key = format!("key-{}", self.keys.len());
        self.keys.push(key.clone());
        key
    }

    /// A client that stands in line for a key that the holder has under the token.
    fn in_line(&mut self, key: &str, lease_s: u8) -> (RawClient, u64) {
        let token = self.holder.hold(key, LONG_LEASE_S);
        let mut client = RawClient::connect(self.server.address);
        client.send_acquire(key, LONG_WAIT_S, lease_s);
        self.server.wait_metric("waiting", 1);
        (client, token)
    }

    /// Any time up to twice what it is aimed at, to the microsecond.
    fn pause(&mut self, kind: usize) {
        let pause = Duration::from_micros(self.rng.below(2 * self.aims_us[kind] + 1));
        let started = Instant::now();
        while started.elapsed() < pause {
            std::thread::yield_now();
        }
    }

    /// Held if its answer reached the kernel, and else free at once: the lease is far too long
    /// to end in this test.
    fn judge(&mut self, kind: usize, key: &str, mut client: RawClient) {
        match client.try_reply(PATIENCE) {
            Ok(Reply::Acquired { token, .. }) => {
                let reply = self.checker.acquire(key, 0, 1);
                assert!(matches!(reply, Reply::Busy { .. }), "{key}: {reply:?}");
                self.checker.give_back(key, token);
                self.answered += 1;
                self.aims_us[kind] -= self.aims_us[kind] / 16;
            }
            Ok(other) => panic!("{key}: {other:?}"),
            Err(error) => {
                assert!(support::raw::is_closed(&error), "{key}: {error}");
                self.expect_free(key);
                self.released += 1;
                self.aims_us[kind] += self.aims_us[kind] / 16 + 1;
            }
        }
    }

    fn expect_free(&mut self, key: &str) {
        let checker = &mut self.checker;
        wait_until(
            "the key of a client that was never answered is free",
            || match checker.acquire(key, 0, LONG_LEASE_S) {
                Reply::Acquired { token, .. } => {
                    checker.give_back(key, token);
                    true
                }
                Reply::Busy { .. } => false,
                other => panic!("{key}: {other:?}"),
            },
        );
    }

    fn expect_released(&mut self, request_id: u64) {
        assert_eq!(self.holder.reply(), Reply::Released { request_id });
    }
}
