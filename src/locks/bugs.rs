//! Mistakes that a table can be told to make, so that tests prove that they would be caught.

use super::table::LockTable;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableBug {
    /// The last in line is served first.
    TakesTheLastFirst,
    /// A waiter that was told TimedOut is granted all the same.
    GrantsAfterTimedOut,
    /// A grant that nobody is there to take is left to its lease.
    KeepsGhosts,
}

impl LockTable {
    /// From now on it makes that mistake.
    pub fn make_mistake(&mut self, bug: Option<TableBug>) {
        self.bug = bug;
    }
}
