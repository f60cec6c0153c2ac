from tests.engine.harness import engine


async def test_echo_runs_to_its_end(database):
    async with engine(database) as running:
        job = await running.run("echo_test", message="hi")

        assert job["status"] == "completed", job
        print(job["result_data"])
        for e in await running.events(job["job_id"]):
            print(e["sequence"], e["event_type"], e["node_id"], e["event_status"], e["attempt"], e["event_data"])


async def test_fan_out(database):
    async with engine(database) as running:
        job = await running.run("fan_out_test", count=500)

        assert job["status"] == "completed", job
