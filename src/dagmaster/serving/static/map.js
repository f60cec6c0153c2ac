// A map of one dataset: Web Mercator tiles as images on a plane that is dragged and zoomed. It uses no library.
//
// A place on the plane is {x, y}, both from 0 to 1 with y downwards; `view.zoom` is such that the world is
// 256 · 2^zoom pixels wide.

const TILE = 256;
const COLORMAPS = ["viridis", "magma", "inferno", "plasma", "cividis", "turbo", "terrain", "gist_earth", "spectral_r",
                   "rdylgn", "rdbu_r", "blues", "greens", "ylorrd"];
const EXTRA_ZOOM = 4; // zoom levels beyond the last one that has tiles

const find = (id) => document.getElementById(id);
const map = find("map"), layer = find("tiles"), popup = find("popup");
const query = new URLSearchParams(location.search);
// Which revision is shown, and the token of a signed link to it: part of every request.
const revision = Object.fromEntries(
  ["version", "rev", "token"].filter((name) => query.has(name)).map((name) => [name, query.get(name)]),
);
const view = { x: 0.5, y: 0.5, zoom: 1 };
const images = new Map(); // by "z/x/y"
let tilejson, facts, style, minZoom = 0, maxZoom = 24, frame = 0, selectedPoint = null, shownAll = null;

start();

async function start() {
  try {
    const size = devicePixelRatio > 1.3 ? 512 : 256;
    tilejson = await fetchJson("WebMercatorQuad/tilejson.json", { ...revision, tilesize: size });
  } catch (error) {
    find("progress").hidden = true;
    find("title").textContent = "The map is not available";
    return showMessage(error.message);
  }
  facts = tilejson.dagmaster;
  maxZoom = Math.min(24, tilejson.maxzoom + EXTRA_ZOOM);
  showDescription();
  style = styleFromUrl();
  showTools();
  for (const id of ["tools", "links"]) find(id).hidden = false;
  addListeners();
  minZoom = Math.min(viewOfAll().zoom, tilejson.minzoom) - 1;
  const linked = fromHash();
  if (linked) { Object.assign(view, linked); draw(); } else showAll();
}

// --- requests -------------------------------------------------------------------------------------------------

async function fetchJson(path, parameters = {}) {
  const response = await fetch(`${path}?${new URLSearchParams(parameters)}`);
  const body = await response.json();
  if (!response.ok) {
    const text = [body.detail, body.hint].filter(Boolean).join(": ");
    throw Object.assign(new Error(text), { code: body.code });
  }
  return body;
}

// The origin of the page, which may differ from the public URL of the server.
function local(address) {
  return address.replace(/^https?:\/\/[^/]+/, "");
}

function styleParameters() {
  const parameters = [];
  if (style.bands) for (const band of style.bands) parameters.push(["bidx", band]);
  const hasRange = style.low !== "" && style.high !== "" && style.isStretched;
  if (hasRange) parameters.push(["rescale", `${style.low},${style.high}`]);
  if (style.colormap) parameters.push(["colormap_name", style.colormap]);
  return parameters;
}

function tileUrl() {
  const parameters = new URLSearchParams(styleParameters()).toString();
  return local(tilejson.tiles[0]) + (parameters ? `&${parameters}` : "");
}

// --- the plane -------------------------------------------------------------------------------------------------------

const project = (lon, lat) => {
  const sine = Math.sin((Math.max(-85.0511, Math.min(85.0511, lat)) * Math.PI) / 180);
  return { x: lon / 360 + 0.5, y: 0.5 - Math.log((1 + sine) / (1 - sine)) / (4 * Math.PI) };
};
const unproject = ({ x, y }) => [(x - 0.5) * 360, (Math.atan(Math.sinh(Math.PI * (1 - 2 * y))) * 180) / Math.PI];
const wrapped = (lon) => (lon > 180 ? lon - 360 : lon);
const width = () => map.clientWidth, height = () => map.clientHeight;
const world = () => TILE * 2 ** view.zoom;
const toScreen = ({ x, y }) => [(x - view.x) * world() + width() / 2, (y - view.y) * world() + height() / 2];
const toPlane = (left, top) => ({
  x: view.x + (left - width() / 2) / world(),
  y: view.y + (top - height() / 2) / world(),
});

