# Everyday commands; `make help` lists them. On a bare machine they need Python 3.11 to 3.13 and make, and bring
# the rest; where that works is in requirements/machine.sh.
.DEFAULT_GOAL := help
.SUFFIXES:
SHELL := /bin/sh
PYTHON := .venv/bin/python
UV := UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1 .uv/bin/uv
# How the locks are made; `make check` makes them again and compares. Every Python gets the same versions, as the suite
# runs with one Python: with a newer django-unfold for 3.12 and later, the web server did not start there.
COMPILE := pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --generate-hashes --no-header pyproject.toml
RUN_GROUPS := --group embedded
REPORTS_GROUPS := -c requirements/run.txt --group embedded --group reports
DEV_GROUPS := -c requirements/run.txt --group embedded --group reports --group test --group check
# DATABASE=system: tests and benchmarks run on Debian's PostgreSQL with its defaults instead of the embedded one.
export REQUIRE_ALL SEED SEEDS SIEGE_SECONDS READ_ONLY_SECONDS DATABASE
SYSTEM_DATABASE = $(if $(filter system,$(DATABASE)),postgresql)
# Of the test suite: three keep two cores busy, as tests wait for servers and browsers. A part of it needs one only.
PROCESSES ?= $(if $(ARGS),0,3)
IMAGES ?= server reports
# Python compiles 300 test modules in each process of the suite unless it may keep what it compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: doctor check-deploy image-test restore-drill openapi reference screenshots help demo-reports install install-reports dev run restart up test test-nightly test-distribution check bench lock format clean peers interop status-interop xmpp-interop chaos storm siege failover-test simulate upgrade-test fuzz mutants audit coverage

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 21

install: ## install what the server needs, start nothing
	@requirements/install.sh run

doctor: ## what this machine lacks: system, Python, disk, memory, port, clock, programs, settings; installs nothing
	@python=$$(requirements/machine.sh --python || command -v python3) || { requirements/machine.sh system python; exit 1; }; \
	"$$python" requirements/doctor.py

install-reports: ## install what nightly reports need, too: PySpark, PyArrow, Java 17 (400 MB); S3=1: Spark's connector to S3 (690 MB)
	@requirements/install.sh reports
	@requirements/system.sh java
	@if [ -n "$(S3)" ]; then requirements/s3.sh; fi

run: install ## the server with everything it needs, and clients that keep it busy (manage.py demo); XMPP=1 installs Prosody, too
	@if [ -n "$(XMPP)" ]; then requirements/system.sh prosody; fi
	@exec $(PYTHON) manage.py demo

restart: install ## have a running `make up` or `make run` replace its processes by ones with the code as it is now; nobody waits
	@kill -USR1 $$(cat "$${DATA_DIR:-.data}/up.lock")

up: install ## the server alone, configured by the environment (manage.py up)
	@exec $(PYTHON) manage.py up

dev: ## install what tests and checks need, too
	@requirements/install.sh dev

# A test that hangs for 20 minutes ends the run, which names it and prints the stack of each thread.
HANGS = --max-worker-restart=0 -o faulthandler_timeout=1200 -o faulthandler_exit_on_timeout=true
SUITE = $(if $(NIGHTLY),HYPOTHESIS_PROFILE=nightly) $(PYTHON) -m pytest -n $(PROCESSES) --durations=50 $(HANGS)

test: dev ## the test suite, with real servers: every promise once; ARGS="-k name" for a part, NIGHTLY=1 for many more made-up inputs
	@requirements/system.sh chromium java postgresql prometheus redis
	$(SUITE) $(ARGS)

coverage: dev ## branch coverage of the suite, with the servers that it starts (twice as long as `make test`); ARGS for a part
	@requirements/system.sh chromium java postgresql prometheus redis
	$(PYTHON) -m coverage erase
	$(PYTHON) -m coverage run -m pytest -n $(PROCESSES) $(HANGS) $(ARGS)
	$(PYTHON) -m coverage combine --quiet
	$(PYTHON) -m coverage report --skip-covered

