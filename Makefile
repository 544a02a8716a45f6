# Everything runs from .venv, which the first target makes. `make help` lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help install demo test test-slow compat-kombu chaos screenshots lint format bench clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

install: $(READY) ## set up .venv with everything that development needs

demo: $(READY) ## start a server and a worker, send tasks, show their results and the jobs table
	$(BIN)/python -m celery_app.demo

test: $(READY) ## run the tests on an embedded server (or on PGBROKER_TEST_DSN)
	$(BIN)/python -m pytest

test-slow: $(READY) ## run the slow tests: documents, every pool, many workers, rolling restarts
	$(BIN)/python -m pytest -m slow

compat-kombu: $(READY) ## fetch kombu's own integration tests and run them on pgbroker
	$(BIN)/python tests/compat/fetch.py kombu
	$(BIN)/python -m pytest -m compat tests/compat/test_kombu.py

chaos: $(READY) ## kill workers ROUNDS times (200) in each ack mode, and hold every task to account
	PGBROKER_CHAOS_ROUNDS=$(or $(ROUNDS),200) $(BIN)/python -m pytest -m slow tests/chaos

screenshots: $(READY) ## test Flower in a browser (needs Chromium) and renew the pictures in the documents
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[browser]'
	PGBROKER_TEST_SCREENSHOTS=docs/images $(BIN)/python -m pytest -m slow -rs tests/integration/monitor/test_flower_browser.py

lint: $(READY) ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## compare with RabbitMQ, Redis and a null transport where they run
	$(BIN)/python -m benchmarks

clean: ## remove what the other targets made
	rm -rf $(VENV) .pgbroker-demo build dist *.egg-info
