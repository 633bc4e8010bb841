# The commands that people type; CI calls the same ones.
# CARGO_TARGET_DIR is honoured.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release

# Coverage-guided fuzzing on stable Rust: libFuzzer's instrumentation is a pass of LLVM.
FUZZ_FLAGS := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
	-Cllvm-args=-sanitizer-coverage-pc-table -Ccodegen-units=1 --cfg fuzzing
FUZZ_HOST := $(shell rustc -vV | sed -n 's/^host: //p')
FUZZ_SECONDS ?= 60

.PHONY: help build test verify reference fix quick-tests bench trace-hand-over raft-step crowds bounds fuzz powercut powercut-quick powercut-nosync sim sim-quick sim-builds sim-mutants coverage release bench-cluster failover soak identity rotation calm replace disks leases line diverged cluster-quick cluster-up cluster-down cluster-status

help:
	@echo 'make test      every test that CI runs'
	@echo 'make verify    formatting, lints, the quick tests; edits nothing'
	@echo 'make fix       the same, and edits what can be fixed by itself'
	@echo 'make crowds    10,000 clients after one key, with 5,000 strangers beside them'
	@echo 'make bounds    the crowds; memory and idle time, measured at full size'
	@echo 'make bench     the published load against this server and a bare ceiling, by turns; one hot key'
	@echo 'make bench-cluster  the same load against clusters of three on this machine'
	@echo 'make trace-hand-over  where a hand-over of a hot key goes, by tracepoints of the kernel (root, python3)'
	@echo 'make raft-step what a step of the Raft core costs'
	@echo 'make fuzz      each fuzz target for FUZZ_SECONDS (60)'
	@echo 'make powercut  power cuts under load on a disk that forgets (root); SEED=n CUTS=n'
	@echo 'make powercut-nosync  the same without syncs: succeeds when that is found out'
	@echo 'make sim       whole clusters in virtual time; SEED=n tells one run, COUNT=n runs many'
	@echo 'make sim-builds  that a seed has the same run in a debug and in a release build'
	@echo 'make sim-mutants  mistakes made on purpose, and which checker finds each'
	@echo 'make cluster-up / cluster-status / cluster-down  a cluster of three on this machine'
	@echo 'make failover  how long nobody is granted anything when a cluster loses its leader (root); ROUNDS=n'
	@echo 'make soak      a cluster under load while nodes are killed, cut off, replaced (root); MINUTES=n NODES=n SEED=n'
	@echo 'make identity  nodes that are not who they say are refused (root); make rotation: tokens and certificates changed under load'
	@echo 'make calm      nobody is elected under full load (root); MINUTES=n'
	@echo 'make replace   a follower and the leader are replaced under full load; make disks: theirs hang and are slow (root)'
	@echo 'make leases    100,000 leases that end in the same second, clocks that jump, a storm of elections (root, libfaketime)'
	@echo 'make line      the leader dies with 10,000 waiters in line; make diverged: a node that holds other locks (root)'
	@echo 'make coverage  which regions of the Raft core and of recovery the tests run; needs llvm-cov'
	@echo 'make build     the server, optimised'

build:
	$(CARGO) build --release --bin ticketing

release:
	$(CARGO) build --release --workspace --bins

# Every test: the pure parts, the log, the real binary with real clients.
test:
	$(CARGO) test --workspace --locked

# Those whose names only one package has.
QUICK_TESTS := architecture documents api_document handshake hostile peer peer_document roundtrip \
	crashes folder scenarios

# Always of the whole workspace: a build of some packages selects other features of what they share, and
# compiles it again.
quick-tests:
	$(CARGO) test --workspace --locked --lib --bins $(QUICK_TESTS:%=--test %)
	$(CARGO) test --workspace --locked --doc

verify:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked --quiet
	$(MAKE) --no-print-directory quick-tests

# docs/configuration.md anew, from what the program prints.
reference:
	@{ printf '%s\n\n' '# The configuration file' \
		'Made by `make reference` from what `ticketing check-config --reference` prints.'; \
		printf '%s\n' '```toml'; $(CARGO) run --quiet --locked --bin ticketing -- check-config --reference; \
		printf '%s\n' '```'; } > docs/configuration.md.new
	@mv docs/configuration.md.new docs/configuration.md

fix:
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	$(MAKE) --no-print-directory verify

