//! Every cell of the matrix "request x key state", by name, on one table with one key `k`.

mod locks_support;

use locks_support::Stage;
use ticketing::locks::TableLimits;

type Script = &'static [(&'static str, &'static str)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Free,
    /// Granting, Held, or between the halves of a hand-over.
    Taken,
    /// Releasing or Expiring, next in line chosen.
    Next,
    /// Releasing or Expiring, nobody chosen.
    Nobody,
}
use Column::{Free, Next, Nobody, Taken};

const COLUMNS: [Column; 4] = [Free, Taken, Next, Nobody];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    AcquireOnce,
    AcquireWait,
    AcquireFull,
    ReleaseCurrent,
    ReleaseOther,
    WaitOutInLine,
    WaitOutInLog,
    GoneInLine,
    GoneInLog,
    LeaseOut,
}
use Row::{
    AcquireFull, AcquireOnce, AcquireWait, GoneInLine, GoneInLog, LeaseOut, ReleaseCurrent,
    ReleaseOther, WaitOutInLine, WaitOutInLog,
};

const ROWS: [Row; 10] = [
    AcquireOnce,
    AcquireWait,
    AcquireFull,
    ReleaseCurrent,
    ReleaseOther,
    WaitOutInLine,
    WaitOutInLog,
    GoneInLine,
    GoneInLog,
    LeaseOut,
];

/// How a key gets into a state. `h` holds (lease 1 s, so that it ends at 1,021 ms), `r` released,
/// `n` is next.
const FREE: Script = &[];
const GRANTING: Script = &[("acquire h 9 1", "[G]")];
const HELD: Script = &[("acquire h 9 1", "[G]"), ("apply", "h=A1")];
const RELEASING_NEXT: Script = &[
    ("acquire h 9 1", "[G]"),
    ("apply", "h=A1"),
    ("acquire n 9", ""),
    ("release r 1", "[R1 G]"),
];
const BETWEEN_HALVES: Script = &[
    ("acquire h 9 1", "[G]"),
    ("apply", "h=A1"),
    ("acquire n 9", ""),
    ("release r 1", "[R1 G]"),
    ("apply", "r=R"),
];
const EXPIRING_NEXT: Script = &[
    ("acquire h 9 1", "[G]"),
    ("apply", "h=A1"),
    ("acquire n 9", ""),
    ("at 1021", "[E1 G]"),
];
const RELEASING_NOBODY: Script = &[
    ("acquire h 9 1", "[G]"),
    ("apply", "h=A1"),
    ("release r 1", "[R1]"),
];
const EXPIRING_NOBODY: Script = &[
    ("acquire h 9 1", "[G]"),
    ("apply", "h=A1"),
    ("at 1021", "[E1]"),
];

struct Case {
    row: Row,
    column: Column,
    name: &'static str,
    given: Script,
    when: Script,
    /// The key's state at the end.
    then: &'static str,
}

const fn case(
    row: Row,
    column: Column,
    name: &'static str,
    given: Script,
    when: Script,
    then: &'static str,
) -> Case {
    Case {
        row,
        column,
        name,
        given,
        when,
        then,
    }
}

/// Cells that cannot come about, and why.
const IMPOSSIBLE: &[(Row, Column, &str)] = &[
    (ReleaseCurrent, Free, "a free key has no current token"),
    (WaitOutInLine, Free, "a free key has no line"),
    (
        WaitOutInLine,
        Nobody,
        "nobody is chosen only while nobody is in line",
    ),
    (
        WaitOutInLog,
        Free,
        "with a Grant in the log the key is not free",
    ),
    (GoneInLine, Free, "a free key has no line"),
    (
        GoneInLine,
        Nobody,
        "nobody is chosen only while nobody is in line",
    ),
    (
        GoneInLog,
        Free,
        "with a Grant in the log the key is not free",
    ),
    (LeaseOut, Free, "a free key has no lease"),
];

