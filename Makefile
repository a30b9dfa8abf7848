# A fresh machine needs python3 (3.11 or newer) and make; every target sets up .venv first.
# Another interpreter: make test PYTHON=python3.13       One folder: make test ARGS=tests/core

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

# Hundreds of modules are imported by each of many processes: they are compiled once, whatever the machine asks for.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WITH_MODELS := $(VENV)/.installed-models
WITH_DOCS := $(VENV)/.installed-docs
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: help demo test test-slow test-models test-netns lint docs clean

help:
	@echo 'make demo         plan and train the two examples on 8 virtual devices'
	@echo 'make test         the tests, without the slow ones'
	@echo 'make test-slow    the slow tests'
	@echo 'make test-models  training steps of models of other libraries; installs these'
	@echo 'make test-netns   two hosts joined by a slow link, where network namespaces can be made (root)'
	@echo 'make lint         ruff and pyright'
	@echo 'make docs         the site in site/, built strictly'
	@echo 'make clean        remove .venv and everything generated'

demo: $(INSTALLED)
	$(BIN)/autopar demo

test: $(INSTALLED)
	$(PYTEST) -m 'not slow and not models and not netns' $(ARGS)

test-slow: $(INSTALLED)
	$(PYTEST) -m 'slow and not netns' $(ARGS)

test-models: $(WITH_MODELS)
	$(PYTEST) -m models $(or $(ARGS),tests/models tests/docs)

test-netns: $(INSTALLED)
	$(BIN)/python -m pytest -m netns $(or $(ARGS),tests/slow_links)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: $(WITH_DOCS)
	$(BIN)/python -m mkdocs build --strict --quiet

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "autopar needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version 2>&1`. Name another: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(WITH_MODELS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable '.[dev,models]'
	@touch $@

$(WITH_DOCS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist site .demo .hypothesis .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
