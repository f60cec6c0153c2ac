"""`dagmaster local` lists and removes local data, and nothing else."""

import os

import pytest

from dagmaster.errors import NotAllowed
from dagmaster.local import data, embedded
from dagmaster.local.discovery import hold
from dagmaster.local.embedded import Cluster, identity_of
from dagmaster.settings import Settings


@pytest.fixture
def home(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(Settings, "default_home", staticmethod(lambda: home))
    for module in (data, embedded):
        monkeypatch.setattr(module, "ROOT_HOME", home)
    return home


@pytest.fixture
def data_folder(home, tmp_path, dagmaster):
    """The data folder of a platform that has run, with a file of the user."""
    folder = tmp_path / "mine"
    (folder / "storage/bronze").mkdir(parents=True)
    (folder / "storage/bronze/a.tif").write_bytes(b"x" * 900)
    for own in ("silver/01980000-0000-7000-8000-000000000001/random", "silver/.gone/random", "bronze/.uploads"):
        (folder / "scratch" / own).mkdir(parents=True)
    (folder / "scratch/bronze/.uploads/upload.tif").write_bytes(b"x" * 100)
    (folder / "notes.txt").write_text("keep")
    cluster = Cluster.at(folder)
    cluster.data.mkdir(parents=True)
    (cluster.data / "base").write_bytes(b"y" * 500)
    data.record(folder, Settings(DAGMASTER_DATA=str(folder)))
    return folder


@pytest.mark.requirement("M3")
def test_data_is_listed_with_its_size_and_removed_by_folder_or_id(dagmaster, data_folder):
    identity = identity_of(data_folder)
    (listed,) = dagmaster("local", "ls", "--json").json["local"]
    text = dagmaster("local", "ls")

    removed = dagmaster("local", "rm", str(data_folder), "--yes")

    assert (listed["id"], listed["data_folder"], listed["state"]) == (identity, str(data_folder), "stopped")
    assert (listed["database_bytes"], listed["files_bytes"]) == (500, 1000)
    assert f"{identity}  stopped" in text.out
    assert str(data_folder) in text.out
    assert (removed.code, removed.out) == (0, "removed 1 database with its files, 1.5 kB\n")
    assert [path.name for path in data_folder.iterdir()] == ["notes.txt"]
    assert not Cluster.at(data_folder).folder.exists()
    assert dagmaster("local", "ls", "--json").json["local"] == []
    assert dagmaster("local", "rm", identity, "--yes").code == 4


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("name", ["notes.txt", "silver/notes.txt", "silver/results/a.tif", "other/a.tif"])
def test_files_of_the_user_in_a_scratch_folder_are_kept(dagmaster, data_folder, name):
    mine = data_folder / "scratch" / name
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("keep")

    removed = dagmaster("local", "rm", str(data_folder), "--yes")

    assert removed.code == 0
    assert [path for path in (data_folder / "scratch").rglob("*") if path.is_file()] == [mine]
    assert sorted(path.name for path in data_folder.iterdir()) == ["notes.txt", "scratch"]
    assert dagmaster("local", "ls", "--json").json["local"] == []


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("linked", ["scratch", "scratch/silver"])
def test_what_is_behind_a_link_in_the_data_folder_is_kept(dagmaster, data_folder, tmp_path, linked):
    """Several platforms may use one large disk for their scratch files."""
    shared = (data_folder / linked).rename(tmp_path / "shared")
    (data_folder / linked).symlink_to(shared)
    before = sorted(shared.rglob("*"))

    removed = dagmaster("local", "rm", str(data_folder), "--yes")

    assert removed.code == 0
    assert sorted(shared.rglob("*")) == before
    assert not (data_folder / "storage").exists()


@pytest.mark.requirement("M3")
def test_nothing_is_removed_while_a_platform_runs(dagmaster, data_folder):
    with hold(data_folder):
        listed = dagmaster("local", "ls", "--json").json["local"][0]
        refused = dagmaster("local", "rm", str(data_folder), "--yes")

    assert (listed["state"], listed["pid"]) == ("running", os.getpid())
    assert refused.code == 4
    assert f"a platform is running on {data_folder} (process {os.getpid()})" in refused.err
    assert (data_folder / "storage/bronze/a.tif").exists()


@pytest.mark.requirement("M3")
def test_nothing_is_removed_without_a_confirmation(dagmaster, data_folder):
    refused = dagmaster("local", "rm", str(data_folder), "--json")
    without_names = dagmaster("local", "rm")

    assert refused.code == without_names.code == 2
    assert "--yes" in refused.err
    assert (data_folder / "storage/bronze/a.tif").exists()


@pytest.mark.requirement("M3")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root's databases are outside of the data folder")
def test_only_databases_whose_recorded_folder_was_deleted_are_orphaned(dagmaster, data_folder, home, tmp_path):
    (home / "0123456789ab/data").mkdir(parents=True)  # a database of an older version, whose data folder is unknown
    data_folder.rename(tmp_path / "away")

    listed = {each["id"]: each["state"] for each in dagmaster("local", "ls", "--json").json["local"]}
    removed = dagmaster("local", "rm", "--orphaned", "--yes", "--json").json

    assert listed == {identity_of(data_folder): "orphaned", "0123456789ab": "stopped"}
    assert removed == {"removed": [identity_of(data_folder)], "freed_bytes": 500}
    assert (home / "0123456789ab").exists()
    assert dagmaster("local", "rm", "0123456789ab", "--yes").code == 0
    assert not (home / "0123456789ab").exists()


@pytest.mark.requirement("M3")
def test_the_error_for_data_of_another_user_says_how_to_remove_it(data_folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(data, "_delete", refuse)

    with pytest.raises(NotAllowed) as refused:
        data.remove(data.find_local_data(str(data_folder)))

    assert f"sudo dagmaster local rm {data_folder}" in refused.value.hint
