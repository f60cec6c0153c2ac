// A map of one dataset: Web Mercator tiles as images on a plane that is dragged and zoomed, and nothing else.
//
// A place on the plane is {x, y}, both from 0 to 1 with y downwards; `view.zoom` is such that the world is 256 · 2^zoom pixels wide.

const TILE = 256;
const COLORMAPS = ["viridis", "magma", "inferno", "plasma", "cividis", "turbo", "terrain", "gist_earth", "spectral_r", "rdylgn",
                   "rdbu_r", "blues", "greens", "ylorrd"];
const DEEPER = 4; // how much further than the last zoom of tiles one may look

const find = (id) => document.getElementById(id);
const map = find("map"), layer = find("tiles"), popup = find("popup");
const asked = new URLSearchParams(location.search);
const version = asked.get("version") ?? "latest";
const view = { x: 0.5, y: 0.5, zoom: 1 };
const images = new Map(); // by "z/x/y"
let tilejson, facts, chosen, lowest = 0, deepest = 24, drawing = 0, marked = null;

start();

async function start() {
  try {
    const size = devicePixelRatio > 1.3 ? 512 : 256;
    tilejson = await ask("WebMercatorQuad/tilejson.json", { version, tilesize: size });
  } catch (error) {
    return tell(error.message);
  }
  facts = tilejson.dagmaster;
  deepest = Math.min(24, tilejson.maxzoom + DEEPER);
  describe();
  chosen = fromAddress();
  showTools();
  listen();
  lowest = Math.min(fitting().zoom, tilejson.minzoom) - 1;
  Object.assign(view, fromHash() ?? fitting());
  draw();
}

// --- requests -------------------------------------------------------------------------------------------------

async function ask(place, parameters = {}) {
  const answer = await fetch(`${place}?${new URLSearchParams(parameters)}`);
  const body = await answer.json();
  if (!answer.ok) throw new Error([body.detail, body.hint].filter(Boolean).join(": "));
  return body;
}

// The origin of the page, which may differ from the public URL of the server.
function local(address) {
  return address.replace(/^https?:\/\/[^/]+/, "");
}

function look() {
  const made = [];
  if (chosen.bands) for (const band of chosen.bands) made.push(["bidx", band]);
  if (chosen.low !== "" && chosen.high !== "" && chosen.isStretched) made.push(["rescale", `${chosen.low},${chosen.high}`]);
  if (chosen.colormap) made.push(["colormap_name", chosen.colormap]);
  return made;
}

function tileAddress() {
  const more = new URLSearchParams(look()).toString();
  return local(tilejson.tiles[0]) + (more ? `&${more}` : "");
}

// --- the plane ---------------------------------------------------------------------------------------------------------

const project = (lon, lat) => {
  const sine = Math.sin((Math.max(-85.0511, Math.min(85.0511, lat)) * Math.PI) / 180);
  return { x: lon / 360 + 0.5, y: 0.5 - Math.log((1 + sine) / (1 - sine)) / (4 * Math.PI) };
};
const unproject = ({ x, y }) => [(x - 0.5) * 360, (Math.atan(Math.sinh(Math.PI * (1 - 2 * y))) * 180) / Math.PI];
const turned = (lon) => (lon > 180 ? lon - 360 : lon);
const width = () => map.clientWidth, height = () => map.clientHeight;
const world = () => TILE * 2 ** view.zoom;
const toScreen = ({ x, y }) => [(x - view.x) * world() + width() / 2, (y - view.y) * world() + height() / 2];
const toPlane = (left, top) => ({ x: view.x + (left - width() / 2) / world(), y: view.y + (top - height() / 2) / world() });

function box() {
  const [west, south, east, north] = facts.bbox;
  return { from: project(west, north), to: project(west > east ? east + 360 : east, south) }; // on beyond 180
}

function fitting() {
  const { from, to } = box();
  const across = (width() - 60) / ((to.x - from.x) * TILE || 1e-9), down = (height() - 90) / ((to.y - from.y) * TILE || 1e-9);
  const zoom = Math.max(0, Math.min(Math.log2(Math.min(across, down)), tilejson.maxzoom + 1));
  return { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2, zoom };
}

