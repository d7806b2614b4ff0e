# The two commands: `make demo` shows what reprokit does, `make test` checks that it does. Each makes .venv the first time.

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && exit; done; echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
INPUTS := pyproject.toml constraints.txt

.PHONY: help demo test lint check image clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo    train until a step goes NaN; capture, reduce, replay and bundle it       (ARGS="--healthy")'
	@echo "make test    lint, types, layers and all tests                                        (ARGS='-m \"not slow\"')"
	@echo 'make lint    the first three alone'
	@echo 'make image   a base image for Docker without a registry (root)'
	@echo 'make clean   remove what these made'

demo: $(VENV)/demo.installed
	@$(BIN)/reprokit demo --out demo $(ARGS)

test: lint
	@$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/dev.installed
	@$(BIN)/ruff check
	@$(BIN)/lint-imports
	@$(BIN)/mypy

image:
	@.ci/engine && .ci/base-image

clean:
	rm -rf $(VENV) demo dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/%.installed: $(VENV)/made $(INPUTS)
	@echo "installing what is needed into $(VENV): a few minutes, this once" >&2
	@$(INSTALL) -e '.[$*]'
	@touch $@

$(VENV)/made:
	@PYTHON='$(PYTHON)' .ci/venv $(VENV)
	@touch $@
