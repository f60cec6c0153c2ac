"""The translation into the old form, for states of jobs of any kind."""

import json
import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dagmaster.api.legacy import shapes
from dagmaster.client.models.jobs import SubmissionResult
from dagmaster.client.models.legacy import OldJobStatus, OldSubmissionResponse
from dagmaster.database.reads.legacy import ChildrenFacts
from dagmaster.errors import Conflict, NotFound
from dagmaster.handlers.registry import installed
from dagmaster.jobs.model import Job
from dagmaster.jobs.rerun import RESUMABLE
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus, NodeStatus, SkipReason
from dagmaster.jobs.view import JobView, NodeView
from dagmaster.library.workflows import load_library
from dagmaster.settings import load
from dagmaster.workflows.graph import build
from dagmaster.workflows.model import FanOutNode

pytestmark = pytest.mark.requirement("O3")

GRAPHS = [
    build(workflow)
    for workflow in load_library(load(), installed(), load().known_queues).workflows.values()
    if workflow.workflow_id in ("demo", "raster_ingest", "process_large_raster", "conditional_test", "echo_test")
]
JOB_ID = UUID("0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01")
START = datetime(2026, 1, 5, tzinfo=UTC)
OLD_STATUSES = {"queued", "processing", "completed", "partial_success", "failed"}
ANSWERS = ["accepted", "already_completed", "already_processing", "previously_failed", "resumed"]


@st.composite
def nodes(draw, graph, name):
    status = draw(st.sampled_from(list(NodeStatus)))
    reason = draw(st.sampled_from([*SkipReason, None])) if status is NodeStatus.SKIPPED else None
    if not isinstance(graph.workflow.nodes[name], FanOutNode):
        return NodeView(status, attempt=draw(st.integers(0, 2)), reason=reason)
    total = draw(st.integers(0, 5))
    remaining = draw(st.integers(0, total))
    failed = draw(st.integers(0, total - remaining))
    return NodeView(
        status, reason=reason, total=total, expanded=total, remaining=remaining, failed_count=failed, is_sized=True
    )


@st.composite
def views(draw):
    graph = draw(st.sampled_from(GRAPHS))
    status = draw(st.sampled_from(list(JobStatus)))
    return JobView(JOB_ID, graph, {}, status, nodes={name: draw(nodes(graph, name)) for name in graph.order})


results = st.none() | st.lists(st.integers()) | st.dictionaries(st.text(), st.integers())


def job_of(view: JobView, result) -> Job:
    return Job(
        job_id=JOB_ID,
        workflow_id=view.graph.workflow.workflow_id,
        workflow_version="1",
        definition_hash="0" * 64,
        status=view.status,
        input_params={},
        result_data=result,
        created_at=START,
        updated_at=START,
        deadline_at=START,
    )


def facts_of(view: JobView) -> shapes.StageFacts:
    times = {name: START + timedelta(seconds=number) for number, name in enumerate(view.graph.order)}
    fan_outs = [name for name, node in view.graph.workflow.nodes.items() if isinstance(node, FanOutNode)]
    children = {name: ChildrenFacts(name, times[name], 2, 5.0) for name in fan_outs}
    return shapes.StageFacts(times, times, {name: {"cog_blob": "x", "size_mb": "odd"} for name in times}, children)


@given(views(), results)
def test_every_status_has_all_fields_and_they_are_consistent(view, result):
    status = shapes.status_shape(
        job_of(view, result), view, facts_of(view), job_type="x", seconds=1.5, updated_at=START
    )

    assert json.loads(json.dumps(status)) == status
    assert status["status"] in OLD_STATUSES
    assert 1 <= status["stage"] <= status["total_stages"]
    assert {int(number) for number in status["stageResults"]} <= set(range(1, status["totalStages"] + 1))
    assert all(0 <= each["success_count"] <= each["task_count"] for each in status["stage_results"].values())
    assert status["resumable"] == (status["resume_hint"] is not None) == (status["resume_from_stage"] is not None)
    assert not status["resumable"] or view.status in RESUMABLE
    assert (status["result_data"] is None) == (view.status not in JOB_TERMINAL)
    if isinstance(result, dict) and view.status in JOB_TERMINAL:
        assert status["result_data"].items() >= result.items()
    for name, value in status.items():
        other = re.sub("_([a-z])", lambda match: match[1].upper(), name)
        assert status[other] == value
    assert not undescribed(status, OldJobStatus)


def undescribed(response: dict[str, object], model: type[BaseModel]) -> set[str]:
    """The fields of a response that its model does not have. Second spellings are not part of the models."""
    return {name for name in response if name == name.lower()} - model.model_fields.keys()


@given(views(), st.sampled_from(ANSWERS))
def test_every_response_to_a_submission_has_its_documented_fields(view, outcome):
    stages = shapes.old_stages(view)
    done = tuple(stage.name for stage in stages if stage.is_complete)
    result = SubmissionResult(status=outcome, job_id=JOB_ID, job_status=view.status, completed_stages=done)

    response = shapes.submission_shape(result, stages, job_type="x", queue="dag-jobs", created_at=START)

    documented = {
        "accepted": {"queue", "message_id", "status_url", "created_at"},
        "already_completed": {"result_data"},
        "already_processing": {"stage"},
        "previously_failed": {"failed_stage", "completed_stages", "resume_hint"},
        "resumed": {"resumed_from_stage", "resume_count"},
    }
    assert response.keys() >= documented[outcome] | {"job_id", "jobId", "status", "message", "served_by"}
    assert response["status"] == ("queued" if outcome == "accepted" else outcome)
    assert json.loads(json.dumps(response)) == response
    assert not undescribed(response, OldSubmissionResponse)


@given(views(), st.integers(-2, 12))
def test_a_stage_can_be_retried_only_if_the_job_is_resumable_and_reached_it(view, number):
    stages = shapes.old_stages(view)
    try:
        chosen = shapes.retried_stage(JOB_ID, view.status, stages, number)
    except NotFound:
        assert not 1 <= number <= len(stages)
    except Conflict:
        stage = stages[number - 1]
        assert view.status not in RESUMABLE or not stage.is_reached
        assert all(view.nodes[name].attempt == 0 for name in stage.nodes) or view.status not in RESUMABLE
    else:
        assert (chosen.number, view.status in RESUMABLE) == (number, True)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.workflow.workflow_id)
def test_stages_are_numbered_without_gaps_and_without_start_and_end(graph):
    view = JobView(JOB_ID, graph, {}, nodes={name: NodeView() for name in graph.order})

    stages = shapes.old_stages(view)
    numbers = shapes.stage_numbers(graph)

    assert [stage.number for stage in stages] == list(range(1, len(stages) + 1))
    assert {"start", "end"}.isdisjoint(name for stage in stages for name in stage.nodes)
    assert all(numbers[name] == stage.number for stage in stages for name in stage.nodes)
