//! The worked examples of `docs/protocol-cluster.md`, read and written again.

#[path = "support/document.rs"]
mod document;

use document::Document;
use ticketing_protocol::peer::hello::{HELLO_LEN, dialled_proof, encode_verdict, parse_verdict};
use ticketing_protocol::peer::{Frame, Hello, Parsed, Verdict, parse};

const DOCUMENT: Document = Document(include_str!("../../docs/protocol-cluster.md"));

#[test]
fn every_frame_in_the_document_is_one() {
    let mut frames = 0;
    for (name, bytes) in DOCUMENT.examples() {
        let Some(shown) = name.strip_prefix("frame ") else {
            continue;
        };
        let Parsed::Frame { frame, consumed } = parse(&bytes) else {
            panic!("{shown}: {:?}", parse(&bytes));
        };
        assert_eq!(consumed, bytes.len(), "{shown}");
        let kind: u8 = shown.parse().expect("the kind's number");
        assert_eq!(frame.body.kind(), kind);
        let mut again = Vec::new();
        Frame::encode(&frame, &mut again);
        assert_eq!(again, bytes);
        frames += 1;
    }
    assert!(frames >= 3, "{frames}");
}

#[test]
fn the_hellos_and_proofs_in_the_document_fit_together() {
    let token = DOCUMENT.example("token");
    let read = |bytes: &[u8]| {
        let bytes: &[u8; HELLO_LEN] = bytes.try_into().expect("a hello's length");
        Hello::parse(bytes).expect("a hello")
    };
    let accepting = read(&DOCUMENT.example("accepting hello"));
    let dialled = DOCUMENT.example("dialled hello and proof");
    let dialling = read(&dialled[..HELLO_LEN]);
    assert_eq!(
        dialled[HELLO_LEN..],
        dialled_proof(&token, &accepting, &dialling)
    );
    let verdict = DOCUMENT.example("verdict");
    let welcome = encode_verdict(&token, &accepting, &dialling, Verdict::Welcome);
    assert_eq!(verdict, welcome);
    assert_eq!(
        parse_verdict(&token, &accepting, &dialling, &welcome),
        Some(Verdict::Welcome)
    );
}
