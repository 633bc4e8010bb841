# The commands that people type; CI calls the same ones.
# CARGO_TARGET_DIR is honoured.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release

.PHONY: help build test verify fix quick-tests bench release powercut powercut-quick

help:
	@echo 'make test      every test that CI runs'
	@echo 'make verify    formatting, lints, the quick tests; edits nothing'
	@echo 'make fix       the same, and edits what can be fixed by itself'
	@echo 'make bench     the published load against this server and a bare ceiling, by turns'
	@echo 'make powercut  power cuts under load on a disk that forgets (root); SEED=n CUTS=n'
	@echo 'make build     the server, optimised'

build:
	$(CARGO) build --release --bin ticketing

release:
	$(CARGO) build --release --workspace --bins

# Every test: the pure parts, the log, the real binary with real clients.
test:
	$(CARGO) test --workspace --locked

quick-tests:
	$(CARGO) test --workspace --locked --lib --bins
	$(CARGO) test --workspace --locked --doc
	$(CARGO) test --locked --test architecture --test documents
	$(CARGO) test --locked --package ticketing-protocol --package ticketing-raftlog

verify:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked --quiet
	$(MAKE) --no-print-directory quick-tests

fix:
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	$(MAKE) --no-print-directory verify

# BENCH_ARGS='--rounds 5 --pairs 200000' for longer runs.
bench: release
	$(RELEASE)/bench --server $(RELEASE)/ticketing $(BENCH_ARGS)

# Power cuts under the real server, on a disk that forgets what was not synced. Needs root,
# /dev/fuse and unshare. SEED=n repeats a run's choices.
CUTS ?= 50
SEED ?=
POWERCUT_AT_MOST_S ?= 900

powercut:
	$(CARGO) build --locked --package ticketing@0.1.0 --package ticketing-powercut --bin ticketing --bin ticketing-powercut
	SEED=$(SEED) CUTS=$(CUTS) timeout $(POWERCUT_AT_MOST_S) $(TARGET)/debug/ticketing-powercut $(TARGET)/debug/ticketing

# What CI runs of it.
powercut-quick:
	$(MAKE) --no-print-directory powercut CUTS=5 SEED=3 POWERCUT_AT_MOST_S=60
