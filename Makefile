# What a contributor runs; CONTRIBUTING.md says more.
python := .venv/bin/python

.PHONY: setup check test docs site external-links release

setup:
	python3 -m venv .venv
	.venv/bin/pip install -q -e '.[test]'

check:
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy
	$(python) -m pytest -q -n 2 --dist loadfile tests/unit

test:
	$(python) -m pytest -n 3 --dist loadfile

docs:
	$(python) docs/generate.py
	$(python) docs/licences.py

site:
	.ci/site

external-links:
	$(python) docs/links.py

release:
	$(python) release.py
