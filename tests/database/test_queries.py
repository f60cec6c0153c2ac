"""Every statement is prepared on a deployed database, and the hot ones never read more rows of a large job than
they need."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import ClientCursor

import dagmaster.database
from dagmaster.database.connect import BY_KEY, conninfo
from dagmaster.database.queries import all_queries, numbered

CHILDREN = 10_000


# Those that need pgSTAC are prepared where it is deployed, those of the external database there, and those of
# verify-storage with its temporary tables.
OURS = sorted(name for name in all_queries() if not name.startswith(("catalog_", "served_", "external_", "storage_")))


@pytest.mark.requirement("D1")
@pytest.mark.parametrize("name", OURS)
def test_every_statement_can_be_prepared_in_the_deployed_schema(cluster, template_database, name):
    text, names = numbered(name)

    with psycopg.connect(cluster.dsn_of(template_database), autocommit=True) as connection:
        connection.execute(f"PREPARE it AS {text}")
        types = connection.execute("SELECT parameter_types FROM pg_prepared_statements").fetchone()[0]

    assert len(types) == len(names)


READING = {"_many", "_first", "_fetch", "_stream", "_rows", "_all"}  # methods that take a statement and a model
ROWS = {"dicts", "_dicts"}  # those that take a statement and return its rows
SHARED = {"asset_submission"}  # also read without a model, where the other columns are needed


def statements_and_models() -> Iterator[tuple[str, type]]:
    """Every statement that a module under database/ reads into a model, from its calls."""
    for entry in pkgutil.walk_packages(dagmaster.database.__path__, "dagmaster.database."):
        module = importlib.import_module(entry.name)
        for function in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for name, model in names_in(function):
                    if name in OURS and isinstance(getattr(module, model, None), type):
                        yield name, getattr(module, model)


def names_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str]]:
    """Pairs of a statement and the model that its rows become, in these expressions: `_many("statement", …, Model)`,
    `models(Model, await dicts(…))` and `[Model(**row) for row in await dicts(…)]`. In the last two, a variable with
    unchanged rows may take the place of `await dicts(…)`."""
    rows = rows_of_variables(function)
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called)) if called in READING:
                models = [each.id for each in node.args if isinstance(each, ast.Name)]
                literals = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
                yield from ((name, model) for name in literals if isinstance(name, str) for model in models)
            case ast.Call(func=ast.Name(id="models"), args=[ast.Name(id=model), source]):
                yield from ((name, model) for name in statements_of(source, rows))
            case ast.ListComp(
                elt=ast.Call(func=ast.Name(id=model), args=[], keywords=[ast.keyword(None, ast.Name(id=row))]),
                generators=[ast.comprehension(target=ast.Name(id=target), iter=source)],
            ) if row == target:
                yield from ((name, model) for name in statements_of(source, rows))


def rows_of_variables(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, list[str]]:
    """The statements whose rows a variable has, if the variable is used only once: its rows are then unchanged."""
    uses = Counter(node.id for node in ast.walk(function) if isinstance(node, ast.Name))
    return {
        variable: statements_of(node.value, {})
        for node in ast.walk(function)
        for variable in assigned(node)
        if uses[variable] == 2  # the assignment, and one use
    }


def assigned(node: ast.AST) -> list[str]:
    return [each.id for each in node.targets if isinstance(each, ast.Name)] if isinstance(node, ast.Assign) else []


def statements_of(source: ast.expr, rows: dict[str, list[str]]) -> list[str]:
    """The statements whose rows are the value of this expression. A statement whose name is computed is not found."""
    match source:
        case ast.Name(id=variable):
            return rows.get(variable, [])
        case ast.Await(value=ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called)) as call) if called in ROWS:
            return [each.value for each in call.args if isinstance(each, ast.Constant)]
    return []


def fields_of(model: type) -> tuple[set[str], set[str]]:
    """All fields of a model, and those without a default."""
    parameters = inspect.signature(model).parameters
    return set(parameters), {name for name, each in parameters.items() if each.default is inspect.Parameter.empty}


def result_columns(connection: psycopg.Connection, name: str) -> list[str]:
    connection.pgconn.prepare(b"it", numbered(name)[0].encode())
    result = connection.pgconn.describe_prepared(b"it")
    return [(result.fname(place) or b"").decode() for place in range(result.nfields)]


def test_the_models_of_at_least_eighty_statements_are_detected():
    assert len({name for name, _ in statements_and_models()}) >= 80


@pytest.mark.parametrize(("name", "model"), sorted(set(statements_and_models()), key=str))
def test_the_columns_of_a_statement_match_the_fields_of_its_model(cluster, template_database, name, model):
    fields, required = fields_of(model)

    with psycopg.connect(cluster.dsn_of(template_database), autocommit=True) as connection:
        columns = result_columns(connection, name)

    assert len(columns) == len(set(columns))
    assert required <= set(columns)
    assert set(columns) <= fields or name in SHARED


@pytest.fixture(scope="module")
def large_job(cluster, template_database):
    """A new job of 10,000 children in tables that were not analysed yet, which is what the engine has to expect."""
    with psycopg.connect(cluster.dsn_of("postgres"), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS test_large WITH (FORCE)")
        connection.execute(f"CREATE DATABASE test_large TEMPLATE {template_database}")
    dsn = cluster.dsn_of("test_large")
    with psycopg.connect(dsn, autocommit=True) as connection:
        job_id = connection.execute("SELECT dagapp.first_uuid_at(now())").fetchone()[0]
        connection.execute("INSERT INTO dagapp.dag_workflow_definitions VALUES ('h', 'w', '1', '{}')")
        connection.execute(
            "INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, definition_hash, status, "
            "input_params) "
            "VALUES (%s, 'w', '1', 'h', 'pending', '{}')",
            [job_id],
        )
        connection.execute(
            "INSERT INTO dagapp.dag_node_states (job_id, node_id, status, parent_node_id, fan_out_index, attempt) "
            "SELECT %s, 'split__' || i, 'dispatched', 'split', i, 1 FROM generate_series(0, %s - 1) AS i",
            [job_id, CHILDREN],
        )
        connection.execute(
            "INSERT INTO dagapp.dag_tasks (job_id, node_id, attempt, queue, handler, priority, status, "
            "timeout_seconds) "
            "SELECT %s, 'split__' || i, 1, 'q', 'noop', 0, 'queued', 60 FROM generate_series(0, %s - 1) AS i",
            [job_id, CHILDREN],
        )
        connection.execute(
            "INSERT INTO dagapp.dag_task_results (job_id, node_id, attempt, status, worker_id) "
            "SELECT %s, 'split__' || i, 1, 'succeeded', gen_random_uuid() FROM generate_series(0, %s - 1) AS i",
            [job_id, CHILDREN],
        )
    yield dsn, job_id
    with psycopg.connect(cluster.dsn_of("postgres"), autocommit=True) as connection:
        connection.execute("DROP DATABASE test_large WITH (FORCE)")


HOT = (
    "open_jobs",
    "promote_nodes",
    "apply_changes",
    "apply_steps",
    "apply_changes_with_outbox",
    "apply_steps_with_outbox",
    "outbox_claim",
    "outbox_delete",
    "outbox_forget",
    "outbox_postpone",
    "queued_tasks",
    "exchange",
    "report_tasks",
    "claim_tasks",
    "renew_leases",
    "read_results",
    "load_nodes",
)


def values_for(name, job_id):
    common = {
        "job_ids": [job_id],
        "tokens": [job_id],
        "owner_id": job_id,
        "worker_id": job_id,
        "per_job": 2000,
        "small": 100,
        "reported_only": False,
        "node_ids": ["split__1"],
        "attempts": [1],
        "task_ids": ["x"],
        "limits": [8],
        "newest": ["q"],
        "newest_limit": 1,
        "delay": 1,
        "error": "away",
        "changes": "[]",
        "counts": [0] * 5,
        "reports": "[]",
        "held": "[]",
        "queues": ["q"],
        "free_slots": [100],
        "light_handlers": ["noop"],
        "light": 100,
        "heavy_handlers": [],
        "heavy": 0,
        "lease": 60,
        "budgets": [],
        "job_id": job_id,
        "node_id": "split",
        "offset": 0,
        "limit": 100,
        "max_bytes": 1000,
    }
    return [common[parameter] for parameter in numbered(name)[1]]


@pytest.mark.requirement("E9")
@pytest.mark.parametrize("plan", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("name", HOT)
def test_hot_statements_read_large_tables_by_their_complete_key(large_job, name, plan):
    dsn, job_id = large_job
    text, names = numbered(name)

    with psycopg.connect(conninfo(dsn, "test", 15, 3, 10, settings=BY_KEY), autocommit=True) as connection:
        connection.execute(f"SET plan_cache_mode = {plan}")
        connection.execute(f"PREPARE it AS {text}")
        cursor = ClientCursor(connection)
        cursor.execute(f"EXPLAIN (COSTS OFF) EXECUTE it ({', '.join(['%s'] * len(names))})", values_for(name, job_id))
        lines = [row[0] for row in cursor.fetchall()]

    assert incomplete_lookups(lines) == []


@pytest.mark.requirement("E19")
@pytest.mark.parametrize("name", ["claim_tasks", "exchange"])
def test_tasks_without_a_handler_on_this_worker_cost_one_index_probe(large_job, name):
    dsn, job_id = large_job
    text, names = numbered(name)
    values = dict(zip(names, values_for(name, job_id), strict=True)) | {"light_handlers": ["sleep"]}

    with psycopg.connect(conninfo(dsn, "test", 15, 3, 10, settings=BY_KEY)) as connection:
        connection.execute(f"PREPARE it AS {text}")
        cursor = ClientCursor(connection)
        statement = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE it ({', '.join(['%s'] * len(names))})"
        plan = cursor.execute(statement, list(values.values())).fetchone()[0][0]["Plan"]
        connection.rollback()

    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 50


def incomplete_lookups(plan: list[str]) -> list[str]:
    """Index lookups by job id alone in tables that have many rows per job, and sequential scans."""
    wrong = []
    for number, line in enumerate(plan):
        following = plan[number + 1].strip() if number + 1 < len(plan) else ""
        if re.search(r"Seq Scan on dag_(node_states|tasks|task_results|job_events)", line):
            wrong.append(line.strip())
        if re.search(r"using dag_(node_states|tasks|task_results)_pkey", line) and "node_id" not in following:
            wrong.append(f"{line.strip()} / {following}")
    return wrong
