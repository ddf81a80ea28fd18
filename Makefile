# Every target makes what it needs in .venv by itself, and does nothing twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= 2

.PHONY: help demo test soak torture lint format types bench docs clean
.DEFAULT_GOAL := help

help:  ## what there is to make
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)  ## train on digits drawn by code, judge, save, and say where to look next
	$(BIN)/stoker demo

test: $(READY)  ## everything a change could plausibly break, in five minutes
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not soak"

soak: $(READY)  ## the long matrix: fuzzing, every resume point, many processes
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m soak

torture: $(READY)  ## kills hundreds of trainings, each of which has to end in the same bits
	OMP_NUM_THREADS=1 $(BIN)/python -m torture
	OMP_NUM_THREADS=1 $(BIN)/python -m torture --ranks 2 --kills 60 --seconds 600

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)  ## put the code into the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)  ## basedpyright on stoker/
	$(BIN)/basedpyright

$(VENV)/.peers: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@touch $@

bench: $(VENV)/.peers  ## stoker, plain torch and the peers side by side, as ratios
	$(BIN)/python -m benchmarks.fit
	$(BIN)/python -m benchmarks.sweep
	$(BIN)/python -m benchmarks.own_loop --passes 1
	$(BIN)/python -m benchmarks.save --passes 1 "10 MB" "500 MB"
	$(BIN)/python -m benchmarks.record
	$(BIN)/python -m benchmarks.viewers

docs: $(READY)  ## the API, from its docstrings, as pages in site/
	$(BIN)/pdoc stoker --output-directory site
	@echo "open site/index.html"

clean:  ## forget the environment and every cache
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis site dist
