"""`dagmaster assets` and `dagmaster platforms` against a real API and database; the tests end the jobs themselves."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dagmaster.api.server import ApiServer
from dagmaster.observe import log
from tests.api.serving import app_of, served
from tests.cli.conftest import Dagmaster, Result
from tests.operations.kit import Kit, opened

DDH = ("--platform", "ddh", "--ref", "dataset_id=floods", "--ref", "resource_id=r1", "--ref", "version_id=2024")


class Running:
    """An API on a port, in a separate thread."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._stack = AsyncExitStack()
        self.kit: Kit = self.do(self._stack.enter_async_context(opened(dsn, folder)))
        app = app_of(dsn, STORAGE_FOLDER=str(folder))
        self.server: ApiServer = self.do(self._stack.enter_async_context(served(app)))

    def do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def stop(self) -> None:
        self.do(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    def process(self, answer: dict[str, Any], status: str = "completed", **result: Any) -> None:
        """Write the results of the job of a submission, and end the job."""
        self.do(self.kit.write_documents(answer["dataset_id"], answer["version_ordinal"], answer["revision"]))
        self.do(self.kit.end_job(answer["job_id"], status, **result))


@pytest.fixture
def running(catalog_database: str, tmp_path: Path) -> Iterator[Running]:
    log.configure("error")
    running = Running(catalog_database, tmp_path / "storage")
    running.kit.put("floods.tif", b"pixels")
    yield running
    running.stop()


@pytest.fixture
def cli(dagmaster: Dagmaster, running: Running, monkeypatch: pytest.MonkeyPatch) -> Dagmaster:
    monkeypatch.setenv("DAGMASTER_URL", running.server.url)
    return dagmaster


@pytest.fixture
def submitted(cli: Dagmaster, running: Running) -> Callable[..., dict[str, Any]]:
    """A function that submits data and ends the job."""

    def submit(*options: str, status: str = "completed") -> dict[str, Any]:
        result = cli("assets", "submit", *DDH, "--blob", "floods.tif", "--json", *options)
        assert result.code == 0, result.err
        running.process(result.json, status)
        answer: dict[str, Any] = result.json
        return answer

    return submit


def lines(text: str) -> dict[str, str]:
    """The facts of a page: a word and its value on each line."""
    return dict(line.split(maxsplit=1) for line in text.splitlines() if line[:1].isalpha() and " " in line)


def test_findings_are_shown_even_after_the_job_was_deleted(cli, running):
    answer = cli("assets", "submit", *DDH, "--blob", "floods.tif", "--json").json
    finding = {"code": "raster.no-nodata", "message": "no nodata value", "advice": "declare one", "severity": "warn"}
    note = {"code": "raster.large", "message": "the file is large", "severity": "info"}
    running.process(answer, findings=[note, finding])
    running.do(running.kit.execute("DELETE FROM dagapp.dag_jobs WHERE job_id = %s", answer["job_id"]))

    shown, as_json = cli("assets", "show", "floods-r1"), cli("assets", "show", "floods-r1", "--json").json

    assert "version 0, warning raster.no-nodata: no nodata value (declare one)\n" in shown.out
    assert "the file is large" not in shown.out
    (version,) = as_json["versions"]
    assert [each["code"] for each in version["revisions"][0]["findings"]] == ["raster.no-nodata", "raster.large"]
    assert version["revisions"][0]["findings"][0]["hint"] == "declare one"


@pytest.mark.requirement("M3")
def test_data_is_submitted_reviewed_and_published(cli, running, submitted):
    new = cli("assets", "submit", *DDH, "--blob", "bronze/floods.tif", "-p", "title=Floods")
    asset = cli("assets", "show", "floods-r1", "--json").json
    running.process(
        {
            "dataset_id": "floods-r1",
            "version_ordinal": 0,
            "revision": 1,
            "job_id": asset["versions"][0]["current_job_id"],
        }
    )
    waiting, shown = cli("assets", "ls", "--to-review"), cli("assets", "show", "floods-r1")
    uncleared = cli("assets", "approve", "floods-r1")
    approved = cli("assets", "approve", "floods-r1", "--clearance", "ouo", "--reason", "looks right")
    history = cli("assets", "history", "floods-r1")

    assert new.code == 0
    assert new.out.startswith("a new asset: floods-r1, version 0 (2024), revision 1\n")
    assert "watch it with: dagmaster jobs watch " in new.err
    assert waiting.out.splitlines()[1].startswith("floods-r1")
    assert lines(shown.out)["clearance"] == "uncleared"
    assert "dagmaster assets approve floods-r1 --version 0 --clearance ouo\n" in shown.err
    assert (uncleared.code, uncleared.err.splitlines()[-1]) == (
        2,
        "hint: add --clearance ouo (for internal users) or --clearance public (for everyone)",
    )
    assert approved.out == "version 0 of floods-r1 is approved\n"
    assert "approved" in history.out
    assert "looks right" in history.out


@pytest.mark.requirement("M3")
def test_every_decision_has_a_command(cli, submitted):
    submitted()
    rejected = cli("assets", "reject", "floods-r1", "--reason", "shifted", "--json")
    again = cli("assets", "approve", "floods-r1", "--clearance", "ouo", "--json")
    cleared = cli("assets", "clear", "floods-r1", "public", "--json")
    exported = cli("assets", "export", "floods-r1", "0", "--reason", "to be sure", "--json")
    due = cli("assets", "show", "floods-r1")
    exposed = cli("assets", "expose", "floods-r1", "all-versions", "--json")
    withdrawn = cli("assets", "unpublish", "floods-r1", "--version", "0", "--yes", "--json")
    unpublished = cli("assets", "show", "floods-r1")
    deleted = cli("assets", "delete", "floods-r1", "--yes", "--reason", "a test", "--json")
    listed, listed_deleted = cli("assets", "ls"), cli("assets", "ls", "--deleted", "--json")

    assert rejected.json["versions"][0]["rejection_reason"] == "shifted"
    assert again.json["versions"][0]["is_served"]
    assert (cleared.json["clearance_state"], exposed.json["exposure"]) == ("public", "all-versions")
    assert exported.json["versions"][0]["revisions"][0]["external"]["state"] == "due"
    assert "external copies of version 0, revision 1: due" in due.out
    assert withdrawn.json["latest_approved_version_ordinal"] is None
    assert "publish it again with:\n  dagmaster assets approve floods-r1 --version 0\n" in unpublished.err
    assert deleted.json["deleted_at"]
    assert (listed.out, listed.err) == ("", "no assets\n")
    assert [asset["dataset_id"] for asset in listed_deleted.json["assets"]] == ["floods-r1"]


@pytest.mark.requirement("M3")
def test_every_outcome_of_a_submission_has_its_message(cli, running, submitted):
    first = submitted()
    same = cli("assets", "submit", *DDH, "--blob", "floods.tif")
    revised = cli("assets", "submit", *DDH, "--blob", "floods.tif", "--force")
    during = cli("assets", "submit", *DDH, "--blob", "floods.tif")
    blocked = cli("assets", "submit", *DDH[:-1], "version_id=2025", "--blob", "floods.tif")
    dry_run = cli("assets", "submit", *DDH[:-1], "version_id=2025", "--blob", "floods.tif", "--dry-run")

    assert first["outcome"] == "new_asset"
    assert same.out.startswith("the same data was processed before; --force processes it again: floods-r1, version 0")
    assert revised.out.startswith("a new revision: floods-r1, version 0 (2024), revision 2\n")
    assert during.out.startswith("the same data is already being processed: ")
    unresolved = "a new version cannot be submitted while version 0 is not approved (pending_review)"
    assert (blocked.code, blocked.err.splitlines()[0]) == (4, f"error: {unresolved}")
    assert "submit it again with --version-label" in blocked.err
    assert dry_run.code == 4
    assert dry_run.out == f"would be refused: {unresolved} [version.unresolved]\n"


@pytest.mark.requirement("M3")
def test_a_dry_run_shows_what_would_happen_and_creates_nothing(cli, running):
    result = cli("assets", "submit", *DDH, "--blob", "floods.tif", "--dry-run")
    assets = cli("assets", "ls", "--json").json["assets"]
    (count,) = running.do(running.kit.rows("SELECT count(*) AS jobs FROM dagapp.dag_jobs"))

    assert result.code == 0
    assert result.out.startswith("would be a new asset: floods-r1, version 0 (2024), revision 1\nasset ")
    assert lines(result.out)["workflow"] == "raster_ingest"
    assert (assets, count["jobs"]) == ([], 0)


@pytest.mark.requirement("M3")
def test_a_stale_change_shows_what_changed(cli, submitted):
    submitted()
    etag = cli("assets", "show", "floods-r1", "--json").json["etag"]
    cli("assets", "expose", "floods-r1", "all-versions", "--reason", "cited")
    result = cli("assets", "approve", "floods-r1", "--clearance", "ouo", "--etag", etag)
    as_json = cli("assets", "approve", "floods-r1", "--clearance", "ouo", "--etag", etag, "--json")

    assert result.code == 4
    assert result.err.splitlines() == [
        "changed meanwhile: exposed, by local: cited",
        "error: the asset has changed since the ETag in If-Match was read",
        "hint: read it again with `dagmaster assets show floods-r1`, then repeat the command",
    ]
    assert json.loads(as_json.err)["error"]["facts"]["events"][0]["action"] == "exposed"


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(("command", "question"), [("unpublish", "Unpublish"), ("delete", "Delete")])
def test_commands_that_withdraw_data_ask_for_confirmation(cli, submitted, monkeypatch, command, question):
    submitted()
    cli("assets", "approve", "floods-r1", "--clearance", "ouo")
    without_terminal = cli("assets", command, "floods-r1")
    requests: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.confirm", lambda text, **_: requests.append(text))
    declined = cli("assets", command, "floods-r1")
    declined_version = cli("assets", command, "floods-r1", "--version", "0")

    assert (without_terminal.code, without_terminal.err.splitlines()[-1]) == (2, "hint: add --yes")
    assert (declined.code, declined_version.code) == (1, 1)
    assert requests == [f"{question} floods-r1 with 1 version?", f"{question} version 0 of floods-r1?"]
    assert cli("assets", "show", "floods-r1", "--json").json["versions"][0]["is_served"]


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    ("arguments", "code", "texts"),
    [
        (("show", "nothing"), 4, ["there is no asset 'nothing'", "see `dagmaster assets ls`"]),
        (("approve", "floods-r1", "--version", "7"), 4, ["the asset has no version 7", "lists the versions"]),
        (
            ("unpublish", "floods-r1", "--yes"),
            4,
            ["the asset has no version that is published", "shows which versions are served"],
        ),
        (("submit", "--platform", "ddh", "--blob", "a.tif"), 2, ["'dataset_id' is missing", "platforms show ddh"]),
        (("submit", "--platform", "none", "--blob", "a.tif"), 4, ["there is no platform 'none'", "platforms ls"]),
        (("submit", *DDH, "--blob", "none.tif"), 2, ["the source does not exist", "upload it to the bronze zone"]),
        (("submit", *DDH), 2, ["give either files or --blob", "--help"]),
        (("submit", *DDH, "--ref", "x", "--blob", "a.tif"), 2, ["--ref x: expected name=value", "--ref uuid=7f3a"]),
        (("submit", *DDH, "--blob", "a/b.tif", "--blob", "c/d.tif"), 2, ["in one container", ""]),
        (("submit", *DDH, "--blob", "floods.tif", "-p", "tile_size=x"), 2, ["expected integer", "-p tile_size=3"]),
        (("submit", *DDH, "--blob", "floods.tif", "--dry-run", "--wait"), 2, ["--dry-run starts nothing", ""]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_errors_say_what_to_do_next(cli, submitted, arguments, code, texts):
    submitted()

    result: Result = cli("assets", *arguments)

    assert result.code == code, result.err
    assert [text for text in texts if text not in result.err] == []


@pytest.mark.requirement("M3")
def test_the_only_version_to_review_is_the_default(cli, running, submitted):
    submitted()
    cli("assets", "approve", "floods-r1", "--clearance", "ouo")
    none = cli("assets", "approve", "floods-r1")
    for label in ("2025", "2026"):
        result = cli("assets", "submit", *DDH[:-1], f"version_id={label}", "--blob", "floods.tif", "--json")
        running.process(result.json)
        cli("assets", "approve", "floods-r1")
    cli("assets", "unpublish", "floods-r1", "--yes")
    ambiguous = cli("assets", "approve", "floods-r1")

    assert (none.code, none.err.splitlines()[0]) == (4, "error: no version of floods-r1 waits for review")
    assert (ambiguous.code, ambiguous.err.splitlines()[0]) == (2, "error: more than one version to approve: 0, 1, 2")


@pytest.mark.requirement("M3")
def test_a_withdrawn_version_is_the_default_of_approve_unless_another_one_is_processing(cli, running, submitted):
    submitted()
    cli("assets", "approve", "floods-r1", "--clearance", "ouo")
    second = cli("assets", "submit", *DDH[:-1], "version_id=2025", "--blob", "floods.tif", "--json").json
    cli("assets", "unpublish", "floods-r1", "--version", "0", "--yes")
    processing = cli("assets", "approve", "floods-r1")
    running.process(second, "failed")
    approved = cli("assets", "approve", "floods-r1")
    failed = cli("assets", "approve", "floods-r1")

    assert (processing.code, failed.code) == (4, 4)
    assert "version 1, revision 1 is still being processed" in processing.err
    assert "hint: wait for the job of the version" in processing.err
    assert (approved.code, approved.out) == (0, "version 0 of floods-r1 is approved\n"), approved.err
    assert "hint: submit it again" in failed.err


@pytest.mark.requirement("M3")
def test_an_unpublished_version_whose_newest_revision_has_failed_is_a_candidate_of_approve(cli, running, submitted):
    """An approval publishes the revision again that was approved before."""
    submitted()
    cli("assets", "approve", "floods-r1", "--clearance", "ouo")
    second = cli("assets", "submit", *DDH[:-1], "version_id=2025", "--blob", "floods.tif", "--json").json
    running.process(second, "failed")
    running.kit.put("floods.tif", b"other pixels")
    submitted(status="failed")
    cli("assets", "unpublish", "floods-r1", "--version", "0", "--yes")
    besides_a_failed_one = cli("assets", "approve", "floods-r1")
    again = cli("assets", "submit", *DDH[:-1], "version_id=2025", "--blob", "floods.tif", "--json").json
    running.process(again)
    cli("assets", "approve", "floods-r1", "--version", "1")
    cli("assets", "unpublish", "floods-r1", "--yes")
    besides_a_completed_one = cli("assets", "approve", "floods-r1")

    assert besides_a_failed_one.out == "version 0 of floods-r1 is approved\n", besides_a_failed_one.err
    assert besides_a_completed_one.code == 2, besides_a_completed_one.err
    assert besides_a_completed_one.err.startswith("error: more than one version to approve: 0, 1\n")


@pytest.mark.requirement("A1")
def test_platforms_are_listed_shown_and_added(cli):
    added = cli("platforms", "add", "mine", "--name", "Mine", "--required", "site,edition", "--version-ref", "edition")
    listed, shown = cli("platforms", "ls", "--json"), cli("platforms", "show", "mine")
    table = cli("platforms", "ls")
    twice = cli("platforms", "add", "mine", "--name", "Mine", "--required", "site")
    missing = cli("platforms", "show", "none")

    assert lines(added.out)["identity"] == "site"
    assert "--ref site=… --ref edition=…" in added.err
    assert "dagmaster keys create NAME --scope b2b --platform mine\n" in added.err
    assert [each["platform_id"] for each in listed.json["platforms"]][-1] == "mine"
    assert lines(shown.out)["required"] == "site, edition"
    assert "mine" in table.out
    assert (twice.code, missing.code) == (4, 4)


@pytest.mark.requirement("X3")
def test_changes_of_platforms_and_keys_are_listed(cli):
    cli("platforms", "add", "audited", "--name", "Audited", "--required", "site")
    cli("keys", "create", "audited-key", "--scope", "b2b", "--platform", "audited")

    table, answer = cli("audit", "ls", "--platform", "audited"), cli("audit", "ls", "--platform", "audited", "--json")
    of_keys = cli("audit", "ls", "--platform", "audited", "--action", "key_created", "--json")

    assert [event["action"] for event in answer.json["events"]] == ["key_created", "platform_added"]
    assert [event["detail"]["name"] for event in of_keys.json["events"]] == ["audited-key"]
    assert "platform added" in table.out
    assert "audited-key" in table.out


@pytest.mark.requirement("M3")
def test_lists_can_be_paged_and_filtered(cli, running):
    for number in range(3):
        refs = ("--ref", "dataset_id=floods", "--ref", f"resource_id=r{number}", "--ref", "version_id=1")
        assert cli("assets", "submit", "--platform", "ddh", *refs, "--blob", "floods.tif").code == 0
    page = cli("assets", "ls", "--limit", "2", "--json").json
    second_page = cli("assets", "ls", "--after", page["next"], "--json").json
    matching = cli("assets", "ls", "--ref", "resource_id=r1", "--search", "FLOODS", "--platform", "ddh", "--json").json

    assert [asset["dataset_id"] for asset in page["assets"]] == ["floods-r2", "floods-r1"]
    assert [asset["dataset_id"] for asset in second_page["assets"]] == ["floods-r0"]
    assert [asset["dataset_id"] for asset in matching["assets"]] == ["floods-r1"]
