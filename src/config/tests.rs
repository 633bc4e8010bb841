use super::*;
use std::fs;

fn parse(text: &str) -> Result<Config, Problems> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("ticketing.toml");
    fs::write(&path, text).expect("written");
    Config::from_file(&path)
}

const SMALLEST: &str = "mode = \"single\"\nlisten = \"127.0.0.1:5225\"\ndata_dir = \"data\"\n";

fn problems_of(text: &str) -> String {
    parse(text).expect_err("must be refused").to_string()
}

#[test]
fn the_smallest_file_gives_the_defaults_and_paths_beside_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("ticketing.toml");
    fs::write(&path, SMALLEST).expect("written");
    let config = Config::from_file(&path).expect("valid");
    assert_eq!(config.data_dir, dir.path().join("data"));
    assert_eq!(config.durability, Durability::Sync);
    assert_eq!(config.limits, Limits::default());
    assert!(config.client_tokens.current.is_none());
}

#[test]
fn every_problem_is_told_at_once() {
    let text = "mode = \"single\"\nlisten = \"0.0.0.0:5225\"\ndata_dir = \"data\"\nshards = 65\n\
                admin = \"0.0.0.0:7225\"\n[limits]\nconnections = 0\nwait_margin_ms = 70000\n";
    let refused = parse(text).expect_err("must be refused");
    let all: Vec<&str> = refused.iter().collect();
    for part in [
        "shards = 65",
        "connections = 0",
        "wait_margin_ms = 70000",
        "token",
        "admin",
    ] {
        assert!(all.iter().any(|p| p.contains(part)), "{part} in {all:?}");
    }
}

#[test]
fn an_unknown_or_mistyped_field_names_its_line() {
    let refused = problems_of(&format!("{SMALLEST}listn = 3\n"));
    assert!(
        refused.contains("line 4") && refused.contains("listn"),
        "{refused}"
    );
    let refused = problems_of(&format!("{SMALLEST}shards = \"two\"\n"));
    assert!(refused.contains("line 4"), "{refused}");
}

#[test]
fn each_limit_holds_at_its_bounds_and_not_one_past() {
    let cases = [
        ("connections", limits::CONNECTIONS),
        ("unauthenticated_connections", limits::UNAUTHENTICATED),
        ("handshake_ms", limits::HANDSHAKE_MS),
        ("requests_in_flight", limits::IN_FLIGHT),
        ("output_bytes", limits::OUTPUT_BYTES),
        ("locks_per_shard", limits::LOCKS_PER_SHARD),
        ("waiters_per_shard", limits::WAITERS_PER_SHARD),
        ("waiters_per_key", limits::WAITERS_PER_KEY),
        ("wait_margin_ms", limits::WAIT_MARGIN_MS),
    ];
    for (name, range) in cases {
        let with = |value: i64| {
            let more = if name == "unauthenticated_connections" {
                format!("connections = {}\n", limits::CONNECTIONS.end())
            } else {
                String::new()
            };
            parse(&format!("{SMALLEST}[limits]\n{name} = {value}\n{more}"))
        };
        let (low, high) = (i64::from(*range.start()), i64::from(*range.end()));
        assert!(with(low).is_ok(), "{name} = {low}");
        assert!(with(high).is_ok(), "{name} = {high}");
        assert!(with(low - 1).is_err(), "{name} = {}", low - 1);
        assert!(with(high + 1).is_err(), "{name} = {}", high + 1);
    }
}

#[test]
fn shards_hold_at_their_bounds_and_not_one_past() {
    for (shards, valid) in [(0, false), (1, true), (64, true), (65, false)] {
        let parsed = parse(&format!("{SMALLEST}shards = {shards}\n"));
        assert_eq!(parsed.is_ok(), valid, "shards = {shards}");
    }
}

#[test]
fn an_address_that_others_can_reach_needs_a_token() {
    let open = SMALLEST.replace("127.0.0.1", "0.0.0.0");
    let refused = problems_of(&open);
    assert!(refused.contains(CLIENT_TOKEN_VARIABLE), "{refused}");
    let ipv6 = SMALLEST.replace("127.0.0.1", "[::]");
    assert!(problems_of(&ipv6).contains(CLIENT_TOKEN_VARIABLE));
    assert!(parse(&SMALLEST.replace("127.0.0.1", "[::1]")).is_ok());
}

#[test]
fn the_log_section_holds_at_its_bounds_and_not_one_past() {
    let with = |name: &str, value: u64| {
        parse(&format!("{SMALLEST}[log]\n{name} = {value}\n")).map(|config| config.log)
    };
    for (name, range) in [
        ("snapshot_log_bytes", limits::SNAPSHOT_LOG_BYTES),
        ("snapshot_log_entries", limits::SNAPSHOT_LOG_ENTRIES),
    ] {
        let (low, high) = (*range.start(), *range.end());
        assert!(
            with(name, low).is_ok() && with(name, high).is_ok(),
            "{name}"
        );
        assert!(
            with(name, low - 1).is_err() && with(name, high + 1).is_err(),
            "{name}"
        );
    }
    let (low, high) = (
        u64::from(*limits::SEGMENT_BYTES.start()),
        u64::from(*limits::SEGMENT_BYTES.end()),
    );
    assert_eq!(
        with("segment_bytes", low).map(|log| log.segment_bytes),
        Ok(65_536)
    );
    assert!(with("segment_bytes", high).is_ok());
    for wrong in [low - 4_096, low + 1, high + 4_096] {
        assert!(with("segment_bytes", wrong).is_err(), "{wrong}");
    }
    assert_eq!(
        parse(SMALLEST).map(|config| config.log),
        Ok(LogConfig::default())
    );
}

#[test]
fn cores_are_chosen_by_a_word_or_a_list_and_a_wrong_list_is_refused() {
    let cores = |written: &str| {
        parse(&format!(
            "{SMALLEST}shards = 1\nconsensus_core = \"shared\"\n{written}"
        ))
        .map(|config| config.cores)
    };
    assert_eq!(cores(""), Ok(CoreChoice::Auto));
    assert_eq!(cores("cores = \"auto\"\n"), Ok(CoreChoice::Auto));
    assert_eq!(cores("cores = \"any\"\n"), Ok(CoreChoice::Any));
    assert_eq!(cores("cores = [0]\n"), Ok(CoreChoice::These(vec![0])));
    for (written, told) in [
        ("cores = \"all\"\n", "\"auto\", \"any\", or a list"),
        ("cores = []\n", "names no core"),
        ("cores = [0, 0]\n", "twice"),
        ("cores = [100000]\n", "numbered from 0 to"),
    ] {
        let refused = cores(written).expect_err(written).to_string();
        assert!(refused.contains(told), "{written}: {refused}");
    }
}
