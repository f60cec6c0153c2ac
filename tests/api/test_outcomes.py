"""The outcomes of a job, described for users."""

from uuid import UUID

import pytest

from dagmaster.api.outcomes import deliverables, outcomes
from dagmaster.jobs.states import JobStatus, NodeStatus, SkipReason
from dagmaster.jobs.view import JobView, NodeView
from dagmaster.workflows.graph import build
from tests.workflows.builders import a_workflow

pytestmark = pytest.mark.requirement("E17")

JOB = UUID(int=7)
WORKFLOW = a_workflow(
    """
  start: {type: start, next: [cog, preview, notify]}
  cog: {handler: echo, next: end}
  preview: {handler: echo, importance: important, description: a preview picture, next: end}
  notify: {handler: echo, importance: optional, next: end}
  end: {type: end}
""",
    head="description: Cloud-optimised rasters\n",
)
DONE = NodeView(NodeStatus.COMPLETED)


def view(status: JobStatus, **nodes: NodeView) -> JobView:
    return JobView(JOB, build(WORKFLOW), {}, status, nodes=dict.fromkeys(WORKFLOW.nodes, DONE) | nodes)


def test_the_outcome_of_a_partial_success_names_what_is_missing_and_how_to_resume():
    failed = NodeView(NodeStatus.FAILED, error_message="no space left")
    result = outcomes(view(JobStatus.PARTIAL_SUCCESS, preview=failed, end=NodeView(NodeStatus.SKIPPED)))

    assert (result.primary.description, result.primary.status) == ("Cloud-optimised rasters", "completed")
    assert result.primary.details == "1 of 1 critical nodes completed"
    (second,) = result.secondary
    assert (second.description, second.status, second.error) == ("a preview picture", "failed", "no space left")
    assert second.recovery == f"POST /api/v1/jobs/{JOB}/resume"


def test_optional_failures_are_listed_but_there_is_nothing_to_resume():
    result = outcomes(view(JobStatus.COMPLETED, notify=NodeView(NodeStatus.FAILED, error_message="no mail")))

    assert result.primary.status == "completed"
    assert [(second.node_id, second.recovery) for second in result.secondary] == [("notify", None)]


def test_the_outcome_of_a_failed_job_names_the_nodes_that_failed():
    skipped = NodeView(NodeStatus.SKIPPED, reason=SkipReason.UPSTREAM_FAILED)
    result = outcomes(view(JobStatus.FAILED, cog=NodeView(NodeStatus.FAILED), preview=skipped))

    assert (result.primary.status, result.primary.details) == (
        "failed",
        "0 of 1 critical nodes completed; missing: cog",
    )
    assert [(second.node_id, second.error) for second in result.secondary] == [("preview", "upstream failed")]


def test_deliverables_are_counted_and_located():
    counted = deliverables(
        JOB,
        {
            "cogs": ["a", "b"],
            "mosaic": {"path": "silver/m.json"},
            "item": "https://x/y",
            "tiles": {"count": 30},
            "preview": None,
            "large": {"output_ref": {"sha256": "ab", "bytes": 300_000}},
            "all": {"output_ref": {"results_of": "each", "aggregation": "collect", "bytes": 300_000}},
        },
    )

    assert {name: (each.count, each.location, each.usable) for name, each in counted.items()} == {
        "cogs": (2, None, True),
        "mosaic": (1, "silver/m.json", True),
        "item": (1, "https://x/y", True),
        "tiles": (30, None, True),
        "preview": (0, None, False),
        "large": (1, f"/api/v1/jobs/{JOB}/payloads/ab", True),
        "all": (1, f"/api/v1/jobs/{JOB}/nodes/all/output", True),
    }
    assert deliverables(JOB, None) == {}
