//! `sim`: runs seeds.
//!
//! `sim --seed N` runs one and prints its story; `sim --count N [--from N]` runs many on all cores;
//! `sim --seeds FILE` the ones in a file; `--hashes` prints each one's event-log hash and nothing else;
//! `sim --mutants` makes mistakes and has them found.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use ticketing_sim::cluster::sim::{Outcome, run};
use ticketing_sim::world::story::Keep;

/// Lines of the story that a failure prints.
const LAST_LINES: usize = 200;

struct Options {
    seed: Option<u64>,
    from: u64,
    count: u64,
    file: Option<String>,
    quiet: bool,
    hashes: bool,
    mutants: bool,
    only: Option<String>,
}

fn main() -> ExitCode {
    // A failed assertion is a finding, and is told with its seed.
    std::panic::set_hook(Box::new(|info| {
        eprintln!(
            "{}",
            info.location().map(ToString::to_string).unwrap_or_default()
        );
    }));
    let options = match parse() {
        Ok(options) => options,
        Err(error) => {
            eprintln!(
                "sim: {error}\nusage: sim [--seed N [--quiet]] [--count N] [--from N] [--seeds FILE] [--hashes] [--mutants [--only NAME]]"
            );
            return ExitCode::from(2);
        }
    };
    if options.mutants {
        return mutants(options.only.as_deref(), options.from);
    }
    if let Some(seed) = options.seed {
        let keep = if options.quiet {
            Keep::Nothing
        } else {
            Keep::Print
        };
        let outcome = run(seed, keep, None);
        println!("{}", line(seed, &outcome));
        if let Some(failure) = &outcome.failure {
            println!("FAILED: {}: {}", failure.checker, failure.what);
        }
        // The last line, for scripts.
        println!("event-log hash {:016x}", outcome.hash);
        return if outcome.failure.is_some() {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        };
    }
    let mut seeds: Vec<u64> = Vec::new();
    if let Some(file) = &options.file {
        match std::fs::read_to_string(file) {
            Ok(text) => seeds.extend(text.lines().filter_map(|line| {
                line.split('#')
                    .next()
                    .unwrap_or_default()
                    .trim()
                    .parse::<u64>()
                    .ok()
            })),
            Err(error) => {
                eprintln!("sim: {file}: {error}");
                return ExitCode::from(2);
            }
        }
    }
    seeds.extend((0..options.count).map(|n| options.from.wrapping_add(n)));
    if options.hashes {
        for seed in seeds {
            println!("{seed} {:016x}", run(seed, Keep::Nothing, None).hash);
        }
        return ExitCode::SUCCESS;
    }
    println!("{} seeds, fresh ones from {}", seeds.len(), options.from);
    many(&seeds)
}

