//! What the matrix does not show: roles, deadlines, planned stops, deliveries that fail.

mod locks_support;

use locks_support::{START_MS, Stage};
use ticketing::locks::limits::{FRESH_LEADER_MS, RELEASE_ANSWER_MS, TRY_ANSWER_MS};
use ticketing::locks::{Answer, Command, LockTable, Origin, Outputs, TableLimits, key_hash};

fn run(script: &[(&str, &str)]) -> Stage {
    let mut stage = Stage::new(TableLimits::default());
    stage.run("script", script);
    stage
}

fn origin(request_id: u64) -> Origin {
    Origin {
        shard: 3,
        connection: 4,
        generation: 5,
        request_id,
    }
}

#[test]
fn a_table_that_is_not_ready_answers_not_active_and_expires_nothing() {
    let mut stage = Stage::not_ready(TableLimits::default());
    stage.run(
        "not ready",
        &[
            ("acquire a 0", "a=X"),
            ("acquire b 5", "b=X"),
            ("foreign grant", "Granted { token: 1 }"),
            ("release c 1", "c=X"),
            ("stop", ""),
            ("release c 1", "c=X"),
            ("at 100120", ""),
            ("at 200000", ""),
        ],
    );
    assert_eq!(stage.table.next_deadline_ms(), None);
    // The lease went on counting while another node led: no second full lease.
    stage.run("ready", &[("ready", ""), ("acquire d 5", "")]);
    assert_eq!(stage.table.next_deadline_ms(), Some(START_MS + 200_000));
    stage.run(
        "ready",
        &[("at 200000", "[E1 G]"), ("apply", ""), ("apply", "d=A3")],
    );
}

#[test]
fn recovered_locks_have_a_full_lease_and_can_be_released() {
    run(&[
        ("foreign grant", "Granted { token: 1 }"),
        ("acquire a 250", ""),
        ("at 100119", ""),
        ("at 100120", "[E1 G]"),
        ("apply", ""),
        ("apply", "a=A3"),
        ("release b 3", "[R3]"),
        ("apply", "b=R"),
    ]);
}

#[test]
fn under_a_fresh_leader_answers_come_a_second_earlier() {
    let mut stage = Stage::not_ready(TableLimits::default());
    stage.run(
        "fresh",
        &[
            ("ready", ""),
            ("now 5000", ""),
            ("acquire held 9", "[G]"),
            ("apply", "held=A1"),
            ("acquire one 1", ""),
            ("acquire two 2", ""),
            ("acquire log@other 2", "[G]"),
            ("at 5949", ""),
            ("at 5950", "one=T two=T"),
            ("at 5974", ""),
            ("at 5975", "log=I"),
        ],
    );
    assert_eq!(FRESH_LEADER_MS, 5_000);
    stage.run(
        "past",
        &[
            ("now 10000", ""),
            ("acquire past 2", ""),
            ("at 11949", ""),
            ("at 11950", "past=T"),
        ],
    );
}

#[test]
fn one_past_the_fresh_leader_time_answers_come_as_usual() {
    let mut stage = Stage::not_ready(TableLimits::default());
    stage.run(
        "fresh",
        &[
            ("ready", ""),
            ("now 5001", ""),
            ("acquire held 9", "[G]"),
            ("acquire two 2", ""),
            ("at 6950", ""),
            ("at 6951", "two=T"),
        ],
    );
}

#[test]
fn a_request_that_arrives_too_late_is_not_proposed() {
    let mut table = LockTable::new(TableLimits::default(), 0);
    let mut out = Outputs::default();
    table.set_ready(0);
    let hash = key_hash(0, b"k");
    let now_ms = 20_000;
    let late_ms = [
        (0, TRY_ANSWER_MS, Answer::Busy),
        (3, 3_000 - 50, Answer::TimedOut),
    ];
    for (request_id, (wait_s, after_ms, answer)) in (1..).zip(late_ms) {
        let late = now_ms - after_ms;
        table.acquire(
            now_ms,
            origin(request_id),
            late,
            hash,
            b"k",
            wait_s,
            9,
            &mut out,
        );
        assert_eq!(out.answers, [(origin(request_id), answer)]);
        assert!(out.proposals.is_empty());
        out.clear();
        // A millisecond less, and it is.
        table.acquire(
            now_ms,
            origin(request_id),
            late + 1,
            hash,
            b"k",
            wait_s,
            9,
            &mut out,
        );
        assert_eq!((out.answers.len(), out.proposals.len()), (0, 1));
        out.clear();
        table.apply(
            now_ms,
            request_id * 10,
            hash,
            Command::Grant {
                key: b"k",
                lease_ms: 1,
            },
            true,
            &mut out,
        );
        let removal = Command::Expire {
            key: b"k",
            token: request_id * 10,
        };
        table.apply(now_ms, request_id * 10 + 1, hash, removal, false, &mut out);
        out.clear();
    }
}

