"""`dagmaster metadata` and `dagmaster commands` against a real API and database."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Dagmaster
from tests.cli.test_assets import Running, cli, running  # noqa: F401 - fixtures

pytestmark = pytest.mark.requirement("A6", "M3", "O2")


def test_metadata_is_edited_published_and_withdrawn(cli: Dagmaster, running: Running, tmp_path: Path):  # noqa: F811
    running.do(running.kit.publish("dem", clearance="public"))
    description = tmp_path / "description.txt"
    description.write_text("Measured by laser.\n\nIn metres.")
    style = json.dumps({"colormap_name": "terrain"})

    edited = cli(
        *("metadata", "set", "dem", "--title", "Heights", "--keyword", "alps", "--keyword", "height"),
        *("--description", f"@{description}", "--style", style),
    )
    published = cli("metadata", "publish", "dem", "--reason", "checked")
    again = cli("metadata", "publish", "dem")
    listed = json.loads(cli("metadata", "ls", "--keyword", "alps", "--json").out)
    removed = json.loads(cli("metadata", "set", "dem", "--remove", "keywords", "--etag", "1", "--json").out)
    stale = cli("metadata", "set", "dem", "--title", "Late", "--etag", "1")
    shown = cli("metadata", "show", "dem")
    withdrawn = cli("metadata", "unpublish", "dem")
    empty = cli("metadata", "ls")

    assert (edited.code, published.code) == (0, 0), edited.err + published.err
    assert "publish it with: dagmaster metadata publish dem" in edited.err
    assert "nothing has changed" in again.err
    assert [(row["dataset_id"], row["title"], row["keywords"]) for row in listed["layers"]] == [
        ("dem", "Heights", ["alps", "height"])
    ]
    assert (removed["keywords"], removed["title"], removed["etag"]) == ([], "Heights", "2")
    assert stale.code == 4
    assert "has changed" in stale.err
    assert "edited since" in shown.out
    assert "published    no" in withdrawn.out
    assert "no layers" in empty.err


def test_invalid_options_are_reported_before_anything_is_sent(cli: Dagmaster):  # noqa: F811
    mistakes = [
        (("metadata", "set", "dem"), "no change is given"),
        (("metadata", "set", "dem", "--title", "x", "--remove", "title"), "cannot be set and removed"),
        (("metadata", "set", "dem", "--style", "{"), "--style is not JSON"),
        (("metadata", "set", "dem", "--style", "[]"), "must be a JSON object"),
        (("metadata", "set", "dem", "--description", "@/does/not/exist"), "No such file"),
    ]
    for arguments, message in mistakes:
        result = cli(*arguments)

        assert (result.code, message in result.err) == (2, True), (arguments, result.err)


def test_commands_are_listed_shown_and_run(cli: Dagmaster, running: Running):  # noqa: F811
    running.do(running.kit.publish("dem"))

    listed = cli("commands", "ls")
    shown = cli("commands", "show", "asset.reindex")
    run = json.loads(cli("commands", "run", "asset.reindex", "-p", "asset=dem").out)
    reloaded = json.loads(cli("commands", "run", "cache.invalidate", "--params", '{"wait_seconds": 0}').out)
    unknown = cli("commands", "run", "asset.reindx", "-p", "asset=dem")
    refused = cli("commands", "run", "metadata.publish", "--params", "{}")

    assert "asset.reindex" in listed.out
    assert "asset           string (required)" in shown.out
    assert (run["versions"], run["items"]) == (1, 1)
    assert reloaded["generation"] == 1
    assert (unknown.code, "did you mean 'asset.reindex'" in unknown.err) == (4, True)
    assert (refused.code, "asset: Field required" in refused.err) == (2, True)
