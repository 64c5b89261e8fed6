# The two commands of the README. Both work from a fresh clone with only Python 3.11+.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint sbom audit-dependencies clean

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

# Neither tool is a dependency: they live in an environment of their own.
sbom: .venv/audit.stamp
	.venv/audit/bin/cyclonedx-py requirements constraints.txt --pyproject pyproject.toml \
		--output-reproducible --output-format JSON --output-file sbom.json

# Strict: a package that the database does not know, or no network, is a failure and not a pass.
audit-dependencies: .venv/audit.stamp
	.venv/audit/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

.venv/audit.stamp: Makefile
	$(PYTHON) -m venv .venv/audit
	.venv/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit cyclonedx-bom
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
