//! Whether a node that says who it is can be believed: verdicts from what its peers remember. Pure.
//!
//! A node that lost its state must not come back under its old name: it could vote twice in a term, and
//! forget entries that count as on its disk. Each peer remembers, on its own disk, which folder it saw
//! last under a NodeId, how often that was started, and what the node acknowledged; from that it refuses
//! wiped, copied and restored folders. What no peer that is asked remembers cannot be caught.

use crate::types::{LogIndex, NodeId, Term};

/// Drawn at a folder's first start: tells two folders made for one NodeId apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Incarnation(pub [u8; 16]);

/// Drawn at each start: tells two processes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessId(pub [u8; 16]);

/// What a node says of itself when it connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Its name.
    pub node_id: NodeId,
    /// Its folder.
    pub incarnation: Incarnation,
    /// How often the folder was started, this time included; synced before it is said.
    pub starts: u64,
    /// This process.
    pub process: ProcessId,
    /// Its current term.
    pub term: Term,
    /// The last index of its log, or of its snapshot if that is further.
    pub last_index: LogIndex,
}

/// What a peer remembers of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    incarnation: Incarnation,
    starts: u64,
    process: ProcessId,
    /// The newest term in which it acknowledged entries to this peer, and the last of them.
    acknowledged: (Term, LogIndex),
    /// The largest index that it acknowledged and that is known committed.
    committed: LogIndex,
}

/// Why a node is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another folder than before.
    #[error(
        "node {0} comes back with another data folder than before; its state is lost: add a new node \
         in its place"
    )]
    AnotherFolder(NodeId),
    /// A start counter that was seen before, from another process.
    #[error(
        "node {node} says that its folder was started {claimed} times, and {seen} were seen: this is a \
         copy or a restored backup; add a new node in its place"
    )]
    SeenBefore {
        /// The node.
        node: NodeId,
        /// Its counter.
        claimed: u64,
        /// The counter that was seen.
        seen: u64,
    },
    /// Another process under this name is connected.
    #[error("node {0} runs twice: stop one of the two, and find out which folder is the copy")]
    RunsTwice(NodeId),
    /// The log lacks entries that the node acknowledged.
    #[error(
        "the log of node {node} ends at {has}, and it has acknowledged {needs}: entries are lost; add a \
         new node in its place"
    )]
    LogLost {
        /// The node.
        node: NodeId,
        /// Where its log ends.
        has: LogIndex,
        /// Where it must reach.
        needs: LogIndex,
    },
}

impl Memory {
    /// What to remember of a node that was never seen.
    #[must_use]
    pub fn first(claim: &Claim) -> Self {
        Self {
            incarnation: claim.incarnation,
            starts: claim.starts,
            process: claim.process,
            acknowledged: (Term(0), LogIndex(0)),
            committed: LogIndex(0),
        }
    }

    /// The node acknowledges its log up to `up_to` to this peer, which leads in `term`. To be kept on the
    /// disk before the acknowledgement counts.
    pub fn acknowledges(&mut self, term: Term, up_to: LogIndex) {
        let (newest, last) = self.acknowledged;
        if term > newest {
            self.acknowledged = (term, up_to);
        } else if term == newest {
            self.acknowledged.1 = last.max(up_to);
        }
    }

    /// This peer, which leads in `term`, knows everything up to `commit` committed.
    pub fn commits(&mut self, term: Term, commit: LogIndex) {
        let (newest, last) = self.acknowledged;
        if term == newest {
            self.committed = self.committed.max(last.min(commit));
        }
    }
}

