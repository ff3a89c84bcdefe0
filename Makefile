# The two commands of the README are `make run` and `make test`; each does all the set-up that it needs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STATE ?= $(if $(XDG_STATE_HOME),$(XDG_STATE_HOME),$(HOME)/.local/state)/trikubelet
# What the tests on real containerd and in a real browser need, by Debian's names. They start what they use: the
# registry's service is not for this machine to have.
DEBIAN_PACKAGES := containerd runc containernetworking-plugins busybox-static bash-static docker-registry iproute2 \
  iptables procps dbus-daemon libseccomp2 passt chromium chromium-driver
# Five processes for two cores: those of the tests on containers wait for the machine much of the time.
PYTEST_ARGS ?= --processes 5

.PHONY: run test quick pytest lint types protos check-protos parity mutants nightly perf docs reference packages wheel pex deb binary image clean

run: $(VENV)/installed
	$(BIN)/trikubelet run --manifests examples/pods --root-dir $(STATE) --runtime-endpoint embedded

# The checks need one processor for half a minute, in which pytest collects the tests on another one.
test: $(VENV)/installed-dev packages
	@$(MAKE) --no-print-directory --jobs 4 pytest lint types check-protos

pytest: $(VENV)/installed-dev packages
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# Within a minute, and without root: what the changes since the last commit, or since SINCE, are most likely to break.
quick: $(VENV)/installed-dev
	@$(BIN)/python -m tests.quick $(SINCE)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/installed-dev
	$(BIN)/mypy

protos: $(VENV)/installed-dev
	$(BIN)/python protos/generate.py

check-protos: $(VENV)/installed-dev
	$(BIN)/python protos/generate.py --check

# docs/parity.md of the tables in docs/parity: what of the kubelet is here, and what is not.
parity: $(VENV)/installed-dev
	$(BIN)/python -m tests.parity

# Takes one guard of a pod's life away after the other, and wants the tests that run by day to notice each.
mutants: $(VENV)/installed-dev
	$(BIN)/python -m tests.mutants

# All that takes longer than a day's patience, about an hour on two processors, with one table at its end.
# `make nightly MINUTES=20` has fewer examples, `make nightly SEED=7` those of an earlier night.
nightly: $(VENV)/installed-dev packages
	$(BIN)/python -m tests.nightly $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

# Processor time and memory beside the last release; fails when a figure got worse by more than 15 % and the spread.
perf: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.perf

# The documentation as a site, in build/site.
docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

# The pages of the documentation that are written from the code.
reference: $(VENV)/installed-dev
	$(BIN)/python docs/write_reference.py

# As root on Debian, install what is missing; elsewhere the tests that need it say so and are skipped.
packages:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  missing=$$(for package in $(DEBIAN_PACKAGES); do \
	    dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || echo $$package; done); \
	  if [ -n "$$missing" ]; then \
	    echo "installing" $$missing; \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing; \
	    case "$$missing" in *docker-registry*) systemctl disable --now docker-registry 2>/dev/null || true;; esac; \
	  fi; \
	fi

$(BIN)/python:
	@echo "Making a virtual environment in $(VENV)."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	@echo "Installing trikubelet and the packages that it needs into $(VENV), once. This takes about a minute."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

# trio-typing ships stubs that hide Trio's own, newer types from mypy: see docs/decisions.md.
$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing trikubelet and the packages that its tests need into $(VENV), once. This takes some minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	rm -rf $(VENV)/lib/python3*/site-packages/trio-stubs
	touch $@ $(VENV)/installed

# What people install, in dist/: see docs/installing.md.
wheel pex deb binary image: $(VENV)/installed-dev
	$(BIN)/python packaging/build.py $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
