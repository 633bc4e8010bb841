//! Commands that the table did not propose, in between its own: none can make it fail.

mod locks_support;

use locks_support::Stage;
use ticketing::locks::{Applied, Command, LockTable, Outputs, TableLimits, key_hash};

fn run(script: &[(&str, &str)]) -> Stage {
    let mut stage = Stage::new(TableLimits::default());
    stage.run("script", script);
    stage
}

#[test]
fn a_rejected_grant_goes_back_to_the_head_of_the_line() {
    let mut stage = run(&[
        ("acquire a 5", "[G]"),
        ("acquire b 5", ""),
        ("foreign grant", "Granted { token: 1 }"),
        ("apply", ""),
    ]);
    assert_eq!(stage.state(), "held 1, line 2");
    assert_eq!(stage.table.stats().grants_rejected, 1);
    stage.run(
        "rest",
        &[
            ("release r 1", "[R1 G]"),
            ("apply", "r=R"),
            ("apply", "a=A4"),
            ("at 4950", "b=T"),
        ],
    );
}

#[test]
fn a_rejected_grant_that_cannot_stand_in_line_is_answered() {
    let given = |first| [(first, "[G]"), ("foreign grant", "Granted { token: 1 }")];
    run(&given("acquire a 0")).run("one try", &[("apply", "a=B"), ("at 4500", "")]);
    run(&given("acquire a 1")).run("late", &[("now 950", ""), ("apply", "a=T"), ("at 975", "")]);
    run(&given("acquire a 1")).run("stop", &[("stop", ""), ("apply", "a=X"), ("at 975", "")]);
    run(&given("acquire a 1")).run("gone", &[("gone a", ""), ("apply", ""), ("at 975", "")]);
    run(&given("acquire a 1")).run("unknown", &[("at 975", "a=I"), ("apply", "")]);
}

#[test]
fn a_removal_that_misses_leaves_the_newer_grant_and_its_lease() {
    let stage = run(&[
        ("acquire h 9 1", "[G]"),
        ("apply", "h=A1"),
        ("release a 1", "[R1]"),
        ("release b 1", ""),
        ("foreign expire 1", "Expired { existed: true } b=N"),
        ("foreign grant", "Granted { token: 3 }"),
        ("release c 3", ""),
        ("release d 3", ""),
        ("apply", "a=N [R3]"),
        ("apply", "c=R d=N"),
    ]);
    assert_eq!(stage.state(), "free");
    assert_eq!(stage.table.stats().timers, 0);

    let mut stage = run(&[
        ("acquire h 9 1", "[G]"),
        ("apply", "h=A1"),
        ("release a 1", "[R1]"),
        ("foreign expire 1", "Expired { existed: true }"),
        ("foreign grant", "Granted { token: 3 }"),
        ("at 1500", "a=I"),
        ("at 100120", ""),
        ("apply", ""),
        ("at 100120", "[E3]"),
        ("apply", ""),
    ]);
    assert_eq!(stage.state(), "free");
    stage.run(
        "late commands",
        &[
            ("foreign expire 3", "Expired { existed: false }"),
            ("foreign release 3", "NotFound"),
        ],
    );
}

#[test]
fn a_removal_by_another_leadership_hands_the_key_on() {
    run(&[
        ("acquire h 9", "[G]"),
        ("apply", "h=A1"),
        ("acquire x 9", ""),
        ("foreign release 1", "Released [G]"),
        ("apply", "x=A3"),
    ]);
}

#[test]
fn a_ghost_behind_a_foreign_grant_is_ended_by_its_lease() {
    let mut stage = run(&[
        ("acquire h 9 1", "[G]"),
        ("foreign grant", "Granted { token: 1 }"),
        ("release a 1", "[R1]"),
        ("gone h", ""),
        ("foreign expire 1", "Expired { existed: true }"),
        ("apply", ""),
    ]);
    assert_eq!(stage.state(), "releasing to nobody 3, line 0");
    stage.run(
        "rest",
        &[
            ("apply", "a=N"),
            ("at 1020", ""),
            ("at 1021", "[E3]"),
            ("apply", ""),
        ],
    );
    assert_eq!(stage.state(), "free");
}

#[test]
fn entries_that_were_applied_already_change_nothing() {
    let mut table = LockTable::new(TableLimits::default(), 0);
    let mut out = Outputs::default();
    let hash = key_hash(0, b"k");
    let mut apply = |index, command| table.apply(0, index, hash, command, false, &mut out);
    let grant = Command::Grant {
        key: b"k",
        lease_ms: 5,
    };
    assert_eq!(apply(0, grant), Applied::Noop);
    assert_eq!(apply(7, grant), Applied::Granted { token: 7 });
    assert_eq!(
        apply(
            7,
            Command::Release {
                key: b"k",
                token: 7
            }
        ),
        Applied::Noop
    );
    assert_eq!(
        apply(
            8,
            Command::Grant {
                key: &[b'x'; 129],
                lease_ms: 5
            }
        ),
        Applied::Noop
    );
    assert_eq!(
        apply(
            9,
            Command::Grant {
                key: b"",
                lease_ms: 5
            }
        ),
        Applied::Noop
    );
    assert_eq!(
        apply(
            10,
            Command::Release {
                key: b"k",
                token: 7
            }
        ),
        Applied::Released
    );
    assert_eq!(table.applied_index(), 10);
    assert_eq!(table.stats().locks, 0);
}

#[test]
fn own_commands_that_the_table_does_not_know_are_applied_and_counted() {
    let mut table = LockTable::new(TableLimits::default(), 0);
    let mut out = Outputs::default();
    table.set_ready(0);
    let hash = key_hash(0, b"k");
    let mut apply = |index, command| table.apply(0, index, hash, command, true, &mut out);
    assert_eq!(
        apply(
            1,
            Command::Grant {
                key: b"k",
                lease_ms: 5
            }
        ),
        Applied::Granted { token: 1 }
    );
    assert_eq!(
        apply(
            2,
            Command::Expire {
                key: b"k",
                token: 1
            }
        ),
        Applied::Expired { existed: true }
    );
    assert_eq!(
        apply(
            3,
            Command::Release {
                key: b"k",
                token: 1
            }
        ),
        Applied::NotFound
    );
    assert_eq!(table.stats().unexpected, 3);
    assert!(table.is_quiet() && out.is_empty());
}
