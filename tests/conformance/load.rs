//! Many at once: nobody overlaps, nothing is lost, tokens only grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use published::{Ticket, TicketBroker};
use tokio::task::JoinSet;

use crate::support::Options;
use crate::support::rng::Rng;
use crate::{give_back, started};

const WAIT: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(30);
const WORK: Duration = Duration::from_secs(1);

/// What a lock protects: only whoever holds it may come in, and only with a new token.
struct Row {
    key: String,
    is_inside: AtomicBool,
    high_water: AtomicU64,
    value: AtomicI64,
}

impl Row {
    fn new(key: String, value: i64) -> Self {
        Self {
            key,
            is_inside: AtomicBool::new(false),
            high_water: AtomicU64::new(0),
            value: AtomicI64::new(value),
        }
    }

    /// Reads, lets others spoil it, and writes: exact only while nobody else is inside.
    async fn add(&self, ticket: &Ticket, amount: i64) {
        let inside = self.is_inside.swap(true, Ordering::AcqRel);
        assert!(!inside, "{}: two critical sections overlap", self.key);
        let mark = self.high_water.swap(ticket.token(), Ordering::AcqRel);
        assert!(
            ticket.token() > mark,
            "{}: token {} after {mark}",
            self.key,
            ticket.token()
        );
        let before = self.value.load(Ordering::Acquire);
        tokio::task::yield_now().await;
        self.value.store(before + amount, Ordering::Release);
        self.is_inside.store(false, Ordering::Release);
    }
}

fn rows(count: usize, value: i64) -> Arc<Vec<Row>> {
    let row = |number| Row::new(format!("row-{number}"), value);
    Arc::new((0..count).map(row).collect())
}

async fn acquire(broker: &TicketBroker, key: &str) -> Ticket {
    let outcome = broker.acquire(key, WAIT, LEASE, WORK).await;
    outcome.unwrap_or_else(|error| panic!("{key}: {error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_transfers_balance() {
    const ACCOUNTS: u64 = 6;
    const START: i64 = 1_000;
    const TASKS: u64 = 24;
    const TRANSFERS_EACH: u64 = 60;
    for (shards, durability) in [(1, "sync"), (2, "memory"), (3, "sync")] {
        let options = Options::shards(shards).durability(durability);
        let (server, broker) = started(options).await;
        let accounts = rows(ACCOUNTS as usize, START);
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (broker, accounts) = (broker.clone(), Arc::clone(&accounts));
            tasks.spawn(async move {
                let mut rng = Rng::new(task);
                let mut net = [0; ACCOUNTS as usize];
                for _ in 0..TRANSFERS_EACH {
                    let from = rng.below(ACCOUNTS) as usize;
                    let to = (from + 1 + rng.below(ACCOUNTS - 1) as usize) % ACCOUNTS as usize;
                    let amount = 1 + rng.below(100) as i64;
                    // Always the lower one first, or two transfers could wait for each other.
                    let first = acquire(&broker, &accounts[from.min(to)].key).await;
                    let second = acquire(&broker, &accounts[from.max(to)].key).await;
                    let (debit, credit) = if from < to {
                        (&first, &second)
                    } else {
                        (&second, &first)
                    };
                    accounts[from].add(debit, -amount).await;
                    accounts[to].add(credit, amount).await;
                    net[from] -= amount;
                    net[to] += amount;
                    give_back(second).await;
                    give_back(first).await;
                }
                net
            });
        }
        let mut expected = [START; ACCOUNTS as usize];
        while let Some(net) = tasks.join_next().await {
            for (balance, net) in expected.iter_mut().zip(net.expect("no panic")) {
                *balance += net;
            }
        }
        let balances: Vec<i64> = accounts
            .iter()
            .map(|account| account.value.load(Ordering::Acquire))
            .collect();
        assert_eq!(balances, expected);
        assert_eq!(balances.iter().sum::<i64>(), START * ACCOUNTS as i64);
        server.wait_metric("locks_held", 0);
        println!(
            "{} transfers between {ACCOUNTS} accounts balance ({shards} shards, {durability})",
            TASKS * TRANSFERS_EACH
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forty_thousand_contended_pairs_are_counted_exactly() {
    const TASKS: usize = 64;
    const KEYS: usize = 32;
    const PAIRS: usize = 40_000;
    let (server, broker) = started(Options::shards(2)).await;
    let rows = rows(KEYS, 0);
    let mut turns: Vec<usize> = (0..PAIRS).map(|turn| turn % KEYS).collect();
    let mut rng = Rng::new(1);
    for at in (1..PAIRS).rev() {
        turns.swap(at, rng.below(at as u64 + 1) as usize);
    }
    let turns = Arc::new(turns);
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (broker, rows) = (broker.clone(), Arc::clone(&rows));
        let (turns, next) = (Arc::clone(&turns), Arc::clone(&next));
        tasks.spawn(async move {
            while let Some(&turn) = turns.get(next.fetch_add(1, Ordering::Relaxed)) {
                let row = &rows[turn];
                let ticket = acquire(&broker, &row.key).await;
                row.add(&ticket, 1).await;
                give_back(ticket).await;
            }
        });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.expect("no error in any task");
    }
    let took = started.elapsed();
    for row in rows.iter() {
        let counted = row.value.load(Ordering::Acquire);
        assert_eq!(counted, (PAIRS / KEYS) as i64, "{}", row.key);
    }
    server.wait_metric("locks_held", 0);
    for (name, expected) in [
        ("answers{kind=\"acquired\"}", PAIRS as u64),
        ("answers{kind=\"released\"}", PAIRS as u64),
        ("answers{kind=\"busy\"}", 0),
        ("answers{kind=\"indeterminate\"}", 0),
        ("answers{kind=\"timed_out\"}", 0),
        ("grants_rejected", 0),
        ("expired", 0),
    ] {
        assert_eq!(server.metric(name), expected, "{name}");
    }
    println!(
        "{PAIRS} pairs of {TASKS} tasks over {KEYS} keys exact, in {took:.1?}: {:.0} pairs/s",
        PAIRS as f64 / took.as_secs_f64()
    );
}