function zoomTo(zoom, left = width() / 2, top = height() / 2) {
  const held = toPlane(left, top);
  view.zoom = Math.max(Math.max(0, lowest), Math.min(deepest, zoom));
  const moved = toPlane(left, top);
  view.x += held.x - moved.x;
  view.y += held.y - moved.y;
  draw();
}

function pan(right, down) {
  view.x = Math.max(0, Math.min(Math.max(1, box().to.x), view.x - right / world()));
  view.y = Math.max(0, Math.min(1, view.y - down / world()));
  draw();
}

// --- drawing -----------------------------------------------------------------------------------------------------------

function draw() {
  cancelAnimationFrame(drawing);
  drawing = requestAnimationFrame(() => {
    placeTiles();
    drawGrid();
    drawMarks();
    showPlace();
    history.replaceState(null, "", hash());
  });
}

function visible(z) {
  const count = 2 ** z, { from, to } = box(), first = toPlane(0, 0), last = toPlane(width(), height());
  const range = (low, high, end) => [Math.max(0, Math.floor(low * count)), Math.min(end - 1, Math.ceil(high * count) - 1)];
  const [left, right] = range(Math.max(first.x, from.x), Math.min(last.x, to.x), 2 * count);
  const [top, bottom] = range(Math.max(first.y, from.y), Math.min(last.y, to.y), count);
  const found = [];
  for (let y = top; y <= bottom; y++) for (let x = left; x <= right; x++) found.push([z, x, y]);
  const [mx, my] = [view.x * count - 0.5, view.y * count - 0.5];
  return found.sort((a, b) => Math.hypot(a[1] - mx, a[2] - my) - Math.hypot(b[1] - mx, b[2] - my)); // the middle first
}

function placeTiles() {
  const z = Math.max(tilejson.minzoom, Math.min(tilejson.maxzoom, Math.round(view.zoom)));
  const wanted = new Set();
  for (const [zoom, x, y] of visible(z)) {
    const key = `${zoom}/${x}/${y}`;
    wanted.add(key);
    if (!images.has(key)) images.set(key, load(zoom, x, y));
  }
  const isLoading = [...wanted].some((key) => images.get(key).dataset.state === "loading");
  for (const [key, image] of images) {
    // Old tiles stay below the new ones until these are loaded.
    if (!wanted.has(key) && (!isLoading || image.dataset.state !== "there")) { image.remove(); images.delete(key); continue; }
    const [zoom, x, y] = key.split("/").map(Number);
    const side = world() / 2 ** zoom, [left, top] = toScreen({ x: x / 2 ** zoom, y: y / 2 ** zoom });
    const right = Math.round(left + side), bottom = Math.round(top + side); // on whole pixels, or seams show
    image.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
    image.style.width = `${right - Math.round(left)}px`;
    image.style.height = `${bottom - Math.round(top)}px`;
    image.style.zIndex = wanted.has(key) ? 100 : zoom;
    image.classList.toggle("coarse", view.zoom > tilejson.maxzoom + 1.5);
  }
}

function load(z, x, y) {
  const image = new Image();
  image.alt = "";
  image.dataset.state = "loading";
  const done = (state) => () => {
    image.dataset.state = state;
    image.classList.toggle("there", state === "there");
    if (images.get(`${z}/${x}/${y}`) === image) draw();
  };
  image.addEventListener("load", done("there"));
  image.addEventListener("error", done("empty")); // no data in this tile: the server responds with 404
  image.src = tileAddress().replace("{z}", z).replace("{x}", x % 2 ** z).replace("{y}", y);
  layer.append(image);
  return image;
}

function repaint() {
  for (const image of images.values()) image.remove();
  images.clear();
  draw();
}

