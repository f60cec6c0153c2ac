"""Checkpoints and their artifacts, in plain and async handlers."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagmaster.handlers.artifacts import Artifact, problem_of
from dagmaster.handlers.checkpoints import MAX_BYTES
from dagmaster.testing import Trial, run_handler


def saving(**saved: Any) -> Trial:
    """The trial of a handler that saves checkpoints with these names and artifacts."""

    def save(ctx: Any) -> None:
        for name, artifact in saved.items():
            ctx.save_checkpoint(name, {"of": name}, artifact=artifact)

    return run_handler(save)


def plain(**options: Any) -> Callable[..., Any]:
    return lambda ctx: ctx.load_checkpoint(**options)


def coroutine(**options: Any) -> Callable[..., Any]:
    async def load(ctx: Any) -> Any:
        return await ctx.load_checkpoint(**options)

    return load


both = pytest.mark.parametrize("loading", [plain, coroutine])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    files = [tmp_path / f"file {number} ü.bin" for number in range(3)]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]) * 1000)
    return files


@pytest.mark.requirement("E22")
@both
def test_the_last_checkpoint_with_a_valid_artifact_is_loaded(loading, files) -> None:
    trial = saving(first=files[0], second=[files[1], str(files[2])])

    assert run_handler(loading(), after=trial).output == ["second", {"of": "second"}]


def delete(file: Path) -> None:
    file.unlink()


def turn_into_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def change_a_byte(file: Path) -> None:
    file.write_bytes(b"\xff" + file.read_bytes()[1:])


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"more")


@pytest.mark.requirement("E22")
@both
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (delete, "no longer exists"),
        (turn_into_a_folder, "no longer exists"),
        (change_a_byte, "its sha256"),
        (grow, "its size_bytes"),
    ],
)
def test_a_checkpoint_whose_artifact_was_deleted_or_changed_is_skipped_and_reported(
    loading, change, why, files
) -> None:
    trial = saving(first=files[0], second=[files[1], files[2]])
    change(files[2])

    after = run_handler(loading(), after=trial)

    assert after.output == ["first", {"of": "first"}]
    (line,) = after.log
    assert line.startswith("warning: a checkpoint is not valid")
    assert "checkpoint=second" in line
    assert why in line


@pytest.mark.requirement("E22")
@both
def test_without_a_valid_checkpoint_a_handler_starts_from_the_beginning(loading, files) -> None:
    trial = saving(first=files[0])
    delete(files[0])

    assert run_handler(loading(), after=trial).output is None


@pytest.mark.requirement("E22")
@both
def test_a_large_file_can_be_identified_by_its_modification_time(loading, files) -> None:
    trial = saving(first=None, second=Artifact.of(files[0], by="modified_ns"))
    kept = run_handler(loading(), after=trial)
    os.utime(files[0], ns=(1, 1))
    changed = run_handler(loading(), after=trial)

    assert (kept.output[0], changed.output[0]) == ("second", "first")
    assert "modified_ns" in changed.log[0]


REMOTE_ARTIFACT = Artifact("s3://bucket/tiles/1", {"etag": "abc"})


@pytest.mark.requirement("E22")
@both
def test_a_remote_artifact_is_checked_by_the_handler_or_its_checkpoint_is_skipped(loading) -> None:
    trial = saving(first=None, second=REMOTE_ARTIFACT)
    seen: list[Artifact] = []

    def check(artifact: Artifact) -> bool:
        seen.append(artifact)
        return artifact.facts["etag"] == "abc"

    unchecked = run_handler(loading(), after=trial)
    checked = run_handler(loading(check=check), after=trial)
    refused = run_handler(loading(check=lambda _: False), after=trial)

    assert [each.output[0] for each in (unchecked, checked, refused)] == ["first", "second", "first"]
    assert seen == [REMOTE_ARTIFACT]
    assert "the facts of s3://bucket/tiles/1 cannot be measured" in unchecked.log[0]


@pytest.mark.requirement("E22")
def test_an_async_handler_can_check_artifacts_asynchronously() -> None:
    async def check(artifact: Artifact) -> bool:
        return artifact == REMOTE_ARTIFACT

    assert run_handler(coroutine(check=check), after=saving(first=REMOTE_ARTIFACT)).output[0] == "first"


@pytest.mark.requirement("E22")
@both
def test_an_error_in_the_check_is_blamed_on_the_environment(loading) -> None:
    def check(_artifact: Artifact) -> bool:
        raise ConnectionError("the store is unavailable")

    assert run_handler(loading(check=check), after=saving(first=REMOTE_ARTIFACT)).blame == "environment"


@pytest.mark.requirement("E22")
@pytest.mark.parametrize(
    ("artifact", "code"),
    [
        ("/nowhere/at/all", "checkpoint.no-artifact"),
        (tempfile.gettempdir(), "checkpoint.bad-artifact"),
        ("s3://bucket/tiles/1", "checkpoint.bad-artifact"),
    ],
)
def test_a_checkpoint_with_an_invalid_artifact_cannot_be_saved(artifact, code) -> None:
    trial = saving(first=artifact)

    assert trial.error is not None
    assert trial.error["code"] == code
    assert not trial.saved


@pytest.mark.requirement("E22")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_checkpoint_above_its_size_limit_is_refused_with_the_limit(is_async) -> None:
    def save(ctx: Any) -> None:
        ctx.save_checkpoint("much", "x" * MAX_BYTES)

    async def save_async(ctx: Any) -> None:
        await ctx.save_checkpoint("much", "x" * MAX_BYTES)

    trial = run_handler(save_async if is_async else save)

    assert trial.error is not None
    assert trial.error["code"] == "checkpoint.too-large"
    assert "262,144 allowed" in trial.error["message"]
    assert "file" in trial.error["hint"]
    assert run_handler(lambda ctx: ctx.save_checkpoint("fits", "x" * (MAX_BYTES - 100))).status == "succeeded"


@pytest.mark.requirement("E22")
@pytest.mark.parametrize("name", ["", "x" * 201, None, "nul\0"])
def test_a_checkpoint_with_an_invalid_name_is_refused(name) -> None:
    assert run_handler(lambda ctx: ctx.save_checkpoint(name)).status == "failed"


@pytest.mark.requirement("E22")
@pytest.mark.parametrize("flag", ["cancelled", "shutting_down"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_was_asked_to_stop_ends_when_it_saves_a_checkpoint(flag, is_async) -> None:
    def continue_after_saving(ctx: Any) -> None:
        assert getattr(ctx, flag)
        ctx.save_checkpoint("kept")
        raise AssertionError("the handler continued")

    async def continue_after_saving_async(ctx: Any) -> None:
        assert getattr(ctx, flag)
        await ctx.save_checkpoint("kept")
        raise AssertionError("the handler continued")

    trial = run_handler(continue_after_saving_async if is_async else continue_after_saving, **{f"{flag}_after": 0})

    assert trial.status == ("cancelled" if flag == "cancelled" else "returned")
    assert list(trial.checkpoints) == ["kept"]


@pytest.mark.requirement("E22")
def test_an_artifact_can_be_given_as_path_name_or_uri(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a b#c?%20ä.bin"
    file.write_text("x")

    by_path, by_name, by_uri = Artifact.of(file), Artifact.of(file.name), Artifact.of(file.as_uri())

    assert by_path == by_name == by_uri
    assert problem_of(by_path) is None


@pytest.mark.requirement("H3")
def test_multi_phase_gives_the_same_result_after_an_interruption_at_any_phase(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("time.sleep", lambda _: None)
    names = [f"phase_{number}" for number in range(1, 5)]
    whole = run_handler("multi_phase", {"phases": 4})
    for done in range(4):
        stopped = run_handler("multi_phase", {"phases": 4}, shutting_down_after=done)
        resumed = run_handler("multi_phase", {"phases": 4}, after=stopped)

        assert (stopped.status, resumed.output["phases_run"]) == ("returned", names[done:])
        assert resumed.output["digest"] == whole.output["digest"]
    again = run_handler("multi_phase", {"phases": 4}, after=whole)
    assert again.output == {"phases_run": [], "resumed_after": "finished", "digest": whole.output["digest"]}
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "the handler removes its files"
