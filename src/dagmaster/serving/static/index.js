// The list of datasets. Texts come from the catalogue, so they are only ever set as text.

const PAGE = 24;
const cards = document.getElementById("cards");
const note = document.getElementById("note");
const more = document.getElementById("more");

const catalogue = document.getElementById("stac");
catalogue.firstElementChild.textContent = catalogue.href;
more.addEventListener("click", () => show(more.dataset.next));
show(`stac/collections?limit=${PAGE}`);

async function show(url) {
  more.hidden = true;
  try {
    const response = await fetch(url, { headers: { Accept: "application/json" } });
    const body = await response.json();
    if (!response.ok) throw new Error([body.detail, body.hint].filter(Boolean).join(": "));
    cards.append(...body.collections.map(card));
    const next = body.links.find((link) => link.rel === "next");
    if (next) { more.dataset.next = local(next.href); more.hidden = false; }
    note.hidden = cards.childElementCount > 0;
    note.textContent = "There are no datasets yet. `dagmaster process FILE` creates one from a file.";
  } catch (error) {
    note.hidden = false;
    note.textContent = `The catalogue is not available: ${error.message}`;
  }
}

function card(collection) {
  const path = `tiles/${encodeURIComponent(collection.id)}`;
  const box = element("li", "card");
  const picture = element("a", "picture");
  picture.href = `${path}/map`;
  const image = element("img");
  image.loading = "lazy";
  image.alt = "";
  image.addEventListener("error", () => { image.remove(); picture.classList.add("none"); });
  image.src = thumbnail(collection) ?? `${path}/preview.png?max_size=384`;
  picture.append(image);

  const title = element("h2");
  title.append(anchor(collection.title || collection.id, `${path}/map`));
  const links = element("div", "links");
  links.append(
    anchor("Map", `${path}/map`),
    anchor("STAC", `stac/collections/${encodeURIComponent(collection.id)}`),
    anchor("TileJSON", `${path}/WebMercatorQuad/tilejson.json`),
  );
  const text = element("div", "text");
  const id = collection.title && collection.title !== collection.id ? element("code", "id", collection.id) : "";
  const about = [paragraph("p", "", description(collection)), paragraph("div", "facts", facts(collection))];
  text.append(...[title, id, ...about, links].filter(Boolean));
  box.append(picture, text);
  return box;
}

// STAC requires a description. Where the owner gave none, the platform repeats the title, which the card already shows.
function description(collection) {
  const generated = `Raster dataset ${collection.title || collection.id}`;
  return [generated, collection.title, collection.id].includes(collection.description) ? "" : collection.description;
}

function paragraph(name, kind, text) {
  return text ? element(name, kind, text) : "";
}

function thumbnail(collection) {
  const asset = Object.values(collection.assets ?? {}).find(({ roles }) => (roles ?? []).includes("thumbnail"));
  return asset && /\/files\//.test(asset.href) ? local(asset.href) : undefined;
}

function facts(collection) {
  const [from, to] = collection.extent?.temporal?.interval?.[0] ?? [];
  const days = [...new Set([from, to].filter(Boolean).map((time) => time.slice(0, 10)))].join(" – ");
  const licence = collection.license === "other" ? "" : collection.license;
  return [days, licence].filter(Boolean).join(" · ");
}

// Links begin with the public URL of the server; this page keeps the origin from which it was loaded.
function local(href) {
  const url = new URL(href, location.href);
  return url.pathname + url.search;
}

function anchor(text, href) {
  const created = element("a", "", text);
  created.href = href;
  return created;
}

function element(name, kind = "", text = "") {
  const created = document.createElement(name);
  if (kind) created.className = kind;
  if (text) created.textContent = text;
  return created;
}