# Each target for FUZZ_SECONDS, from its corpus; a finding stays under fuzz/artifacts.
fuzz:
	cd fuzz && CARGO_TARGET_DIR=$(abspath $(TARGET))/fuzz RUSTFLAGS='$(FUZZ_FLAGS)' \
		$(CARGO) build --release --locked --target $(FUZZ_HOST)
	@for target in frames log peer snapshot; do \
		mkdir -p fuzz/artifacts fuzz/corpus-new/$$target && \
		$(abspath $(TARGET))/fuzz/$(FUZZ_HOST)/release/$$target \
			-max_total_time=$(FUZZ_SECONDS) -artifact_prefix=fuzz/artifacts/$$target- \
			-print_final_stats=1 fuzz/corpus-new/$$target fuzz/corpus/$$target > $(TARGET)/fuzz-$$target.log 2>&1 \
		|| { tail -30 $(TARGET)/fuzz-$$target.log; echo "fuzz $$target: FAILED"; exit 1; }; \
		echo "fuzz $$target: $$(sed -n 's/stat::number_of_executed_units: *//p' $(TARGET)/fuzz-$$target.log) inputs, nothing found"; \
	done

# BENCH_ARGS='--rounds 5 --pairs 200000' for longer runs.
bench: release
	$(RELEASE)/bench --server $(RELEASE)/ticketing $(BENCH_ARGS)

# Clusters of three and the load on this machine, by turns with the ceiling.
bench-cluster: release
	$(RELEASE)/bench --server $(RELEASE)/ticketing --cluster $(BENCH_ARGS)

# Where a hand-over of one hot key goes; needs root, tracefs and python3.
trace-hand-over: release
	mountpoint -q /sys/kernel/tracing || mount -t tracefs nodev /sys/kernel/tracing
	python3 bench/scripts/trace-hand-over.py $(RELEASE)/ticketing $(RELEASE)/bench

# What a step of the Raft core costs.
raft-step:
	$(CARGO) test --release --locked --package ticketing-raftlog --test step_cost -- --nocapture --test-threads 1

# The long forms of what `make test` runs a slice of; they print their figures, and fail when one is
# over its bound. The crowd needs 16,000 open files.
crowds:
	$(CARGO) test --workspace --locked --test crowds -- --ignored --nocapture --test-threads 1

bounds: crowds
	$(CARGO) test --workspace --locked --test bounds -- --include-ignored --nocapture --test-threads 1

# Power cuts under the real server, on a disk that forgets what was not synced. Needs root,
# /dev/fuse and unshare. SEED=n makes other choices, and the same ones each time.
CUTS ?= 50
POWERCUT_AT_MOST_S ?= 900

powercut:
	$(CARGO) build --workspace --locked --bin ticketing --bin ticketing-powercut
	SEED=$(or $(SEED),7) CUTS=$(CUTS) timeout $(POWERCUT_AT_MOST_S) $(TARGET)/debug/ticketing-powercut $(TARGET)/debug/ticketing

# What CI runs of it.
powercut-quick:
	$(MAKE) --no-print-directory powercut CUTS=5 POWERCUT_AT_MOST_S=60

# The same cuts under a server without the one call that syncs its appends, built from a copy of the
# source with a patch that must apply. It succeeds when the test fails, at a cut behind the first.
NO_SYNC := $(abspath $(TARGET))/no-sync

powercut-nosync:
	rm -rf $(NO_SYNC)/source && mkdir -p $(NO_SYNC)/source
	tar -c Cargo.toml Cargo.lock bench protocol raftlog src tests | tar -x -C $(NO_SYNC)/source
	patch --batch --forward --directory $(NO_SYNC)/source --strip 1 < tests/powercut/no-sync.patch
	CARGO_TARGET_DIR=$(NO_SYNC)/build $(CARGO) build --locked --manifest-path $(NO_SYNC)/source/Cargo.toml \
		--package ticketing@0.1.0 --bin ticketing
	$(CARGO) build --workspace --locked --bin ticketing-powercut
	@if SEED=$(or $(SEED),7) CUTS=$(CUTS) timeout $(POWERCUT_AT_MOST_S) $(TARGET)/debug/ticketing-powercut \
		$(NO_SYNC)/build/debug/ticketing > $(NO_SYNC)/log 2>&1; \
	then cat $(NO_SYNC)/log; echo 'powercut-nosync: FAILED: the cuts were survived without syncs'; exit 1; fi
	@cat $(NO_SYNC)/log
	@grep -qE ': at cut ([2-9]|[1-9][0-9]+): ' $(NO_SYNC)/log \
		|| { echo 'powercut-nosync: FAILED: it failed, but at no cut'; exit 1; }
	@echo 'powercut-nosync: without syncs the test fails, as it should'

