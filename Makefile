# The commands of this project. `make demo` and `make test` install everything that they need.
PY := .venv/bin/python
PYTEST_ARGS ?=

.PHONY: demo test check check-types check-rules ui pictures bench chaos soak mutants images docs setup lock format clean

demo: setup          ## turn a generated scene of 105 megapixels into a map; see demo-output
	@$(PY) -m dagmaster.cli.main demo

test: setup          ## run every test, on a real PostgreSQL
	@scripts/test $(PYTEST_ARGS)

check: setup         ## check lint, types and import rules, and the web pages
	@$(MAKE) --no-print-directory -j 2 --output-sync=target check-types check-rules

check-types:
	@.venv/bin/mypy

check-rules:
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/lint-imports --no-cache
	@scripts/ui check

ui: setup            ## build the web pages; setup does it too when their sources have changed
	@scripts/ui build

pictures: setup      ## take the pictures of the web pages in docs/pictures, from generated data (needs Chromium)
	@$(PY) scripts/pictures.py

bench: setup         ## measure the engine, rasters, tiles, searches, requests and web pages, and compare them with peers or targets; updates docs/performance.md
	@code=0; \
	$(PY) bench/engine.py --json bench/results/engine.json $(BENCH_ARGS) || code=1; \
	$(PY) bench/raster.py $(RASTER_BENCH_ARGS) || code=1; \
	$(PY) bench/tiles.py $(TILES_BENCH_ARGS) || code=1; \
	$(PY) bench/search.py $(SEARCH_BENCH_ARGS) || code=1; \
	$(PY) bench/access.py $(ACCESS_BENCH_ARGS) || code=1; \
	$(PY) bench/gateway.py $(GATEWAY_BENCH_ARGS) || code=1; \
	$(PY) bench/decision.py $(DECISION_BENCH_ARGS) || code=1; \
	$(PY) bench/pages.py $(PAGES_BENCH_ARGS) || code=1; \
	$(PY) bench/report.py bench/results/engine.json || code=1; \
	exit $$code

chaos: setup         ## inject faults into real processes for some minutes and check the result; options: CHAOS_ARGS=--help
	@$(PY) -m chaos $(CHAOS_ARGS)

soak: setup          ## run an hour of constant load with retention, to detect growth; shorter: SOAK_ARGS="--minutes 2"
	@$(PY) -m chaos.soak $(SOAK_ARGS)

mutants: setup       ## insert known bugs one at a time; the tests must detect each
	@$(PY) -m mutants $(MUTANTS_ARGS)

images: setup        ## build the container images; options: BASE, ENGINE, REGISTRY, VERSION (see scripts/images)
	@scripts/images $(IMAGES)

docs: setup          ## generate the pages that come from the code, and the fingerprint of the schema
	@$(PY) scripts/write_fingerprint.py
	@$(PY) scripts/draw_states.py
	@$(PY) scripts/list_settings.py
	@$(PY) scripts/write_reference.py
	@$(PY) scripts/list_requirements.py

setup:
	@scripts/setup

lock: setup          ## update requirements/*.txt (needs uv on PATH)
	uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 --all-extras pyproject.toml -o requirements/base.txt
	uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 --all-extras pyproject.toml requirements/dev.in -o requirements/dev.txt
	for role in orchestrator worker serving; do uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11 --extra $$role --extra azure --extra s3 --extra otel --constraints requirements/base.txt pyproject.toml -o requirements/$$role.txt; done
	uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11 --extra gateway --extra otel --constraints requirements/base.txt pyproject.toml -o requirements/gateway.txt
	uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 requirements/node.in -o requirements/node.txt
	cd bench/peers && for peer in *.in; do uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 $$peer -o $${peer%.in}.txt; done

format: setup
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .
	@scripts/ui format

clean:
	rm -rf ui/node_modules ui/build src/dagmaster/ui/static .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
