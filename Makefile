# Two commands matter: `make up` serves, `make test` proves. Both set themselves up.
PYTHON ?= python3
TARGET ?= cpu
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints/$(TARGET).txt
EXTRA := $(filter cuda,$(TARGET))
ARGS ?=
# Three lanes of tests where there are two processors (tests/lanes.py); `make test LANES=` runs them in one.
LANES ?= $(shell [ "$$(nproc 2> /dev/null || echo 1)" -gt 1 ] && echo "-n 3")
# What an installation is made of: when one of these changes, the next command installs again.
PARTS := pyproject.toml $(CONSTRAINTS) deploy/environment.py $(wildcard setup.py kernels/native/build.py kernels/native/src/*)

.DEFAULT_GOAL := help
.PHONY: help up test jitter check mutations sanitize sanitize-gpu fuzz fuzz-schema image clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(CONSTRAINTS):
	@echo "TARGET is cpu or cuda, not $(TARGET)"; exit 1

# A stamp per set of packages: a second run installs nothing.
$(VENV)/.serve-$(TARGET): $(PARTS)
	@command -v $(PYTHON) > /dev/null || { echo "headrace: there is no $(PYTHON); install Python 3.11 or newer"; exit 1; }
	@$(PYTHON) deploy/environment.py $(VENV) $(CONSTRAINTS) $(EXTRA)
	@touch $@

$(VENV)/.develop-$(TARGET): $(PARTS)
	@command -v $(PYTHON) > /dev/null || { echo "headrace: there is no $(PYTHON); install Python 3.11 or newer"; exit 1; }
	@$(PYTHON) deploy/environment.py $(VENV) $(CONSTRAINTS) test,check$(EXTRA:%=,%)
	@touch $@ $(VENV)/.serve-$(TARGET)

# llama.cpp judges our tokenizers. It is built from source: with a C++ compiler it is worth minutes, without one its
# tests are skipped. Tried once.
$(VENV)/.oracle: | $(VENV)/.develop-$(TARGET)
	@if command -v c++ > /dev/null; then \
	    echo "building llama.cpp, the oracle of the tokenizer's tests (once; minutes) ..."; \
	    $(BIN)/pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) llama-cpp-python \
	        > $(VENV)/oracle.log 2>&1 || echo "it could not be built; its tests are skipped ($(VENV)/oracle.log)"; \
	fi
	@touch $@

up: $(VENV)/.serve-$(TARGET)  ## Serve on this machine: make up ARGS="--port 8123 --replicas 2"; on NVIDIA cards: TARGET=cuda
	@exec $(BIN)/headrace up $(ARGS)

test: $(VENV)/.develop-$(TARGET) $(VENV)/.oracle  ## Run the whole suite: make test ARGS="-k bus"
	@$(BIN)/python -m pytest $(LANES) $(ARGS)

jitter: $(VENV)/.develop-$(TARGET)  ## Run tests while what they wait for comes late and in other orders: make jitter SEED=7 ARGS=tests/gateway
	TEST_JITTER="$(or $(SEED),1)" TEST_LIMIT_S=900 $(BIN)/python -m pytest -o faulthandler_timeout=0 $(LANES) $(ARGS)

check: $(VENV)/.develop-$(TARGET)  ## Lint, types, import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

fuzz-schema: $(VENV)/.develop-$(TARGET)  ## Let schemathesis try every route (2,000 examples each); goes on where it was broken off
	TEST_LIMIT_S=14400 HEADRACE_FUZZ_EXAMPLES=$(or $(EXAMPLES),2000) $(BIN)/python -m pytest -vs --no-header -o faulthandler_timeout=0 tests/gateway/edge/test_schemathesis.py $(ARGS)

fuzz: $(VENV)/.develop-$(TARGET)  ## Try 2,000 bodies a route, and 2,000 odd texts a dialect
	TEST_LIMIT_S=14400 HEADRACE_FUZZ_EXAMPLES=2000 $(BIN)/python -m pytest -q -o faulthandler_timeout=0 tests/gateway/edge/test_fuzz.py tests/gateway/edge/test_same_text.py $(ARGS)

sanitize: $(VENV)/.develop-$(TARGET)  ## Every native kernel build of this machine under sanitizers (BUILDS="avx2 amx")
	TEST_LIMIT_S=14400 HEADRACE_SANITIZE="$(or $(BUILDS),all)" $(BIN)/python -m pytest -q -o faulthandler_timeout=0 tests/kernels/native/test_library.py -k foreign

sanitize-gpu: $(VENV)/.develop-$(TARGET)  ## Compiled GPU kernels under compute-sanitizer: make sanitize-gpu TARGET=cuda
	$(BIN)/python -m tests.kernels.sanitize $(ARGS)

mutations: $(VENV)/.develop-$(TARGET)  ## Switch each mechanism off and see its test fail
	@$(BIN)/python -m tests.mutations $(ARGS)

image:  ## Build the container image headrace:latest
	docker build -f deploy/Dockerfile --build-arg TARGET=$(TARGET) -t headrace:latest .

clean:  ## Remove the environment and caches
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
