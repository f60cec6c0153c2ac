"""How quickly the web pages respond, in Chromium without a graphics card, on a platform of its own.

page      the first page of the list of jobs, over HTTP and in the browser: with 10,000 jobs, compared with 100
scroll    through several pages of the list with 10,000 jobs: tasks of the browser above 50 ms, frames per second
graph     from the navigation to the graph of a job with a fan_out of 10,000 children
shifts    cumulative layout shift of the main pages

Prints figures and limits. Needs the built pages (`make ui`) and Debian's Chromium.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import psycopg
from playwright.sync_api import Browser, Page, sync_playwright

from dagmaster.local.embedded import Cluster

FEW, MANY = 100, 10_000
CHILDREN = 10_000
PAGE_LIMIT = 1.5  # the time with many jobs divided by the time with few
TASK_LIMIT_MS = 50
GRAPH_LIMIT_MS = 1000
SHIFT_LIMIT = 0.1  # the limit of web.dev for a good page
SCROLLED_PIXELS = 36 * 100 * 10  # ten pages of a hundred rows
FLAGS = (
    "--no-sandbox",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-background-networking",
)
INSERT = """
INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, definition_hash, status, input_params,
                             submitted_by, created_at)
SELECT dagapp.first_uuid_at(now() - make_interval(secs => i)), 'daily', '1', 'bench', 'pending', '{}',
       'catalogue', now() - make_interval(secs => i)
  FROM generate_series(%s::integer, %s::integer) AS i
"""
END = """
UPDATE dagapp.dag_jobs
   SET status = CASE WHEN extract(epoch FROM created_at)::bigint % 20 = 7 THEN 'failed' ELSE 'completed' END,
       started_at = created_at, completed_at = created_at + interval '3 seconds'
 WHERE definition_hash = 'bench'
"""
# Watches from the first moment of a page: long tasks, layout shifts, frames, and when the graph was drawn.
WATCH = """
window.watched = {tasks: [], shift: 0, frames: [], graph: null};
new PerformanceObserver(list => list.getEntries().forEach(each => watched.tasks.push([each.startTime, each.duration])))
  .observe({type: 'longtask', buffered: true});
new PerformanceObserver(list =>
  list.getEntries().forEach(each => { if (!each.hadRecentInput) watched.shift += each.value }))
  .observe({type: 'layout-shift', buffered: true});
