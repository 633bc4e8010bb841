//! Ticketing: a distributed lock server.
