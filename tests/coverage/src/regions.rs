//! Regions out of an export of `llvm-cov`, each counted once however many programs have it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde_json::Value;

/// The kind that `llvm-cov` gives to code, as opposed to gaps, skipped text and macros' calls.
const CODE: u64 = 0;

/// Start and end, each line and column.
type Span = (u64, u64, u64, u64);

/// A region that nothing ran.
#[derive(Debug, PartialEq, Eq)]
pub struct Missed {
    /// Where it begins, from 1.
    pub line: u64,
    /// Where in the line it begins, from 1.
    pub column: u64,
    /// The source from there to its end, or to the end of the line.
    pub text: String,
}

/// What is known of one file.
#[derive(Debug, PartialEq, Eq)]
pub struct FileRegions {
    /// As `measured` named it.
    pub name: String,
    /// Regions in it, without its own tests.
    pub regions: usize,
    /// Those that nothing ran.
    pub missed: Vec<Missed>,
}

/// One function of the source, as the programs have it.
#[derive(Default)]
struct Function {
    /// What one of them ran, and how often at most.
    run: BTreeMap<Span, u64>,
    /// The finest division of it that one of them has in which it never ran.
    idle: BTreeSet<Span>,
}

/// Puts together what an export in LLVM's JSON says.
///
/// `measured` says by which name a file counts, if it does; `source` gives its text.
///
/// A program that has a function in it without use describes it as one region, so such a
/// description counts only where no program ran the function.
///
/// # Errors
/// What is not as `llvm-cov export` writes it, or a source that can't be read.
pub fn judge(
    export: &Value,
    measured: &dyn Fn(&str) -> Option<String>,
    source: &dyn Fn(&str) -> io::Result<String>,
) -> Result<Vec<FileRegions>, String> {
    let functions = export["data"][0]["functions"].as_array();
    let functions = functions.ok_or("no functions in the export")?;
    let mut files: BTreeMap<String, BTreeMap<(u64, u64), Function>> = BTreeMap::new();
    for function in functions {
        let Some(name) = function["filenames"][0].as_str().and_then(measured) else {
            continue;
        };
        let regions = code_of(function)?;
        let Some(&((line, column, ..), _)) = regions.first() else {
            continue;
        };
        let known = files.entry(name).or_default();
        let known = known.entry((line, column)).or_default();
        if function["count"].as_u64() > Some(0) {
            for (span, count) in regions {
                let most = known.run.entry(span).or_default();
                *most = count.max(*most);
            }
        } else if regions.len() > known.idle.len() {
            known.idle = regions.into_iter().map(|(span, _)| span).collect();
        }
    }
    let file = |(name, functions): (String, BTreeMap<_, Function>)| {
        let text = source(&name).map_err(|error| format!("{name}: {error}"))?;
        Ok(file_of(name, &text, functions.into_values()))
    };
    files.into_iter().map(file).collect()
}

/// The regions of the function's own file, the first one first.
fn code_of(function: &Value) -> Result<Vec<(Span, u64)>, String> {
    let regions = function["regions"].as_array().ok_or("no regions")?;
    let mut code = Vec::with_capacity(regions.len());
    for region in regions {
        let number = |at: usize| region[at].as_u64().ok_or("a region without numbers");
        // Number 5 says which of the function's files, and 7 of which kind.
        if number(5)? == 0 && number(7)? == CODE {
            let span = (number(0)?, number(1)?, number(2)?, number(3)?);
            code.push((span, number(4)?));
        }
    }
    code.sort_unstable();
    Ok(code)
}

