//! Who may talk to this server: ports, tokens, handshakes, limits on strangers.

pub mod files;
pub mod handshake;
pub mod port;
pub mod shared;
pub mod tls;
pub mod token;