function box() {
  const [west, south, east, north] = facts.bbox;
  // Longitudes continue beyond 180.
  return { from: project(west, north), to: project(west > east ? east + 360 : east, south) };
}

function viewOfAll() {
  const { from, to } = box();
  const across = (width() - 60) / ((to.x - from.x) * TILE || 1e-9);
  const down = (height() - 90) / ((to.y - from.y) * TILE || 1e-9);
  const zoom = Math.max(0, Math.min(Math.log2(Math.min(across, down)), tilejson.maxzoom + 1));
  return { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2, zoom };
}

function showAll() {
  shownAll = viewOfAll();
  Object.assign(view, shownAll);
  draw();
}

// A map that shows the whole dataset continues to do so, for example when a phone is turned; a map that was moved
// stays.
function onResize() {
  if (shownAll && ["x", "y", "zoom"].every((name) => view[name] === shownAll[name])) showAll();
  else draw();
}

function zoomTo(zoom, left = width() / 2, top = height() / 2) {
  const anchor = toPlane(left, top);
  view.zoom = Math.max(Math.max(0, minZoom), Math.min(maxZoom, zoom));
  const moved = toPlane(left, top);
  view.x += anchor.x - moved.x;
  view.y += anchor.y - moved.y;
  draw();
}

function pan(right, down) {
  view.x = Math.max(0, Math.min(Math.max(1, box().to.x), view.x - right / world()));
  view.y = Math.max(0, Math.min(1, view.y - down / world()));
  draw();
}

// --- frame -----------------------------------------------------------------------------------------------------------

function draw() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => {
    updateTiles();
    drawGrid();
    drawOverlay();
    showPosition();
    history.replaceState(null, "", hash());
  });
}

function visibleTiles(z) {
  const count = 2 ** z, { from, to } = box(), first = toPlane(0, 0), last = toPlane(width(), height());
  const range = (low, high, end) => [
    Math.max(0, Math.floor(low * count)),
    Math.min(end - 1, Math.ceil(high * count) - 1),
  ];
  const [left, right] = range(Math.max(first.x, from.x), Math.min(last.x, to.x), 2 * count);
  const [top, bottom] = range(Math.max(first.y, from.y), Math.min(last.y, to.y), count);
  const tiles = [];
  for (let y = top; y <= bottom; y++) for (let x = left; x <= right; x++) tiles.push([z, x, y]);
  const [mx, my] = [view.x * count - 0.5, view.y * count - 0.5];
  // From the centre outwards.
  return tiles.sort((a, b) => Math.hypot(a[1] - mx, a[2] - my) - Math.hypot(b[1] - mx, b[2] - my));
}

function updateTiles() {
  const z = Math.max(tilejson.minzoom, Math.min(tilejson.maxzoom, Math.round(view.zoom)));
  const wanted = new Set();
  for (const [zoom, x, y] of visibleTiles(z)) {
    const key = `${zoom}/${x}/${y}`;
    wanted.add(key);
    if (!images.has(key)) images.set(key, loadTile(zoom, x, y));
  }
  const isLoading = [...wanted].some((key) => images.get(key).dataset.state === "loading");
  find("progress").hidden = !isLoading;
  for (const [key, image] of images) {
    // Old tiles stay below the new ones until these are loaded.
    if (!wanted.has(key) && (!isLoading || image.dataset.state !== "loaded")) {
      image.remove();
      images.delete(key);
      continue;
    }
    const [zoom, x, y] = key.split("/").map(Number);
    const [left, top] = corner(zoom, x, y), [right, bottom] = corner(zoom, x + 1, y + 1);
    image.style.transform = `translate(${left}px, ${top}px)`;
    image.style.width = `${right - left}px`;
    image.style.height = `${bottom - top}px`;
    image.style.zIndex = wanted.has(key) ? 100 : zoom;
    image.classList.toggle("coarse", view.zoom > tilejson.maxzoom + 1.5);
  }
}

// The corner of a tile on a whole pixel of the screen. Neighbours share the same corner, so there is no seam between
// them.
function corner(z, x, y) {
  const ratio = devicePixelRatio || 1;
  return toScreen({ x: x / 2 ** z, y: y / 2 ** z }).map((place) => Math.round(place * ratio) / ratio);
}

