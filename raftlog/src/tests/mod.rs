//! Tests of the pure parts, on logs that are bytes in memory.

mod batches;
mod configs;
mod disk_errors;
mod document;
mod members;
mod memlog;
mod powercut;
mod recovery;
mod recycling;
mod snapshot_format;
mod writing;
