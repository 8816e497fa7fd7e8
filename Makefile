# From a bare Python to a running program: `make run`. From a fresh clone to tested: `make test`.
#
# The set-up runs once. Each finished part leaves a stamp in the virtual environment, named after a checksum of its inputs.
# So a second run does nothing, and a changed lock, pyproject.toml or location repeats that part.

MODEL      := qwen2.5-coder-1.5b
TEST_MODEL := smollm2-135m
ARGS       :=
PYTHON     ?=

VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP    := $(BIN)/python -m pip install -qq --no-input --progress-bar off --disable-pip-version-check
LOCKS  := requirements.lock requirements-torch.txt

key     = $(shell $(1) 2>/dev/null | cksum | cut -d ' ' -f 1)
CREATED := $(STAMPS)/venv-$(call key,pwd)
LOCKED  := $(STAMPS)/locked-$(call key,cat $(LOCKS))
PACKAGE := $(STAMPS)/package-$(call key,cat pyproject.toml)
stamp   = @mkdir -p $(STAMPS) && rm -f $(STAMPS)/$(1)-* && touch $@

.PHONY: help run test stress check docs setup bfcl lock clean
.DELETE_ON_ERROR:

help:
	@echo 'make run     set up, fetch the language model, run the same tasks without and with memory (ARGS="..." goes to rb-dspy run)'
	@echo 'make test    set up, fetch the small test model, run all tests              (ARGS="..." goes to pytest)'
	@echo 'make stress  all tests, with random examples, many kills and real models    (ARGS="..." goes to pytest)'
	@echo 'make check   lint, formatting, types, floors'
	@echo 'make docs    write the reference in docs/command-line.md from the help of the commands'
	@echo 'make setup   only the virtual environment in $(VENV): locked dependencies and this package'
	@echo 'make bfcl    install the package bfcl-eval, for the environment bfcl (make test does it too)'
	@echo 'make lock    pin the dependencies of pyproject.toml again, with as few changes as possible (UPGRADE=1: the newest versions)'
	@echo 'make clean   remove the virtual environment and caches; banks and models stay'
	@echo 'PYTHON=...   the interpreter to set up with (3.11 or newer); MODEL=... the language model for make run'

CHOSEN = $(if $(filter file,$(origin MODEL)),,--set backbones.agent.model=local/$(MODEL))

# Models are in the user's cache, which may be cleaned, so each run checks for them; that is quick.
run: setup
	@$(BIN)/rb-dspy models get $(MODEL)
	$(BIN)/rb-dspy run --memory both --seed $(shell date +%Y%m%d) $(CHOSEN) $(ARGS)

test: setup bfcl
	@$(BIN)/rb-dspy models get $(TEST_MODEL)
	$(BIN)/python -m pytest -n 2 $(ARGS)

stress: setup bfcl
	@$(BIN)/rb-dspy models get $(TEST_MODEL)
	HYPOTHESIS_PROFILE=stress $(BIN)/python -m pytest -n 2 -m "stress or not stress" $(ARGS)

# Without dependencies: the package pins an old numpy, which its data, simulators and checker do not need.
bfcl: setup
	@$(BIN)/python -c 'import bfcl_eval' 2>/dev/null || $(PIP) --no-deps --require-hashes -r requirements-bfcl.txt

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

REFERENCE := $(BIN)/typer rb_dspy.cli.main utils docs --name rb-dspy --title 'All commands and options'

docs: setup
	@sed -i.old '/^<!-- `make docs`/q' docs/command-line.md && rm docs/command-line.md.old
	@{ echo; $(REFERENCE); } >>docs/command-line.md

setup: $(PACKAGE)

