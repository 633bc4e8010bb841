//! Deliberate mistakes, each of which a checker must find.

#[cfg(feature = "bugs")]
use ticketing_raftlog::raft::Bug;

use crate::node::bugs::ShellBug;
use crate::plan::Plan;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// In the Raft core.
    #[cfg(feature = "bugs")]
    Core(Bug),
    /// In the shell.
    Shell(ShellBug),
    /// Recovery trims what is damaged below the mark as if it were a torn tail.
    TrimsBelowMark,
    /// A sync reports success and syncs nothing.
    SyncsNothing,
}

impl Mutant {
    /// The core's part.
    #[cfg(feature = "bugs")]
    #[must_use]
    pub fn core_bug(self) -> Option<Bug> {
        match self {
            Self::Core(bug) => Some(bug),
            _ => None,
        }
    }

    /// The shell's part.
    #[must_use]
    pub fn shell_bug(self) -> Option<ShellBug> {
        match self {
            Self::Shell(bug) => Some(bug),
            _ => None,
        }
    }

    /// Draws the plan towards what brings the mistake out.
    pub fn suits(self, _plan: &mut Plan) {}
}
