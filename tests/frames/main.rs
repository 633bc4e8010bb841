//! The wire byte by byte, against the real server: what it answers, what it closes, what it
//! counts, and how it starts and stops.

#[path = "../support/mod.rs"]
mod support;

mod bounds;
mod handshake;
mod malformed;
mod pipelining;
mod ports;
mod remedies;
mod startup;
mod stop;
mod values;