test-nightly: dev ## what `make test` leaves out: the same promises for every page, role and kind of Spark, and what takes long
	@requirements/system.sh chromium java go
	$(SUITE) -m nightly $(ARGS)

test-distribution: dev ## what reads strangers' bytes, on the distribution's own Python where that is another one (one minute)
	@PROCESSES=$(PROCESSES) requirements/distribution.sh

chaos: dev ## fault runs: every fault of both bridges, workers, gorush, nodes and database under the load of both networks, and five minutes without a provider, in seven ways (an hour)
	@requirements/system.sh go prosody postgresql
	@tests/interop/peers/build.sh gorush
	DATABASE=system PEERS=.peers $(PYTHON) tests/interop/offline.py $(PYTHON) -m pytest -q -m chaos -s tests/chaos $(ARGS)

storm: ## the shortest of the fault runs, with a fail-over of PostgreSQL (90 seconds)
	@$(MAKE) chaos ARGS="-k short"

failover-test: ## a fail-over of PostgreSQL, synchronous and not, and a read-only one, under the load of both networks; READ_ONLY_SECONDS=3600
	@$(MAKE) chaos ARGS="-k failover"

siege: dev ## a thousand hostile keys for five minutes, and 100 000 messages at once, beside honest clients, and attacks one by one, on this machine alone; prints the figures
	@requirements/system.sh prosody $(SYSTEM_DATABASE)
	$(PYTHON) -m pytest -q -m chaos -s tests/siege $(ARGS)

restore-drill: dev ## lose the database and restore it to a point in time (docs/backup.md), with figures; REGISTRATIONS=1000000
	REGISTRATIONS=$(REGISTRATIONS) $(PYTHON) -m pytest -q -m nightly -s tests/drills/test_restore.py

upgrade-test: dev ## an upgrade from the last release under Waku and XMPP load, nothing lost or doubled, with figures (3 minutes)
	@requirements/system.sh prosody
	$(PYTHON) -m pytest -q -m upgrade -s tests/upgrades $(ARGS)

simulate: dev ## a simulated world with every kind of failure, one for each seed: SEEDS=10000 for many, SEED=7 for one
	$(PYTHON) -m pytest -q -s tests/simulation $(if $(SEED)$(SEEDS),-k nothing_is_lost)

fuzz: dev ## made-up bytes for whatever reads what strangers send, led by coverage: two minutes, or FUZZ=-runs=1400000
	$(PYTHON) -m tests.fuzz $(or $(FUZZ),-max_total_time=17)

mutants: dev ## mutation testing of the pure decisions and the codec: which changes of theirs no test notices; ARGS=registrations/rules.py for a part
	$(PYTHON) -m tests.mutants $(ARGS)

audit: dev ## licences of what the server runs with, and known vulnerabilities of what the locks name (asks a service for these)
	$(PYTHON) requirements/audit.py

check: dev ## format, lint, types, import contracts, migrations, drift of generated files
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy .
	.venv/bin/lint-imports
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && set -e && export DATA_DIR="$$folder/data" && \
	echo "manage.py check" && $(PYTHON) manage.py check && \
	echo "manage.py makemigrations --check" && \
	$(PYTHON) -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run && \
	echo "proto drift" && PYTHON="$(abspath $(PYTHON))" proto/generate.sh "$$folder/pb" && \
	diff -r -x __pycache__ "$$folder/pb" waku_bridge/codec/pb && \
	echo "OpenAPI drift" && $(PYTHON) manage.py spectacular --validate --fail-on-warn --file "$$folder/openapi.yaml" && \
	diff "$$folder/openapi.yaml" docs/openapi.yaml && \
	echo "documents: spelling, links, names, generated pages" && .venv/bin/codespell && $(PYTHON) -m pytest -q -s tests/test_documents.py && \
	echo "documented schema of the lake, against files" && $(PYTHON) -m pytest -q -k documented spark_reports/tests/test_export.py && \
	echo "lock drift" && cp requirements/run.txt requirements/reports.txt requirements/dev.txt "$$folder" && \
	$(UV) $(COMPILE) $(RUN_GROUPS) -o "$$folder/run.txt" >/dev/null && diff "$$folder/run.txt" requirements/run.txt && \
	$(UV) $(COMPILE) $(REPORTS_GROUPS) -o "$$folder/reports.txt" >/dev/null && diff "$$folder/reports.txt" requirements/reports.txt && \
	$(UV) $(COMPILE) $(DEV_GROUPS) -o "$$folder/dev.txt" >/dev/null && diff "$$folder/dev.txt" requirements/dev.txt && \
	echo "wheels for each processor and Python" && requirements/wheels.sh