#[rustfmt::skip]
const CASES: &[Case] = &[
    case(AcquireOnce, Free, "free", FREE, &[("acquire x 0", "[G]"), ("apply", "x=A1")], "held 1, line 0"),
    case(AcquireOnce, Taken, "granting", GRANTING, &[("acquire x 0", "x=B")], "granting, line 0"),
    case(AcquireOnce, Taken, "held", HELD, &[("acquire x 0", "x=B")], "held 1, line 0"),
    case(AcquireOnce, Taken, "between halves", BETWEEN_HALVES, &[("acquire x 0", "x=B")], "granting, line 0"),
    case(AcquireOnce, Next, "releasing", RELEASING_NEXT, &[("acquire x 0", "x=B")], "releasing to next 1, line 0"),
    case(AcquireOnce, Next, "expiring", EXPIRING_NEXT, &[("acquire x 0", "x=B")], "expiring to next 1, line 0"),
    case(AcquireOnce, Nobody, "releasing", RELEASING_NOBODY, &[("acquire x 0", "x=B")], "releasing to nobody 1, line 0"),
    case(AcquireOnce, Nobody, "expiring", EXPIRING_NOBODY, &[("acquire x 0", "x=B")], "expiring to nobody 1, line 0"),

    case(AcquireWait, Free, "free", FREE, &[("acquire x 5", "[G]"), ("apply", "x=A1")], "held 1, line 0"),
    case(AcquireWait, Taken, "granting", GRANTING, &[("acquire x 5", ""), ("apply", "h=A1")], "held 1, line 1"),
    case(AcquireWait, Taken, "held: first come, first served", HELD,
        &[("acquire x 5", ""), ("acquire y 5", ""), ("release r 1", "[R1 G]"), ("apply", "r=R"), ("apply", "x=A3"),
          ("release s 3", "[R3 G]"), ("apply", "s=R"), ("apply", "y=A5")], "held 5, line 0"),
    case(AcquireWait, Taken, "held: not reentrant", HELD, &[("acquire h 5", "")], "held 1, line 1"),
    case(AcquireWait, Taken, "between halves", BETWEEN_HALVES, &[("acquire x 5", ""), ("apply", "n=A3")], "held 3, line 1"),
    case(AcquireWait, Next, "releasing", RELEASING_NEXT,
        &[("acquire x 5", ""), ("apply", "r=R"), ("apply", "n=A3")], "held 3, line 1"),
    case(AcquireWait, Next, "expiring", EXPIRING_NEXT,
        &[("acquire x 5", ""), ("apply", ""), ("apply", "n=A3")], "held 3, line 1"),
    case(AcquireWait, Nobody, "releasing", RELEASING_NOBODY,
        &[("acquire x 5", "[G]"), ("acquire y 5", ""), ("apply", "r=R"), ("apply", "x=A3")], "held 3, line 1"),
    case(AcquireWait, Nobody, "expiring", EXPIRING_NOBODY,
        &[("acquire x 5", "[G]"), ("acquire y 5", ""), ("apply", ""), ("apply", "x=A3")], "held 3, line 1"),

    // Room for one lock and one in line.
    case(AcquireFull, Free, "no lock left", FREE,
        &[("acquire o@other 5", "[G]"), ("acquire x 5", "x=B"), ("acquire y 0", "y=B")], "free"),
    case(AcquireFull, Taken, "granting", GRANTING, &[("acquire x 5", ""), ("acquire y 5", "y=B")], "granting, line 1"),
    case(AcquireFull, Taken, "held", HELD, &[("acquire x 5", ""), ("acquire y 5", "y=B")], "held 1, line 1"),
    case(AcquireFull, Taken, "between halves", BETWEEN_HALVES,
        &[("acquire x 5", ""), ("acquire y 5", "y=B")], "granting, line 1"),
    case(AcquireFull, Next, "releasing", RELEASING_NEXT,
        &[("acquire x 5", ""), ("acquire y 5", "y=B")], "releasing to next 1, line 1"),
    case(AcquireFull, Next, "expiring", EXPIRING_NEXT,
        &[("acquire x 5", ""), ("acquire y 5", "y=B")], "expiring to next 1, line 1"),
    case(AcquireFull, Nobody, "releasing", RELEASING_NOBODY, &[("acquire x 5", "x=B")], "releasing to nobody 1, line 0"),
    case(AcquireFull, Nobody, "expiring", EXPIRING_NOBODY, &[("acquire x 5", "x=B")], "expiring to nobody 1, line 0"),

    case(ReleaseCurrent, Taken, "held, line empty", HELD, &[("release x 1", "[R1]"), ("apply", "x=R")], "free"),
    case(ReleaseCurrent, Taken, "held, to the head of the line", HELD,
        &[("acquire y 5", ""), ("release x 1", "[R1 G]"), ("apply", "x=R"), ("apply", "y=A3")], "held 3, line 0"),
    case(ReleaseCurrent, Next, "releasing", RELEASING_NEXT,
        &[("release x 1", ""), ("apply", "r=R x=N"), ("apply", "n=A3")], "held 3, line 0"),
    case(ReleaseCurrent, Next, "expiring", EXPIRING_NEXT,
        &[("release x 1", ""), ("apply", "x=N"), ("apply", "n=A3")], "held 3, line 0"),
    case(ReleaseCurrent, Nobody, "releasing", RELEASING_NOBODY, &[("release x 1", ""), ("apply", "r=R x=N")], "free"),
    case(ReleaseCurrent, Nobody, "expiring", EXPIRING_NOBODY, &[("release x 1", ""), ("apply", "x=N")], "free"),

    case(ReleaseOther, Free, "free", FREE, &[("release x 1", "x=N")], "free"),
    case(ReleaseOther, Taken, "granting", GRANTING, &[("release x 1", "x=N"), ("release y 7", "y=N")], "granting, line 0"),
    case(ReleaseOther, Taken, "held", HELD, &[("release x 2", "x=N")], "held 1, line 0"),
    case(ReleaseOther, Taken, "between halves", BETWEEN_HALVES, &[("release x 1", "x=N")], "granting, line 0"),
    case(ReleaseOther, Next, "releasing", RELEASING_NEXT, &[("release x 9", "x=N")], "releasing to next 1, line 0"),
    case(ReleaseOther, Next, "expiring", EXPIRING_NEXT, &[("release x 9", "x=N")], "expiring to next 1, line 0"),
    case(ReleaseOther, Nobody, "releasing", RELEASING_NOBODY, &[("release x 9", "x=N")], "releasing to nobody 1, line 0"),
    case(ReleaseOther, Nobody, "expiring", EXPIRING_NOBODY, &[("release x 9", "x=N")], "expiring to nobody 1, line 0"),

    case(WaitOutInLine, Taken, "granting", GRANTING, &[("acquire x 1", ""), ("at 949", ""), ("at 950", "x=T")], "granting, line 0"),
    case(WaitOutInLine, Taken, "held", HELD, &[("acquire x 1", ""), ("at 949", ""), ("at 950", "x=T")], "held 1, line 0"),
    case(WaitOutInLine, Taken, "held, chosen too late: the next is taken", HELD,
        &[("acquire x 1", ""), ("acquire y 5", ""), ("now 950", ""), ("release r 1", "x=T [R1 G]"), ("apply", "r=R"),
          ("apply", "y=A3")], "held 3, line 0"),
    case(WaitOutInLine, Taken, "held, chosen too late: nobody is left", HELD,
        &[("acquire x 1", ""), ("now 950", ""), ("release r 1", "x=T [R1]"), ("apply", "r=R")], "free"),
    case(WaitOutInLine, Taken, "between halves", BETWEEN_HALVES, &[("acquire x 1", ""), ("at 950", "x=T")], "granting, line 0"),
    case(WaitOutInLine, Next, "releasing", RELEASING_NEXT,
        &[("acquire x 1", ""), ("at 950", "x=T")], "releasing to next 1, line 0"),
    case(WaitOutInLine, Next, "expiring", EXPIRING_NEXT,
        &[("acquire x 1", ""), ("at 1970", ""), ("at 1971", "x=T")], "expiring to next 1, line 0"),

    case(WaitOutInLog, Taken, "granting, applied in time", FREE,
        &[("acquire x 1", "[G]"), ("at 974", ""), ("apply", "x=A1"), ("at 2000", "")], "held 1, line 0"),
    case(WaitOutInLog, Taken, "granting, applied too late", FREE,
        &[("acquire x 1", "[G]"), ("at 974", ""), ("at 975", "x=I"), ("apply", "[R1]"), ("apply", "")], "free"),
    case(WaitOutInLog, Taken, "granting, applied too late, the clock not yet come round", FREE,
        &[("acquire x 1", "[G]"), ("now 975", ""), ("apply", "x=I [R1]"), ("apply", "")], "free"),
    case(WaitOutInLog, Taken, "granting, applied too late, another in line", FREE,
        &[("acquire x 1", "[G]"), ("acquire y 5", ""), ("at 975", "x=I"), ("apply", "[R1 G]"), ("apply", ""),
          ("apply", "y=A3")], "held 3, line 0"),
    case(WaitOutInLog, Taken, "granting, wait 0", FREE,
        &[("acquire x 0", "[G]"), ("at 4499", ""), ("at 4500", "x=I"), ("apply", "[R1]"), ("apply", "")], "free"),
    case(WaitOutInLog, Taken, "between halves", BETWEEN_HALVES,
        &[("at 8974", ""), ("at 8975", "n=I"), ("apply", "[R3]"), ("apply", "")], "free"),
    case(WaitOutInLog, Next, "releasing", RELEASING_NEXT,
        &[("at 1500", "r=I"), ("at 8975", "n=I"), ("apply", ""), ("apply", "[R3]"), ("apply", "")], "free"),
    case(WaitOutInLog, Next, "expiring", EXPIRING_NEXT,
        &[("at 8975", "n=I"), ("apply", ""), ("apply", "[R3]"), ("apply", "")], "free"),
    case(WaitOutInLog, Nobody, "releasing, then granting behind it", RELEASING_NOBODY,
        &[("acquire x 1", "[G]"), ("at 975", "x=I"), ("apply", "r=R"), ("apply", "[R3]"), ("apply", "")], "free"),
    case(WaitOutInLog, Nobody, "expiring, then granting behind it", EXPIRING_NOBODY,
        &[("acquire x 1", "[G]"), ("at 1996", "x=I"), ("apply", ""), ("apply", "[R3]"), ("apply", "")], "free"),

    case(GoneInLine, Taken, "granting", GRANTING, &[("acquire x 5", ""), ("gone x", ""), ("at 5000", "")], "granting, line 0"),
    case(GoneInLine, Taken, "held, in the middle of the line", HELD,
        &[("acquire x 5", ""), ("acquire y 5", ""), ("acquire z 5", ""), ("gone y", ""), ("release r 1", "[R1 G]"),
          ("apply", "r=R"), ("apply", "x=A3"), ("release s 3", "[R3 G]"), ("apply", "s=R"), ("apply", "z=A5")], "held 5, line 0"),
    case(GoneInLine, Taken, "between halves", BETWEEN_HALVES, &[("acquire x 5", ""), ("gone x", "")], "granting, line 0"),
    case(GoneInLine, Next, "releasing", RELEASING_NEXT, &[("acquire x 5", ""), ("gone x", "")], "releasing to next 1, line 0"),
    case(GoneInLine, Next, "expiring", EXPIRING_NEXT, &[("acquire x 5", ""), ("gone x", "")], "expiring to next 1, line 0"),

    case(GoneInLog, Taken, "granting", GRANTING, &[("gone h", ""), ("at 9000", ""), ("apply", "[R1]"), ("apply", "")], "free"),
    case(GoneInLog, Taken, "granting, another in line", GRANTING,
        &[("acquire x 5", ""), ("gone h", ""), ("apply", "[R1 G]"), ("apply", ""), ("apply", "x=A3")], "held 3, line 0"),
    case(GoneInLog, Taken, "between halves", BETWEEN_HALVES, &[("gone n", ""), ("apply", "[R3]"), ("apply", "")], "free"),
    case(GoneInLog, Next, "releasing", RELEASING_NEXT,
        &[("acquire x 5", ""), ("gone n", ""), ("apply", "r=R"), ("apply", "[R3 G]"), ("apply", ""), ("apply", "x=A5")],
        "held 5, line 0"),
    case(GoneInLog, Next, "expiring", EXPIRING_NEXT,
        &[("gone n", ""), ("apply", ""), ("apply", "[R3]"), ("apply", "")], "free"),
    case(GoneInLog, Nobody, "releasing, then granting behind it", RELEASING_NOBODY,
        &[("acquire x 5", "[G]"), ("gone x", ""), ("apply", "r=R"), ("apply", "[R3]"), ("apply", "")], "free"),
    case(GoneInLog, Nobody, "expiring, then granting behind it", EXPIRING_NOBODY,
        &[("acquire x 5", "[G]"), ("gone x", ""), ("apply", ""), ("apply", "[R3]"), ("apply", "")], "free"),

    case(LeaseOut, Taken, "granting: no lease runs yet", GRANTING, &[("at 5000", ""), ("apply", "h=A1"), ("at 6020", "")], "held 1, line 0"),
    case(LeaseOut, Taken, "held, line empty", HELD, &[("at 1020", ""), ("at 1021", "[E1]"), ("apply", "")], "free"),
    case(LeaseOut, Taken, "held, to the head of the line", HELD,
        &[("acquire x 5", ""), ("at 1020", ""), ("at 1021", "[E1 G]"), ("apply", ""), ("apply", "x=A3")], "held 3, line 0"),
    case(LeaseOut, Next, "releasing", RELEASING_NEXT, &[("at 1021", ""), ("apply", "r=R"), ("apply", "n=A3")], "held 3, line 0"),
    case(LeaseOut, Next, "expiring", EXPIRING_NEXT, &[("at 1100", "")], "expiring to next 1, line 0"),
    case(LeaseOut, Nobody, "releasing", RELEASING_NOBODY, &[("at 1021", ""), ("apply", "r=R")], "free"),
    case(LeaseOut, Nobody, "expiring", EXPIRING_NOBODY, &[("at 1100", ""), ("apply", "")], "free"),
];

#[test]
fn every_cell_does_what_the_matrix_says() {
    for case in CASES {
        let limits = match case.row {
            AcquireFull => TableLimits {
                locks_total: 1,
                waiters_per_key: 1,
                ..TableLimits::default()
            },
            _ => TableLimits::default(),
        };
        let name = format!("{:?} x {:?}, {}", case.row, case.column, case.name);
        let mut stage = Stage::new(TableLimits {
            waiters_total: 64,
            ..limits
        });
        stage.run(&name, case.given);
        stage.run(&name, case.when);
        assert_eq!(stage.state(), case.then, "{name}");
    }
}

#[test]
fn every_cell_has_a_case_or_cannot_come_about() {
    for row in ROWS {
        for column in COLUMNS {
            let cases = CASES
                .iter()
                .filter(|case| (case.row, case.column) == (row, column))
                .count();
            let impossible = IMPOSSIBLE
                .iter()
                .filter(|cell| (cell.0, cell.1) == (row, column))
                .count();
            assert_eq!(impossible, usize::from(cases == 0), "{row:?} x {column:?}");
        }
    }
}
