# Needs only Python >= 3.11, make and a package registry.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Tests wait for processes, elections and timeouts most of the time, so more run at once than there are cores.
AT_ONCE ?= 6
PYTEST := $(BIN)/pytest -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder
# Slow checks of the whole: `make proof` runs them, `make test` does not.
PROOF  := tests/chaos tests/simulator tests/protocol_model tests/types \
  tests/web/test_browser.py tests/web/test_schemathesis.py \
  tests/acceptance/test_site.py tests/acceptance/test_wheel.py tests/acceptance/test_deploy.py \
  tests/processes/test_full_disk.py tests/processes/test_exactly_once.py tests/processes/test_flows.py
STAMP  := $(VENV)/.installed
# Each process of the suite would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test check browser proof golden reference docs bench chaos simulate mutants effects fuzz dist sbom upgrade versions clean

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Recruiter needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

install: $(STAMP) ## make the virtual environment in .venv

demo: $(STAMP) ## run real jobs on a private MongoDB and show what happened
	$(BIN)/python examples/demo.py

test: $(STAMP) ## run the test suite against a real MongoDB
	$(PYTEST) $(PROOF:%=--ignore=%)

check: $(STAMP) ## format, lint, types, import direction, prose, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python packaging/prose.py
	$(PYTEST) $(PROOF:%=--ignore=%)

browser: $(STAMP) ## test the web console in a real browser
	$(BIN)/pytest tests/web/test_browser.py

proof: $(STAMP) ## the slow checks: chaos, simulator, mutants, browser, site, packaging; about an hour
	$(BIN)/pip install --quiet --disable-pip-version-check schemathesis
	$(PYTEST) $(PROOF)
	RECRUITER_TEST_DEPTH=2 $(PYTEST) tests/property tests/unit tests/steps/test_search.py tests/store/test_due_in_many_lanes.py \
	  tests/processes/test_hostile_documents.py tests/processes/test_composition.py
	$(MAKE) simulate mutants chaos JOBS=50000 SECONDS=300

golden: $(STAMP) ## write the sentences of errors, explain, doctor and command line again; review the difference
	$(BIN)/python -m tests.golden

reference: $(STAMP) ## write the generated pages of docs/reference from the code; a test says when they are old
	$(BIN)/python docs/_site/reference.py

docs: $(STAMP) ## build the documentation site into build/site; a warning is an error
	rm -rf build/site
	$(BIN)/python docs/_site/build.py

bench: $(STAMP) ## measure enqueue and drain rates, and what a full task costs the others; prints tables
	$(BIN)/python benchmarks/drain.py
	$(BIN)/python benchmarks/full_task.py

JOBS ?= 20000
SECONDS ?= 120
SEED ?= $(shell date +%Y%m%d)
PAUSE ?= 0.35
DATABASE_PAUSE ?= 6
BESIDE ?= 0
chaos: $(STAMP) ## break processes and MongoDB for SECONDS while JOBS run, check that nothing is lost; SEED repeats the faults
	$(BIN)/python -m tests.chaos.run --jobs $(JOBS) --seconds $(SECONDS) --seed $(SEED) \
	  --pause $(PAUSE) --database-pause $(DATABASE_PAUSE) --beside $(BESIDE) --out build/chaos

SEEDS ?= 10000
simulate: $(STAMP) ## run the real steps in SEEDS small worlds with a virtual clock, where every call may fail
	$(BIN)/python -m tests.simulator --seeds $(SEEDS)

mutants: $(STAMP) ## leave out one rule of the source at a time, and see that a check catches each
	$(BIN)/python -m tests.mutants

effects: $(STAMP) ## 2,000 jobs count in their own transactions under kills, freezes and step-downs: the sum must be exact
	$(BIN)/python benchmarks/exactly_once.py
	$(BIN)/python benchmarks/once.py

fuzz: $(STAMP) ## put 3,000 hostile documents into every collection beside a fleet at work
	RECRUITER_FUZZ=3000 RECRUITER_TEST_DEPTH=1 $(BIN)/pytest -q -s tests/processes/test_hostile_documents.py

dist: $(STAMP) ## build wheel and sdist, check them, and run the README from the wheel in an empty environment
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	RECRUITER_WHEEL=1 $(BIN)/pytest tests/acceptance/test_wheel.py

sbom: $(STAMP) ## write build/sbom.cdx.json and build/licences.md for the wheel in dist
	$(BIN)/pip install --quiet --disable-pip-version-check cyclonedx-bom pip-licenses
	test -d dist || $(BIN)/python -m build --no-isolation
	$(BIN)/python packaging/licences.py dist/*.whl build

upgrade: $(STAMP) ## run an earlier release and this one side by side on one database, there and back; needs the git history
	$(BIN)/python packaging/upgrade.py

versions: $(STAMP) ## run a part of the suite with every Python that is here, and with the oldest dependencies
	$(BIN)/python packaging/versions.py

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache build dist