const tick = at => {
  watched.frames.push(at);
  if (watched.graph === null && document.querySelector('.graph .node')) watched.graph = performance.now();
  requestAnimationFrame(tick);
};
requestAnimationFrame(tick);
"""


def main() -> int:
    options = read_options()
    cluster = Cluster.at(None, name="bench-pages", fast=True)
    try:
        cluster.start()
        with psycopg.connect(cluster.dsn_of("postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE bench")
        with (
            tempfile.TemporaryDirectory(prefix="pages-bench-") as folder,
            platform(cluster.dsn_of("bench"), Path(folder)) as url,
            psycopg.connect(cluster.dsn_of("bench"), autocommit=True) as database,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(executable_path=options.chromium, args=list(FLAGS))
            figures = measure(url, database, browser, options.rounds)
            browser.close()
    finally:
        cluster.remove()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0 if judge(figures) else 1


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


@contextmanager
def platform(dsn: str, folder: Path) -> Iterator[str]:
    ports = {"API_PORT": "0", "GATEWAY_PORT": "0", "SERVING_ENABLED": "false"}
    process = subprocess.Popen(
        [sys.executable, "-m", "dagmaster", "up", "--json", "--data", str(folder)],
        env={**os.environ, **ports, "DATABASE_URL": dsn, "LOG_LEVEL": "warning"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["api_url"]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def measure(url: str, database: psycopg.Connection[Any], browser: Browser, rounds: int) -> dict[str, float]:
    job = large_job(url)
    add_jobs(database, 1, FEW)
    few_ms, few_shown_ms = first_page(url, browser, rounds)
    add_jobs(database, FEW + 1, MANY)
    many_ms, many_shown_ms = first_page(url, browser, rounds)
    figures = {
        "request with few jobs, ms": few_ms,
        "request with many jobs, ms": many_ms,
        "request, many over few": many_ms / few_ms,
        "drawn with few jobs, ms": few_shown_ms,
        "drawn with many jobs, ms": many_shown_ms,
        "drawn, many over few": many_shown_ms / few_shown_ms,
        **scroll(url, browser),
        "graph, ms": statistics.median(graph(url, browser, job) for _ in range(rounds)),
    }
    for path in ("/jobs", f"/jobs/{job}", "/assets", "/review", "/submit", "/workflows", "/system"):
        name = "a job" if path.endswith(job) else path.strip("/")
        figures[f"layout shift of {name}"] = shift(url, browser, path)
    return figures


def large_job(url: str) -> str:
    job = httpx2.post(
        f"{url}/api/v1/jobs", json={"workflow_id": "fan_out_test", "inputs": {"count": CHILDREN}}, timeout=60
    ).json()["job_id"]
    while not (state := httpx2.get(f"{url}/api/v1/jobs/{job}", timeout=60).json())["is_over"]:
        time.sleep(0.5)
    assert state["job"]["status"] == "completed"
    return str(job)


def add_jobs(database: psycopg.Connection[Any], first: int, last: int) -> None:
    database.execute(
        "INSERT INTO dagapp.dag_workflow_definitions VALUES ('bench', 'daily', '1', '{}') ON CONFLICT DO NOTHING"
    )
    with database.transaction():
        database.execute("ALTER TABLE dagapp.dag_jobs DISABLE TRIGGER USER")
        database.execute(INSERT, [first, last])
        database.execute(END)
        database.execute("ALTER TABLE dagapp.dag_jobs ENABLE TRIGGER USER")
    database.execute("ANALYZE")


def first_page(url: str, browser: Browser, rounds: int) -> tuple[float, float]:
    """Milliseconds of the request for the first page, and from the navigation until its rows are drawn."""
    with httpx2.Client(timeout=60) as client:
        durations = [timed(lambda: client.get(f"{url}/api/v1/jobs?limit=100").raise_for_status()) for _ in range(40)]
    shown = []
    for _ in range(rounds):
        with watching(browser) as page:
            page.goto(f"{url}/ui/jobs")
            page.locator(".job-row:not(.head)").nth(10).wait_for()
            shown.append(page.evaluate("performance.now()"))
    return statistics.median(durations), statistics.median(shown)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


@contextmanager
def watching(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        page = context.new_page()
        page.add_init_script(WATCH)
        yield page
    finally:
        context.close()


def scroll(url: str, browser: Browser) -> dict[str, float]:
    """Scroll through ten pages with the mouse wheel."""
    with watching(browser) as page:
        page.goto(f"{url}/ui/jobs")
        page.locator(".job-row:not(.head)").nth(10).wait_for()
        page.wait_for_timeout(3000)
        started = page.evaluate("performance.now()")
        page.locator(".virtual").hover()
        while page.evaluate("document.querySelector('.virtual').scrollTop") < SCROLLED_PIXELS:
            page.mouse.wheel(0, 240)
            page.wait_for_timeout(16)
        ended = page.evaluate("performance.now()")
        watched = page.evaluate("watched")
    tasks = [duration for at, duration in watched["tasks"] if at >= started]
    frames = [at for at in watched["frames"] if started <= at <= ended]
    return {
        "long tasks": len(tasks),
        "longest task, ms": max(tasks, default=0),
        "frames per second": (len(frames) - 1) / (frames[-1] - frames[0]) * 1000,
        "longest frame, ms": max(after - before for before, after in pairwise(frames)),
    }


def graph(url: str, browser: Browser, job: str) -> float:
    with watching(browser) as page:
        page.goto(f"{url}/ui/jobs/{job}")
        page.locator(".graph .node").first.wait_for()
        page.wait_for_timeout(500)
        return float(page.evaluate("watched.graph"))


def shift(url: str, browser: Browser, path: str) -> float:
    with watching(browser) as page:
        page.goto(f"{url}/ui{path}")
        page.wait_for_timeout(4000)
        return float(page.evaluate("watched.shift"))


def judge(figures: dict[str, float]) -> bool:
    limits = {
        "request, many over few": PAGE_LIMIT,
        "drawn, many over few": PAGE_LIMIT,
        "longest task, ms": TASK_LIMIT_MS,
        "graph, ms": GRAPH_LIMIT_MS,
        **{name: SHIFT_LIMIT for name in figures if name.startswith("layout shift of ")},
    }
    for name, value in figures.items():
        limit = limits.get(name)
        verdict = "" if limit is None else f"(limit {limit}) {'holds' if value <= limit else 'MISSED'}"
        print(f"  {name:<28} {value:10.3f} {verdict}")
    return all(figures[name] <= limit for name, limit in limits.items())


if __name__ == "__main__":
    sys.exit(main())
