# Every target creates .venv and installs what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
READY := $(VENV)/.ready
GPU := $(shell command -v nvidia-smi)  # without one, tests that need it run on a simulated device
JOBS ?= 3  # on two cores: a third of the time, tests wait for child processes

.PHONY: help demo test test-simulated simulated soak torture lint format types bench docs docs-serve release-check clean
.DEFAULT_GOAL := help

help:  ## lists the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(CORE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(READY): $(CORE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(CORE)  ## trains on digits drawn by code, evaluates and saves the model
	$(BIN)/stoker demo

test: $(READY)  ## the tests that a change could plausibly break, in 5 minutes
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not soak"

test-simulated: $(READY)  ## the tests that need a GPU, on a simulated CUDA device
	$(BIN)/python -m simulated_cuda -m pytest -n 2 --dist worksteal -m "cuda and not soak"

simulated: $(READY)  ## any program on the simulated CUDA device: make simulated ARGS="program.py"
	$(BIN)/python -m simulated_cuda $(ARGS)

soak: $(READY)  ## the long tests: fuzzing, every resume point, several processes, kills
	$(BIN)/python -m pytest -n 4 --dist worksteal -m soak  # most of them wait for child processes
	test -n "$(GPU)" || $(BIN)/python -m simulated_cuda -m pytest -n 2 --dist worksteal -m "cuda and soak"

torture: $(READY)  ## kills hundreds of trainings and compares the results, about 15 minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m torture
	OMP_NUM_THREADS=1 $(BIN)/python -m torture --ranks 2 --kills 60 --seconds 600

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)  ## formats the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)  ## type checks stoker/ with basedpyright
	$(BIN)/basedpyright

$(VENV)/.bench: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@touch $@

bench: $(VENV)/.bench  ## compares stoker with plain torch and other libraries, as ratios
	$(BIN)/python -m benchmarks.fit
	$(BIN)/python -m benchmarks.sweep
	$(BIN)/python -m benchmarks.own_loop --passes 1
	$(BIN)/python -m benchmarks.samples
	$(BIN)/python -m benchmarks.evaluate
	$(BIN)/python -m benchmarks.accumulate
	$(BIN)/python -m benchmarks.compile
	$(BIN)/python -m benchmarks.ragged
	$(BIN)/python -m benchmarks.save --passes 1 "10 MB" "500 MB"
	$(BIN)/python -m benchmarks.record
	$(BIN)/python -m benchmarks.viewers

$(VENV)/.docs: $(CORE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: $(VENV)/.docs  ## builds the documentation in site/; a warning is an error
	$(BIN)/zensical build --strict --clean
	@echo "open site/index.html"

docs-serve: $(VENV)/.docs  ## shows the documentation on this machine, and follows changes
	$(BIN)/zensical serve

release-check: $(READY)  ## builds wheel and sdist, checks them, and runs the README's program in a bare environment
	$(BIN)/python .ci/check_release.py

clean:  ## removes the environment and all caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis site dist