/// Judges a claim by what is remembered; `live` is the process that is connected under that name.
///
/// Gives what to remember from now on, synced before the node is let in.
///
/// # Errors
/// Why it is refused; what is remembered stays.
pub fn judge(
    memory: Option<&Memory>,
    live: Option<ProcessId>,
    claim: &Claim,
) -> Result<Memory, Refusal> {
    let node = claim.node_id;
    let Some(memory) = memory else {
        return Ok(Memory::first(claim));
    };
    if claim.incarnation != memory.incarnation {
        return Err(Refusal::AnotherFolder(node));
    }
    let same_process = claim.process == memory.process;
    // Before the counter: two that run at once are told so, whichever of them started first.
    if live.is_some_and(|live| live != claim.process) && claim.starts <= memory.starts {
        return Err(Refusal::RunsTwice(node));
    }
    if same_process != (claim.starts == memory.starts) || claim.starts < memory.starts {
        return Err(Refusal::SeenBefore {
            node,
            claimed: claim.starts,
            seen: memory.starts,
        });
    }
    // What it acknowledged in the term that it still has cannot have been truncated since.
    let (term, last) = memory.acknowledged;
    let needs = match claim.term == term {
        true => last.max(memory.committed),
        false => memory.committed,
    };
    if claim.term < term || claim.last_index < needs {
        return Err(Refusal::LogLost {
            node,
            has: claim.last_index,
            needs,
        });
    }
    Ok(Memory {
        starts: claim.starts,
        process: claim.process,
        ..*memory
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId([1; 16]);

    fn claim(folder: u8, starts: u64, process: u8, term: u64, last_index: u64) -> Claim {
        Claim {
            node_id: NODE,
            incarnation: Incarnation([folder; 16]),
            starts,
            process: ProcessId([process; 16]),
            term: Term(term),
            last_index: LogIndex(last_index),
        }
    }

    /// Folder 1, third start, process 30; acknowledged 50 in term 4, of which 40 is committed.
    fn memory() -> Memory {
        let mut memory = Memory::first(&claim(1, 3, 30, 4, 20));
        memory.acknowledges(Term(4), LogIndex(50));
        memory.commits(Term(4), LogIndex(40));
        memory
    }

    fn verdict(claim: &Claim) -> Result<(), Refusal> {
        judge(Some(&memory()), None, claim).map(|_| ())
    }

    #[test]
    fn who_was_never_seen_is_believed_and_remembered() {
        let first = claim(1, 1, 10, 0, 0);
        let memory = judge(None, None, &first).expect("nobody remembers anything");
        assert_eq!(memory, Memory::first(&first));
        assert_eq!(
            judge(Some(&memory), None, &first),
            Ok(memory),
            "it connects again"
        );
    }

    #[test]
    fn an_ordinary_restart_is_let_in() {
        assert_eq!(verdict(&claim(1, 4, 40, 4, 50)), Ok(()));
        assert_eq!(verdict(&claim(1, 3, 30, 4, 50)), Ok(()), "the same process");
        let next = judge(Some(&memory()), None, &claim(1, 9, 90, 5, 40)).expect("truncated since");
        assert_eq!((next.starts, next.process), (9, ProcessId([90; 16])));
        assert_eq!(next.committed, LogIndex(40));
    }

    #[test]
    fn an_empty_folder_is_refused() {
        let wiped = claim(2, 1, 40, 0, 0);
        assert_eq!(verdict(&wiped), Err(Refusal::AnotherFolder(NODE)));
    }

    #[test]
    fn copies_and_old_folders_are_refused() {
        let seen_before = |claimed| Refusal::SeenBefore {
            node: NODE,
            claimed,
            seen: 3,
        };
        assert_eq!(
            verdict(&claim(1, 3, 40, 4, 50)),
            Err(seen_before(3)),
            "another process"
        );
        assert_eq!(verdict(&claim(1, 2, 20, 4, 50)), Err(seen_before(2)));
        assert_eq!(
            verdict(&claim(1, 4, 30, 4, 50)),
            Err(seen_before(4)),
            "a process starts once"
        );
    }

    #[test]
    fn two_at_once_are_refused() {
        let live = Some(ProcessId([30; 16]));
        let second = judge(Some(&memory()), live, &claim(1, 3, 40, 4, 50));
        assert_eq!(second, Err(Refusal::RunsTwice(NODE)));
        // The old connection may not be known closed yet when a restarted process comes.
        assert!(judge(Some(&memory()), live, &claim(1, 4, 40, 4, 50)).is_ok());
    }

    #[test]
    fn a_log_that_lost_what_it_acknowledged_is_refused() {
        let lost = |has, needs| {
            Err(Refusal::LogLost {
                node: NODE,
                has: LogIndex(has),
                needs: LogIndex(needs),
            })
        };
        assert_eq!(
            verdict(&claim(1, 4, 40, 4, 49)),
            lost(49, 50),
            "in the same term"
        );
        assert_eq!(verdict(&claim(1, 4, 40, 5, 39)), lost(39, 40), "committed");
        assert_eq!(
            verdict(&claim(1, 4, 40, 5, 40)),
            Ok(()),
            "a later leader may have truncated"
        );
        assert_eq!(
            verdict(&claim(1, 4, 40, 3, 60)),
            lost(60, 40),
            "its term went back"
        );
    }

    #[test]
    fn what_is_remembered_only_grows() {
        let mut memory = memory();
        let before = memory;
        memory.acknowledges(Term(3), LogIndex(90));
        memory.acknowledges(Term(4), LogIndex(45));
        memory.commits(Term(3), LogIndex(90));
        memory.commits(Term(4), LogIndex(30));
        assert_eq!(memory, before);
        memory.acknowledges(Term(6), LogIndex(42));
        memory.commits(Term(6), LogIndex(60));
        assert_eq!(
            (memory.acknowledged.1, memory.committed),
            (LogIndex(42), LogIndex(42))
        );
    }
}
