//! The cluster in the made-up world: machines, processes, and what happens to them.

mod disk;
pub mod faults;
pub mod folders;
pub mod host;
mod members;
pub mod names;
pub mod operator;
mod processes;
mod running;
mod scenes;
pub mod sim;
mod wires;
