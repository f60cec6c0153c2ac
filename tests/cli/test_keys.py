"""Keys on the command line: the first key, keys created with it, and `login`, which stores a key."""

import json
import stat

import pytest

from tests.cli.processes import call, up

pytestmark = pytest.mark.requirement("X1")


@pytest.fixture(scope="module")
def protected_platform(tmp_path_factory):
    """A platform with authentication, and the environment of its user."""
    folder = tmp_path_factory.mktemp("guarded")
    credentials = folder / "config/credentials.json"
    variables = {"AUTH_ENABLED": "true", "API_PORT": "0", "DAGMASTER_CREDENTIALS": str(credentials)}
    with up(folder / "data", **variables) as platform:
        yield platform, credentials
        _, _, err = platform.end()
    assert err.count("dgm_") == 1, "the first key is printed once"


@pytest.fixture
def as_user(protected_platform, tmp_path):
    """Commands of another user, who has stored no key yet."""
    platform, _ = protected_platform

    def run(*arguments, key=None, standard_input=None):
        variables = {"DAGMASTER_URL": platform.facts["api_url"], "DAGMASTER_CREDENTIALS": str(tmp_path / "mine.json")}
        if key:
            variables["DAGMASTER_KEY"] = key
        return call(*arguments, standard_input=standard_input, **variables)

    return run


@pytest.fixture
def admin_key(protected_platform):
    _, credentials = protected_platform
    (key,) = json.loads(credentials.read_text()).values()
    return key


def test_the_first_key_is_created_at_the_first_start_and_stored_for_this_user(protected_platform):
    platform, credentials = protected_platform

    listed = call(
        "keys", "ls", "--json", "--data", platform.facts["data_folder"], DAGMASTER_CREDENTIALS=str(credentials)
    )

    assert listed.returncode == 0, listed.stderr
    (key,) = [key for key in json.loads(listed.stdout)["keys"] if key["name"] == "first-admin"]
    assert (key["scopes"], key["created_by"]) == (["admin"], "system")
    assert stat.S_IMODE(credentials.stat().st_mode) == 0o600


def test_a_command_without_a_key_is_refused_with_a_hint(as_user):
    refused = as_user("jobs", "ls")

    assert refused.returncode == 3
    assert "error: this request needs a key or a token\n" in refused.stderr
    assert "dagmaster login" in refused.stderr


def test_a_key_is_created_used_rotated_and_revoked(as_user, admin_key):
    created = as_user("keys", "create", "looker", "--scope", "operator,viewer", "--json", key=admin_key)
    key = json.loads(created.stdout)
    used = as_user("jobs", "ls", key=key["key"])
    forbidden = as_user("keys", "ls", key=key["key"])
    rotated = as_user("keys", "rotate", key["key_id"], "--overlap-hours", "0", key=admin_key)
    old = as_user("jobs", "ls", key=key["key"])
    new = as_user("jobs", "ls", key=rotated.stdout.strip())
    revoked = as_user("keys", "revoke", key["key_id"], "--reason", "lost", key=admin_key)
    after = as_user("jobs", "ls", key=rotated.stdout.strip())
    listed = as_user("keys", "ls", "--all", key=admin_key)

    assert created.returncode == used.returncode == rotated.returncode == new.returncode == revoked.returncode == 0
    assert (forbidden.returncode, old.returncode, after.returncode) == (3, 3, 3)
    assert "this key was revoked" in after.stderr
    assert "looker" in listed.stdout
    assert "revoked" in listed.stdout
    assert key["key"] not in listed.stdout + listed.stderr


def test_a_key_of_a_platform_needs_its_platform(as_user, admin_key):
    without = as_user("keys", "create", "hub", "--scope", "b2b", key=admin_key)
    unknown = as_user("keys", "create", "hub", "--scope", "b2b", "--platform", "nowhere", key=admin_key)
    created = as_user("keys", "create", "hub", "--scope", "b2b", "--platform", "ddh", key=admin_key)
    again = as_user("keys", "create", "hub", "--scope", "b2b", "--platform", "ddh", key=admin_key)
    scopeless = as_user("keys", "create", "other", key=admin_key)
    misspelt = as_user("keys", "create", "other", "--scope", "root", key=admin_key)

    assert (without.returncode, unknown.returncode, created.returncode, again.returncode) == (2, 4, 0, 4)
    assert (scopeless.returncode, misspelt.returncode) == (2, 2)
    assert created.stdout.startswith("dgm_")
    assert "it is not shown again" in created.stderr


def test_login_stores_the_key_for_this_platform_only_and_logout_removes_it(as_user, admin_key, tmp_path):
    wrong = as_user("login", standard_input="dgm_aaaaaaaaaaaa_" + "b" * 43 + "\n")
    empty = as_user("login", standard_input="\n")
    login = as_user("login", standard_input=f"{admin_key}\n")
    used = as_user("keys", "ls")
    unreachable = as_user("keys", "ls", "--server", "http://localhost:1")
    file = tmp_path / "mine.json"
    stored = json.loads(file.read_text())
    file.chmod(0o644)
    exposed = as_user("keys", "ls")
    file.chmod(0o600)
    logout, again = as_user("logout"), as_user("logout")
    after = as_user("keys", "ls")

    assert (wrong.returncode, empty.returncode) == (3, 2)
    assert login.returncode == 0, login.stderr
    assert login.stdout == "logged in as first-admin, with the scopes: admin\n"
    assert admin_key not in login.stdout + login.stderr
    assert used.returncode == 0, used.stderr
    assert unreachable.returncode == 5
    assert list(stored.values()) == [admin_key]
    assert exposed.returncode == 3
    assert "chmod 600" in exposed.stderr
    assert (logout.stdout, again.stdout) == (
        "the stored key is removed\n",
        "no key was stored for this platform\n",
    )
    assert after.returncode == 3


def test_an_administrator_of_the_database_creates_a_key_without_another_key(protected_platform, tmp_path):
    platform, _ = protected_platform
    variables = {"DAGMASTER_CREDENTIALS": str(tmp_path / "none.json")}
    data = ("--data", platform.facts["data_folder"])

    created = call("keys", "create", "rescue", "--admin", *data, **variables)
    listed = call("keys", "ls", "--json", "--key", created.stdout.strip(), *data, **variables)
    both = call("keys", "create", "rescue-2", "--admin", "--scope", "viewer", *data, **variables)

    assert created.returncode == listed.returncode == 0, created.stderr + listed.stderr
    (key,) = [key for key in json.loads(listed.stdout)["keys"] if key["name"] == "rescue"]
    assert key["created_by"].startswith("database:")
    assert both.returncode == 2
