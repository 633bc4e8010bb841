//! The worked examples of `docs/protocol-api.md`, read and written again.

#[path = "support/document.rs"]
mod document;

use document::Document;
use ticketing_protocol::handshake::{
    HELLO_LEN, ServerHello, client_auth, single_fingerprint, verify_client_auth,
};
use ticketing_protocol::{Parsed, ParsedReply, parse_reply, parse_request};

const DOCUMENT: Document = Document(include_str!("../../docs/protocol-api.md"));

#[test]
fn the_handshake_in_the_document_is_one() {
    let token = DOCUMENT.example("token");
    let hello = DOCUMENT.example("hello");
    let hello: [u8; HELLO_LEN] = hello.try_into().expect("a hello's length");
    let hello = ServerHello::parse(&hello).expect("a hello");
    assert_eq!(hello.encode().to_vec(), DOCUMENT.example("hello"));
    let fingerprint = single_fingerprint();
    assert_eq!(fingerprint.to_vec(), DOCUMENT.example("fingerprint"));
    let answer = client_auth(&token, &fingerprint, &hello);
    assert_eq!(answer.to_vec(), DOCUMENT.example("answer"));
    assert!(verify_client_auth(&token, &fingerprint, &hello, &answer));
}

#[test]
fn every_frame_in_the_document_is_one() {
    let (mut requests, mut replies) = (String::new(), String::new());
    for (name, bytes) in DOCUMENT.examples() {
        let mut again = Vec::new();
        if let Some(opcode) = name.strip_prefix("request ") {
            let Parsed::Frame {
                request: Ok(request),
                consumed,
            } = parse_request(&bytes)
            else {
                panic!("{name}: {:?}", parse_request(&bytes));
            };
            assert_eq!(consumed, bytes.len());
            request.encode(&mut again);
            requests += opcode;
        } else if let Some(opcode) = name.strip_prefix("reply ") {
            let ParsedReply::Frame { reply, consumed } = parse_reply(&bytes) else {
                panic!("{name}: {:?}", parse_reply(&bytes));
            };
            assert_eq!(consumed, bytes.len());
            reply.encode(&mut again);
            replies += opcode;
        } else {
            continue;
        }
        assert_eq!(again, bytes, "{name}");
        assert!(
            name.as_bytes().ends_with(&bytes[..1]),
            "{name} by its opcode"
        );
    }
    assert_eq!((requests.as_str(), replies.as_str()), ("ARS", "AREML"));
}