# Clusters of real processes in a network namespace of their own. Needs root, unshare, ip and nft. SEED=n draws
# other faults. What counts as time without a grant is the longest silence from the event on.
ROUNDS ?= 20
MINUTES ?= 10
NODES ?= 3
CLUSTER_TESTS = $(RELEASE)/cluster-tests --server $(RELEASE)/ticketing --nodes $(NODES)

failover: release
	$(CLUSTER_TESTS) failover --rounds $(ROUNDS)

soak: release
	$(CLUSTER_TESTS) chaos --seconds $$(( $(MINUTES) * 60 )) --seed $(or $(SEED),$(shell date +%s))

# Copies, old backups, lost folders, wrong places, lost majorities; tokens and certificates changed under load.
identity: release
	$(CLUSTER_TESTS) identity

rotation: release
	$(CLUSTER_TESTS) rotation

# The load of the throughput figures, while nothing happens, while nodes are replaced, on bad disks.
calm: release
	$(CLUSTER_TESTS) calm --seconds $$(( $(MINUTES) * 60 ))

replace: release
	$(CLUSTER_TESTS) replace

disks: release
	$(CLUSTER_TESTS) disks

# Needs libfaketime.
leases: release
	$(CLUSTER_TESTS) leases

line: release
	$(CLUSTER_TESTS) line

diverged: release
	$(CLUSTER_TESTS) diverged

# What CI runs of them.
cluster-quick: identity rotation line diverged
	$(CLUSTER_TESTS) chaos --seconds 60 --seed 1
	$(MAKE) --no-print-directory failover ROUNDS=3

# A cluster of three on this machine, under $(TARGET)/cluster.
CLUSTER := $(TARGET)/cluster

cluster-up: build
	@[ ! -e $(CLUSTER) ] || { echo '$(CLUSTER) is there already: make cluster-down first'; exit 1; }
	$(RELEASE)/ticketing cluster init --dir $(CLUSTER) --nodes 3
	@for slot in 0 1 2; do \
		$(RELEASE)/ticketing serve --config $(CLUSTER)/slot-$$slot/ticketing.toml \
			> $(CLUSTER)/slot-$$slot/log.txt 2>&1 & echo $$! > $(CLUSTER)/slot-$$slot/pid; \
	done
	@for slot in 0 1 2; do \
		tries=0; until grep -q '^ticketing ready' $(CLUSTER)/slot-$$slot/log.txt; do \
			tries=$$((tries + 1)); [ $$tries -lt 100 ] || { cat $(CLUSTER)/slot-$$slot/log.txt; exit 1; }; \
			sleep 0.1; \
		done; \
		grep '^ticketing ready' $(CLUSTER)/slot-$$slot/log.txt; \
	done
	@echo "client token         $$(cat $(CLUSTER)/slot-0/client.token)"
	@echo "identity fingerprint $$($(RELEASE)/ticketing cluster fingerprint --dir $(CLUSTER))"

cluster-status:
	@$(RELEASE)/ticketing status --admin 127.0.0.1:7225,127.0.0.1:7226,127.0.0.1:7227

# Ends only what cluster-up started, by its process ids.
cluster-down:
	@[ -e $(CLUSTER) ] || { echo '$(CLUSTER) is not there'; exit 1; }
	@for pid in $(CLUSTER)/slot-*/pid; do \
		number=$$(cat $$pid); \
		if [ "$$(readlink /proc/$$number/exe)" = "$$(readlink -f $(RELEASE)/ticketing)" ]; then \
			kill $$number; while kill -0 $$number 2> /dev/null; do sleep 0.05; done; \
		fi; \
	done
	rm -rf $(CLUSTER)

# Whole clusters of the pure code in virtual time, from one seed each. SEED=n tells that run's story;
# otherwise COUNT seeds from FROM, which the clock chooses unless it is given.
COUNT ?= 200
FROM ?= $(shell date +%s)

sim:
	$(CARGO) build --workspace --locked --bin sim
	$(TARGET)/debug/sim $(if $(SEED),--seed $(SEED),--count $(COUNT) --from $(FROM))

# What CI runs of it: seeds that once found something, then the same 600 each time.
sim-quick:
	$(CARGO) build --workspace --locked --bin sim
	$(TARGET)/debug/sim --seeds tests/sim/seeds.txt --count 600 --from 100000

