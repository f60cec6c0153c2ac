"""Web pages: which clients get a page, the page of an unknown dataset, and the legend of classes."""

import re
from urllib.parse import urljoin

import pytest

from dagmaster.serving.rendering import legend_of, rendering_of
from tests.web.problems import check

CHROMIUM = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
OGC = "http://www.opengis.net/def/rel/ogc/1.0"
IMAGE = "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "is_page"),
    [
        (CHROMIUM, True),
        ("text/html", True),
        ("TEXT/HTML;Q=0.9, application/json;q=0.5", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("application/json, text/html", False),
        ("text/html;q=0.4, application/geo+json", False),
        ("text/html;level=1;q=0.4, application/json;q=0.5", False),
        ("text/html;q=0", False),
        ("text/html;q=x", False),
        (IMAGE, False),
    ],
)
@pytest.mark.parametrize("path", ["/", "/stac/", "/tiles/unknown/map"])
def test_only_a_client_that_prefers_html_gets_a_page(client, path, accept, is_page):
    response = client.get(path, headers={"Accept": accept})

    assert response.headers["content-type"].startswith("text/html") == is_page
    assert "json" in response.headers["content-type"] or is_page
    assert response.status_code == (404 if "unknown" in path else 200)


def test_the_catalogue_depends_on_accept_and_says_so_to_caches(client):
    page = client.get("/stac/", headers={"Accept": CHROMIUM})
    catalogue = client.get("/stac/", headers={"Accept": "application/json"})
    moved = client.get("/stac", headers={"Accept": CHROMIUM}, follow_redirects=False)

    assert "<title>Catalogue" in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert catalogue.json()["type"] == "Catalog"
    assert "Accept" in page.headers["vary"]
    assert "Accept" in catalogue.headers["vary"]
    assert (moved.status_code, moved.headers["location"]) == (307, "./stac/")
    assert client.get("/stac").json()["type"] == "Catalog"


def test_the_root_is_a_landing_page_of_ogc_api_for_other_clients(client):
    """OGC API Common, core: /req/core/root-success, and the links that api-success and conformance-success need."""
    landing = client.get("/", headers={"Accept": "application/json"})
    links = {link["rel"]: link for link in landing.json()["links"]}

    assert landing.headers["content-type"] == "application/json"
    assert "Accept" in landing.headers["vary"]
    assert {"title", "description"} <= landing.json().keys()
    assert {"self", "service-desc", "conformance", "data", "child"} <= links.keys()
    assert {
        f"http://www.opengis.net/def/rel/ogc/1.0/{rel}" for rel in ("tiling-schemes", "tilesets-map")
    } <= links.keys()
    for rel, link in links.items():
        response = client.get(link["href"].replace("{dataset}", "plain"))
        assert response.status_code == 200, rel
        assert response.headers["content-type"].split(";")[0] == link["type"] or rel == "service-desc", rel
    assert client.get(links["self"]["href"], headers={"Accept": CHROMIUM}).json() == landing.json()


def test_the_format_of_the_root_can_be_selected_in_the_address(client):
    assert client.get("/?f=json", headers={"Accept": CHROMIUM}).headers["content-type"] == "application/json"
    assert client.get("/?f=html").headers["content-type"].startswith("text/html")
    check(client.get("/?f=xml"), 400, "request.no-format")


def test_the_landing_page_names_no_dataset_and_is_in_the_openapi_document(client):
    description = client.get("/openapi.json").json()

    assert not re.search(r"plain|dem|scene|tiled", client.get("/").text)
    assert "get" in description["paths"]["/"]


def test_the_landing_page_below_the_api_has_links_below_the_api(client):
    page = client.get("/maps", headers={"Accept": CHROMIUM})
    links = {link["rel"]: link["href"] for link in client.get("/maps").json()["links"]}

    assert page.text == client.get("/", headers={"Accept": CHROMIUM}).text
    assert links["self"] == "http://localhost:8003/maps?f=json"
    assert client.get(links["service-desc"]).json() == client.get("/openapi.json").json()


