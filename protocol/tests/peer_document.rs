//! The worked examples of `docs/protocol-cluster.md`, read and written again.

use ticketing_protocol::peer::hello::{HELLO_LEN, dialled_proof, encode_verdict, parse_verdict};
use ticketing_protocol::peer::{Frame, Hello, Parsed, Verdict, parse};

const DOCUMENT: &str = include_str!("../../docs/protocol-cluster.md");

/// The bytes of every block of hex digits, with what is written behind its fence.
fn examples() -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut lines = DOCUMENT.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("```hex ") else {
            continue;
        };
        let digits: String = lines
            .by_ref()
            .take_while(|line| *line != "```")
            // What stands behind the bytes of a line explains them.
            .map(|line| line.split("  ").next().unwrap_or(line))
            .flat_map(str::chars)
            .filter(|c| !c.is_whitespace())
            .collect();
        let bytes = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex digits"))
            .collect();
        found.push((name.to_owned(), bytes));
    }
    found
}

fn example(name: &str) -> Vec<u8> {
    let all = examples();
    let found = all.into_iter().find(|(other, _)| other == name);
    found.expect("the document has this example").1
}

#[test]
fn every_frame_in_the_document_is_one() {
    let mut frames = 0;
    for (name, bytes) in examples() {
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
    let token = example("token");
    let read = |bytes: &[u8]| {
        let bytes: &[u8; HELLO_LEN] = bytes.try_into().expect("a hello's length");
        Hello::parse(bytes).expect("a hello")
    };
    let accepting = read(&example("accepting hello"));
    let dialled = example("dialled hello and proof");
    let dialling = read(&dialled[..HELLO_LEN]);
    assert_eq!(
        dialled[HELLO_LEN..],
        dialled_proof(&token, &accepting, &dialling)
    );
    let verdict = example("verdict");
    let welcome = encode_verdict(&token, &accepting, &dialling, Verdict::Welcome);
    assert_eq!(verdict, welcome);
    assert_eq!(
        parse_verdict(&token, &accepting, &dialling, &welcome),
        Some(Verdict::Welcome)
    );
}
