//! Recovery's verdict over arbitrary bytes of a segment: never a panic, and the
//! same verdict every time.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ticketing_raftlog::{ClusterId, Scan, SegmentBytes, UseNumber};

fuzz_target!(|bytes: &[u8]| {
    let segment = SegmentBytes {
        use_number: UseNumber(1),
        prior_use: UseNumber(0),
        bytes,
    };
    let judge = |same_boot| {
        let mut scan = Scan::new(ClusterId([7; 16]));
        let mut entries = 0_u64;
        scan.segment(&segment, |batch| entries += batch.records().count() as u64);
        (format!("{:?}", scan.verdict(same_boot)), entries)
    };
    for same_boot in [false, true] {
        assert_eq!(judge(same_boot), judge(same_boot));
    }
});
