"""Fixtures of the servers: started when a test first uses them, once for all tests of the process."""

import pytest

from tests.object_stores.servers import IdentityService, running_azurite, running_s3


@pytest.fixture(scope="session")
def azurite(tmp_path_factory):
    with running_azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def identity_service():
    service = IdentityService()
    yield service
    service.close()
