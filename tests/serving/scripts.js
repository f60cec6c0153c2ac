// Runs a script of a page without a browser: `node scripts.js FILE CALLS`. The page is a stand-in: elements have a size and
// keep what is set, requests are never answered. CALLS is a list of JavaScript expressions, evaluated in the scope of the
// script, in order; their values are printed as JSON.

const fs = require("fs");
const [file, calls] = [process.argv[2], JSON.parse(process.argv[3])];

const element = (id) => ({
  id, clientWidth: 1000, clientHeight: 600, style: {}, dataset: {}, href: "", hidden: false, textContent: "",
  classList: { toggle() {}, add() {}, remove() {}, contains: () => false },
  firstElementChild: { style: {} }, lastElementChild: { style: {} },
  append() {}, remove() {}, replaceChildren() {}, addEventListener() {}, setAttribute() {},
});
const elements = {};
const page = {
  document: {
    getElementById: (id) => (elements[id] ??= element(id)),
    createElement: element,
    querySelectorAll: () => [],
    documentElement: {},
  },
  location: { search: "", hash: "", href: "http://localhost:8003/tiles/dem/map" },
  history: { replaceState() {} },
  navigator: { clipboard: { writeText: async (text) => { page.copied = text; } } },
  devicePixelRatio: 1,
  fetch: () => new Promise(() => {}),
  requestAnimationFrame: () => 0,
  cancelAnimationFrame() {},
  page: null,
};
page.page = page;

const names = Object.keys(page).filter((name) => name !== "devicePixelRatio");
const body = `${fs.readFileSync(file, "utf8")}
;return async (text) => await eval(text);`;
globalThis.devicePixelRatio = 1; // expressions may change it
const evaluate = new Function(...names, body)(...names.map((name) => page[name]));

(async () => {
  const values = [];
  for (const text of calls) values.push(await evaluate(text));
  console.log(JSON.stringify(values));
  process.exit(0);
})().catch((error) => { console.error(error); process.exit(1); });
