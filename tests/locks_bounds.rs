//! Every bound of the table, at the bound and one past it.

mod locks_support;

use locks_support::Stage;
use ticketing::locks::limits::{ADVANCE_BUDGET, COUNT_MAX, LEASE_MS_MAX, WAIT_MARGIN_MS_MAX};
use ticketing::locks::{Command, LockTable, Outputs, TableLimits, key_hash};

#[test]
fn the_margin_is_taken_from_the_limits() {
    let limits = TableLimits {
        wait_margin_ms: 0,
        ..TableLimits::default()
    };
    Stage::new(limits).run(
        "no margin",
        &[
            ("acquire a 1", "[G]"),
            ("acquire b 1", ""),
            ("at 999", ""),
            ("at 1000", "a=I b=T"),
            ("apply", "[R1]"),
        ],
    );
    let limits = TableLimits {
        wait_margin_ms: WAIT_MARGIN_MS_MAX,
        ..TableLimits::default()
    };
    Stage::new(limits).run(
        "largest margin",
        &[
            ("acquire a 1", "[G]"),
            ("acquire b 1", ""),
            ("at 499", ""),
            ("at 500", "b=T"),
            ("at 750", "a=I"),
        ],
    );
}

#[test]
fn each_bound_holds_at_the_bound_and_one_past_it() {
    let small = TableLimits {
        waiters_per_key: 2,
        waiters_total: 3,
        locks_total: 2,
        parked_releases: 1,
        ..TableLimits::default()
    };
    let mut stage = Stage::new(small);
    stage.run(
        "bounds",
        &[
            ("acquire a@k 9", "[G]"),
            ("acquire b@l 9", "[G]"),
            // Two locks in flight: no third.
            ("acquire c@m 9", "c=B"),
            ("acquire c@m 0", "c=B"),
            ("apply", "a=A1"),
            ("apply", "b=A2"),
            ("acquire c@m 9", "c=B"),
            // Two in one line: no third.
            ("acquire k1@k 9", ""),
            ("acquire k2@k 9", ""),
            ("acquire k3@k 9", "k3=B"),
            // Three in all: no fourth.
            ("acquire l1@l 9", ""),
            ("acquire l2@l 9", "l2=B"),
            // A release goes through, and makes room at once.
            ("release r@k 1", "[R1 G]"),
            ("acquire l2@l 9", ""),
            ("acquire k3@k 9", "k3=B"),
            // One release is parked: not a second.
            ("release s@k 1", ""),
            ("release t@k 1", "t=I"),
            ("apply", "r=R s=N"),
            ("apply", "k1=A4"),
            ("release b@l 2", "[R2 G]"),
            ("release s@l 2", ""),
            ("release t@l 2", "t=I"),
        ],
    );
    assert_eq!(stage.state(), "held 4, line 1");
}

#[test]
fn limits_at_their_own_bound_are_accepted() {
    let most = TableLimits {
        waiters_per_key: COUNT_MAX,
        waiters_total: COUNT_MAX,
        locks_total: COUNT_MAX,
        parked_releases: COUNT_MAX,
        wait_margin_ms: WAIT_MARGIN_MS_MAX,
        origin_seed: u64::MAX,
    };
    LockTable::new(most, 0);
}

#[test]
#[should_panic(expected = "WAIT_MARGIN_MS_MAX")]
fn a_margin_past_its_bound_is_refused() {
    let limits = TableLimits {
        wait_margin_ms: WAIT_MARGIN_MS_MAX + 1,
        ..TableLimits::default()
    };
    LockTable::new(limits, 0);
}

#[test]
#[should_panic(expected = "COUNT_MAX")]
fn a_count_past_its_bound_is_refused() {
    LockTable::new(
        TableLimits {
            locks_total: COUNT_MAX + 1,
            ..TableLimits::default()
        },
        0,
    );
}

#[test]
fn a_burst_of_deadlines_is_worked_off_in_bounded_steps() {
    let mut table = LockTable::new(TableLimits::default(), 0);
    let mut out = Outputs::default();
    table.set_ready(0);
    let count = ADVANCE_BUDGET as u64 + 1;
    for index in 1..=count {
        let key = index.to_le_bytes();
        let hash = key_hash(0, &key);
        table.apply(
            0,
            index,
            hash,
            Command::Grant {
                key: &key,
                lease_ms: 1_000,
            },
            false,
            &mut out,
        );
    }
    table.advance(1_020, &mut out);
    assert!(out.is_empty());
    table.advance(1_021, &mut out);
    assert_eq!(out.proposals.len(), ADVANCE_BUDGET);
    assert_eq!(table.next_deadline_ms(), Some(1_021));
    table.advance(1_021, &mut out);
    // In the order in which the leases began.
    let tokens: Vec<u64> = out
        .proposals
        .payloads()
        .map(|payload| match Command::decode(payload) {
            Ok(Command::Expire { token, .. }) => token,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tokens, (1..=count).collect::<Vec<u64>>());
    assert_eq!(table.next_deadline_ms(), None);
}

#[test]
fn a_lease_past_its_bound_is_cut_when_it_is_applied() {
    let mut table = LockTable::new(TableLimits::default(), 0);
    let mut out = Outputs::default();
    table.set_ready(0);
    for (index, key, lease_ms) in [(1, b"k", LEASE_MS_MAX), (2, b"l", u32::MAX)] {
        let hash = key_hash(0, key);
        table.apply(
            0,
            index,
            hash,
            Command::Grant { key, lease_ms },
            false,
            &mut out,
        );
        let view = table.lock(0, hash, key).expect("it is held");
        assert_eq!(view.lease_ms, LEASE_MS_MAX);
    }
    assert_eq!(table.next_deadline_ms(), Some(250_270));
    table.advance(250_270, &mut out);
    assert_eq!(out.proposals.len(), 2);
}
