//! The cluster in the made-up world: machines, processes, and what happens to them.

pub mod faults;
pub mod host;
pub mod sim;
