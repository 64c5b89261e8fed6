# The two commands of the README. Both work from a fresh clone with only Python 3.11+.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint clean

demo: .venv/demo.stamp
	$(BIN)/python -m ratewise.demo

test: .venv/test.stamp lint
	$(BIN)/python -m pytest -n auto -q

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/demo.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/test.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e '.[test]'
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
