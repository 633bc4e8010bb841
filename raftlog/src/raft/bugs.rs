//! Mistakes that a core can be told to make, so that tests prove that they would be caught.

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A leader commits an earlier term's entries by counting copies (against 5.4.2).
    CommitsEarlierTermByCounting,
    /// A node gives its vote to everybody who asks, any number of times in a term (against 5.2).
    VotesTwice,
    /// A node votes and acknowledges before it has persisted (against figure 2).
    AnswersBeforePersisting,
    /// A leader counts itself before its own copy is persisted.
    LeaderCountsUnpersisted,
    /// A leader does not begin its term with a no-op, and confirms reads without (against
    /// section 8).
    NoNoop,
    /// While a voter is being replaced the new voters' majority decides alone (against section 6).
    JointCountsOneMajority,
    /// A learner's vote and its copies count.
    LearnersVote,
}
