"""The files that the arguments of `dagmaster process` stand for."""

import os

import pytest

from dagmaster.errors import InvalidRequest, NotAllowed, NotFound
from dagmaster.ingest.sources import find_sources, source_file
from dagmaster.settings import Settings


@pytest.fixture
def at_tiles(tmp_path, monkeypatch):
    for name in ("a.tif", "b.tif", "tiles/2.tif", "tiles/10.TIFF", "tiles/deep/3.tif", "tiles/notes.txt", "x[1].tif"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    (tmp_path / "tiles/.hidden.tif").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "outer/inner").mkdir(parents=True)
    (tmp_path / "outer/inner/c.tif").write_bytes(b"c")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _labels(*arguments, **settings):
    return [source.label for source in find_sources(arguments, Settings(**settings))]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["b.tif", "a.tif"], ["b.tif", "a.tif"]),
        (["tiles"], ["tiles/10.TIFF", "tiles/2.tif"]),
        (["tiles/"], ["tiles/10.TIFF", "tiles/2.tif"]),
        (["tiles/*.tif"], ["tiles/2.tif"]),
        (["tiles/**/*.tif", "a.tif"], ["tiles/2.tif", "tiles/deep/3.tif", "a.tif"]),
        (["[ab].tif"], ["a.tif", "b.tif"]),
        (["x[1].tif"], ["x[1].tif"]),
        (["tiles/notes.txt"], ["tiles/notes.txt"]),
    ],
)
def test_files_folders_and_patterns_become_files_in_order(at_tiles, arguments, expected):
    assert _labels(*arguments) == [str(at_tiles / name) for name in expected]


def test_an_absolute_pattern_matches(at_tiles):
    assert _labels(f"{at_tiles}/tiles/*.tif") == [str(at_tiles / "tiles/2.tif")]


def test_a_url_keeps_both_slashes_and_its_query_is_not_shown(at_tiles):
    (source,) = find_sources(["https://example.com/a.tif?sig=secret"], Settings())

    assert source.argument == "https://example.com/a.tif?sig=secret"
    assert (source.label, source.path) == ("https://example.com/a.tif", None)


@pytest.mark.parametrize(
    ("arguments", "kind", "messages"),
    [
        (["empty"], NotFound, ["the folder empty has no rasters (.img, .jp2, .tif, .tiff)"]),
        (["*.jp2"], NotFound, ["no file matches '*.jp2'"]),
        (["no.tif", "empty", "a.tif", "*.jp2"], NotFound, ["no file no.tif", "folder empty", "matches '*.jp2'"]),
        (["a.tif", "./a.tif"], InvalidRequest, ["1 file is given more than once: ", "/a.tif"]),
        (["tiles", "tiles/*"], InvalidRequest, ["2 files are given more than once", "/2.tif", "/10.TIFF"]),
        (["https://e.org/a", "https://e.org/a"], InvalidRequest, ["1 file is given more than once: https://e.org/a"]),
        (["http://e.org/a.tif"], InvalidRequest, ["http://e.org/a.tif is not an https URL"]),
        (["https://user:pw@e.org/a.tif"], InvalidRequest, ["is not an https URL"]),
        (["ftp://e.org/a.tif"], InvalidRequest, ["is not an https URL"]),
        (["a" * 5000], InvalidRequest, ["cannot be read: File name too long"]),
    ],
)
def test_the_error_for_wrong_arguments_names_each_of_them(at_tiles, arguments, kind, messages):
    with pytest.raises(kind) as refused:
        find_sources(arguments, Settings())

    assert all(message in refused.value.message for message in messages)


def test_the_error_for_unreadable_files_of_a_folder_names_each_of_them(at_tiles):
    (at_tiles / "tiles/empty.tif").touch()
    (at_tiles / "tiles/link.tif").symlink_to("a.tif")

    with pytest.raises(InvalidRequest) as refused:
        find_sources(["tiles/*.tif"], Settings())

    assert "tiles/empty.tif is empty" in refused.value.message
    assert "there is no file tiles/link.tif" in refused.value.message


def test_the_error_for_a_folder_with_rasters_in_subfolders_has_a_hint(at_tiles):
    with pytest.raises(NotFound) as refused:
        find_sources(["outer"], Settings())

    assert refused.value.hint == "its subfolders have rasters: use 'outer/**/*.tif'"


def test_a_link_to_a_file_that_is_also_given_is_a_duplicate(at_tiles):
    os.link(at_tiles / "a.tif", at_tiles / "hard.tif")
    (at_tiles / "soft.tif").symlink_to("a.tif")

    with pytest.raises(InvalidRequest, match="1 file is given more than once"):
        find_sources(["a.tif", "soft.tif"], Settings())


def test_urls_can_be_forbidden(at_tiles):
    with pytest.raises(NotAllowed) as refused:
        find_sources(["https://example.com/a.tif"], Settings(ALLOW_HTTPS_SOURCES=False))

    assert "ALLOW_HTTPS_SOURCES" in refused.value.hint


def test_a_link_is_replaced_by_its_file(at_tiles):
    (at_tiles / "link.tif").symlink_to("a.tif")

    assert source_file(at_tiles / "link.tif") == at_tiles / "a.tif"
