# The two commands of the README. Both work from a fresh clone with only Python 3.11+.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check lint docs release-check oldest newest sbom audit-dependencies clean

demo: .venv/demo.stamp
	$(BIN)/python -m ratewise.cli.demo

test: .venv/test.stamp lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -q

# Lint, types and the fast tests.
check: .venv/test.stamp lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -q -m "not slow" tests/unit

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in build/docs. Warnings are errors, broken internal links too; no network is needed.
docs: .venv/docs.stamp
	rm -rf build/docs docs/auto_examples docs/auto_attacks docs/api/generated
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs
	$(BIN)/python docs/check_links.py build/docs

# Before a release: wheel and sdist, each installed into a fresh environment that is not this folder, and a small fit with each.
release-check:
	PYTHON=$(PYTHON) .ci/release-check

# Before a release: the fast tests with the lowest and with the newest versions that pyproject.toml allows.
oldest newest:
	PYTHON=$(PYTHON) .ci/versions $@

.venv/demo.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/test.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e '.[test]'
	touch $@

.venv/docs.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e '.[docs]'
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
