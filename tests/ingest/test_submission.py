"""Submissions whose response is lost, and what the command says then."""

from types import SimpleNamespace
from typing import Any

import pytest

from dagmaster.cli.asset_submit import _submitted
from dagmaster.cli.ingestion import note_unapproved
from dagmaster.cli.submit import submitted
from dagmaster.errors import Unavailable
from dagmaster.ingest.submission import Ingestion, submit


class LosingClient:
    """The platform receives each submission, and each response is lost."""

    def submit_asset(self, _submission: Any) -> None:
        raise Unavailable("the connection was lost", code="server.lost")

    def submit(self, _submission: Any, **_options: Any) -> None:
        raise Unavailable("the connection was lost", code="server.lost")


def ingestion(tmp_path, *, force: bool) -> Ingestion:
    return Ingestion("dem", "raster_ingest", "bronze", ["dem.tif"], {}, None, tmp_path, is_forced=force)


@pytest.mark.parametrize(("force", "hint"), [(False, "run the same command again"), (True, "it is unknown whether")])
def test_only_a_submission_that_is_not_forced_is_safe_to_repeat(tmp_path, force, hint):
    with pytest.raises(Unavailable) as lost:
        submit(LosingClient(), ingestion(tmp_path, force=force), print)

    assert lost.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("request_id", "force", "hint"),
    [(None, False, "submit it again"), ("r1", True, "submit it again"), (None, True, "it is unknown whether")],
)
def test_a_forced_submission_of_an_asset_is_safe_to_repeat_only_with_a_request_id(request_id, force, hint):
    state = SimpleNamespace(client=LosingClient())

    with pytest.raises(Unavailable) as lost:
        _submitted(state, {"platform_id": "local", "request_id": request_id, "force": force})

    assert lost.value.hint.startswith(hint)


@pytest.mark.parametrize("force", [False, True])
def test_an_idempotency_key_makes_a_forced_job_no_safer_to_repeat(force):
    with pytest.raises(Unavailable) as lost:
        submitted(SimpleNamespace(client=LosingClient()), {}, force=force, resume=False)

    assert ("--idempotency-key" in lost.value.hint) is not force


@pytest.mark.parametrize("force", [False, True])
def test_a_detached_command_is_repeated_without_force(tmp_path, force):
    notes: list[str] = []
    forced = ingestion(tmp_path, force=force)
    forced.result = SimpleNamespace(dataset_id="dem")

    note_unapproved(SimpleNamespace(comment=notes.append), forced)

    assert ("without --force" in notes[0]) is force
