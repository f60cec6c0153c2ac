"""The minimal work of any queue on PostgreSQL: two processes claim rows and complete them with a result, in batches.

python floor.py DSN COUNT BATCH     prints {"seconds": …}
"""

import json
import multiprocessing
import sys
import time
from multiprocessing.synchronize import Barrier

import psycopg
from psycopg.rows import scalar_row

PROCESSES = 2
TABLE = """
    CREATE TABLE tasks
        (id bigint PRIMARY KEY, state text NOT NULL DEFAULT 'ready', worker int, params jsonb, result jsonb);
    CREATE INDEX ready ON tasks (id) WHERE state = 'ready';
"""
FILL = "INSERT INTO tasks (id, params) SELECT n, jsonb_build_object('number', n) FROM generate_series(1, %s) AS n"
EXCHANGE = """
    WITH done AS (
        UPDATE tasks SET state = 'done', result = '{}'
         WHERE id = ANY (%(done)s) AND worker = %(worker)s AND state = 'claimed'
    ), free AS MATERIALIZED (
        SELECT id FROM tasks WHERE state = 'ready' ORDER BY id LIMIT %(batch)s FOR UPDATE SKIP LOCKED
    )
    UPDATE tasks t SET state = 'claimed', worker = %(worker)s FROM free WHERE t.id = free.id RETURNING t.id, t.params
"""


def work(dsn: str, worker: int, batch: int, start: Barrier) -> None:
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        start.wait()
        done: list[int] = []
        while True:
            rows = connection.execute(EXCHANGE, {"done": done, "worker": worker, "batch": batch}).fetchall()
            if not rows:
                return
            done = [task_id for task_id, _params in rows]  # a row by name would take time that is measured


def main() -> None:
    dsn, count, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute(FILL, [count])
        connection.execute("ANALYZE tasks")
        start = multiprocessing.Barrier(PROCESSES + 1)
        running = [multiprocessing.Process(target=work, args=(dsn, n, batch, start)) for n in range(PROCESSES)]
        for process in running:
            process.start()
        start.wait()
        started = time.perf_counter()
        for process in running:
            process.join()
        seconds = time.perf_counter() - started
        counting = "SELECT count(*) FROM tasks WHERE state = 'done'"
        done = connection.cursor(row_factory=scalar_row).execute(counting).fetchone()
    if done != count:
        raise SystemExit(f"{done} of {count} tasks were done")
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
