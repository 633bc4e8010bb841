//! The handshake against fixed vectors, and against everything that is nearly one.

mod support;

use serde::Deserialize;
use support::{hex, hex_array};
use ticketing_protocol::handshake::{
    self, ACCEPTED, HELLO_LEN, HelloError, Mode, REFUSED, ServerHello, client_auth,
    cluster_fingerprint, single_fingerprint, verify_client_auth,
};

#[derive(Deserialize)]
struct Fixture {
    cluster_identity: ClusterIdentity,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct ClusterIdentity {
    cluster_id: String,
    fingerprint: String,
}

#[derive(Deserialize)]
struct Case {
    case: String,
    mode: String,
    slot: u8,
    nonce: String,
    hello: String,
    fingerprint: String,
    token: String,
    answer: String,
}

fn fixture() -> Fixture {
    let fixture: Fixture = serde_json::from_str(include_str!("fixtures/handshake.json")).unwrap();
    assert_eq!(fixture.cases.len(), 4);
    fixture
}

impl Case {
    fn hello(&self) -> ServerHello {
        let mode = match self.mode.as_str() {
            "single" => Mode::Single,
            "cluster" => Mode::Cluster,
            other => panic!("mode {other}"),
        };
        ServerHello {
            mode,
            slot: self.slot,
            nonce: hex_array(&self.nonce),
        }
    }
}

#[test]
fn every_case_matches_byte_for_byte() {
    for case in fixture().cases {
        let hello = case.hello();
        let bytes: [u8; HELLO_LEN] = hex_array(&case.hello);
        assert_eq!(hello.encode(), bytes, "{}", case.case);
        assert_eq!(ServerHello::parse(&bytes), Ok(hello), "{}", case.case);
        let answer = client_auth(case.token.as_bytes(), &hex_array(&case.fingerprint), &hello);
        assert_eq!(answer.as_slice(), hex(&case.answer), "{}", case.case);
    }
}

#[test]
fn fingerprints_match_the_fixture() {
    let fixture = fixture();
    let cluster = fixture.cluster_identity;
    let expected: [u8; 32] = hex_array(&cluster.fingerprint);
    assert_eq!(
        cluster_fingerprint(&hex_array(&cluster.cluster_id)),
        expected
    );
    for case in fixture.cases {
        let expected = match case.hello().mode {
            Mode::Single => single_fingerprint(),
            Mode::Cluster => expected,
        };
        assert_eq!(hex_array(&case.fingerprint), expected, "{}", case.case);
    }
}

#[test]
fn an_answer_holds_for_its_token_identity_and_hello_only() {
    for case in fixture().cases {
        let (hello, token) = (case.hello(), case.token.as_bytes());
        let fingerprint: [u8; 32] = hex_array(&case.fingerprint);
        let answer: [u8; 32] = hex_array(&case.answer);
        assert!(verify_client_auth(token, &fingerprint, &hello, &answer));

        for bit in 0..256 {
            let mut other = answer;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !verify_client_auth(token, &fingerprint, &hello, &other),
                "answer bit {bit}"
            );
            let mut other = fingerprint;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !verify_client_auth(token, &other, &hello, &answer),
                "identity bit {bit}"
            );
        }
        for bit in 0..128 {
            let mut other = hello;
            other.nonce[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !verify_client_auth(token, &fingerprint, &other, &answer),
                "nonce bit {bit}"
            );
        }
        for slot in (0..=255).filter(|&slot| slot != hello.slot) {
            let other = ServerHello { slot, ..hello };
            assert!(
                !verify_client_auth(token, &fingerprint, &other, &answer),
                "slot {slot}"
            );
        }
        let mode = match hello.mode {
            Mode::Single => Mode::Cluster,
            Mode::Cluster => Mode::Single,
        };
        let other = ServerHello { mode, ..hello };
        assert!(!verify_client_auth(token, &fingerprint, &other, &answer));
        let longer = [token, b"x"].concat();
        assert!(!verify_client_auth(&longer, &fingerprint, &hello, &answer));
    }
}

#[test]
fn every_flipped_hello_byte_is_refused_or_read_as_what_it_says() {
    for case in fixture().cases {
        let good = case.hello();
        let bytes = good.encode();
        for at in 0..HELLO_LEN {
            for value in (0..=255).filter(|&value| value != bytes[at]) {
                let mut changed = bytes;
                changed[at] = value;
                let verdict = ServerHello::parse(&changed);
                let version = u16::from_be_bytes([changed[8], changed[9]]);
                let mode = good.mode;
                let expected = match at {
                    0..8 => Err(HelloError::Magic),
                    8..10 => Err(HelloError::Version(version)),
                    10 if value > 1 => Err(HelloError::Mode(value)),
                    // A slot of the one mode is never right for the other.
                    10 => Err(HelloError::Slot {
                        mode: other(mode),
                        slot: good.slot,
                    }),
                    11 if mode == Mode::Cluster && value < 5 => Ok(ServerHello {
                        slot: value,
                        ..good
                    }),
                    11 => Err(HelloError::Slot { mode, slot: value }),
                    _ => {
                        let mut nonce = good.nonce;
                        nonce[at - 12] = value;
                        Ok(ServerHello { nonce, ..good })
                    }
                };
                assert_eq!(verdict, expected, "byte {at} = {value}");
            }
        }
    }
}

fn other(mode: Mode) -> Mode {
    match mode {
        Mode::Single => Mode::Cluster,
        Mode::Cluster => Mode::Single,
    }
}

#[test]
#[should_panic(expected = "slot 5")]
fn a_slot_beyond_five_voters_is_never_sent() {
    let hello = ServerHello {
        mode: Mode::Cluster,
        slot: 5,
        nonce: [0; 16],
    };
    hello.encode();
}

#[test]
fn lengths_and_verdicts_are_those_of_the_protocol() {
    assert_eq!((HELLO_LEN, handshake::AUTH_LEN), (28, 32));
    assert_eq!((REFUSED, ACCEPTED), (0, 1));
    assert_eq!(ServerHello::single([7; 16]).slot, 255);
}