# Use the first suitable interpreter. Replace a virtual environment from another folder, or whose Python is missing.
$(CREATED):
	@usable='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))'; python=; seen=; \
	for each in $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14 python); do \
	  if $$each -c "$$usable" >/dev/null 2>&1; then \
	    seen=$$each; \
	    if $$each -c 'import ensurepip, venv' >/dev/null 2>&1; then python=$$each; break; fi; \
	  fi; \
	done; \
	if [ -z "$$seen" ]; then \
	  echo 'error: no Python from 3.11 to 3.14 found$(if $(PYTHON), as "$(PYTHON)"); install one, or set it: make PYTHON=/path/to/python3' >&2; exit 1; \
	elif [ -z "$$python" ]; then \
	  echo "error: $$seen cannot create virtual environments; install its venv module (Debian, Ubuntu: the package python3-venv)" >&2; exit 1; \
	fi; \
	clear=; if ls $(STAMPS)/venv-* >/dev/null 2>&1 || ! $(BIN)/python -c '' >/dev/null 2>&1; then clear=--clear; fi; \
	echo "Creating $(VENV) with $$($$python --version)"; \
	$$python -m venv $$clear $(VENV)
	$(call stamp,venv)

BUILD := editables|hatchling|packaging|pathspec|pluggy|setuptools|tomlkit|trove-classifiers

# Build tools first: a few dependencies are source packages, and are built with these instead of the newest versions.
# pycosat needs a C compiler; only reasoning-gym needs pycosat. torch has no hash, so that pip may use a CPU build that
# it finds on the machine; requirements-torch.txt also pins the dependencies of the other builds.
$(LOCKED): $(CREATED)
	@echo 'Installing the locked dependencies (some minutes; with a CPU build of torch about 0.7 GB to download, 2.6 GB on disk)'
	@awk '/^[a-z]/ { chosen = /^($(BUILD))==/ } chosen' requirements.lock >$(STAMPS)/build.txt
	@$(PIP) --no-deps --require-hashes -r $(STAMPS)/build.txt
	@if $(BIN)/python -c 'import os, shutil, sys, sysconfig as s; \
	    sys.exit(not (shutil.which(s.get_config_var("CC").split()[0]) and os.path.exists(s.get_path("include") + "/Python.h")))'; \
	then cp requirements.lock $(STAMPS)/requirements.txt; \
	else echo 'No C compiler, or no Python headers: skipping pycosat'; \
	  awk '/^[a-z]/ { chosen = !/^pycosat==/ } chosen' requirements.lock >$(STAMPS)/requirements.txt; fi
	@$(PIP) --no-deps --no-build-isolation --require-hashes -r $(STAMPS)/requirements.txt
	@echo 'Installing torch'
	@$(PIP) --constraint requirements-torch.txt torch
	$(call stamp,locked)

$(PACKAGE): $(LOCKED)
	@echo 'Installing rb_dspy itself'
	@$(PIP) --no-deps --no-build-isolation --editable .
	$(call stamp,package)

# One resolution for both files: torch and the dependencies of its GPU builds are in requirements-torch.txt, the rest in
# requirements.lock. Pins that still fit stay, unless UPGRADE is set.
TORCH  := torch==2.13.0
EXTRAS := --extra local --extra text --extra dev
UV     ?= build/uv/bin/uv
COMPILE = $(UV) pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --no-annotate --no-emit-index-url \
          --no-emit-find-links --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)
GPU    := ^(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)==

build/uv/bin/uv:
	$(or $(PYTHON),python3) -m venv build/uv
	@build/uv/bin/python -m pip install -qq --disable-pip-version-check uv==0.13.8

lock: $(filter build/%,$(UV))
	@mkdir -p build/lock
	@printf 'hatchling\neditables\nsetuptools\n' >build/lock/build.in
	@echo '$(TORCH)' >build/lock/torch.in
	@cat $(LOCKS) >build/lock/full.txt 2>/dev/null || :
	@echo 'Resolving'
	@$(COMPILE) pyproject.toml build/lock/build.in build/lock/torch.in $(EXTRAS) --output-file build/lock/full.txt >/dev/null
	@{ echo '# Made by make lock. Constraints: torch and, for its GPU builds only, what they need.'; \
	  grep -E '$(GPU)' build/lock/full.txt; } >requirements-torch.txt
	@echo 'Hashing'
	@skip=$$(sed -nE 's/$(GPU).*/--no-emit-package \1/p' build/lock/full.txt); \
	$(COMPILE) --generate-hashes --constraint build/lock/full.txt pyproject.toml build/lock/build.in $(EXTRAS) $$skip \
	  --output-file requirements.lock >/dev/null
	@wc -l $(LOCKS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find rb_dspy tests experiments -name __pycache__ -type d -prune -exec rm -rf {} +
