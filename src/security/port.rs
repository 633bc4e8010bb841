//! Making sure that a client port is ours alone.
//!
//! The executors share one address through SO_REUSEPORT, and with that option
//! the kernel would let a second server of the same user share it too, in
//! silence: two holders for one key. So the address is claimed first.

use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

/// Holds an address for as long as it lives.
#[derive(Debug)]
pub struct Claim {
    address: SocketAddr,
    _name: UnixListener,
}

impl Claim {
    /// The address to listen on: as asked for, with port 0 replaced by the
    /// port that the kernel chose.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Claims `address` as [`claim`] does, trying again for as long as `limit` while
/// it is in use: an earlier run that has just ended lets go of it a moment later.
///
/// # Errors
/// As [`claim`].
pub fn claim_within(address: SocketAddr, limit: Duration) -> io::Result<Claim> {
    const TRY_EVERY: Duration = Duration::from_millis(10);
    let began = Instant::now();
    loop {
        match claim(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && began.elapsed() < limit => {
                std::thread::sleep(TRY_EVERY);
            }
            result => return result,
        }
    }
}

/// Claims `address` for this process.
///
/// It is bound once without SO_REUSEPORT, which fails while anybody listens on
/// it, and then let go for the executors. Between those two steps another
/// server could slip in, so a name in the kernel's abstract socket namespace
/// (of this network namespace, gone with the process) is held throughout.
///
/// # Errors
/// `AddrInUse` when another process listens there or holds the claim; else the
/// kernel's reason.
pub fn claim(address: SocketAddr) -> io::Result<Claim> {
    let probe = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // Without it, connections of an earlier run that are still closing would
    // count as somebody else's.
    probe.set_reuse_address(true)?;
    probe.bind(&address.into())?;
    let address = probe
        .local_addr()?
        .as_socket()
        .ok_or_else(|| io::Error::other("the kernel gave no internet address back"))?;
    let name = UnixAddr::from_abstract_name(format!("ticketing/client-port/{address}"))?;
    let name = UnixListener::bind_addr(&name)?;
    Ok(Claim {
        address,
        _name: name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn a_claimed_address_is_refused_to_a_second_claim_until_let_go() {
        let first = claim(loopback(0)).expect("a free port");
        let taken = claim(first.address()).expect_err("claimed twice");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        let address = first.address();
        drop(first);
        claim(address).expect("free again");
    }

    #[test]
    fn an_address_that_is_let_go_in_time_is_claimed_and_no_other() {
        let limit = Duration::from_secs(10);
        let first = claim(loopback(0)).expect("a free port");
        let address = first.address();
        let taken = claim_within(address, Duration::from_millis(50)).expect_err("not let go");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        let letting_go = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(first);
        });
        claim_within(address, limit).expect("let go in time");
        letting_go.join().expect("ended");
    }

    #[test]
    fn a_port_shared_by_a_stranger_is_refused() {
        let stranger = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        stranger.set_reuse_port(true).expect("the option");
        stranger.set_reuse_address(true).expect("the option");
        stranger.bind(&loopback(0).into()).expect("a port");
        stranger.listen(1).expect("listening");
        let address = stranger
            .local_addr()
            .expect("its address")
            .as_socket()
            .expect("an internet address");
        let taken = claim(address).expect_err("somebody listens there");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}
