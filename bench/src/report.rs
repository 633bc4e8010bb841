//! Rounds in, a table out.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use crate::hot_key::HotKey;
use crate::load::{CONTENDED, Measured, Shape};
use crate::machine::Machine;

/// One system's run in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Which round, from 1.
    pub round: usize,
    /// The system, with its durability mode.
    pub system: String,
    /// What was measured.
    #[serde(flatten)]
    pub measured: Measured,
    /// Its pairs per second over those of the ceiling in the same round.
    pub of_ceiling: f64,
}

/// One system over all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The system, with its durability mode.
    pub system: String,
    /// Pairs per second: median over the rounds.
    pub pairs_per_s: f64,
    /// The slowest round.
    pub pairs_per_s_min: f64,
    /// The fastest round.
    pub pairs_per_s_max: f64,
    /// Median over the rounds of the part of that round's ceiling.
    pub of_ceiling: f64,
    /// Median over the rounds of the median latency, in microseconds.
    pub p50_us: f64,
    /// Median over the rounds of the 99th percentile, in microseconds.
    pub p99_us: f64,
    /// Median over the rounds, in microseconds.
    pub server_cpu_us_per_pair: Option<f64>,
    /// Median over the rounds, in microseconds.
    pub client_cpu_us_per_pair: f64,
}

/// Everything a reader needs to judge the figures.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// Pairs measured in each run.
    pub pairs: u64,
    /// Further arguments to the server.
    pub server_args: Vec<String>,
    /// Every run, in the order they were made.
    pub runs: Vec<Run>,
    /// One line a system, in the order of a round.
    pub summary: Vec<Summary>,
    /// One key that everybody wants, if that was measured.
    pub hot_key: Option<HotKey>,
}

impl Report {
    /// The report of `runs`.
    pub fn new(
        machine: Machine,
        pairs: u64,
        server_args: Vec<String>,
        runs: Vec<Run>,
        hot_key: Option<HotKey>,
    ) -> Report {
        let mut systems: Vec<&str> = Vec::new();
        for run in &runs {
            if !systems.contains(&run.system.as_str()) {
                systems.push(&run.system);
            }
        }
        let summary = systems
            .into_iter()
            .map(|system| summarise(system, &runs))
            .collect();
        Report {
            machine,
            pairs,
            server_args,
            runs,
            summary,
            hot_key,
        }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Machine {
            cores,
            cpu,
            kernel,
            data_file_system,
        } = &self.machine;
        writeln!(
            f,
            "machine: {cores} cores, {cpu}, {kernel}, data on {data_file_system}"
        )?;
        let rounds = self.runs.iter().map(|run| run.round).max().unwrap_or(0);
        let pairs = self.pairs;
        let Shape { tasks, keys } = CONTENDED;
        writeln!(
            f,
            "load: published client, {tasks} tasks, {keys} contended keys, {pairs} acquire+release \
             pairs a run, {rounds} rounds, systems by turns within each"
        )?;
        if !self.server_args.is_empty() {
            writeln!(f, "server arguments: {}", self.server_args.join(" "))?;
        }
        writeln!(
            f,
            "{:<30} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>10} {:>10}",
            "", "pairs/s", "min", "max", "of ceil.", "p50 us", "p99 us", "srv us/pr", "cli us/pr"
        )?;
        for line in &self.summary {
            let server = line.server_cpu_us_per_pair;
            writeln!(
                f,
                "{:<30} {:>9.0} {:>9.0} {:>9.0} {:>8.2} {:>8.0} {:>8.0} {:>10} {:>10.1}",
                line.system,
                line.pairs_per_s,
                line.pairs_per_s_min,
                line.pairs_per_s_max,
                line.of_ceiling,
                line.p50_us,
                line.p99_us,
                server.map_or("-".to_owned(), |us| format!("{us:.1}")),
                line.client_cpu_us_per_pair,
            )?;
        }
        write!(
            f,
            "medians over the rounds; `of ceil.` compares within a round; `us/pr` is CPU time a pair"
        )?;
        match &self.hot_key {
            Some(hot_key) => write!(f, "\n{hot_key}"),
            None => Ok(()),
        }
    }
}

fn summarise(system: &str, runs: &[Run]) -> Summary {
    let runs: Vec<&Run> = runs.iter().filter(|run| run.system == system).collect();
    let all = |field: fn(&Run) -> f64| runs.iter().map(|run| field(run)).collect::<Vec<f64>>();
    let rates = all(|run| run.measured.pairs_per_s);
    let server: Option<Vec<f64>> = runs
        .iter()
        .map(|run| run.measured.server_cpu_us_per_pair)
        .collect();
    Summary {
        system: system.to_owned(),
        pairs_per_s_min: rates.iter().copied().fold(f64::INFINITY, f64::min),
        pairs_per_s_max: rates.iter().copied().fold(0.0, f64::max),
        pairs_per_s: median(rates),
        of_ceiling: median(all(|run| run.of_ceiling)),
        p50_us: median(all(|run| run.measured.p50_us as f64)),
        p99_us: median(all(|run| run.measured.p99_us as f64)),
        server_cpu_us_per_pair: server.map(median),
        client_cpu_us_per_pair: median(all(|run| run.measured.client_cpu_us_per_pair)),
    }
}

/// The middle one, or the mean of the two in the middle; 0 of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle), values.len() % 2) {
        (None, _) => 0.0,
        (Some(value), 1) => *value,
        (Some(value), _) => (values[middle - 1] + value) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(round: usize, system: &str, pairs_per_s: f64, of_ceiling: f64) -> Run {
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
        Run {
            round,
            system: system.to_owned(),
            measured,
            of_ceiling,
        }
    }

    #[test]
    fn medians_of_odd_even_and_no_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![7.0]), 7.0);
        assert_eq!(median(Vec::new()), 0.0);
    }

    #[test]
    fn a_summary_keeps_the_order_of_a_round_and_the_spread() {
        let runs = vec![
            run(1, "top", 100.0, 1.0),
            run(1, "ours", 80.0, 0.8),
            run(2, "top", 50.0, 1.0),
            run(2, "ours", 30.0, 0.6),
            run(3, "top", 60.0, 1.0),
            run(3, "ours", 54.0, 0.9),
        ];
        let machine = Machine {
            cores: 2,
            cpu: "a CPU".to_owned(),
            kernel: "a kernel".to_owned(),
            data_file_system: "ext4".to_owned(),
        };
        let report = Report::new(machine, 100, Vec::new(), runs, None);
        assert_eq!(report.summary.len(), 2);
        let ours = &report.summary[1];
        assert_eq!(ours.system, "ours");
        assert_eq!(
            (ours.pairs_per_s_min, ours.pairs_per_s, ours.pairs_per_s_max),
            (30.0, 54.0, 80.0)
        );
        // Not 54 / 60: each round against its own ceiling.
        assert_eq!(ours.of_ceiling, 0.8);
        let text = report.to_string();
        assert!(
            text.contains("2 cores, a CPU, a kernel, data on ext4"),
            "{text}"
        );
        assert!(text.contains("100 acquire+release"), "{text}");
    }
}
