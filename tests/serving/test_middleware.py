"""Which requests are accepted, under which host names, and what error responses contain."""

import pytest
from starlette.testclient import TestClient

from dagmaster.serving.app import create_app
from dagmaster.settings import load
from tests.serving.data import PUBLIC
from tests.web.problems import check

pytestmark = pytest.mark.requirement("X2")


@pytest.fixture
def public(served, storage):
    with TestClient(create_app(load(public_url=f"{PUBLIC}/geo"), served, storage=storage), base_url=PUBLIC) as client:
        yield client


@pytest.fixture
def open_to_all(served, storage):
    with TestClient(create_app(load(serving_insecure=True), served, storage=storage), base_url="http://any") as client:
        yield client


@pytest.fixture
def without_catalog(storage, cluster):
    """A map server on a database that has no catalogue."""
    with TestClient(
        create_app(load(), cluster.dsn_of("postgres"), storage=storage), base_url="http://localhost"
    ) as client:
        yield client


@pytest.fixture
def without_database(storage):
    app = create_app(load(), "postgresql://nobody@127.0.0.1:1/none", storage=storage)
    app.state.services.catalog._pool.timeout = 0.5  # seconds for which a request waits for a connection
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def test_an_unknown_host_is_refused(client, public):
    response = client.get("/livez", headers={"Host": "evil.example"})

    problem = check(response, 403, "request.foreign-host")
    assert "PUBLIC_URL" in problem["hint"]
    assert "evil" not in response.text
    assert public.get("/livez").status_code == 200


def test_links_begin_with_the_public_url(public):
    tilejson = public.get("/tiles/plain/WebMercatorQuad/tilejson.json").json()
    collection = public.get("/stac/collections/plain").json()
    forged = public.get("/stac/collections/plain", headers={"X-Forwarded-Host": "evil.example"}).json()

    assert tilejson["tiles"][0].startswith(f"{PUBLIC}/geo/tiles/plain/")
    hrefs = [link["href"] for link in collection["links"]]
    assert f"{PUBLIC}/geo/stac/collections/plain" in hrefs
    assert all(href.startswith(f"{PUBLIC}/geo/") for href in hrefs)
    stored = public.get("/stac/collections/across").json()["assets"]["mosaic"]["href"]
    assert stored.startswith(f"{PUBLIC}/geo/files/silver/")
    assert forged == collection


def test_headers_of_a_proxy_are_ignored(client):
    headers = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https", "Forwarded": "host=evil.example"}

    for path in ("/stac/", "/tiles/plain/WebMercatorQuad/tilejson.json"):
        assert "evil" not in client.get(path, headers=headers).text


def test_other_sites_can_read_responses_only_if_the_server_is_open_to_all(client, open_to_all):
    there = {"Origin": "http://other.example"}

    assert "access-control-allow-origin" not in client.get("/stac/", headers=there).headers
    assert "access-control-allow-origin" not in client.get("/tiles/plain/info", headers=there).headers
    for path in ("/stac/", "/tiles/plain/info", "/files/silver/silver/cogs/plain/v0/r1/plain.tif"):
        assert open_to_all.get(path, headers=there).headers["access-control-allow-origin"] == "*"


def test_the_error_without_a_catalogue_says_what_to_do(without_catalog):
    assert without_catalog.get("/livez").status_code == 200
    for path in ("/stac/collections", "/stac/search", "/stac/collections/x", "/tiles/x/info"):
        response = without_catalog.get(path)
        assert (response.status_code, response.json()["code"]) == (503, "database.not-deployed"), path
        assert "deploy" in response.json()["hint"]
        assert response.headers["retry-after"]
    ready = without_catalog.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"][0]["hint"]


def test_an_unreachable_database_is_reported_as_unavailable(without_database):
    for path in ("/stac/collections", "/stac/search"):
        response = without_database.get(path)
        assert (response.status_code, response.json()["code"]) == (503, "database.unavailable"), path
        assert "nobody" not in response.text
    assert without_database.get("/livez").status_code == 200


def test_the_server_is_ready_with_a_catalogue(client):
    response = client.get("/readyz")

    assert response.status_code == 200
    assert response.json()["checks"][0]["detail"].startswith("pgSTAC ")


def test_a_request_that_is_too_large_is_refused(client):
    response = client.post("/stac/search", content=b"[" * 2_000_000, headers={"Content-Type": "application/json"})

    check(response, 413, "request.too-large")


def test_an_unknown_route_is_reported_as_a_problem(client):
    check(client.get("/nothing"), 404, "route.not-found")


@pytest.mark.parametrize("name", ["common.css", "index.css", "index.js", "map.css", "map.js", "stac.js"])
def test_scripts_and_styles_of_pages_are_served(client, name):
    assert client.get(f"/pages/{name}").status_code == 200
    assert client.get(f"/pages/..%2f{name}").status_code == 404


@pytest.mark.parametrize(
    "path", ["/?f=html", "/tiles/plain/map", "/tiles/plain/WebMercatorQuad/map.html", "/stac/api.html"]
)
def test_pages_load_nothing_from_other_servers(client, path):
    response = client.get(path)

    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "//" not in response.text.replace("http://localhost", "")
    services = [part.split('"')[0] for part in response.text.split('src="')[1:]]
    services += [part.split('"')[0] for part in response.text.split('rel="stylesheet" href="')[1:]]
    for part in services:
        assert client.get(str(response.url.join(part))).status_code == 200, part


def test_the_map_of_an_unknown_dataset_is_not_found(client):
    assert client.get("/tiles/unknown/map").status_code == 404


def test_metrics_are_not_served_at_the_public_url(client, public):
    """A proxy that forwards the public URL to this server must not publish them."""
    public.get("/livez")
    own = public.get("/metrics", headers={"Host": "localhost:8003"})

    check(public.get("/metrics"), 403, "metrics.not-public")
    assert client.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'dagmaster_http_requests_total{method="GET",status="200"} 1.0' in own.text.splitlines()
    assert "dagmaster_open_datasets 0.0" in own.text.splitlines()
