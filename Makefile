# The commands people type. `make demo` and `make test` do all the set-up by themselves.
PY := .venv/bin/python
PYTEST_ARGS ?=

.PHONY: demo test check bench docs setup lock format clean

demo: setup          ## a scene of 105 megapixels becomes a map, live, from nothing; see demo-output
	@$(PY) -m dagmaster.cli.main demo

test: setup          ## every test, on a real PostgreSQL
	@scripts/test $(PYTEST_ARGS)

check: setup         ## lint, types, import rules
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-cache

bench: setup         ## the engine beside pgbench, rasters beside gdalwarp, tiles beside rio-tiler; each in one run
	@$(PY) bench/engine.py $(BENCH_ARGS)
	@$(PY) bench/raster.py $(RASTER_BENCH_ARGS)
	@$(PY) bench/tiles.py $(TILES_BENCH_ARGS)

docs: setup          ## draw the pages that come from the code
	@$(PY) scripts/draw_states.py
	@$(PY) scripts/list_settings.py
	@$(PY) scripts/write_reference.py

setup:
	@scripts/setup

lock: setup          ## renew requirements/*.txt (needs uv on PATH)
	uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 --all-extras pyproject.toml -o requirements/base.txt
	uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 --all-extras pyproject.toml requirements/dev.in -o requirements/dev.txt

format: setup
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