function canvas(id) {
  const made = find(id), ratio = devicePixelRatio || 1, pen = made.getContext("2d");
  made.width = width() * ratio;
  made.height = height() * ratio;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

function drawGrid() {
  const pen = canvas("grid"), [west, north] = unproject(toPlane(0, 0)), [east, south] = unproject(toPlane(width(), height()));
  const steps = [90, 45, 30, 15, 10, 5, 2, 1, 0.5, 0.25, 0.1, 0.05, 0.025, 0.01, 0.005, 0.0025, 0.001, 0.0005, 0.00025, 0.0001];
  const step = steps.find((one) => (east - west) / one > width() / 190) ?? 0.0001;
  const digits = Math.max(0, Math.ceil(-Math.log10(step) + (String(step).match(/25$/) ? 1 : 0)));
  pen.strokeStyle = color("--line");
  pen.fillStyle = color("--soft");
  pen.font = "11px system-ui, sans-serif";
  pen.lineWidth = 1;
  for (let lon = Math.ceil(Math.max(west, -180) / step) * step; lon <= Math.min(east, Math.max(180, unproject(box().to)[0])) + 1e-9; lon += step) {
    const [x] = toScreen(project(lon, 0));
    line(pen, x, 0, x, height());
    pen.fillText(degrees(turned(lon), "E", "W", digits), x + 4, height() - 32);
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

function drawMarks() {
  const pen = canvas("marks"), { from, to } = box(), [left, top] = toScreen(from), [right, bottom] = toScreen(to);
  pen.strokeStyle = color("--accent");
  pen.setLineDash([5, 4]);
  pen.strokeRect(Math.round(left) - 0.5, Math.round(top) - 0.5, Math.round(right - left) + 1, Math.round(bottom - top) + 1);
  if (!marked) return;
  const [x, y] = toScreen(marked);
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
  const shown = Math.abs(value).toFixed(digits);
  return `${shown}°${Number(shown) === 0 ? "" : value > 0 ? positive : negative}`;
}

function showPlace(at = view) {
  const [lon, lat] = unproject(at);
  find("place").textContent = `${degrees(lat, "N", "S", 5)}  ${degrees(turned(lon), "E", "W", 5)}   z ${view.zoom.toFixed(1)}`;
  const metres = (Math.cos((unproject(view)[1] * Math.PI) / 180) * 40075016.686) / world();
  const long = metres * 110, round = 10 ** Math.floor(Math.log10(long)), shown = [5, 2, 1].find((n) => n * round <= long) * round;
  find("scale").firstElementChild.style.width = `${shown / metres}px`;
  find("scale").lastElementChild.textContent = shown >= 1000 ? `${shown / 1000} km` : shown >= 1 ? `${shown} m` : `${shown * 100} cm`;
}

// --- the address -------------------------------------------------------------------------------------------------------

function hash() {
  const [lon, lat] = unproject(view);
  return `#${view.zoom.toFixed(2)}/${lat.toFixed(5)}/${lon.toFixed(5)}`;
}

function fromHash() {
  const [zoom, lat, lon] = location.hash.slice(1).split("/").map(Number);
  return [zoom, lat, lon].every(Number.isFinite) ? { ...project(lon, lat), zoom: Math.max(lowest, Math.min(deepest, zoom)) } : null;
}

// --- the panel ---------------------------------------------------------------------------------------------------------

function describe() {
  const title = tilejson.name || facts.asset_id;
  document.title = `${title} · dagmaster`;
  find("title").textContent = title;
  const count = facts.bands.length;
  find("facts").textContent =
    [`version ${facts.version}`, facts.revision > 1 ? `revision ${facts.revision}` : "", facts.data_type,
     count > 1 ? `${count} bands` : "", facts.kind === "mosaic" ? "mosaic" : ""].filter(Boolean).join(" · ");
  const text = new DOMParser().parseFromString(tilejson.attribution ?? "", "text/html").body.textContent;
  find("attribution").textContent = text;
  find("attribution").title = text;
  const query = version === "latest" ? "" : `?version=${encodeURIComponent(version)}`;
  find("stac").href = `../../stac/collections/${encodeURIComponent(facts.asset_id)}`;
  find("tilejson").href = `WebMercatorQuad/tilejson.json${query}`;
  find("statistics").href = `statistics${query}`;
}

function asItWas() {
  const [low, high] = facts.rescale?.[0] ?? (facts.data_type === "uint8" ? [0, 255] : ["", ""]);
  return { bands: null, low, high, isStretched: false, colormap: "" };
}

function fromAddress() {
  const made = asItWas(), bands = asked.getAll("bidx").map(Number), range = asked.get("rescale")?.split(",");
  if (bands.length) made.bands = bands;
  if (range?.length === 2) [made.low, made.high, made.isStretched] = [...range, true];
  if (COLORMAPS.includes(asked.get("colormap_name"))) made.colormap = asked.get("colormap_name");
  return made;
}

const usual = () => (facts.shown.length ? facts.shown : facts.bands.length >= 3 ? [1, 2, 3] : [1]);
const isSingle = () => (chosen.bands ?? usual()).length === 1;

function showTools() {
  showBands();
  const colours = find("colormap");
  const own = facts.colormap_name ? `${facts.colormap_name} (default)` : "grey";
  colours.replaceChildren(new Option(own, ""), ...COLORMAPS.filter((name) => name !== facts.colormap_name).map((name) => new Option(name, name)));
  colours.value = chosen.colormap;
  find("low").value = brief(chosen.low);
  find("high").value = brief(chosen.high);
  find("colour").hidden = !isSingle() || facts.is_palette;
  find("stretch").hidden = facts.is_palette;
  showLegend();
}

function showBands() {
  const count = facts.bands.length, current = chosen.bands ?? usual(), places = current.length === 1 ? ["Band"] : ["Red", "Green", "Blue"];
  find("bands").hidden = count < 2;
  const selects = places.map((place, index) => {
    const label = document.createElement("label"), select = document.createElement("select");
    select.append(...facts.bands.map(([name, text], i) => new Option(text && text !== name ? `${i + 1} ${text}` : `${i + 1}`, i + 1)));
    if (count >= 3) select.append(places.length === 1 ? new Option("three bands …", "three") : new Option("one band …", "one"));
    select.value = current[index];
    select.addEventListener("change", () => chooseBands(select.value, index, current));
    label.append(place, select);
    return label;
  });
  find("bands").replaceChildren(...selects);
}

function chooseBands(value, index, current) {
  if (value === "three") chosen.bands = [1, 2, 3];
  else if (value === "one") chosen.bands = [current[index]];
  else chosen.bands = current.map((band, i) => (i === index ? Number(value) : band));
  if (!isSingle()) chosen.colormap = "";
  showTools();
  repaint();
}

function showLegend() {
  const isShown = isSingle() && !facts.is_palette && chosen.low !== "";
  find("legend").hidden = !isShown;
  if (!isShown) return;
  find("ramp").src = `../../colormaps/${chosen.colormap || facts.colormap_name || "gray"}.png`;
  find("from").textContent = brief(chosen.low);
  find("to").textContent = brief(chosen.high);
}

const brief = (value) => (value === "" ? "" : String(Number(Number(value).toPrecision(5))));

function stretch() {
  const [low, high] = ["low", "high"].map((id) => find(id).value.trim().replace(",", "."));
  const isGood = low !== "" && high !== "" && Number.isFinite(+low) && Number.isFinite(+high) && +low !== +high;
  for (const id of ["low", "high"]) find(id).classList.toggle("bad", !isGood);
  if (!isGood) return;
  Object.assign(chosen, { low, high, isStretched: true });
  showLegend();
  repaint();
}

// --- values ------------------------------------------------------------------------------------------------------------

async function query(left, top) {
  const at = toPlane(left, top), [east, lat] = unproject(at), lon = turned(east);
  const { from, to } = box();
  if (at.x < from.x || at.x > to.x || at.y < from.y || at.y > to.y) return forget();
  marked = at;
  fill([["…", ""]], lon, lat);
  draw();
  try {
    const found = await ask(`point/${lon.toFixed(7)},${lat.toFixed(7)}`, { version: facts.version });
    if (marked === at) fill(found.values.map((value, i) => [found.band_descriptions?.[i] || found.band_names[i], shown(value)]), lon, lat);
  } catch (error) {
    if (marked === at) fill([["no data here", ""]], lon, lat);
  }
}

const shown = (value) => (value === null ? "no data" : Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(7))));

function fill(rows, lon, lat) {
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

function forget() {
  marked = null;
  popup.hidden = true;
  draw();
}

function tell(text, seconds = 0) {
  const message = find("message");
  message.textContent = text;
  message.hidden = false;
  if (seconds) setTimeout(() => { message.hidden = true; }, seconds * 1000);
}

// --- input -------------------------------------------------------------------------------------------------------------

function listen() {
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
    if (!before) return showPlace(toPlane(event.clientX, event.clientY));
    const right = event.clientX - before.clientX, down = event.clientY - before.clientY;
    moved += Math.abs(right) + Math.abs(down);
    const other = [...fingers.values()].find((finger) => finger.pointerId !== event.pointerId);
    if (other) {
      const apart = (finger) => Math.hypot(finger.clientX - other.clientX, finger.clientY - other.clientY);
      zoomTo(view.zoom + Math.log2(apart(event) / apart(before)), (event.clientX + other.clientX) / 2, (event.clientY + other.clientY) / 2);
      pan(right / 2, down / 2);
    } else if (moved > 3) pan(right, down);
    fingers.set(event.pointerId, event);
  });
  const release = (event) => {
    if (fingers.delete(event.pointerId) && fingers.size === 0) {
      map.classList.remove("held");
      if (moved <= 3 && event.type === "pointerup") query(event.clientX, event.clientY);
    }
  };
  map.addEventListener("pointerup", release);
  map.addEventListener("pointercancel", release);
  map.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 18 : 1;
    zoomTo(view.zoom - Math.max(-1, Math.min(1, (event.deltaY * lines) / 240)), event.clientX, event.clientY);
  }, { passive: false });
  map.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: () => pan(80, 0), ArrowRight: () => pan(-80, 0), ArrowUp: () => pan(0, 80), ArrowDown: () => pan(0, -80),
                   "+": () => zoomTo(view.zoom + 1), "=": () => zoomTo(view.zoom + 1), "-": () => zoomTo(view.zoom - 1), Escape: forget };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  find("in").addEventListener("click", () => zoomTo(Math.round(view.zoom) + 1));
  find("out").addEventListener("click", () => zoomTo(Math.round(view.zoom) - 1));
  find("fit").addEventListener("click", () => { Object.assign(view, fitting()); draw(); });
  find("close").addEventListener("click", forget);
  find("low").addEventListener("change", stretch);
  find("high").addEventListener("change", stretch);
  find("tools").addEventListener("submit", (event) => event.preventDefault());
  find("colormap").addEventListener("change", (event) => { chosen.colormap = event.target.value; showLegend(); repaint(); });
  find("opacity").addEventListener("input", (event) => { layer.style.opacity = event.target.value; });
  find("reset").addEventListener("click", () => {
    chosen = asItWas();
    find("opacity").value = layer.style.opacity = 1;
    showTools();
    repaint();
  });
  find("copy").addEventListener("click", copyAddress);
  find("fold").addEventListener("click", () => {
    const isFolded = find("panel").classList.toggle("folded");
    find("fold").setAttribute("aria-expanded", String(!isFolded));
  });
  addEventListener("resize", draw);
  addEventListener("hashchange", () => { Object.assign(view, fromHash() ?? {}); draw(); });
}

// Other programs expect tiles of 256 pixels, and the newest version of the dataset.
async function copyAddress() {
  const more = [...look(), ...(version === "latest" ? [] : [["version", version]])];
  const query = more.length ? `?${new URLSearchParams(more)}` : "";
  const address = new URL("tiles/WebMercatorQuad/", location.href).href + `{z}/{x}/{y}.png${query}`;
  try {
    await navigator.clipboard.writeText(address);
    tell("Copied", 2);
  } catch {
    tell(address, 12);
  }
}
