"""Payloads of any size: values that are too large for a row or a message are passed by reference, and unchanged."""

import asyncio
import hashlib
import time
from io import BytesIO
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest

from dagmaster.client.json_client import JsonClient
from dagmaster.client.models.jobs import JobPart
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.ledger.protocol import Demand
from dagmaster.database.maintenance.history import verify
from dagmaster.database.maintenance.janitor import JanitorThresholds, PostgresJanitor
from dagmaster.database.maintenance.retention import PostgresRetention
from dagmaster.database.notify.notifier import JOBS
from dagmaster.errors import HandlerFailed, InvalidRequest, Unavailable
from dagmaster.handlers.registry import Registration
from dagmaster.jobs.history import FindingCode
from dagmaster.jobs.payload import INLINE_BYTES, LOADABLE_BYTES
from dagmaster.operations.rerun import retry
from tests.api.serving import V1, api, app_of, served
from tests.engine.harness import Engine, engine, open_gate, until, workflow
from tests.engine.processes import CRASHED, fleet
from tests.engine.test_retention import in_days

KB, MB = 1024, 1024 * 1024
DAY = 86_400.0
THRESHOLDS = JanitorThresholds(orphan_after=60, neglected=1e9, queued=1e9, unused=DAY)


# Handlers


def value_of(size_bytes: int, seed: int = 0) -> Any:
    """A value whose JSON has this number of bytes."""
    if size_bytes == 1:
        return 7
    line = hashlib.sha256(str(seed).encode()).hexdigest()
    return (line * (size_bytes // len(line) + 1))[: size_bytes - 2]


async def produce(ctx: Any) -> Any:
    return value_of(ctx.params["bytes"], ctx.params.get("seed", 0))


def produce_plain(ctx: Any) -> Any:
    return value_of(ctx.params["bytes"], ctx.params.get("seed", 0))


async def digest(ctx: Any) -> dict[str, Any]:
    return digest_of(ctx.params["value"])


def digest_plain(ctx: Any) -> dict[str, Any]:
    return digest_of(ctx.params["value"])


async def digest_results(ctx: Any) -> list[dict[str, Any]]:
    return [digest_of(result.output) async for result in ctx.results()]


def digest_results_plain(ctx: Any) -> list[dict[str, Any]]:
    return [digest_of(result.output) for result in ctx.results()]


_failed_once: set[UUID] = set()


async def register(ctx: Any) -> dict[str, Any]:
    """Register one batch of results; batch 7 fails the first time."""
    indexes = [result.index async for result in ctx.results() if result.status == "completed"]
    if ctx.node_id.endswith("__7") and ctx.job_id not in _failed_once:
        _failed_once.add(ctx.job_id)
        raise HandlerFailed("fails once, as the test requires")
    return {"first": indexes[0], "count": len(indexes), "sum": sum(indexes)}


async def finalize(ctx: Any) -> dict[str, Any]:
    """Verify that all results were registered."""
    batches = [result.output async for result in ctx.results()]
    total = sum(batch["count"] for batch in batches)
    if (total, sum(batch["sum"] for batch in batches)) != (ctx.params["expected"], sum(range(ctx.params["expected"]))):
        raise HandlerFailed("not all results were registered")
    return {"batches": len(batches), "registered": total}


def digest_of(value: Any) -> dict[str, Any]:
    text = orjson.dumps(value)
    return {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}


HANDLERS = tuple(
    Registration(f.__name__, f"tests.engine.test_payloads:{f.__name__}", is_async=asyncio.iscoroutinefunction(f))
    for f in (produce, produce_plain, digest, digest_plain, digest_results, digest_results_plain, register, finalize)
)
CHAIN = """
    workflow_id: sized
    version: 1
    inputs: {{bytes: {{type: integer}}}}
    nodes:
      start: {{type: start, next: big}}
      big:
        handler: produce{plain}
        params: {{bytes: "{{{{ inputs.bytes }}}}"}}
        retry: {{max_attempts: 0}}
        next: look
      look:
        handler: digest{plain}
        params: {{value: "{{{{ nodes.big.output }}}}"}}
        retry: {{max_attempts: 0}}
        next: end
      end: {{type: end}}
"""
SPREAD = """
    workflow_id: spread
    version: 1
    inputs: {{bytes: {{type: integer}}, count: {{type: integer, default: 1}}}}
    nodes:
      start: {{type: start, next: items}}
      items: {{handler: make_list, params: {{count: "{{{{ inputs.count }}}}"}}, next: each}}
      each:
        type: fan_out
        source: "{{{{ nodes.items.output.items }}}}"
        task:
          handler: produce{plain}
          params: {{bytes: "{{{{ inputs.bytes }}}}", seed: "{{{{ item }}}}"}}
          retry: {{max_attempts: 0}}
        next: all
      all: {{type: fan_in{how}, next: end}}
      end: {{type: end}}
"""


async def assert_small_messages(running: Engine, job_id: UUID) -> None:
    for task in await running.tasks(job_id):
        assert len(orjson.dumps(task["params"])) <= INLINE_BYTES
    for table in ("dag_node_states", "dag_task_results"):
        largest = await running.value(
            f"SELECT coalesce(max(octet_length(output::text)), 0) FROM dagapp.{table} WHERE job_id = %s", job_id
        )
        assert largest <= INLINE_BYTES


# Outputs


@pytest.mark.requirement("E18")
@pytest.mark.parametrize("plain", ["", "_plain"])
async def test_the_next_handler_and_the_api_get_an_output_of_any_size_unchanged(database, plain):
    sizes = (1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, MB)

    async with engine(database, handlers=HANDLERS) as running, api(database, running) as client:
        for size in sizes:
            job = await running.run(workflow(CHAIN.format(plain=plain)), bytes=size)
            nodes = await running.nodes(job["job_id"])
            response = await client.get(f"{V1}/jobs/{job['job_id']}/nodes/big/output")

            assert job["status"] == "completed", job["error_message"]
            expected = digest_of(value_of(size))
            assert job["result_data"]["look"] == expected
            assert (nodes["big"]["output_ref"] is not None) == (size > INLINE_BYTES)
            assert orjson.loads(response.content) == value_of(size)
            assert response.headers["etag"] == f'"{expected["sha256"]}"'
            await assert_small_messages(running, job["job_id"])


@pytest.mark.requirement("E18")
@pytest.mark.parametrize("plain", ["", "_plain"])
async def test_twenty_megabytes_can_be_read_with_results_of_but_not_by_a_template(database, plain):
    size = 20 * MB

    async with engine(database, handlers=HANDLERS) as running, api(database, running) as client:
        spread = await running.run(
            workflow(SPREAD.format(plain=plain, how=f", handler: digest_results{plain}")), bytes=size, count=2
        )
        chain = await running.run(workflow(CHAIN.format(plain=plain)), bytes=size)
        response = await client.get(f"{V1}/jobs/{chain['job_id']}/nodes/big/output")

        assert spread["result_data"]["all"] == [digest_of(value_of(size, seed)) for seed in (0, 1)]
        assert hashlib.sha256(response.content).hexdigest() == digest_of(value_of(size))["sha256"]
        assert chain["status"] == "failed"
        assert (
            f"the output of 'big' has {size} bytes; a template can load at most {LOADABLE_BYTES}"
            in chain["error_message"]
        )
        assert "results_of" in chain["error_message"]


@pytest.mark.requirement("E18")
@pytest.mark.parametrize("plain", ["", "_plain"])
async def test_an_output_above_the_hard_limit_fails_and_the_error_has_its_size_and_the_limit(database, plain):
    async with engine(database, handlers=HANDLERS) as running:
        job = await running.run(workflow(CHAIN.format(plain=plain)), bytes=101 * MB)

        assert job["status"] == "failed"
        assert "105,906,176 bytes, more than the 104,857,600 allowed" in job["error_message"]
        assert await running.value("SELECT count(*) FROM dagapp.dag_payloads") == 0


@pytest.mark.requirement("E18")
async def test_a_named_output_above_256_kb_is_a_reference_in_the_result(database):
    definition = workflow(
        CHAIN.format(plain="") + '    outputs: {small: "{{ nodes.look.output }}", '
        "large: \"{{ {'kept': nodes.big.output} }}\"}\n"
    )

    async with engine(database, handlers=HANDLERS) as running, api(database, running) as client:
        job = await running.run(definition, bytes=300_000)
        page = (await client.get(f"{V1}/jobs/{job['job_id']}")).json()
        location = page["deliverables"]["large"]["location"]
        response = await client.get(location)

        assert job["result_data"]["small"] == digest_of(value_of(300_000))
        assert job["result_data"]["large"]["output_ref"]["bytes"] == 300_009
        assert location == f"{V1}/jobs/{job['job_id']}/payloads/{job['result_data']['large']['output_ref']['sha256']}"
        assert response.json() == {"kept": value_of(300_000)}


# Params


@pytest.mark.requirement("E18")
async def test_no_message_exceeds_256_kb_and_handlers_get_larger_params_unchanged(database):
    """The limit applies to the whole message, not only to the params."""
    definition = workflow("""
        workflow_id: given
        version: 1
        inputs: {text: {type: string}}
        nodes:
          start: {type: start, next: look}
          look: {handler: digest, params: {value: "{{ inputs.text }}"}, next: end}
          end: {type: end}
        """)
    around = len(b'{"value":""}')
    sizes = [INLINE_BYTES - around - before for before in (3000, 600, 500, 400, 300, 200, 100, 12)]
    demand = Demand(("dag-worker-tasks",), ("digest",), 1)
    by_reference = []

    async with engine(database, workers=0, handlers=HANDLERS) as running:
        jobs = [await running.submit(definition, text="x" * size) for size in sizes]
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks HAVING count(*) = %s", len(sizes)))
        for _ in sizes:
            (message,) = (await running.ledger.exchange(uuid4(), (), demand, lease_seconds=0.1)).claimed
            assert len(orjson.dumps(message._asdict())) <= INLINE_BYTES
            by_reference.append(message.params_ref is not None)
        await running.start_worker()
        results = [await running.wait(job_id) for job_id in jobs]

    assert by_reference == sorted(by_reference)
    assert set(by_reference) == {False, True}
    assert [job["result_data"]["look"]["bytes"] for job in results] == [size + 2 for size in sizes]


@pytest.mark.requirement("E18")
async def test_params_that_are_too_large_to_load_fail_the_node_with_size_and_limit(database):
    definition = workflow("""
        workflow_id: doubled
        version: 1
        nodes:
          start: {type: start, next: big}
          big: {handler: produce, params: {bytes: 10000000}, next: look}
          look:
            handler: digest
            params: {a: "{{ nodes.big.output }}", value: "{{ nodes.big.output }}"}
            retry: {max_attempts: 0}
            next: end
          end: {type: end}
        """)

    async with engine(database, handlers=HANDLERS) as running:
        job = await running.run(definition)

    assert job["status"] == "failed"
    assert "its params have 20,000,015 bytes; the limit is 16,777,216" in job["error_message"]


@pytest.mark.requirement("E18")
async def test_inputs_near_the_limit_become_params_and_larger_ones_are_refused(database):
    async with engine(database) as running:
        most = INLINE_BYTES - len(b'{"message":"","count":0,"tags":[],"enabled":true}') - 40
        job = await running.run("echo_test", message="x" * most)
        with pytest.raises(InvalidRequest) as refusal:
            await running.submit("echo_test", message="x" * INLINE_BYTES)

        assert job["status"] == "completed", job["error_message"]
        await assert_small_messages(running, job["job_id"])
    assert str(INLINE_BYTES) in str(refusal.value)


@pytest.mark.requirement("E18")
async def test_a_retry_has_the_same_reference_to_its_params_as_the_attempt_before(database):
    definition = workflow("""
        workflow_id: again
        version: 1
        nodes:
          start: {type: start, next: big}
          big: {handler: produce, params: {bytes: 400000}, next: bad}
          bad:
            handler: give
            params: {fail: true, value: "{{ nodes.big.output }}"}
            retry: {max_attempts: 1, initial_delay_seconds: 0.05}
            next: end
          end: {type: end}
        """)

    async with engine(database, handlers=HANDLERS) as running, api(database, running) as client:
        job = await running.run(definition)
        first, second = [task for task in await running.tasks(job["job_id"]) if task["node_id"] == "bad"]
        detail = (await client.get(f"{V1}/jobs/{job['job_id']}/nodes/bad")).json()

        assert first["params"] is None
        assert first["params_ref"] == second["params_ref"] == detail["attempts"][0]["params_ref"]
        assert detail["node"]["input_params"] == {"params_ref": first["params_ref"]}
        assert await running.value("SELECT count(*) FROM dagapp.dag_payloads WHERE NOT is_kept") == 0


# Fan-outs and fan-ins


@pytest.mark.requirement("E18")
async def test_ten_thousand_results_of_two_kilobytes_are_collected_by_reference(database):
    children = 10_000

    async with engine(database, workers=2, handlers=HANDLERS) as running, api(database, running) as client:
        job = await running.run(workflow(SPREAD.format(plain="", how="")), timeout=100, bytes=2 * KB, count=children)
        node = (await running.nodes(job["job_id"]))["all"]
        response = await client.get(f"{V1}/jobs/{job['job_id']}/nodes/all/output")
        collect_payloads = response.json()

        assert job["result_data"] == {"all": {"output_ref": node["output_ref"]}}
        assert 2 * KB * children < node["output_ref"]["bytes"] < 2 * KB * children + 10 * children
        assert collect_payloads["count"] == children
        assert collect_payloads["results"] == [value_of(2 * KB, seed) for seed in range(children)]
        assert response.headers["etag"].startswith('W/"')


@pytest.mark.requirement("E18")
@pytest.mark.parametrize("how", ["collect", "concat", "first", "last"])
async def test_the_output_of_a_fan_in_over_large_outputs_is_a_reference_that_templates_resolve(database, how):
    size, children = 400_000, 3
    definition = SPREAD.format(plain="", how=f", aggregation: {how}")
    definition = definition.replace(
        "next: end}\n      end:",
        'next: look}\n      look: {handler: digest, params: {value: "{{ nodes.all.output }}"}, next: end}\n      end:',
    )
    values = [value_of(size, seed) for seed in range(children)]
    expected: dict[str, Any] = {
        "collect": {"results": values, "count": 3},
        "concat": {"results": values, "count": 3},
        "first": {"result": values[0], "count": 3},
        "last": {"result": values[2], "count": 3},
    }[how]

    async with engine(database, handlers=HANDLERS) as running, api(database, running) as client:
        job = await running.run(workflow(definition), bytes=size, count=children)
        node = (await running.nodes(job["job_id"]))["all"]
        response = await client.get(f"{V1}/jobs/{job['job_id']}/nodes/all/output")

        assert job["status"] == "completed", job["error_message"]
        assert job["result_data"]["look"]["bytes"] == len(orjson.dumps(expected))
        assert node["output_ref"]["bytes"] == pytest.approx(len(orjson.dumps(expected)), abs=100)
        assert response.json() == expected


async def fan_out_over(database: str, items: int, timeout: float) -> None:
    definition = workflow("""
        workflow_id: wide
        version: 1
        inputs: {count: {type: integer}}
        nodes:
          start: {type: start, next: items}
          items: {handler: make_list, params: {count: "{{ inputs.count }}"}, next: each}
          each:
            type: fan_out
            source: "{{ nodes.items.output.items }}"
            task: {handler: give, params: {value: "{{ item }}"}}
            next: all
          all: {type: fan_in, aggregation: sum, next: end}
          end: {type: end}
        """)
    async with engine(database, workers=2, verify_history=False) as running:
        started = time.monotonic()
        job = await running.run(definition, timeout=timeout, count=items)
        print(f"{items} items: {time.monotonic() - started:.1f} s")

        assert job["status"] == "completed", job["error_message"]
        assert job["result_data"]["all"] == {"total": items * (items - 1) // 2, "count": items}
        kept = (await running.nodes(job["job_id"]))["items"]
        assert (kept["output_ref"] is not None) == (items > 40_000)


@pytest.mark.requirement("E18")
async def test_a_fan_out_over_twenty_thousand_items_completes(database):
    await fan_out_over(database, 20_000, 100)


@pytest.mark.requirement("E18")
@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_fan_out_over_a_hundred_thousand_items_completes(database):
    await fan_out_over(database, 100_000, 350)


BATCHED = """
    workflow_id: batched
    version: 1
    inputs: {count: {type: integer}, bytes: {type: integer, default: 20}}
    nodes:
      start: {type: start, next: items}
      items: {handler: make_list, params: {count: "{{ inputs.count }}"}, next: each}
      each:
        type: fan_out
        source: "{{ nodes.items.output.items }}"
        task: {handler: produce, params: {bytes: "{{ inputs.bytes }}", seed: "{{ item }}"}}
        next: registered
      registered:
        type: fan_out
        results_of: each
        batch_size: 100
        task: {handler: register, retry: {max_attempts: 2, initial_delay_seconds: 0.05}}
        next: final
      final: {type: fan_in, handler: finalize, params: {expected: "{{ inputs.count }}"}, next: end}
      end: {type: end}
"""


@pytest.mark.requirement("E20")
async def test_results_are_registered_in_batches_and_only_the_failed_batch_is_retried(database):
    async with engine(database, workers=2, handlers=HANDLERS) as running:
        job = await running.run(workflow(BATCHED), timeout=60, count=2000)
        tasks = await running.tasks(job["job_id"])

    assert job["status"] == "completed", job["error_message"]
    assert job["result_data"]["final"] == {"batches": 20, "registered": 2000}
    batches = [task for task in tasks if task["node_id"].startswith("registered__")]
    assert [task["node_id"] for task in batches if task["attempt"] > 1] == ["registered__7"]
    assert len(batches) == 21
    assert len(tasks) == 1 + 2000 + 21 + 1


@pytest.mark.requirement("E20")
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_memory_of_an_orchestrator_does_not_grow_with_the_results(database, tmp_path):
    """200 and 2,000 children with 300 KB each; the orchestrator is a separate process."""
    peaks = []
    async with fleet(database, tmp_path, orchestrators=1) as alone:
        orchestrator = next(process for process in alone.processes if "orchestrator" in process.name)
        patient = {"task_lease_sec": 60, "lease_renew_sec": 5, "worker_slots": 8}
        async with engine(database, orchestrators=0, workers=2, handlers=HANDLERS, **patient) as running:
            for count in (200, 2000):
                job = await running.run(workflow(BATCHED), timeout=200, count=count, bytes=300_000)
                assert job["status"] == "completed", job["error_message"]
                peaks.append(peak_mb(orchestrator.pid))

    print(f"peaks: {peaks} MB")
    assert peaks[1] < peaks[0] + 30  # all outputs together have 600 MB


def peak_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status") as status:  # noqa: PTH123
        return next(int(line.split()[1]) / KB for line in status if line.startswith("VmHWM"))


# Orphans


BULK = """
    workflow_id: bulk
    version: 1
    nodes:
      start: {type: start, next: big}
      big: {handler: make_list, params: {count: 60000}, next: end}
      end: {type: end}
"""


async def collect_payloads(dsn: str, *, days: float) -> list[Any]:
    janitor = PostgresJanitor(in_days(dsn, days))
    try:
        return [a for a in (await janitor.sweep(uuid4(), THRESHOLDS)).actions if a.action_type == "payloads_unused"]
    finally:
        await janitor.close()


@pytest.mark.requirement("E18")
async def test_a_payload_whose_worker_died_before_its_report_is_deleted_after_the_grace_period(database, tmp_path):
    async with fleet(database, tmp_path, orchestrators=1, task_lease_sec=1.0, lease_renew_sec=0.3) as running:
        (job_id,) = await running.submit(BULK, 1)
        worker = running.process("worker")
        worker.start(crash_point="worker.after-store")
        assert await worker.ended() == CRASHED
        ledger = PostgresLedger(database, "test")
        await ledger.request_cancel(job_id, by=None, reason=None)
        await ledger.close()
        assert await running.wait([job_id]) == ["cancelled"]

        async def stored_parts() -> int:
            return (await running.rows("SELECT count(*) AS n FROM dagapp.dag_payload_parts"))[0]["n"]

        assert await stored_parts() == 1
        assert await collect_payloads(database, days=0.9) == []
        assert await stored_parts() == 1
        (action,) = await collect_payloads(database, days=1.1)
        assert "1 payloads of 1 jobs" in action.reason
        assert await stored_parts() == 0
        assert await collect_payloads(database, days=1.1) == []


@pytest.mark.requirement("E18")
async def test_payloads_that_are_in_use_or_were_stored_again_are_not_deleted(database):
    async with engine(database, handlers=HANDLERS) as running:
        job = await running.run(workflow(CHAIN.format(plain="")), bytes=300_000)
        used = await running.rows("SELECT sha256 FROM dagapp.dag_payloads")
        later = PostgresLedger(in_days(database, 1.9), "test")
        again, lost = b'"again"' * 50_000, b'"lost"' * 50_000
        for content in (again, lost):
            await running.ledger.store_payload(job["job_id"], content)
        await later.store_payload(job["job_id"], again)
        await later.close()

        (action,) = await collect_payloads(database, days=2)

        kept = await running.rows("SELECT sha256 FROM dagapp.dag_payloads")
        assert action.detail["payloads"] == 1
        assert {row["sha256"] for row in kept} == {row["sha256"] for row in used} | {hashlib.sha256(again).hexdigest()}
        reader = running.ledger
        assert (
            await reader.load_payload(job["job_id"], {"sha256": hashlib.sha256(again).hexdigest(), "bytes": len(again)})
            == again
        )


@pytest.mark.requirement("D5")
async def test_retention_deletes_payloads_with_their_job(database):
    async with engine(database, handlers=HANDLERS) as running:
        await running.run(workflow(CHAIN.format(plain="")), bytes=3 * MB)
        assert await running.value("SELECT count(*) FROM dagapp.dag_payload_parts") > 3
        retention = PostgresRetention(in_days(database, 2))

        assert await retention.prune_jobs(DAY, 10) == 1
        await retention.close()

        assert await running.value("SELECT count(*) FROM dagapp.dag_payload_parts") == 0
        assert await running.value("SELECT count(*) FROM dagapp.dag_payloads") == 0


# Damage


@pytest.mark.requirement("E18")
@pytest.mark.parametrize(
    ("damage", "code", "status"),
    [
        ("UPDATE dagapp.dag_payload_parts SET data = set_byte(data, 1000, 65) WHERE part = 0", "payload.damaged", 422),
        ("UPDATE dagapp.dag_payload_parts SET data = substr(data, 2)", "payload.damaged", 422),
        ("DELETE FROM dagapp.dag_payload_parts", "payload.missing", 404),
    ],
)
async def test_a_damaged_payload_is_an_error_and_never_a_value(database, damage, code, status):
    async with (
        engine(database, workers=1, handlers=HANDLERS, verify_history=False) as running,
        api(database, running) as client,
    ):
        definition = CHAIN.format(plain="").replace(
            "next: look\n", "next: hold\n      hold: {handler: gate, next: look}\n"
        )
        job_id = await running.submit(workflow(definition), bytes=300_000)
        await until(
            lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE node_id = 'hold' AND status = 'running'")
        )
        await running.rows(damage)
        open_gate(job_id)
        job = await running.wait(job_id)
        response = await client.get(f"{V1}/jobs/{job_id}/nodes/big/output")

        error = (await running.nodes(job_id))["look"]["error"]
        assert job["status"] == "failed"
        assert error["code"] == code
        assert (response.status_code, response.json()["code"]) == (status, code)
        assert response.json()["facts"]["job_id"] == str(job_id)
        sizes = await verify(database)
        hashes = await verify(database, reads_payloads=True)
        assert {finding.code for finding in hashes.findings} == {FindingCode.PAYLOAD}
        assert bool(sizes.findings) == ("set_byte" not in damage)


@pytest.mark.requirement("E18")
async def test_a_retry_replaces_damaged_payloads(database):
    async with engine(database, workers=1, handlers=HANDLERS) as running:
        job = await running.run(workflow(CHAIN.format(plain="")), bytes=3 * MB)
        await running.rows("UPDATE dagapp.dag_payload_parts SET data = set_byte(data, 5, 65) WHERE part = 1")
        await running.rows("DELETE FROM dagapp.dag_payload_parts WHERE part = 2")
        assert not (await verify(database, reads_payloads=True)).is_clean
        await retry(running.ledger, job["job_id"], JobPart(node="big"))
        running.notifier.notify(JOBS)
        await running.wait(job["job_id"], until=("completed",))

        assert (await verify(database, reads_payloads=True)).is_clean


@pytest.mark.requirement("E18")
async def test_a_download_is_aborted_at_a_damaged_part(database):
    async with engine(database, handlers=HANDLERS, verify_history=False) as running:
        job = await running.run(workflow(CHAIN.format(plain="")), bytes=3 * MB)
        await running.rows("UPDATE dagapp.dag_payload_parts SET data = set_byte(data, 5, 65) WHERE part = 2")
        async with served(app_of(database, running)) as server:
            client = JsonClient.of(lambda: server.url)
            file = BytesIO()
            with pytest.raises(Unavailable) as broken:
                await asyncio.to_thread(client.download_output, str(job["job_id"]), "big", file)
            client.close()

    assert broken.value.code == "server.lost"
    assert len(file.getvalue()) < 3 * MB
