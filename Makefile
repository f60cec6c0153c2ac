# The commands people type. `make demo` and `make test` do all the set-up by themselves.
PY := .venv/bin/python
PYTEST_ARGS ?=

.PHONY: demo test check bench chaos soak mutants docs setup lock format clean

demo: setup          ## a scene of 105 megapixels becomes a map, live, from nothing; see demo-output
	@$(PY) -m dagmaster.cli.main demo

test: setup          ## every test, on a real PostgreSQL
	@scripts/test $(PYTEST_ARGS)

check: setup         ## lint, types, import rules
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-cache

bench: setup         ## the engine beside its peers, rasters beside gdalwarp, tiles beside rio-tiler; renews docs/performance.md
	@code=0; \
	$(PY) bench/engine.py --json bench/results/engine.json $(BENCH_ARGS) || code=1; \
	$(PY) bench/raster.py $(RASTER_BENCH_ARGS) || code=1; \
	$(PY) bench/tiles.py $(TILES_BENCH_ARGS) || code=1; \
	$(PY) bench/report.py bench/results/engine.json || code=1; \
	exit $$code

chaos: setup         ## faults on real processes for some minutes, then a verdict; CHAOS_ARGS=--help says more
	@$(PY) -m chaos $(CHAOS_ARGS)

soak: setup          ## an hour of steady load with retention: does anything grow? SOAK_ARGS="--minutes 2" tries it
	@$(PY) -m chaos.soak $(SOAK_ARGS)

mutants: setup       ## the known bugs of such engines, sown one by one: the tests must catch each
	@$(PY) -m mutants $(MUTANTS_ARGS)

docs: setup          ## draw the pages that come from the code
	@$(PY) scripts/draw_states.py
	@$(PY) scripts/list_settings.py
	@$(PY) scripts/write_reference.py
	@$(PY) scripts/list_requirements.py

setup:
	@scripts/setup

lock: setup          ## renew requirements/*.txt (needs uv on PATH)
	uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 --all-extras pyproject.toml -o requirements/base.txt
	uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 --all-extras pyproject.toml requirements/dev.in -o requirements/dev.txt
	cd bench/peers && for peer in *.in; do uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 $$peer -o $${peer%.in}.txt; done

format: setup
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
