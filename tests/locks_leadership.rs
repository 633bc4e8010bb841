//! Losing leadership: who is told what, and what becomes of commands in the log.

use ticketing::locks::{Answer, Command, Fate, LockTable, Origin, Outputs, TableLimits, key_hash};

const KEY: &[u8] = b"gate";

struct Table {
    table: LockTable,
    out: Outputs,
    index: u64,
}

fn origin(request_id: u64) -> Origin {
    Origin {
        shard: 0,
        connection: 1,
        generation: 0,
        request_id,
    }
}

impl Table {
    fn serving() -> Self {
        let mut table = LockTable::new(TableLimits::default(), 0);
        table.set_ready(0);
        Self {
            table,
            out: Outputs::default(),
            index: 100,
        }
    }

    fn acquire(&mut self, id: u64) {
        let hash = key_hash(0, KEY);
        self.table
            .acquire(0, origin(id), 0, hash, KEY, 9, 20, &mut self.out);
    }

    fn release(&mut self, id: u64, token: u64) {
        let hash = key_hash(0, KEY);
        self.table
            .release(0, origin(id), 0, hash, KEY, token, &mut self.out);
    }

    /// Commits what is proposed, as this table's own or another's.
    fn commit(&mut self, own: bool) {
        let payloads: Vec<Vec<u8>> = self.out.proposals.payloads().map(Vec::from).collect();
        self.out.proposals.clear();
        for payload in payloads {
            self.index += 1;
            let command = Command::decode(&payload).expect("its own command");
            let hash = key_hash(0, KEY);
            self.table
                .apply(1, self.index, hash, command, own, &mut self.out);
        }
    }

    /// What is proposed will not be applied as this table's own.
    fn drop_all(&mut self, fate: Fate) {
        let payloads: Vec<Vec<u8>> = self.out.proposals.payloads().map(Vec::from).collect();
        self.out.proposals.clear();
        for payload in payloads {
            let command = Command::decode(&payload).expect("its own command");
            let hash = key_hash(0, KEY);
            self.table.dropped(1, hash, command, fate, &mut self.out);
        }
    }

    fn answers(&mut self) -> Vec<(u64, Answer)> {
        let answers = self.out.answers.drain(..);
        answers
            .map(|(origin, answer)| (origin.request_id, answer))
            .collect()
    }

    fn orphans(&mut self) -> Vec<u64> {
        self.out
            .orphans
            .drain(..)
            .map(|orphan| orphan.token)
            .collect()
    }
}

#[test]
fn the_line_is_refused_and_releases_are_indeterminate() {
    let mut table = Table::serving();
    table.acquire(1);
    table.commit(true);
    table.acquire(2);
    table.release(3, 101);
    table.release(4, 101);
    table.acquire(5);
    table.answers();
    table.table.step_down(0, &mut table.out);
    // 2 is next: its Grant is in the log, and its fate is open.
    let told = table.answers();
    assert_eq!(
        told,
        [
            (5, Answer::NotActive),
            (3, Answer::Indeterminate),
            (4, Answer::Indeterminate)
        ]
    );
    table.acquire(6);
    assert_eq!(table.answers(), [(6, Answer::NotActive)]);
    table.commit(true);
    assert!(matches!(
        table.answers()[..],
        [(2, Answer::Acquired { token: 103, .. })]
    ));
    assert!(table.table.is_quiet());
}

#[test]
fn a_dropped_grant_is_not_granted_and_one_behind_a_snapshot_is_not_known() {
    for (fate, answer) in [
        (Fate::Dropped, Answer::NotActive),
        (Fate::Unknown, Answer::Indeterminate),
    ] {
        let mut table = Table::serving();
        table.acquire(1);
        table.table.step_down(0, &mut table.out);
        assert!(table.answers().is_empty());
        table.drop_all(fate);
        assert_eq!(table.answers(), [(1, answer)]);
        assert_eq!(
            (table.table.stats().locks, table.table.is_quiet()),
            (0, true)
        );
    }
}

#[test]
fn what_nobody_wants_any_more_is_an_orphan() {
    // Its client went while the Grant was in the log.
    let mut table = Table::serving();
    table.acquire(1);
    table.table.step_down(0, &mut table.out);
    table.table.disconnect(0, origin(1));
    table.commit(true);
    assert_eq!(table.orphans(), [101]);
    assert!(
        table.out.is_empty(),
        "a table that does not serve proposes nothing"
    );

    // The answer could not be delivered.
    let mut table = Table::serving();
    table.acquire(1);
    table.table.step_down(0, &mut table.out);
    table.commit(true);
    let [(1, Answer::Acquired { grant, .. })] = table.answers()[..] else {
        panic!("it was granted");
    };
    table.table.undelivered(2, grant, &mut table.out);
    assert_eq!(table.orphans(), [101]);

    // Its Release was in the log and is dropped.
    let mut table = Table::serving();
    table.acquire(1);
    table.commit(true);
    table.release(2, 101);
    table.table.step_down(0, &mut table.out);
    table.drop_all(Fate::Dropped);
    assert_eq!(table.orphans(), [101]);
}

#[test]
fn a_lease_goes_on_where_it_was_when_its_expire_is_dropped() {
    let mut table = Table::serving();
    table.acquire(1);
    table.commit(true);
    table.table.advance(20_100, &mut table.out);
    assert_eq!(table.out.proposals.len(), 1);
    table.table.step_down(20_100, &mut table.out);
    table.drop_all(Fate::Dropped);
    assert!(table.orphans().is_empty());
    // Leading again, it expires it at once.
    table.table.set_ready(20_200);
    table.table.advance(20_200, &mut table.out);
    assert_eq!(table.out.proposals.len(), 1);
}
