PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SHOWABLE := $(VENV)/.showable
MESSAGES ?= 1000000
SEED ?= 0
SEEDS ?= 1
MINUTES ?= 10
KILLS ?= 100
SCHEME ?= kafka
# Compiled modules are kept even where this variable is set: the tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast compile-tests check integration bench attack accuracy fuzz simulate reference docs soak kill-brokers lock check-deploy check-dashboards picture check-release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Python compiles what is imported at its first use. pip would compile all that is installed, which takes longer.
setup: $(INSTALLED) ## make .venv and install streamfl into it, with the tools for development

$(INSTALLED): pyproject.toml tests/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile -e '.[dev]' -e ./tests
	@touch $@ $(SHOWABLE)

# Whoever looks for the first time need not wait for the tools for development.
$(SHOWABLE): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile -e '.[plots]'
	@touch $@

demo: $(SHOWABLE) ## run a federation in this process on data that a package carries; table and picture
	$(BIN)/streamfl demo

test: $(INSTALLED) ## run every test, those on a real Kafka broker included (needs Java 17 and Maven); SYSTEM=name: of one system
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -q -n 5 --dist worksteal $(if $(SYSTEM),--system $(SYSTEM))

test-fast: $(INSTALLED) ## run the tests of units and laws that need no broker and do not take long, with fewer examples; SYSTEM=name: the edit loop
	HYPOTHESIS_PROFILE=fast OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -q -n 3 --dist worksteal $(if $(SYSTEM),--system $(SYSTEM)) -m "not broker and not long" --ignore-glob 'tests/*integration' --ignore-glob 'tests/*/integration' --ignore-glob 'tests/*/papers' --ignore tests/alerts --ignore tests/deploy --ignore tests/examples --ignore tests/simulation --ignore tests/transcripts

compile-tests: $(INSTALLED) ## compile the tests, which each process of a first "make test" does for itself otherwise
	-@$(BIN)/pytest -q --collect-only > /dev/null

check: $(INSTALLED) ## ruff's linter and formatter, mypy --strict, import-linter, doctests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check -q .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q --doctest-modules streamfl connectors

integration: $(INSTALLED) ## run only the tests on a real Kafka broker
	$(BIN)/pytest -q tests/integration tests/*/integration

bench: $(INSTALLED) ## measure speed as ratios within one run; prints a table and writes benchmark.json
	$(BIN)/python -m benchmarks

attack: $(INSTALLED) ## attack federations without and with their protections; prints what was found out; SYSTEM=name: of one system
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.attacks $(if $(SYSTEM),--system $(SYSTEM))

accuracy: $(INSTALLED) ## measure the error of every method that is not in docs/accuracy.json; needs STREAMFL_DATA
	$(BIN)/python -m benchmarks.accuracy

fuzz: $(INSTALLED) ## give every decoder and role MESSAGES malformed messages (1000000) by a SEED (0); prints what became of them
	$(BIN)/python -m streamfl.testing.fuzz --messages $(MESSAGES) --seed $(SEED)

simulate: $(INSTALLED) ## run a federation under faults by SEED (0), or so many SEEDS; SYSTEM, BUS; LIVENESS=1 with a fault that stays; TRANSCRIPT=1 prints what happened, HASHES=1 the hash of each run
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m streamfl.testing.faults --seed $(SEED) --seeds $(SEEDS) $(if $(SYSTEM),--system $(SYSTEM)) $(if $(BUS),--bus $(BUS)) $(if $(LIVENESS),--liveness) $(if $(TRANSCRIPT),--transcript) $(if $(HASHES),--hashes)

reference: $(INSTALLED) ## write docs/reference and dashboards from the code
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m streamfl.reference

docs: $(INSTALLED) ## build the documents as a site, build/site/index.html, readable without a server
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

soak: $(INSTALLED) ## kill and stop a federation's processes and brokers for MINUTES (10) by a SEED (0); SYSTEM, SCHEME, MODE, KEYS=1; CHANGED=1 changes topics; writes soak.json
	PYTHONPATH=tests $(BIN)/python -m soak --minutes $(MINUTES) --seed $(SEED) --scheme $(SCHEME) $(if $(SYSTEM),--system $(SYSTEM)) $(if $(MODE),--mode $(MODE)) $(if $(KEYS),--keys) $(if $(CHANGED),--changed-topics)

kill-brokers: $(INSTALLED) ## kill a broker KILLS times (100) under twenty workers of each client of Kafka; none may end
	OPENBLAS_NUM_THREADS=1 STREAMFL_TEST_KILLS=$(KILLS) $(BIN)/pytest -q -s tests/integration/test_dying_broker.py -k dying_broker_takes

# The extras that roles need: the second client of Kafka, formats, encryption, spans. One lock for all versions of Python that streamfl takes.
LOCK := uv pip compile -q --universal --python-version 3.11 --generate-hashes --custom-compile-command "make lock"

lock: $(INSTALLED) ## write deploy/requirements.txt, the versions and hashes of what the image holds
	$(BIN)/$(LOCK) --extra librdkafka --extra avro --extra json-schema --extra protobuf --extra paillier --extra tracing pyproject.toml -o deploy/requirements.txt
	echo 'setuptools>=77' | $(BIN)/$(LOCK) - -o deploy/requirements-build.txt

check-deploy: $(INSTALLED) ## hold deploy/ against the real tools: pip, kubectl, Go's modules, systemd-analyze, a Kafka broker
	$(BIN)/pytest -q tests/deploy $(wildcard tests/deploy/check_*.py)

check-dashboards: $(INSTALLED) ## hold the dashboards against Grafana's linter and types (needs Go and npm; minutes the first time)
	PYTHONPATH=tests $(BIN)/python tests/dashboards/check_dashboards.py

check-release: $(INSTALLED) ## build both packages, install the wheel where no repository is, run it there (a minute or two)
	$(BIN)/pytest -q tests/packaging tests/packaging/check_release.py

picture: $(INSTALLED) ## draw docs/dashboard.png from a federation that runs for 5 minutes (needs Prometheus, npm and Chromium)
	$(BIN)/python -m benchmarks.board --rows 28

clean: ## remove everything that these targets made
	rm -rf $(VENV) .broker build dist *.egg-info connectors/*.egg-info tests/*.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo.png benchmark.json soak.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
