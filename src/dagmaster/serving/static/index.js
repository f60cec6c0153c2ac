// The list of datasets. Texts come from the catalogue, so they are only ever set as text.

const PAGE = 24;
const cards = document.getElementById("cards");
const note = document.getElementById("note");
const more = document.getElementById("more");

const link = document.getElementById("stac");
link.firstElementChild.textContent = link.href;
more.addEventListener("click", () => show(more.dataset.next));
show(`stac/collections?limit=${PAGE}`);

async function show(address) {
  more.hidden = true;
  try {
    const answer = await fetch(address);
    const body = await answer.json();
    if (!answer.ok) throw new Error([body.detail, body.hint].filter(Boolean).join(": "));
    cards.append(...body.collections.map(card));
    const next = body.links.find((one) => one.rel === "next");
    if (next) { more.dataset.next = local(next.href); more.hidden = false; }
    note.hidden = cards.childElementCount > 0;
    note.textContent = "There are no datasets yet. `dagmaster process FILE` creates one from a file.";
  } catch (error) {
    note.hidden = false;
    note.textContent = `The catalogue is not available: ${error.message}`;
  }
}

function card(collection) {
  const place = `tiles/${encodeURIComponent(collection.id)}`;
  const box = element("li", "card");
  const picture = element("a", "picture");
  picture.href = `${place}/map`;
  const image = element("img");
  image.loading = "lazy";
  image.alt = "";
  image.addEventListener("error", () => { image.remove(); picture.classList.add("none"); });
  image.src = thumbnail(collection) ?? `${place}/preview.png?max_size=384`;
  picture.append(image);

  const title = element("h2");
  title.append(anchor(collection.title || collection.id, `${place}/map`));
  const links = element("div", "links");
  links.append(
    anchor("Map", `${place}/map`),
    anchor("STAC", `stac/collections/${encodeURIComponent(collection.id)}`),
    anchor("TileJSON", `${place}/WebMercatorQuad/tilejson.json`),
  );
  const text = element("div", "text");
  text.append(
    title, element("code", "id", collection.id), element("p", "", collection.description),
    element("div", "facts", facts(collection)), links,
  );
  box.append(picture, text);
  return box;
}

function thumbnail(collection) {
  const found = Object.values(collection.assets ?? {}).find((asset) => (asset.roles ?? []).includes("thumbnail"));
  return found && /\/files\//.test(found.href) ? local(found.href) : undefined;
}

function facts(collection) {
  const [from, to] = collection.extent?.temporal?.interval?.[0] ?? [];
  const days = [...new Set([from, to].filter(Boolean).map((time) => time.slice(0, 10)))].join(" – ");
  const licence = collection.license === "other" ? "" : collection.license;
  return [days, licence].filter(Boolean).join(" · ");
}

// Links begin with the public URL of the server; this page keeps the origin from which it was loaded.
function local(address) {
  const url = new URL(address, location.href);
  return url.pathname + url.search;
}

function anchor(text, href) {
  const made = element("a", "", text);
  made.href = href;
  return made;
}

function element(name, kind = "", text = "") {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text) made.textContent = text;
  return made;
}
