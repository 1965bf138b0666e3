# `make` alone lists the verbs. Needed: Python 3.11 or newer, a Rust toolchain, a C compiler. Everything else is got by the verbs.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SOURCES := $(shell find rust Cargo.toml Cargo.lock .cargo -type f -not -path '*/target/*' 2>/dev/null)
CRATE_TESTS ?=
TESTS  ?=

# One interpreter for every cargo call, so that PyO3 is not compiled again when verbs alternate.
export PYO3_PYTHON := $(abspath $(BIN)/python)

.DEFAULT_GOAL := help
.PHONY: help venv build servers run test test-rust test-py lint fmt bench wheel clean need-cargo need-cc

help: ## list the verbs
	@echo "usage: make VERB"
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-10s %s\n", $$1, $$2}' Makefile

venv: $(VENV)/.ready ## make .venv with the pinned development tools (PYTHON=python3.12 picks the interpreter)

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "error: $(PYTHON) is not Python 3.11 or newer; install it or say make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "error: $(PYTHON) cannot make virtual environments; install its venv module (Debian: apt-get install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"], sep="\n")' \
		> $(VENV)/requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r $(VENV)/requirements.txt
	@touch $@

build: $(VENV)/.built ## compile the Rust core (release) and install the package into .venv, when a source has changed

$(VENV)/.built: $(VENV)/.ready $(SOURCES) | need-cargo need-cc
	PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/maturin develop --release
	@touch $@

need-cargo:
	@command -v cargo >/dev/null || { echo "error: cargo not found; install a Rust toolchain, 1.88 or newer"; exit 1; }

need-cc:
	@command -v cc >/dev/null || { echo "error: cc not found; install a C compiler (Debian: apt-get install build-essential)"; exit 1; }

servers: $(VENV)/.ready ## get the test servers: Redis 8.10 (compiled once, about two minutes), 8.2, 7.0, Valkey 9.1
	@$(BIN)/python scripts/servers.py get

run: build ## run the example service, examples/payments.py: on a server of its own, or within the process where there is none
	$(BIN)/python examples/payments.py

test: test-rust test-py ## all tests

test-rust: $(VENV)/.ready | need-cargo need-cc ## tests of the crates (CRATE_TESTS="name" picks some)
	cargo test --locked --workspace $(CRATE_TESTS)

test-py: build servers ## tests of the package against real servers (TESTS="tests/unit -k name" picks some)
	$(BIN)/python -m pytest $(TESTS)

lint: build ## formatting, types, stubs, import order of the layers, clippy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest ruststream._core
	$(BIN)/lint-imports
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

fmt: $(VENV)/.ready | need-cargo ## format everything and fix what can be fixed safely
	$(BIN)/ruff check --fix-only --exit-zero --quiet .
	$(BIN)/ruff format .
	cargo fmt --all

bench: build servers ## benches, pure Python in the same run, and the README's table (BENCH_QUICK=1: only see that they run)
	$(BIN)/python -m pytest --benchmark-enable --benchmark-only $(or $(TESTS),benches)
	$(BIN)/python benches/readme.py

wheel: $(VENV)/.ready | need-cargo need-cc ## build the abi3 wheel into dist/
	$(BIN)/maturin build --release --out dist

clean: ## remove what the verbs made (the servers stay in the cache)
	rm -rf $(VENV) target dist .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find python scripts tests benches examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	rm -f python/ruststream/_core*.so
