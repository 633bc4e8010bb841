//! Making sure that a client port is ours alone.
//!
//! The executors share one address through SO_REUSEPORT, and with that option
//! the kernel would let a second server of the same user share it too, in
//! silence: two holders for one key. So the address is claimed first.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::limits::CLAIMS_PER_PORT;

/// Holds an address for as long as it lives.
#[derive(Debug)]
pub struct Claim {
    address: SocketAddr,
    _names: Vec<UnixListener>,
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

/// Claims `address` for this process, and with it all that overlaps it: a
/// wildcard overlaps every address of its port, of either protocol.
///
/// It is bound once without SO_REUSEPORT, which fails while anybody listens on
/// what it overlaps, and then let go for the executors. Between those two steps
/// another server could slip in, so names in the kernel's abstract socket
/// namespace (of this network namespace, gone with the process) are held from
/// before the first on.
///
/// # Errors
/// `AddrInUse` when another process listens there or holds a claim that
/// overlaps; else the kernel's reason.
pub fn claim(address: SocketAddr) -> io::Result<Claim> {
    let names = match address.port() {
        // Named once the kernel has chosen the port.
        0 => None,
        // First, so that what is bound to try stands in no other server's way.
        _ => Some(hold_names(address)?),
    };
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
    let names = names.map_or_else(|| hold_names(address), Ok)?;
    Ok(Claim {
        address,
        _names: names,
    })
}

/// A port has [`CLAIMS_PER_PORT`] places. One address takes its own name and
/// any place that is free; a wildcard takes all places, so it gets none while
/// anybody has one, and leaves none. The kernel hands out each name once, so of
/// any number that come at the same time no two that overlap succeed.
fn hold_names(address: SocketAddr) -> io::Result<Vec<UnixListener>> {
    let port = address.port();
    let places = (0..CLAIMS_PER_PORT).map(|place| format!("{port}/place-{place}"));
    let ip = address.ip().to_canonical();
    if ip.is_unspecified() {
        return places.map(|place| hold_name(&place)).collect();
    }
    // Only of a link-local address there can be one on each interface.
    let interface = match (address, ip) {
        (SocketAddr::V6(address), IpAddr::V6(_)) => address.scope_id(),
        _ => 0,
    };
    let own = hold_name(&format!("{port}/{ip}/{interface}"))?;
    for place in places {
        match hold_name(&place) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            held => return Ok(vec![own, held?]),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

fn hold_name(name: &str) -> io::Result<UnixListener> {
    let name = UnixAddr::from_abstract_name(format!("ticketing/client-port/{name}"))?;
    UnixListener::bind_addr(&name)
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

    fn at(address: &str, port: u16) -> SocketAddr {
        SocketAddr::new(address.parse().expect("an address"), port)
    }

    #[test]
    fn addresses_that_overlap_clash_in_either_order_and_others_do_not() {
        let clash = [
            ("0.0.0.0", "127.0.0.1"),
            ("0.0.0.0", "0.0.0.0"),
            ("0.0.0.0", "::"),
            ("::", "127.0.0.1"),
            ("::", "::1"),
            ("::ffff:127.0.0.1", "127.0.0.1"),
            ("::ffff:0.0.0.0", "127.0.0.2"),
        ];
        for (one, other) in clash {
            for (first, second) in [(one, other), (other, one)] {
                let first = claim(at(first, 0)).expect("a free port");
                let port = first.address().port();
                let taken = claim(at(second, port)).expect_err(second);
                assert_eq!(taken.kind(), io::ErrorKind::AddrInUse, "{one} {other}");
                drop(first);
                claim(at(second, port)).expect("free again");
            }
        }
        let first = claim(at("127.0.0.1", 0)).expect("a free port");
        let port = first.address().port();
        let beside = [at("127.0.0.2", port), at("::1", port)].map(claim);
        assert!(beside.iter().all(Result::is_ok), "{beside:?}");
    }

    #[test]
    fn a_port_has_room_for_so_many_addresses_and_no_more() {
        let first = claim(at("127.0.0.1", 0)).expect("a free port");
        let port = first.address().port();
        let mut claims = vec![first];
        for host in 2..=CLAIMS_PER_PORT {
            claims.push(claim(at(&format!("127.0.0.{host}"), port)).expect("room"));
        }
        let one_more = at(&format!("127.0.0.{}", CLAIMS_PER_PORT + 1), port);
        let full = claim(one_more).expect_err("no room");
        assert_eq!(full.kind(), io::ErrorKind::AddrInUse);
        claims.pop();
        claim(one_more).expect("room again");
    }

    #[test]
    fn of_many_that_come_at_once_no_two_overlap() {
        for _ in 0..20 {
            let port = claim(loopback(0)).expect("a free port").address().port();
            let start = std::sync::Barrier::new(6);
            let claims: Vec<_> = std::thread::scope(|scope| {
                let coming =
                    ["0.0.0.0", "127.0.0.1", "::", "127.0.0.2", "0.0.0.0", "::"].map(|address| {
                        let start = &start;
                        scope.spawn(move || {
                            start.wait();
                            claim(at(address, port)).ok()
                        })
                    });
                coming
                    .into_iter()
                    .filter_map(|claim| claim.join().expect("no panic"))
                    .collect()
            });
            let wild = |claim: &&Claim| claim.address().ip().is_unspecified();
            let wildcards = claims.iter().filter(wild).count();
            assert!(wildcards == 0 || claims.len() == 1, "{claims:?}");
        }
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
