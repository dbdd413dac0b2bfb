# Every target alone makes the virtual environment and does its job on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-slow check lint types results clean

demo: $(INSTALLED)
	$(BIN)/openldn demo

test: $(INSTALLED)
	$(BIN)/pytest -q -n auto

test-slow: $(INSTALLED)
	$(BIN)/pytest -q -m slow

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(INSTALLED)
	$(BIN)/mypy

check: lint types test

results: $(INSTALLED)
	$(BIN)/python docs/results.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
