// The page of the catalogue: its URL in the examples, and links to its first collections.

const note = document.getElementById("note");
for (const element of document.querySelectorAll(".root")) element.textContent = new URL(".", location.href).href;
listCollections();

async function listCollections() {
  try {
    const response = await fetch("collections?limit=100", { headers: { Accept: "application/json" } });
    const body = await response.json();
    if (!response.ok) throw new Error([body.detail, body.hint].filter(Boolean).join(": "));
    document.getElementById("collections").append(...body.collections.map(row));
    const isComplete = !body.links.some((link) => link.rel === "next");
    const isEmpty = body.collections.length === 0;
    note.textContent = isEmpty ? "There are no collections yet." : "Only the first 100 collections are listed.";
    note.hidden = isComplete && !isEmpty;
  } catch (error) {
    note.textContent = `The collections are not available: ${error.message}`;
  }
}

function row(collection) {
  const item = document.createElement("li"), path = `collections/${encodeURIComponent(collection.id)}`;
  const { id } = collection;
  const title = collection.title && collection.title !== id ? `${collection.title} (${id})` : id;
  const map = link(title, `../tiles/${encodeURIComponent(id)}/map`);
  item.append(map, " · ", link("JSON", path), " · ", link("items", `${path}/items`));
  return item;
}

function link(text, href) {
  const anchor = document.createElement("a");
  anchor.textContent = text;
  anchor.href = href;
  return anchor;
}
