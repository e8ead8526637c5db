# setup   install treadle into .venv, with what the checks and tests need
# check   format, lint, types
# test    install and run the tests
# bench   speed on the demo model, beside what the machine allows
# serve   install treadle alone and serve the demo model (MODEL=file.gguf for another)

PYTHON ?= python3
MODEL ?= demo
BIN := .venv/bin
NATIVE := CMakeLists.txt pyproject.toml $(shell find native -type f)

.PHONY: setup check test bench serve clean

setup: .venv/installed-test

check: .venv/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: .venv/installed-test
	$(BIN)/python -m pytest

bench: .venv/installed
	$(BIN)/python benchmarks/engine.py

serve: .venv/installed
	$(BIN)/treadle serve $(MODEL)

clean:
	rm -rf .venv build

.venv/bin/python:
	$(PYTHON) -m venv .venv

# Python sources are used in place; the extension module is built again when its sources change.
.venv/installed: .venv/bin/python $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/installed-test: .venv/bin/python $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch .venv/installed $@