check-deploy: ## compose.yaml, the Helm chart and the systemd units, each against its specification; needs Go, no cluster
	@requirements/system.sh go systemd
	@deploy/check.sh

image-test: dev ## build the images without a Docker engine and run every process of compose.yaml from them (as root on Debian); IMAGES=server
	@requirements/system.sh buildah prosody
	@tests/image/build.sh $(IMAGES)
	IMAGES="$(IMAGES)" $(PYTHON) tests/interop/offline.py $(PYTHON) -m pytest tests/image -m image $(ARGS)

peers: ## build the real gorush and a Waku node from their Go modules into .peers
	@requirements/system.sh go compiler
	@tests/interop/peers/build.sh gorush waku

interop: dev peers ## the tests that need real peers, without a network; ARGS="-k name" for a part
	PEERS=.peers $(PYTHON) tests/interop/offline.py $(PYTHON) -m pytest tests/interop -m peers $(ARGS)

status-interop: dev peers ## real Messengers of status-go (built once, some minutes) at a real Waku node, this server and the real gorush: a line for each scenario
	@tests/interop/peers/build.sh status
	PEERS=.peers $(PYTHON) tests/interop/offline.py $(PYTHON) -m pytest tests/interop/status -m status -q -s $(ARGS)

xmpp-interop: dev ## the tests that need a real Prosody and a real ejabberd (installed as root on Debian); ARGS="-k name" for a part
	@requirements/system.sh prosody ejabberd
	$(PYTHON) tests/interop/offline.py $(PYTHON) -m pytest tests/interop/xmpp -m xmpp $(ARGS)

bench: dev ## benchmarks with ratios; ARGS for its options, DATABASE=system
	@requirements/system.sh java postgresql
	$(PYTHON) -m bench $(ARGS)

lock: dev ## write the lock files again from pyproject.toml, keeping versions where possible
	$(UV) $(COMPILE) $(RUN_GROUPS) -o requirements/run.txt >/dev/null
	$(UV) $(COMPILE) $(REPORTS_GROUPS) -o requirements/reports.txt >/dev/null
	$(UV) $(COMPILE) $(DEV_GROUPS) -o requirements/dev.txt >/dev/null

openapi: dev ## write docs/openapi.yaml again from the code of the API
	$(PYTHON) manage.py spectacular --validate --fail-on-warn --file docs/openapi.yaml

reference: dev ## write the pages of docs/ again that are made from the code
	$(PYTHON) manage.py reference settings >docs/settings.md
	$(PYTHON) manage.py reference metrics >docs/metrics.md
	$(PYTHON) manage.py reference error-rules >docs/error-rules.md
	$(PYTHON) -m tests.conformance
	$(PYTHON) -m tests.figures

demo-reports: dev ## compute the stored reports of the demonstration again, after a change of Spark's jobs
	@requirements/system.sh java
	STORE_REPORTS=1 $(PYTHON) -m pytest -q spark_reports/tests/test_made_up.py

screenshots: dev ## take the pictures of the README again, in Chromium, of a server with made-up data
	@requirements/system.sh chromium
	WRITE_PICTURES=docs/screenshots $(PYTHON) -m pytest -q tests/console/test_look.py -k pictures

format: dev ## format and fix what can be fixed
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

clean: ## remove installed packages and caches; data in .data stays
	rm -rf .peers .tools .venv .uv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache staticfiles test-results