def test_the_page_of_an_unknown_dataset_links_back(client):
    page = client.get("/tiles/unknown/map", headers={"Accept": CHROMIUM})

    assert "The dataset does not exist." in page.text
    assert 'href="../../maps"' in page.text
    assert client.get("/tiles/unknown/../../pages/common.css").status_code == 200
    assert page.headers["cache-control"] == "no-store"
    check(client.get("/tiles/unknown/map"), 404, "asset.not-found")


@pytest.mark.parametrize(
    "name", ["missing.html", "index.html", "map.html", "stac.html", "", "%2e%2e%2fpages.py", "none.css"]
)
def test_html_files_are_served_only_at_the_urls_of_their_pages(client, name):
    """One is a template, and the relative links of the others would be broken."""
    check(client.get(f"/pages/{name}"), 404, "route.not-found")


def test_every_link_of_a_page_to_a_file_of_the_server_works(client):
    for path in ("/", "/stac/", "/tiles/plain/map", "/no/such/page"):
        text = client.get(path, headers={"Accept": CHROMIUM}).text
        links = [link for link in re.findall(r'(?:href|src)="([^"#]+)"', text) if not link.startswith("data:")]

        assert len(links) > 2
        for link in links:
            assert client.get(urljoin(path, link)).status_code == 200, (path, link)


def test_a_message_on_the_not_found_page_is_not_used_as_a_template(client):
    page = client.get("/files/{HINT}/{ROOT}", headers={"Accept": CHROMIUM})

    assert page.status_code == 404
    assert page.text.count("All datasets") == 1


def test_an_unknown_url_gives_a_page(client):
    page = client.get("/no/such/page", headers={"Accept": CHROMIUM})

    assert (page.status_code, 'href="../../maps"' in page.text) == (404, True)
    assert "{" not in re.sub(r"\s", "", page.text)
    check(client.get("/no/such/page"), 404, "route.not-found")


def test_a_page_has_no_inline_script_or_style(client):
    for path in ("/", "/stac/", "/tiles/plain/map", "/no/such/page"):
        text = client.get(path, headers={"Accept": CHROMIUM}).text
        assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|<style", text), path


PALETTE = {0: (0, 0, 0, 0), 1: (255, 0, 0, 255), 2: (0, 0, 0, 255), 3: (0, 0, 255, 255), 4: (0, 0, 0, 255)}
RED = {"value": 1, "name": "1", "color": "#ff0000"}


def test_a_legend_lists_the_colours_of_a_palette_up_to_the_last_one():
    legend = legend_of(rendering_of({}, {}), PALETTE)

    assert legend == [RED, {"value": 2, "name": "2", "color": "#000000"}, {"value": 3, "name": "3", "color": "#0000ff"}]


def test_names_of_classes_come_from_the_catalogue():
    classes = [
        {"value": 3, "name": "open-water", "title": "Open water"},
        {"value": 1, "name": "class-1"},
        {"value": 2, "name": "nothing", "nodata": True},
        {"value": 9, "name": "not in the palette"},
        {"value": "4", "name": "not a number"},
        "not a class",
    ]
    asset = {"classification:classes": classes}

    assert legend_of(rendering_of({}, asset), PALETTE) == [RED, {"value": 3, "name": "Open water", "color": "#0000ff"}]
    assert legend_of(rendering_of({"item_assets": {"data": asset}}, {}), PALETTE)[1]["name"] == "Open water"


def test_colours_of_the_catalogue_replace_those_of_the_file():
    renders = {"renders": {"default": {"colormap": {"1": "#00ff00", "7": "#ffffff"}}}}

    assert [each["color"] for each in legend_of(rendering_of(renders, {}), PALETTE)] == ["#00ff00", "#ffffff"]


@pytest.mark.parametrize("palette", [None, {}, [((0, 1), (1, 2, 3, 4))]])
def test_without_a_palette_there_is_no_legend_of_classes(palette):
    assert legend_of(rendering_of({}, {}), palette) == []


def test_the_tilejson_of_other_datasets_has_no_classes(client):
    facts = client.get("/tiles/plain/WebMercatorQuad/tilejson.json").json()["dagmaster"]

    assert facts["classes"] == []
