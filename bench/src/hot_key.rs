//! One key that everybody wants: how near its hand-overs come to what the machine allows.
//!
//! The next holder is granted once the release before it is durable, and it can release only once
//! it has been told. So no server that hands over one key to one client after the other, each
//! durably, makes more pairs per second than 1 / (one append + one round trip).

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use crate::load::{Measured, Shape};
use crate::physical::Sample;
use crate::report::median;

/// Requests that stand in line at any time.
pub const WAITING: usize = 256;

/// One holder, and everybody else in line.
pub const SHAPE: Shape = Shape {
    tasks: WAITING + 1,
    keys: 1,
};

/// One system's run in one round, with what the machine took right before and right after it.
#[derive(Clone, Debug, Serialize)]
pub struct HotRun {
    /// Which round, from 1.
    pub round: usize,
    /// The system, with its durability mode.
    pub system: String,
    /// What was measured.
    #[serde(flatten)]
    pub measured: Measured,
    /// One append as durable as the system's: median, in microseconds.
    pub append_us: f64,
    /// One round trip over loopback: median, in microseconds.
    pub round_trip_us: f64,
    /// 1 / (append + round trip), in pairs per second.
    pub limit_pairs_per_s: f64,
    /// The system's pairs per second over that limit.
    pub of_limit: f64,
}

impl HotRun {
    /// The run, judged by the sample around it.
    pub fn new(round: usize, system: &str, measured: Measured, sample: Sample) -> HotRun {
        let append_us = median(sample.appends_us);
        let round_trip_us = median(sample.round_trips_us);
        let limit_pairs_per_s = 1e6 / (append_us + round_trip_us);
        HotRun {
            round,
            system: system.to_owned(),
            of_limit: measured.pairs_per_s / limit_pairs_per_s,
            measured,
            append_us,
            round_trip_us,
            limit_pairs_per_s,
        }
    }
}

/// Every run, in the order they were made.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HotKey {
    /// Pairs measured in each run.
    pub pairs: u64,
    /// The runs.
    pub runs: Vec<HotRun>,
}

impl Display for HotKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let pairs = self.pairs;
        writeln!(
            f,
            "hot key: published client, one key, {WAITING} waiting, {pairs} pairs a run"
        )?;
        writeln!(
            f,
            "{:<30} {:>9} {:>9} {:>9} {:>9} {:>13} {:>8}",
            "", "pairs/s", "limit/s", "of limit", "append us", "round trip us", "p99 us"
        )?;
        let mut systems: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !systems.contains(&run.system.as_str()) {
                systems.push(&run.system);
            }
        }
        for system in systems {
            let all = |field: fn(&HotRun) -> f64| {
                let runs = self.runs.iter().filter(|run| run.system == system);
                median(runs.map(field).collect())
            };
            writeln!(
                f,
                "{system:<30} {:>9.0} {:>9.0} {:>9.2} {:>9.1} {:>13.1} {:>8.0}",
                all(|run| run.measured.pairs_per_s),
                all(|run| run.limit_pairs_per_s),
                all(|run| run.of_limit),
                all(|run| run.append_us),
                all(|run| run.round_trip_us),
                all(|run| run.measured.p99_us as f64),
            )?;
        }
        write!(
            f,
            "medians over the rounds; limit: 1 / (append + round trip), measured around each run; \
             `of limit` compares within a run"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(round: usize, system: &str, pairs_per_s: f64, append_us: f64) -> HotRun {
        let measured = Measured {
            pairs: 100,
            elapsed_s: 1.0,
            pairs_per_s,
            p50_us: 700,
            p99_us: 2_000,
            max_us: 9_000,
            client_cpu_us_per_pair: 17.0,
            server_cpu_us_per_pair: Some(7.0),
            follower_cpu_us_per_pair: Vec::new(),
        };
        let sample = Sample {
            appends_us: vec![append_us, append_us, 9_000.0],
            round_trips_us: vec![1.0, 20.0, 20.0],
        };
        HotRun::new(round, system, measured, sample)
    }

    #[test]
    fn the_limit_is_one_append_and_one_round_trip() {
        let run = run(1, "ours", 2_500.0, 180.0);
        assert_eq!((run.append_us, run.round_trip_us), (180.0, 20.0));
        assert_eq!(run.limit_pairs_per_s, 5_000.0);
        assert_eq!(run.of_limit, 0.5);
    }

    #[test]
    fn each_system_has_a_line_with_both_parts() {
        let hot_key = HotKey {
            pairs: 100,
            runs: vec![
                run(1, "ours", 2_500.0, 180.0),
                run(1, "other", 4_000.0, 5.0),
                run(2, "ours", 1_000.0, 80.0),
                run(3, "ours", 4_000.0, 180.0),
            ],
        };
        let text = hot_key.to_string();
        let line = text.lines().find(|line| line.starts_with("ours"));
        let fields: Vec<&str> = line.unwrap().split_whitespace().collect();
        // The median of 0.5, 0.1 and 0.8, not 2,500 / 5,000.
        assert_eq!(fields[1..6], ["2500", "5000", "0.50", "180.0", "20.0"]);
        assert!(text.contains("other"), "{text}");
    }
}
