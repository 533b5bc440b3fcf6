SHELL := /bin/bash
VENV := .venv
# That of the environment if there is one; else the system's, if it can make one: it is built with optimisation.
SYSTEM_PYTHON := $(shell /usr/bin/python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo /usr/bin/python3)
PYTHON ?= $(firstword $(wildcard $(VENV)/bin/python) $(SYSTEM_PYTHON) python3)
BIN := $(VENV)/bin
# Tests wait more than they compute.
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))
STAMP := $(VENV)/.stamp-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
DEMO_STAMP := $(subst .stamp-,.stamp-demo-,$(STAMP))

.PHONY: help setup compiled java class-archives components demo lint test test-all record docs reference bench simulate soak mutants evidence applications clean
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP)  ## the Python environment in .venv

$(STAMP): pyproject.toml constraints.txt
	$(call install,spark$(comma)test,for the tests: Spark and table formats and clients (2.2 GB; some two minutes))
	@touch $@

# What the demo needs, if nothing else was asked for: half of that.
$(DEMO_STAMP): pyproject.toml constraints.txt
	$(call install,spark$(comma)secure,for the demo: Spark and Arrow (1.2 GB; a minute or two))
	@touch $@

comma := ,
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up $(VENV), once, $(2) ..."
	@$(PYTHON) -m venv $(VENV)
	@echo "  pyspark, which pip builds from its source archive ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt pyspark
	@echo "  the other packages ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(1)]'
	@$(BIN)/python -m compileall -q src  # installing does that for others' code, and every broker starts from it
	@$(BIN)/python -c 'from nilometer.pipeline.decode.column_decoder import warm_up; warm_up()'  # compiled by the first run else
	@rm -f $(VENV)/.stamp-*
endef

demo: $(if $(wildcard $(STAMP)),,$(DEMO_STAMP))  ## the main job on real log lines, with its numbers checked; INPUT=path names a file or folder, SECURE=1 uses TLS, users and ACLs
	@$(BIN)/python -m nilometer.cli.demo $(if $(SECURE),--secure) $(if $(ZOOKEEPER),--zookeeper "$(ZOOKEEPER)") $(if $(INPUT),"$(INPUT)")

java:  ## Apache Kafka, its clients and tools, Spark's Kafka connector, applications of Kafka, for tests and benchmarks
	@KAFKA_VERSION=$(KAFKA_VERSION) tests/java/build.sh

# Where docs/vocabulary.txt is enforced.
VOCABULARY := README.md CHANGELOG.md CONTRIBUTING.md Makefile bench docs src tests tools

lint: setup  ## style, words, import layers, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell $(VOCABULARY)
	$(BIN)/lint-imports
	$(BIN)/pyright

compiled: setup  ## the modules of the hot path, compiled: NILOMETER_COMPILED=1 uses them
	@$(BIN)/python -m nilometer.compiled.build --if-stale

components:  ## ZooKeeper, kcat and what else the tests run beside Nilometer
	@tests/components.sh

class-archives: setup java  ## archives of Java classes, which let the JVMs of the tests start in half the processor time
	@PYTHONPATH=tests $(BIN)/python -m support.class_archives.write

SIDE_BY_SIDE := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
QUICK_TESTS := $(BIN)/python tests/support/quick_part.py $(SIDE_BY_SIDE)

test: setup  ## what to run after a change, in a few minutes: unit tests, each promise once; WORKERS=1: one after the other
	@$(QUICK_TESTS)

COMPILED_TESTS := $(addprefix tests/process/,coordination crash groups security wire)

test-all: setup compiled java class-archives components  ## all tests but the long campaigns, and the processor time of `make test`; some compiled, too
	@$(QUICK_TESTS) --budget
	$(BIN)/pytest -m "not quick and not soak" $(SIDE_BY_SIDE)
	NILOMETER_COMPILED=1 $(BIN)/pytest -m "not quick and not soak and not interpreted" $(SIDE_BY_SIDE) $(COMPILED_TESTS)

record: setup java class-archives  ## write what Apache Kafka answers to the tests that compare with it
	$(BIN)/pytest tests/compatibility/as_kafka -m "recorded and java" --record

docs: setup  ## the documentation as a site, in build/docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --conf-dir docs . build/docs
	@echo "build/docs/index.html"

reference: setup  ## write the parts of docs/ that are made from the code
	PYTHONPATH=tests $(BIN)/python -m support.documentation.write_reference

bench: setup compiled java  ## Nilometer beside Apache Kafka; BENCH='--row start --rounds 5' passes options
	NILOMETER_COMPILED=1 $(BIN)/python -m bench $(BENCH)

simulate: setup  ## whole clusters in a virtual world: a fixed set of seeds; SIMULATE='--seed 900 --seeds 50' chooses others
	$(BIN)/nilometer simulate $(if $(SIMULATE),$(SIMULATE),--seeds 20 --minutes 1)

soak: setup java components  ## the long campaigns, and all property tests with EXAMPLES=50 times as many examples at random
	$(BIN)/pytest -m "soak or hypothesis" --examples $(if $(EXAMPLES),$(EXAMPLES),50) --timeout 7200

mutants: setup java components  ## which tests notice small changes of the source; MUTANTS='NAME …' tries only these
	@PYTHONPATH=tests $(BIN)/python -m mutants $(MUTANTS)
	$(if $(MUTANTS),,@PYTHONPATH=tests $(BIN)/python -m mutants.drawn)

evidence: setup java components  ## real brokers under faults, and a report of it; EVIDENCE='--minutes 480' plays for longer
	PYTHONPATH=src:tests $(BIN)/python -m support.evidence play $(EVIDENCE)

applications: setup java components  ## Kafka Streams, Connect, MirrorMaker, a registry, Debezium: each test REPEAT=10 times
	$(BIN)/pytest -m "application and not soak" --repeat $(if $(REPEAT),$(REPEAT),10) --verbose --durations 0 --durations-min 1

clean:  ## remove everything that was built
	rm -rf $(VENV) build .nilometer tests/java/target bench/native/target
