# mcproxy: `make run` tries it out; `make check` and `make test` are what CI runs. Needs Python 3.11+, git and make.

# The first Python on PATH that is new enough; `make PYTHON=/path/to/python` chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$python && break; done)
NPM := $(shell command -v npm)
GO := $(shell command -v go)
CARGO := $(shell command -v cargo)
MAVEN := $(shell command -v mvn)
BIN := .venv/bin
UV := 0.13.8

PIP := -m pip --disable-pip-version-check --no-input
LOCKED := $(PIP) install --quiet --require-hashes --requirement
NODE := tests/system/node tests/conformance/node tests/admin/node tests/upstream/oauth/node

RUNTIME := .venv/runtime.stamp
DEVELOPMENT := .venv/development.stamp
SERVERS := .cache/servers/installed.stamp
SDK1 := .cache/sdk1/installed.stamp
NPM_PACKAGES := $(if $(NPM),$(NODE:%=%/node_modules/installed.stamp))
GO_PROGRAMS := $(if $(GO),.cache/go/installed.stamp)
RUST_PROGRAM := $(if $(CARGO),.cache/rust/installed.stamp)
JAVA_PROGRAM := $(if $(MAVEN),.cache/java/installed.stamp)
USERS := .cache/bench/mcproxy/installed.stamp
PEERS := benchmarks/peers
PYPI_PEERS := $(patsubst $(PEERS)/%.txt,.cache/bench/%/installed.stamp,$(wildcard $(PEERS)/*.txt))
GO_PEERS := $(if $(GO),$(patsubst $(PEERS)/%.module,.cache/bench/%/installed.stamp,$(wildcard $(PEERS)/*.module)))
NPM_PEERS := $(if $(NPM),$(PEERS)/node_modules/installed.stamp)

# The tests start more than a thousand processes, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run check lint-advice docs test coverage bench bench-programs lock clean
.DELETE_ON_ERROR:

help:
	@echo "make run       a gateway in front of a few demo servers, set up in .venv and .cache"
	@echo "make check     style, types and layers"
	@echo "make lint-advice  hints about names, duplicates and layout; never fails"
	@echo "make docs      writes the generated parts of the documents anew"
	@echo "make test      every test; those that need npm, Go, Rust or Maven are skipped where there is none"
	@echo "make coverage  the same, with a report of what was covered"
	@echo "make bench     what a call costs beside nginx and other proxies; half an hour"
	@echo "make lock      pins anew what pyproject.toml and the *.in files ask for"
	@echo "make clean     removes all that was set up or built"

run: $(RUNTIME) $(SERVERS)
	@echo "the command is $(BIN)/mcproxy; to have it as mcproxy: export PATH=\"$(CURDIR)/$(BIN):\$$PATH\""
	$(BIN)/python config/notes_server.py 8002 $(BIN)/mcproxy serve --config config/demo.yaml

check: $(DEVELOPMENT)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Hints about shape and prose: read them, then decide.
lint-advice: $(DEVELOPMENT)
	-$(BIN)/python -m pytest tests/advice

docs: $(DEVELOPMENT)
	$(BIN)/python -m tests.deploy.metrics_table
	$(BIN)/python -m tests.docs

test: $(DEVELOPMENT) $(SERVERS) $(SDK1) $(NPM_PACKAGES) $(GO_PROGRAMS) $(RUST_PROGRAM) $(JAVA_PROGRAM)
	$(BIN)/python -m pytest -n auto

coverage: $(DEVELOPMENT) $(SERVERS) $(SDK1) $(NPM_PACKAGES) $(GO_PROGRAMS) $(RUST_PROGRAM) $(JAVA_PROGRAM)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n auto
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --show-missing

# A peer that cannot be installed is left out of the report, which says so.
bench: $(DEVELOPMENT) $(USERS) bench-programs
	-$(MAKE) --keep-going $(PYPI_PEERS) $(NPM_PEERS) $(GO_PEERS)
	-$(BIN)/python -m benchmarks.collections .cache/bench/collections
	$(BIN)/python -m benchmarks $(BENCH)

bench-programs:
	@command -v wrk && PATH=$$PATH:/usr/sbin command -v nginx || \
		if test "$$(id -u)" = 0; then apt-get install --yes --no-install-recommends wrk nginx; \
		else echo "wrk and nginx are needed: apt-get install wrk nginx" >&2; exit 1; fi

$(RUNTIME): requirements.lock pyproject.toml
	$(if $(PYTHON),,$(error no Python 3.11 or newer was found; name one with `make PYTHON=...`))
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python $(LOCKED) requirements.lock
	$(BIN)/python $(PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(DEVELOPMENT): requirements-dev.lock $(RUNTIME)
	$(BIN)/python $(LOCKED) requirements-dev.lock
	touch $@

$(USERS): requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python $(LOCKED) requirements.lock
	$(@D)/bin/python $(PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(SERVERS): config/servers.lock
$(SDK1): tests/system/sdk1.lock
$(SERVERS) $(SDK1):
	$(if $(PYTHON),,$(error no Python 3.11 or newer was found; name one with `make PYTHON=...`))
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python $(LOCKED) $<
	touch $@

.cache/bench/%/installed.stamp: $(PEERS)/%.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python $(PIP) install --quiet --requirement $<
	touch $@

# The newest release that this Go can build: ten minutes of both cores.
.cache/bench/%/installed.stamp: $(PEERS)/%.module
	GOBIN=$(CURDIR)/$(@D) nice $(GO) install -trimpath $$(cat $<)
	touch $@

%/node_modules/installed.stamp: %/package.json %/package-lock.json
	cd $* && $(NPM) ci --prefer-online --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

# Go 1.21 and newer fetch the release that go.mod asks for.
.cache/go/installed.stamp: $(wildcard tests/system/go/go.* tests/system/go/*/*.go)
	cd tests/system/go && $(GO) build -mod=readonly -o $(CURDIR)/$(@D)/ ./official ./mcpgo
	touch $@

.cache/rust/installed.stamp: $(wildcard tests/system/rust/Cargo.* tests/system/rust/src/*.rs)
	cd tests/system/rust && $(CARGO) build --quiet --locked --target-dir $(CURDIR)/$(@D)/target
	cp $(@D)/target/debug/matrix $(@D)/
	touch $@

.cache/java/installed.stamp: tests/system/java/pom.xml $(wildcard tests/system/java/src/main/java/matrix/*.java)
	cd tests/system/java && $(MAVEN) --quiet --batch-mode compile dependency:copy-dependencies
	touch $@

# The locks hold for every platform and name no registry. Edit the sources, `make lock`, commit both.
COMPILE = .cache/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make lock"

lock:
	test -x .cache/lock/bin/uv || $(PYTHON) -m venv .cache/lock
	.cache/lock/bin/python $(PIP) install --quiet uv==$(UV)
	$(COMPILE) pyproject.toml --all-extras --group build -o requirements.lock
	$(COMPILE) pyproject.toml --all-extras --group build --group dev -c requirements.lock -o requirements-dev.lock
	$(COMPILE) config/servers.in -o config/servers.lock
	$(COMPILE) tests/system/sdk1.in -o tests/system/sdk1.lock
	for folder in $(NODE); do \
		(cd $$folder && npm install --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts) || exit; done

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.* \
		dist *.egg-info $(NODE:%=%/node_modules) $(PEERS)/node_modules
	find mcproxy tests -name __pycache__ -type d -prune -exec rm -rf {} +