function loadTile(z, x, y) {
  const image = new Image();
  image.alt = "";
  image.dataset.state = "loading";
  const done = (state) => () => {
    image.dataset.state = state;
    image.classList.toggle("loaded", state === "loaded");
    if (images.get(`${z}/${x}/${y}`) === image) draw();
  };
  image.addEventListener("load", done("loaded"));
  image.addEventListener("error", done("empty")); // no data in this tile: the server responds with 404
  image.src = tileUrl().replace("{z}", z).replace("{x}", x % 2 ** z).replace("{y}", y);
  layer.append(image);
  return image;
}

function reloadTiles() {
  for (const image of images.values()) image.remove();
  images.clear();
  draw();
}

function canvas(id) {
  const element = find(id), ratio = devicePixelRatio || 1, pen = element.getContext("2d");
  element.width = width() * ratio;
  element.height = height() * ratio;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

function drawGrid() {
  const pen = canvas("grid");
  const [west, north] = unproject(toPlane(0, 0)), [east, south] = unproject(toPlane(width(), height()));
  const steps = [90, 45, 30, 15, 10, 5, 2, 1, 0.5, 0.25, 0.1, 0.05, 0.025, 0.01, 0.005, 0.0025, 0.001, 0.0005, 0.00025,
                 0.0001];
  const step = steps.find((candidate) => (east - west) / candidate > width() / 190) ?? 0.0001;
  const digits = Math.max(0, Math.ceil(-Math.log10(step) + (String(step).match(/25$/) ? 1 : 0)));
  pen.strokeStyle = color("--line");
  pen.fillStyle = color("--soft");
  pen.font = "11px system-ui, sans-serif";
  pen.lineWidth = 1;
  const lastLon = Math.min(east, Math.max(180, unproject(box().to)[0])) + 1e-9;
  for (let lon = Math.ceil(Math.max(west, -180) / step) * step; lon <= lastLon; lon += step) {
    const [x] = toScreen(project(lon, 0));
    line(pen, x, 0, x, height());
    pen.fillText(degrees(wrapped(lon), "E", "W", digits), x + 4, height() - 38);
  }
  for (let lat = Math.ceil(Math.max(south, -85) / step) * step; lat <= Math.min(north, 85) + 1e-9; lat += step) {
    const [, y] = toScreen(project(0, lat));
    line(pen, 0, y, width(), y);
    if (y > 150) pen.fillText(degrees(lat, "N", "S", digits), width() - 62, y - 4); // the buttons are above
  }
}

function line(pen, fromX, fromY, toX, toY) {
  pen.beginPath();
  pen.moveTo(Math.round(fromX) + 0.5, Math.round(fromY) + 0.5);
  pen.lineTo(Math.round(toX) + 0.5, Math.round(toY) + 0.5);
  pen.stroke();
}

function drawOverlay() {
  const pen = canvas("marks"), { from, to } = box(), [left, top] = toScreen(from), [right, bottom] = toScreen(to);
  pen.strokeStyle = color("--accent");
  pen.setLineDash([5, 4]);
  const [across, down] = [Math.round(right - left) + 1, Math.round(bottom - top) + 1];
  pen.strokeRect(Math.round(left) - 0.5, Math.round(top) - 0.5, across, down);
  if (!selectedPoint) return;
  const [x, y] = toScreen(selectedPoint);
  pen.setLineDash([]);
  pen.lineWidth = 2;
  pen.strokeStyle = "#fff";
  pen.fillStyle = color("--accent");
  pen.beginPath();
  pen.arc(x, y, 5, 0, 7);
  pen.fill();
  pen.stroke();
  popup.style.visibility = x < 0 || y < 0 || x > width() || y > height() ? "hidden" : "visible";
  popup.style.left = `${Math.max(130, Math.min(width() - 130, x))}px`;
  popup.style.top = `${Math.max(90, y)}px`;
}

function degrees(value, positive, negative, digits) {
  const text = Math.abs(value).toFixed(digits);
  return `${text}°${Number(text) === 0 ? "" : value > 0 ? positive : negative}`;
}

function showPosition(at = view) {
  const [lon, lat] = unproject(at);
  const place = `${degrees(lat, "N", "S", 5)}  ${degrees(wrapped(lon), "E", "W", 5)}`;
  find("place").textContent = `${place}   z ${view.zoom.toFixed(1)}`;
  const metres = (Math.cos((unproject(view)[1] * Math.PI) / 180) * 40075016.686) / world();
  const longest = metres * 110, power = 10 ** Math.floor(Math.log10(longest));
  const length = [5, 2, 1].find((n) => n * power <= longest) * power;
  find("scale").firstElementChild.style.width = `${length / metres}px`;
  find("scale").lastElementChild.textContent =
    length >= 1000 ? `${length / 1000} km` : length >= 1 ? `${length} m` : `${length * 100} cm`;
}

// --- the address -----------------------------------------------------------------------------------------------------

function hash() {
  const [lon, lat] = unproject(view);
  return `#${view.zoom.toFixed(2)}/${lat.toFixed(5)}/${lon.toFixed(5)}`;
}

function fromHash() {
  const [zoom, lat, lon] = location.hash.slice(1).split("/").map(Number);
  if (![zoom, lat, lon].every(Number.isFinite)) return null;
  return { ...project(lon, lat), zoom: Math.max(minZoom, Math.min(maxZoom, zoom)) };
}

// --- the panel -------------------------------------------------------------------------------------------------------

function showDescription() {
  const title = tilejson.name || facts.dataset_id;
  document.title = `${title} · dagmaster`;
  find("title").textContent = title;
  const count = facts.bands.length;
  find("facts").textContent =
    [facts.is_published ? "" : "preview", `version ${facts.version}`,
     facts.revision > 1 ? `revision ${facts.revision}` : "", facts.data_type,
     count > 1 ? `${count} bands` : "", facts.kind === "mosaic" ? "mosaic" : ""].filter(Boolean).join(" · ");
  const text = new DOMParser().parseFromString(tilejson.attribution ?? "", "text/html").body.textContent;
  find("attribution").textContent = text;
  find("attribution").title = text;
  const suffix = Object.keys(revision).length ? `?${new URLSearchParams(revision)}` : "";
  find("stac").href = `../../stac/collections/${encodeURIComponent(facts.dataset_id)}${suffix}`;
  find("tilejson").href = `WebMercatorQuad/tilejson.json${suffix}`;
  find("statistics").href = `statistics${suffix}`;
}

function defaultStyle() {
  const [low, high] = facts.rescale?.[0] ?? (facts.data_type === "uint8" ? [0, 255] : ["", ""]);
  return { bands: null, low, high, isStretched: false, colormap: "" };
}

function styleFromUrl() {
  const initial = defaultStyle(), bands = query.getAll("bidx").map(Number), range = query.get("rescale")?.split(",");
  if (bands.length) initial.bands = bands;
  if (range?.length === 2) [initial.low, initial.high, initial.isStretched] = [...range, true];
  if (COLORMAPS.includes(query.get("colormap_name"))) initial.colormap = query.get("colormap_name");
  return initial;
}

const defaultBands = () => (facts.shown.length ? facts.shown : facts.bands.length >= 3 ? [1, 2, 3] : [1]);
const isSingle = () => (style.bands ?? defaultBands()).length === 1;

function showTools() {
  showBands();
  const colours = find("colormap");
  const own = facts.colormap_name ? `${facts.colormap_name} (default)` : "grey";
  const others = COLORMAPS.filter((name) => name !== facts.colormap_name);
  colours.replaceChildren(new Option(own, ""), ...others.map((name) => new Option(name, name)));
  colours.value = style.colormap;
  find("low").value = shortNumber(style.low);
  find("high").value = shortNumber(style.high);
  find("colour").hidden = !isSingle() || facts.is_palette;
  find("stretch").hidden = facts.is_palette;
  showLegend();
}

function showBands() {
  const count = facts.bands.length, current = style.bands ?? defaultBands();
  const places = current.length === 1 ? ["Band"] : ["Red", "Green", "Blue"];
  find("bands").hidden = count < 2;
  const selects = places.map((place, index) => {
    const label = document.createElement("label"), select = document.createElement("select");
    const labels = facts.bands.map(([name, text], i) => (text && text !== name ? `${i + 1} ${text}` : `${i + 1}`));
    select.append(...labels.map((text, i) => new Option(text, i + 1)));
    const other = places.length === 1 ? new Option("three bands …", "three") : new Option("one band …", "one");
    if (count >= 3) select.append(other);
    select.value = current[index];
    select.addEventListener("change", () => chooseBands(select.value, index, current));
    label.append(place, select);
    return label;
  });
  find("bands").replaceChildren(...selects);
}

function chooseBands(value, index, current) {
  if (value === "three") style.bands = [1, 2, 3];
  else if (value === "one") style.bands = [current[index]];
  else style.bands = current.map((band, i) => (i === index ? Number(value) : band));
  if (!isSingle()) style.colormap = "";
  showTools();
  reloadTiles();
}

function showLegend() {
  const classes = isSingle() && !style.colormap ? facts.classes ?? [] : [];
  const hasRange = isSingle() && !facts.is_palette && style.low !== "" && classes.length === 0;
  find("legend").hidden = !hasRange;
  find("classes").hidden = classes.length === 0;
  find("classes").replaceChildren(...classes.map(classRow));
  if (!hasRange) return;
  find("ramp").src = `../../colormaps/${style.colormap || facts.colormap_name || "gray"}.png`;
  find("from").textContent = shortNumber(style.low);
  find("to").textContent = shortNumber(style.high);
}

function classRow({ value, name, color }) {
  const row = document.createElement("li"), swatch = document.createElement("i");
  const label = document.createElement("span");
  swatch.style.background = color; // set by script: the content security policy only forbids style attributes in HTML
  label.textContent = name;
  row.title = `${name} (${value})`;
  row.append(swatch, label);
  return row;
}

const shortNumber = (value) => (value === "" ? "" : String(Number(Number(value).toPrecision(5))));

function applyRange() {
  const [low, high] = ["low", "high"].map((id) => find(id).value.trim().replace(",", "."));
  const isGood = low !== "" && high !== "" && Number.isFinite(+low) && Number.isFinite(+high) && +low !== +high;
  for (const id of ["low", "high"]) find(id).classList.toggle("bad", !isGood);
  if (!isGood) return;
  Object.assign(style, { low, high, isStretched: true });
  showLegend();
  reloadTiles();
}

// --- values ----------------------------------------------------------------------------------------------------------

async function showValues(left, top) {
  const at = toPlane(left, top), [east, lat] = unproject(at), lon = wrapped(east);
  const { from, to } = box();
  if (at.x < from.x || at.x > to.x || at.y < from.y || at.y > to.y) return clearSelection();
  selectedPoint = at;
  fillPopup([["…", ""]], lon, lat);
  draw();
  try {
    const shown = { ...revision, version: facts.version, rev: facts.revision };
    const point = await fetchJson(`point/${lon.toFixed(7)},${lat.toFixed(7)}`, shown);
    const nameOf = (i) => point.band_descriptions?.[i] || point.band_names[i];
    if (selectedPoint === at) fillPopup(point.values.map((value, i) => [nameOf(i), valueText(value)]), lon, lat);
  } catch (error) {
    if (selectedPoint === at) fillPopup([[problemText(error.code), ""]], lon, lat);
  }
}

function problemText(code) {
  if (code === "tiles.outside") return "no data here";
  if (code === "version.replaced") return "this revision was replaced; reload the page";
  return "the value cannot be read now; click again";
}

const valueText = (value) =>
  value === null ? "no data" : String(Number.isInteger(value) ? value : Number(value.toPrecision(7)));

function fillPopup(rows, lon, lat) {
  const table = document.createElement("table");
  for (const cells of rows) {
    const row = table.insertRow();
    for (const cell of cells) row.insertCell().textContent = cell;
  }
  const at = document.createElement("div");
  at.className = "at";
  at.textContent = `${degrees(lat, "N", "S", 6)}  ${degrees(lon, "E", "W", 6)}`;
  find("values").replaceChildren(table, at);
  popup.hidden = false;
}

function clearSelection() {
  selectedPoint = null;
  popup.hidden = true;
  draw();
}

function showMessage(text, seconds = 0) {
  const message = find("message");
  message.textContent = text;
  message.hidden = false;
  if (seconds) setTimeout(() => { message.hidden = true; }, seconds * 1000);
}

// --- input -----------------------------------------------------------------------------------------------------------

function addListeners() {
  const fingers = new Map();
  let moved = 0;
  map.addEventListener("pointerdown", (event) => {
    map.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, event);
    if (fingers.size === 1) moved = 0;
    map.classList.add("held");
  });
  map.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return showPosition(toPlane(event.clientX, event.clientY));
    const right = event.clientX - before.clientX, down = event.clientY - before.clientY;
    moved += Math.abs(right) + Math.abs(down);
    const other = [...fingers.values()].find((finger) => finger.pointerId !== event.pointerId);
    if (other) {
      const distance = (finger) => Math.hypot(finger.clientX - other.clientX, finger.clientY - other.clientY);
      const centre = [(event.clientX + other.clientX) / 2, (event.clientY + other.clientY) / 2];
      zoomTo(view.zoom + Math.log2(distance(event) / distance(before)), ...centre);
      pan(right / 2, down / 2);
    } else if (moved > 3) pan(right, down);
    fingers.set(event.pointerId, event);
  });
  const onRelease = (event) => {
    if (fingers.delete(event.pointerId) && fingers.size === 0) {
      map.classList.remove("held");
      if (moved <= 3 && event.type === "pointerup") showValues(event.clientX, event.clientY);
    }
  };
  map.addEventListener("pointerup", onRelease);
  map.addEventListener("pointercancel", onRelease);
  map.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 18 : 1;
    zoomTo(view.zoom - Math.max(-1, Math.min(1, (event.deltaY * lines) / 240)), event.clientX, event.clientY);
  }, { passive: false });
  map.addEventListener("keydown", (event) => {
    const keys = {
      ArrowLeft: () => pan(80, 0), ArrowRight: () => pan(-80, 0),
      ArrowUp: () => pan(0, 80), ArrowDown: () => pan(0, -80),
      "+": () => zoomTo(view.zoom + 1), "=": () => zoomTo(view.zoom + 1), "-": () => zoomTo(view.zoom - 1),
      Escape: clearSelection,
    };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  find("in").addEventListener("click", () => zoomTo(Math.round(view.zoom) + 1));
  find("out").addEventListener("click", () => zoomTo(Math.round(view.zoom) - 1));
  find("fit").addEventListener("click", showAll);
  find("close").addEventListener("click", clearSelection);
  find("low").addEventListener("change", applyRange);
  find("high").addEventListener("change", applyRange);
  find("tools").addEventListener("submit", (event) => event.preventDefault());
  find("colormap").addEventListener("change", (event) => {
    style.colormap = event.target.value;
    showLegend();
    reloadTiles();
  });
  find("opacity").addEventListener("input", (event) => { layer.style.opacity = event.target.value; });
  find("reset").addEventListener("click", () => {
    style = defaultStyle();
    find("opacity").value = layer.style.opacity = 1;
    showTools();
    reloadTiles();
  });
  find("copy").addEventListener("click", copyTileUrl);
  find("fold").addEventListener("click", () => fold(!find("panel").classList.contains("folded")));
  fold(matchMedia("(max-width: 560px)").matches); // on a small screen the panel would cover the map
  addEventListener("resize", onResize);
  addEventListener("hashchange", () => { Object.assign(view, fromHash() ?? {}); draw(); });
}

function fold(isFolded) {
  find("panel").classList.toggle("folded", isFolded);
  find("fold").setAttribute("aria-expanded", String(!isFolded));
  find("fold").title = isFolded ? "Show settings" : "Hide settings";
}

// Other programs expect tiles of 256 pixels, and the newest version of the dataset unless another one is shown.
async function copyTileUrl() {
  const { version = "latest" } = revision;
  const parameters = [...styleParameters(), ...(version === "latest" ? [] : [["version", version]])];
  const search = parameters.length ? `?${new URLSearchParams(parameters)}` : "";
  const address = new URL("tiles/WebMercatorQuad/", location.href).href + `{z}/{x}/{y}.png${search}`;
  try {
    await navigator.clipboard.writeText(address);
    showMessage("Copied", 2);
  } catch {
    showMessage(address, 12);
  }
}
