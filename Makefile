# Two commands matter: `make up` serves, `make test` proves. Both set themselves up.
PYTHON ?= python3
TARGET ?= cpu
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints/$(TARGET).txt
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help up test check mutations clean

help:  ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Headrace needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing (Debian: apt install python3-venv)"; exit 1; }

# A stamp per set of packages: a second run installs nothing.
$(VENV)/.serve-$(TARGET): pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "installing Headrace into $(VENV) (once; a few minutes) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e .
	@touch $@

$(VENV)/.develop-$(TARGET): pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "installing Headrace and its test tools into $(VENV) (once; a few minutes) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[test,check]'
	@touch $@ $(VENV)/.serve-$(TARGET)

up: $(VENV)/.serve-$(TARGET)  ## Serve on this machine: make up ARGS="--port 8123 --replicas 2"
	@exec $(BIN)/headrace up $(ARGS)

test: $(VENV)/.develop-$(TARGET)  ## Run the whole suite: make test ARGS="-k bus"
	@$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.develop-$(TARGET)  ## Lint, types, import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

mutations: $(VENV)/.develop-$(TARGET)  ## Switch each mechanism off and see its test fail
	@$(BIN)/python -m tests.mutations $(ARGS)

clean:  ## Remove the environment and caches
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
