# setup   install treadle into .venv, with what the checks and tests need
# check   format, lint, types
# test    install and run the tests
# test-clients   other people's clients and routers against the server; FILES=… for some of them
# test-grammars  the grammar backends that are extras, with what they bring
# fuzz-api       schemathesis against the server's /openapi.json
# clients-short  of both what takes two minutes
# bench   speed in this process, beside what the machine allows; MODEL=file.gguf for others
# soak    ten minutes of random requests to a real server; SOAK_SECONDS=60 for less
# serve   install treadle alone and serve the demo model; MODEL=file.gguf PORT=9000 for others

PYTHON ?= python3
MODEL ?= demo
HOST ?= 127.0.0.1
PORT ?= 8000
SOAK_SECONDS ?= 600
FILES ?= tests/clients
BIN := .venv/bin
CLIENTS := .venv-clients
NATIVE := CMakeLists.txt pyproject.toml $(shell find native -type f)

.PHONY: setup check test test-clients test-grammars fuzz-api clients-short bench soak serve clean

setup: .venv/installed-test

check: .venv/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: .venv/installed-test
	$(BIN)/python -m pytest

test-clients: .venv/installed-test $(CLIENTS)/installed
	$(CLIENTS)/bin/python -m pytest -c tests/clients/pytest.ini $(FILES)

test-grammars: .venv/installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--editable '.[lm-format-enforcer,outlines,xgrammar]'
	$(BIN)/python -m pytest tests/grammars/test_extras.py

fuzz-api: .venv/installed-test $(CLIENTS)/installed-short
	$(CLIENTS)/bin/python -m pytest -c tests/clients/pytest.ini tests/clients/fuzz_api.py

clients-short: .venv/installed-test $(CLIENTS)/installed-short
	EXAMPLES=10 $(CLIENTS)/bin/python -m pytest -c tests/clients/pytest.ini \
		tests/clients/test_openai.py tests/clients/fuzz_api.py

bench: .venv/installed
	$(BIN)/treadle bench latency $(MODEL) --input-len 32 --output-len 128
	$(BIN)/treadle bench latency $(MODEL) --input-len 512 --output-len 1
	$(BIN)/treadle bench latency $(MODEL) --input-len 2048 --output-len 1
	$(BIN)/treadle bench throughput $(MODEL) --num-prompts 32 --input-len 128 --output-len 128

soak: .venv/installed-test
	$(BIN)/python -m tests.soak $(SOAK_SECONDS)

serve: .venv/installed
	$(BIN)/treadle serve $(MODEL) --host $(HOST) --port $(PORT)

clean:
	rm -rf .venv $(CLIENTS) build

.venv/bin/python:
	$(PYTHON) -m venv .venv

# Python sources are used in place; the extension module is built again when its sources change.
.venv/installed: .venv/bin/python $(NATIVE)
	@echo 'installing treadle: compiling its kernels takes about a minute'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/installed-test: .venv/bin/python $(NATIVE)
	@echo 'installing treadle and what its tests need: a few minutes'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch .venv/installed $@

$(CLIENTS)/bin/python:
	$(PYTHON) -m venv $(CLIENTS)

$(CLIENTS)/installed-short: tests/clients/requirements-short.txt $(CLIENTS)/bin/python
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

$(CLIENTS)/installed: tests/clients/requirements.txt $(CLIENTS)/installed-short
	@echo 'installing the clients apart from treadle: a few minutes, 1.5 GB'
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@