/// Makes each mistake in turn until a seed finds it, and prints which checker did.
#[cfg(feature = "bugs")]
fn mutants(only: Option<&str>, from: u64) -> ExitCode {
    use ticketing_sim::cluster::sim::run_without;
    use ticketing_sim::mutants::Mutant;

    println!(
        "{:<45} {:<28} {:>6} {:>6}",
        "mistake", "found by", "seeds", "limit"
    );
    let (mut missed, innocent) = (0, AtomicU64::new(0));
    for &(mutant, limit) in Mutant::ALL {
        let name = format!("{mutant:?}");
        if only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let (next, found) = (
            AtomicU64::new(from),
            std::sync::Mutex::new(None::<(u64, &str)>),
        );
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        let earlier = found.lock().map(|found| found.is_some_and(|f| f.0 < seed));
                        if seed > limit || earlier.unwrap_or(true) {
                            return;
                        }
                        let outcome = run(seed, Keep::Nothing, Some(mutant));
                        let Some(failure) = outcome.failure else {
                            continue;
                        };
                        // The checkers must have found the mistake, and not what was staged for it.
                        if let Some(failure) = run_without(seed, Keep::Nothing, mutant).failure {
                            println!("seed {seed} fails without {mutant:?}: {}", failure.what);
                            innocent.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        if let Ok(mut found) = found.lock()
                            && found.is_none_or(|first| seed < first.0)
                        {
                            if only.is_some() {
                                println!("seed {seed}: {}", failure.what);
                            }
                            *found = Some((seed, failure.checker));
                        }
                    }
                });
            }
        });
        let found = found.into_inner().ok().flatten();
        missed += u32::from(found.is_none());
        let (seeds, checker) = found.map_or_else(
            || ("-".to_owned(), "NOBODY"),
            |(seed, checker)| (seed.to_string(), checker),
        );
        println!("{name:<45} {checker:<28} {seeds:>6} {limit:>6}");
    }
    let innocent = innocent.into_inner();
    if missed > 0 || innocent > 0 {
        println!("{missed} mistakes were not found; {innocent} seeds fail without one");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

#[cfg(not(feature = "bugs"))]
fn mutants(_only: Option<&str>, _from: u64) -> ExitCode {
    eprintln!("sim: built without the mistakes; `make sim-mutants` builds them in");
    ExitCode::from(2)
}

/// Runs all, and tells the first failure.
fn many(seeds: &[u64]) -> ExitCode {
    let began = Instant::now();
    let (next, done, virtual_ms) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let failed = AtomicBool::new(false);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&seed) = seeds.get(at as usize) else {
                        return;
                    };
                    if failed.load(Ordering::Relaxed) {
                        return;
                    }
                    let outcome = run(seed, Keep::Nothing, None);
                    virtual_ms.fetch_add(outcome.virtual_us / 1_000, Ordering::Relaxed);
                    if outcome.failure.is_some() {
                        if !failed.swap(true, Ordering::Relaxed) {
                            tell_failure(seed);
                        }
                        return;
                    }
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if done.is_multiple_of(100) {
                        println!("{done} seeds, {:.0} s", began.elapsed().as_secs_f64());
                    }
                }
            });
        }
    });
    let real_s = began.elapsed().as_secs_f64();
    let virtual_s = virtual_ms.into_inner() as f64 / 1_000.0;
    println!(
        "{} seeds held in {real_s:.1} s: {virtual_s:.0} s of virtual time, {:.0} times as fast",
        done.into_inner(),
        virtual_s / real_s
    );
    if failed.into_inner() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Runs the seed again, with its story.
fn tell_failure(seed: u64) {
    let outcome = run(seed, Keep::Last(LAST_LINES), None);
    for line in &outcome.story {
        println!("{line}");
    }
    println!("{}", line(seed, &outcome));
    match &outcome.failure {
        Some(failure) => println!(
            "FAILED: seed {seed}: {}: {} (at {} ms); make sim SEED={seed} tells it all",
            failure.checker,
            failure.what,
            failure.at_us / 1_000
        ),
        None => println!("FAILED: seed {seed} did not fail again: it is not deterministic"),
    }
}

fn line(seed: u64, outcome: &Outcome) -> String {
    format!(
        "seed {seed}: {} events, hash {:016x}; {}; {:?}",
        outcome.events, outcome.hash, outcome.summary, outcome.rare
    )
}

fn parse() -> Result<Options, String> {
    let mut options = Options {
        seed: None,
        from: 1,
        count: 0,
        file: None,
        quiet: false,
        hashes: false,
        mutants: false,
        only: None,
    };
    let mut words = std::env::args().skip(1);
    let number = |word: Option<String>, name: &str| -> Result<u64, String> {
        let word = word.ok_or_else(|| format!("{name} needs a number"))?;
        word.parse()
            .map_err(|error| format!("{name} {word}: {error}"))
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => options.seed = Some(number(words.next(), "--seed")?),
            "--count" => options.count = number(words.next(), "--count")?,
            "--from" => options.from = number(words.next(), "--from")?,
            "--seeds" => options.file = Some(words.next().ok_or("--seeds needs a file")?),
            "--mutants" => options.mutants = true,
            "--only" => options.only = words.next(),
            "--quiet" => options.quiet = true,
            "--hashes" => options.hashes = true,
            other => return Err(format!("what is {other}?")),
        }
    }
    if !options.mutants && options.seed.is_none() && options.count == 0 && options.file.is_none() {
        return Err("nothing to run".to_owned());
    }
    Ok(options)
}