fn file_of(name: String, text: &str, functions: impl Iterator<Item = Function>) -> FileRegions {
    let lines: Vec<&str> = text.lines().collect();
    let own_tests = lines
        .windows(2)
        .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod tests {"))
        .map_or(u64::MAX, |at| at as u64 + 1);
    let mut regions: BTreeMap<Span, u64> = BTreeMap::new();
    for function in functions {
        let idle = function.idle.into_iter().map(|span| (span, 0));
        let all: Vec<(Span, u64)> = if function.run.is_empty() {
            idle.collect()
        } else {
            function.run.into_iter().collect()
        };
        for (span, count) in all {
            if span.0 < own_tests {
                let most = regions.entry(span).or_default();
                *most = count.max(*most);
            }
        }
    }
    let missed = regions.iter().filter(|(_, count)| **count == 0);
    let missed = missed.map(|(&(line, column, end_line, end_column), _)| {
        let text = lines.get(line as usize - 1).copied().unwrap_or_default();
        let text: String = text.chars().skip(column as usize - 1).collect();
        let length = (end_column.saturating_sub(column)) as usize;
        Missed {
            line,
            column,
            text: match end_line == line {
                true => text.chars().take(length).collect(),
                false => text,
            },
        }
    });
    FileRegions {
        missed: missed.collect(),
        regions: regions.len(),
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SOURCE: &str = "fn a() {\n    b() || c();\n}\n#[cfg(test)]\nmod tests {\n}\n";

    fn judged(functions: &Value) -> Result<Vec<FileRegions>, String> {
        judge(
            &json!({ "data": [{ "functions": functions }] }),
            &|name| name.strip_prefix("/here/").map(str::to_owned),
            &|_| Ok(SOURCE.to_owned()),
        )
    }

    fn function(count: u64, regions: &Value) -> Value {
        json!({ "count": count, "filenames": ["/here/a.rs"], "regions": regions })
    }

    #[test]
    fn what_one_program_runs_and_another_does_not_has_run() {
        let one = function(
            1,
            &json!([
                [1, 1, 1, 8, 1, 0, 0, 0],
                [2, 5, 2, 8, 1, 0, 0, 0],
                [2, 12, 2, 15, 0, 0, 0, 0]
            ]),
        );
        let two = function(
            1,
            &json!([
                [1, 1, 1, 8, 1, 0, 0, 0],
                [2, 5, 2, 8, 0, 0, 0, 0],
                [2, 12, 2, 15, 0, 0, 0, 0]
            ]),
        );
        let unused = function(0, &json!([[1, 1, 3, 2, 0, 0, 0, 0]]));
        let files = judged(&json!([unused, one, two])).expect("an export");
        let missed = vec![Missed {
            line: 2,
            column: 12,
            text: "c()".to_owned(),
        }];
        assert_eq!(
            files,
            [FileRegions {
                name: "a.rs".to_owned(),
                regions: 3,
                missed
            }]
        );
    }

    #[test]
    fn what_no_program_runs_counts_with_all_its_regions() {
        let unused = function(0, &json!([[1, 1, 3, 2, 0, 0, 0, 0]]));
        let idle = function(
            0,
            &json!([[1, 1, 1, 8, 0, 0, 0, 0], [2, 5, 2, 8, 0, 0, 0, 0]]),
        );
        let files = judged(&json!([idle, unused])).expect("an export");
        assert_eq!((files[0].regions, files[0].missed.len()), (2, 2));
    }

    #[test]
    fn tests_gaps_and_other_files_do_not_count() {
        let tests = function(1, &json!([[5, 1, 5, 8, 0, 0, 0, 0]]));
        let gap = function(
            1,
            &json!([
                [1, 1, 1, 8, 1, 0, 0, 0],
                [2, 1, 2, 2, 0, 0, 0, 3],
                [9, 1, 9, 2, 0, 1, 0, 0]
            ]),
        );
        let other = json!({ "count": 0, "filenames": ["/there/a.rs"], "regions": [[1, 1, 1, 8, 0, 0, 0, 0]] });
        let files = judged(&json!([tests, gap, other])).expect("an export");
        assert_eq!(
            (files.len(), files[0].regions, files[0].missed.len()),
            (1, 1, 0)
        );
    }

    #[test]
    fn what_is_no_export_is_refused() {
        assert!(judge(&json!({}), &|_| None, &|_| Ok(String::new())).is_err());
        assert!(judged(&json!([{ "filenames": ["/here/a.rs"] }])).is_err());
    }
}
