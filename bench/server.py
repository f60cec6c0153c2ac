"""The private PostgreSQL server of a benchmark, and what it and other processes used during a measurement."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import class_row, namedtuple_row

from dagmaster.local.embedded import Cluster, find_binaries

PGBENCH = """
\\set id random(1, 1000000000)
BEGIN;
INSERT INTO bench_rows (id, value) VALUES (:id, 'x') ON CONFLICT DO NOTHING;
UPDATE bench_rows SET value = 'y' WHERE id = :id;
COMMIT;
"""
STATEMENTS = """
    SELECT s.query, s.calls, s.total_exec_time AS milliseconds, s.rows
      FROM pg_stat_statements s
      JOIN pg_database d ON d.oid = s.dbid
     WHERE d.datname = %s AND s.query !~ 'bench query'
     ORDER BY s.total_exec_time DESC
"""
TICKS = os.sysconf("SC_CLK_TCK")
FLOOR = Path(__file__).with_name("floor.py")


@dataclass(frozen=True)
class Statement:
    query: str
    calls: int
    milliseconds: float
    rows: int


@dataclass
class Spent:
    """What a measurement has used. `commits` counts transactions that wrote. Statements are those of one database, the
    other figures those of the whole server."""

    statements: int = 0
    commits: int = 0
    wal_bytes: int = 0
    postgres_seconds: float = 0.0
    process_seconds: dict[str, float] = field(default_factory=dict)
    top: list[Statement] = field(default_factory=list)


class Server:
    """A server with default durability. Counters are read from another database than the measured one, so that reading
    them is not counted."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.admin = psycopg.connect(cluster.dsn_of("postgres"), autocommit=True)
        self.admin.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    def row(self, sql: str, *values: Any) -> Any:
        """The first row, with the values as attributes."""
        row = self.admin.cursor(row_factory=namedtuple_row).execute(sql, values).fetchone()
        assert row is not None
        return row

    def fresh(self, name: str) -> str:
        self.drop(name)
        self.admin.execute(f"CREATE DATABASE {name}")
        return self.cluster.dsn_of(name)

    def drop(self, name: str) -> None:
        self.admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def settle(self, name: str) -> None:
        """Vacuum and write to disk now, so that the server does not do it during the next measurement."""
        with psycopg.connect(self.cluster.dsn_of(name), autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        self.admin.execute("CHECKPOINT")

    def cpu_seconds(self) -> float:
        """CPU time of all processes of the server, including those that have ended."""
        pid = self.cluster.server_pid()
        assert pid is not None
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return process_seconds(pid, with_ended=True) + sum(process_seconds(child) for child in children)

    @contextmanager
    def metered(self, database: str, pids: Mapping[str, int]) -> Iterator[Spent]:
        spent = Spent()
        self.admin.execute("SELECT pg_stat_statements_reset()")
        before, started, busy = self._counters(), self.cpu_seconds(), {n: process_seconds(p) for n, p in pids.items()}
        yield spent
        after = self._counters()
        spent.commits, spent.wal_bytes = after.commits - before.commits, after.wal_bytes - before.wal_bytes
        spent.postgres_seconds = self.cpu_seconds() - started
        spent.process_seconds = {name: process_seconds(pid) - busy[name] for name, pid in pids.items()}
        statements = self.admin.cursor(row_factory=class_row(Statement)).execute(STATEMENTS, [database]).fetchall()
        spent.statements = sum(statement.calls for statement in statements)
        spent.top = statements[:8]

    def _counters(self) -> Any:
        """Transactions that wrote, and bytes of WAL, read together. They are exact, unlike statistics of commits."""
        return self.row(
            "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS commits, "
            "(pg_current_wal_insert_lsn() - '0/0')::bigint AS wal_bytes"
        )

    def pgbench(self, seconds: int) -> float:
        """Transactions per second of two clients, insert + update."""
        dsn = self.fresh("reference")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE bench_rows (id bigint PRIMARY KEY, value text)")
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "script.sql")
            script.write_text(PGBENCH)
            clients = ["-n", "-c", "2", "-j", "2", "-T", str(seconds), "-f", script]
            command = [find_binaries() / "pgbench", *clients, dsn]
            completed = subprocess.run(command, capture_output=True, text=True, check=True)
        self.drop("reference")
        measured = re.search(r"tps = ([0-9.]+)", completed.stdout)
        assert measured, completed.stdout
        return float(measured[1])

    def floor(self, count: int, batch: int) -> float:
        """Tasks per second of two processes that only claim and complete rows, in batches."""
        dsn = self.fresh("reference")
        command = [sys.executable, FLOOR, dsn, str(count), str(batch)]
        completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        self.drop("reference")
        return count / float(json.loads(completed.stdout)["seconds"])


def process_seconds(pid: int, *, with_ended: bool = False) -> float:
    """CPU time of a process with all its threads, and `with_ended` also of its children that have ended. 0 if the
    process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(value) for value in fields[11 : 15 if with_ended else 13]) / TICKS


def peak_megabytes(pid: int) -> float:
    measured = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert measured
    return int(measured[1]) / 1024


@contextmanager
def private_server() -> Iterator[Server]:
    cluster = Cluster.at(None, name=f"bench-{os.getpid()}")
    try:
        cluster.start()
        yield Server(cluster)
    finally:
        cluster.remove()