# A seed's run is the same whatever the build.
sim-builds:
	$(CARGO) build --workspace --locked --bin sim
	$(CARGO) build --release --workspace --locked --bin sim
	for build in debug release; do \
		$(TARGET)/$$build/sim --hashes --seeds tests/sim/seeds.txt --count 60 --from 1 > $(TARGET)/sim-hashes-$$build || exit 1; done
	cmp $(TARGET)/sim-hashes-debug $(TARGET)/sim-hashes-release
	@echo "sim-builds: $$(wc -l < $(TARGET)/sim-hashes-release) seeds have the same event-log hash in both builds"

# A target folder of its own, so that no other build has the mistakes in it.
sim-mutants:
	CARGO_TARGET_DIR=$(abspath $(TARGET))/mutants $(CARGO) build --locked --package ticketing-sim --features bugs --bin sim
	$(TARGET)/mutants/debug/sim --mutants $(if $(ONLY),--only $(ONLY))

# Which regions of the Raft core and of the log's recovery run under the core's and the log's own
# tests, the scenario scripts and COVERAGE_SEEDS fixed seeds of the simulator. It needs llvm-profdata and
# llvm-cov that read this compiler's profiles: those of rustup's llvm-tools, or of any LLVM from 19 on.
COVERAGE := $(abspath $(TARGET))/coverage
COVERAGE_TESTS := scenarios folder crashes snapshots
COVERAGE_SEEDS ?= 200
COVERAGE_HOST := $(shell rustc -vV | sed -n 's/^host: //p')
LLVM_BIN ?= $(firstword $(wildcard $(shell rustc --print sysroot)/lib/rustlib/$(COVERAGE_HOST)/bin/llvm-cov \
	$(foreach version,25 24 23 22 21 20 19,/usr/lib/llvm-$(version)/bin/llvm-cov)))
LLVM_TOOLS = $(patsubst %/,%,$(dir $(LLVM_BIN)))

coverage:
	@[ -x '$(LLVM_TOOLS)/llvm-cov' ] && [ -x '$(LLVM_TOOLS)/llvm-profdata' ] || { echo \
		'coverage: llvm-cov and llvm-profdata are missing: rustup component add llvm-tools, or Debian package llvm-19 or later;' \
		'elsewhere: make coverage LLVM_BIN=/path/to/llvm-cov' >&2; exit 2; }
	rm -rf $(COVERAGE)/profiles && mkdir -p $(COVERAGE)/profiles
	CARGO_TARGET_DIR=$(COVERAGE) RUSTFLAGS='-C instrument-coverage' LLVM_PROFILE_FILE=$(COVERAGE)/profiles/build-%p.profraw \
		$(CARGO) test --locked --no-run --message-format json --package ticketing-raftlog --package ticketing-sim \
		--lib --bins $(patsubst %,--test %,$(COVERAGE_TESTS) runs) > $(COVERAGE)/built
	for test in ticketing_raftlog $(COVERAGE_TESTS); do \
		sed -n "s/.*\"executable\":\"\([^\"]*\/$$test-[^\"]*\)\".*/\1/p" $(COVERAGE)/built; done > $(COVERAGE)/programs
	[ $$(wc -l < $(COVERAGE)/programs) -eq $(words ticketing_raftlog $(COVERAGE_TESTS)) ]
	rm -f $(COVERAGE)/profiles/build-*
	cd raftlog && for program in $$(cat $(COVERAGE)/programs); do \
		LLVM_PROFILE_FILE=$(COVERAGE)/profiles/%m-%p.profraw $$program --quiet || exit 1; done
	LLVM_PROFILE_FILE=$(COVERAGE)/profiles/%m-%p.profraw $(COVERAGE)/debug/sim \
		--seeds tests/sim/seeds.txt --count $(COVERAGE_SEEDS) --from 100000
	$(LLVM_TOOLS)/llvm-profdata merge --sparse $(COVERAGE)/profiles/*.profraw --output $(COVERAGE)/all.profdata
	$(LLVM_TOOLS)/llvm-cov export --instr-profile $(COVERAGE)/all.profdata \
		$(COVERAGE)/debug/sim $$(sed 's/^/--object /' $(COVERAGE)/programs) $(CURDIR)/raftlog/src > $(COVERAGE)/export.json
	$(CARGO) run --quiet --locked --package ticketing-coverage -- $(COVERAGE)/export.json
