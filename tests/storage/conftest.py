"""Fixtures that run a test with each object store. Their servers are shared by all tests of the process."""

import pytest

from dagmaster.storage import Location, Zone, open_storage


@pytest.fixture(params=["azurite", "s3_server"])
def object_server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def object_storage(object_server, tmp_path):
    storage = open_storage(object_server.settings_for(tmp_path))
    storage.create_containers()
    return storage


@pytest.fixture
def place(request):
    """A function that returns locations under a name that is unique for each test, because the servers are shared."""
    return lambda name, zone=Zone.SILVER: Location(
        zone, str(zone), f"{request.node.name.replace('[', '-')[:60]}/{name}"
    )