#[test]
fn a_release_is_answered_in_time_and_once() {
    assert_eq!(RELEASE_ANSWER_MS, 1_500);
    let stage = run(&[
        ("acquire h 9", "[G]"),
        ("apply", "h=A1"),
        ("release a 1", "[R1]"),
        ("release b 1", ""),
        ("now 100", ""),
        ("release c 1", ""),
        ("at 1499", ""),
        ("at 1500", "a=I b=I"),
        ("apply", "c=N"),
        ("at 1600", ""),
    ]);
    assert_eq!(stage.table.stats().timers, 0);
}

#[test]
fn a_release_whose_requester_is_gone_completes() {
    let stage = run(&[
        ("acquire h 9", "[G]"),
        ("apply", "h=A1"),
        ("acquire x 9", ""),
        ("release a 1", "[R1 G]"),
        ("release b 1", ""),
        ("gone a", ""),
        ("gone b", ""),
        ("apply", ""),
        ("apply", "x=A3"),
        ("at 1500", ""),
    ]);
    assert_eq!(stage.state(), "held 3, line 0");
}

#[test]
fn a_grant_that_was_not_delivered_is_released_once() {
    let stage = run(&[
        ("acquire a 9", "[G]"),
        ("acquire b 9", ""),
        ("apply", "a=A1"),
        ("gone a", ""),
        ("undelivered a", "[R1 G]"),
        ("undelivered a", ""),
        ("apply", ""),
        ("undelivered a", ""),
        ("apply", "b=A3"),
        ("undelivered a", ""),
        ("release c 3", "[R3]"),
        ("undelivered b", ""),
        ("apply", "c=R"),
        ("undelivered b", ""),
        // The lock's place is used again, by another key.
        ("acquire d@other 9", "[G]"),
        ("apply", "d=A5"),
        ("undelivered b", ""),
    ]);
    assert_eq!(stage.table.stats().ghosts, 1);
}

#[test]
fn a_planned_stop_finishes_what_is_in_the_log() {
    let mut stage = run(&[
        ("acquire h 9 1", "[G]"),
        ("apply", "h=A1"),
        ("acquire x 9", ""),
        ("acquire y 9", ""),
        ("acquire z@other 9", "[G]"),
        ("stop", "x=X y=X"),
        ("acquire w 9", "w=X"),
        ("acquire v 0", "v=X"),
        ("release r 1", "[R1]"),
    ]);
    assert!(!stage.table.is_quiet());
    stage.run("finish", &[("apply", "z=A2"), ("apply", "r=R")]);
    assert!(stage.table.is_quiet());
    // Nothing is expired any more, but resuming makes up for it.
    stage.run("idle", &[("at 500000", "")]);
    assert_eq!(stage.table.next_deadline_ms(), None);
    stage.run(
        "resume",
        &[("ready", ""), ("at 500000", "[E2]"), ("apply", "")],
    );
    assert_eq!(stage.table.stats().locks, 0);
}

#[test]
fn a_ghost_is_released_during_a_planned_stop() {
    run(&[
        ("acquire h 9", "[G]"),
        ("stop", ""),
        ("gone h", ""),
        ("apply", "[R1]"),
        ("apply", ""),
    ]);
}

#[test]
fn time_that_goes_back_counts_as_standing_still() {
    run(&[
        ("acquire h 9", "[G]"),
        ("acquire x 1", ""),
        ("at 950", "x=T"),
        ("now 0", ""),
        // Arrived at 0, as far as its caller can tell: the end of its wait counts from there.
        ("acquire y 2", ""),
        ("at 10", ""),
        ("at 1949", ""),
        ("at 1950", "y=T"),
    ]);
}

#[test]
fn status_shows_token_lease_and_line() {
    let mut stage = run(&[
        ("acquire h 9 2", "[G]"),
        ("apply", "h=A1"),
        ("acquire x 9", ""),
    ]);
    stage.run("other", &[("acquire o@other 9", "[G]"), ("at 500", "")]);
    let views: Vec<_> = stage.table.locks(START_MS + 500).collect();
    assert_eq!(views.len(), 2);
    assert_eq!(
        (views[0].key, views[0].token, views[0].waiters),
        (&b"k"[..], Some(1), 1)
    );
    assert_eq!(
        (
            views[0].lease_ms,
            views[0].lease_left_ms,
            views[0].held_for_ms
        ),
        (2_000, 1_500, 500)
    );
    assert_eq!(
        (views[1].key, views[1].token, views[1].lease_ms),
        (&b"other"[..], None, 0)
    );
    let stats = stage.table.stats();
    assert_eq!(
        (stats.held, stats.locks, stats.waiting, stats.requests),
        (1, 2, 1, 2)
    );
    assert_eq!(
        (stats.in_flight, stats.timers, stats.acquired, stats.grants),
        (1, 3, 1, 1)
    );
}
