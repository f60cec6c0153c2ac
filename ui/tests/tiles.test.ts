import { expect, test } from "vitest";
import { urlOf } from "../src/api/client";
import { graticule } from "../src/map/graticule";
import {
  commonStyle,
  DEFAULT_STYLE,
  type MapFacts,
  previewUrl,
  styleFrom,
  styleQuery,
  type TileJson,
  tileTemplate,
  unwrapped,
} from "../src/map/tiles";

const TILEJSON = {
  tiles: ["http://maps.internal:8003/tiles/dem/tiles/WebMercatorQuad/{z}/{x}/{y}?version=0&rev=1-abc"],
} as TileJson;

test("tiles come from the origin of the page, with the style", () => {
  const style = { bands: [4, 3, 2], low: 0, high: 3000, colormap: null };
  expect(tileTemplate(TILEJSON, style, "https://me")).toBe(
    "https://me/tiles/dem/tiles/WebMercatorQuad/{z}/{x}/{y}?version=0&rev=1-abc&bidx=4&bidx=3&bidx=2&rescale=0%2C3000",
  );
  expect(tileTemplate(TILEJSON, DEFAULT_STYLE, "")).toBe(
    "/tiles/dem/tiles/WebMercatorQuad/{z}/{x}/{y}?version=0&rev=1-abc",
  );
});

test("a style can be written to the URL and read again", () => {
  const style = { bands: [1], low: -5.5, high: 12, colormap: "viridis" };
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(styleQuery(style))) if (value) query.set(name, value);
  expect(styleFrom(query)).toEqual(style);
});

test("invalid values in the URL give the default style", () => {
  expect(styleFrom(new URLSearchParams("bands=1,x&low=NaN&high=&colours=../../etc"))).toEqual(DEFAULT_STYLE);
});

test("special characters of ids are escaped in URLs", () => {
  expect(previewUrl({ asset: "../../api/v1/keys?x=", version: 0, revision: 1 })).toBe(
    "/tiles/..%2F..%2Fapi%2Fv1%2Fkeys%3Fx%3D/preview.png?version=0&rev=1&max_size=256",
  );
  expect(urlOf("/a/{id}", { id: "x/../y?z#w" }, { q: "a&b", none: null, list: [1, 2] })).toBe(
    "/a/x%2F..%2Fy%3Fz%23w?q=a%26b&list=1&list=2",
  );
});

test("a box across the antimeridian gets an east of more than 180°", () => {
  expect(unwrapped([170, -20, -170, 10])).toEqual([170, -20, 190, 10]);
  expect(unwrapped([-180, -90, 180, 90])).toEqual([-180, -85, 180, 85]);
});

test.each([0, 3, 7, 12, 22])("the graticule at zoom %i has a bounded number of lines", (zoom) => {
  const lines = graticule([-200, -85, 200, 85], zoom).features[0]?.geometry.coordinates ?? [];
  expect(lines.length).toBeGreaterThan(0);
  expect(lines.length).toBeLessThanOrEqual(400);
});

const facts = (changes: Partial<MapFacts>) =>
  ({ bands: [["b1", null]], shown: [], rescale: null, colormap_name: null, is_palette: false, ...changes }) as MapFacts;

test("two versions are compared with one range of values", () => {
  const [one, other] = [facts({ rescale: [[0, 5]] }), facts({ rescale: [[-1, 4]] })];
  expect(commonStyle(one, other)).toEqual({ bands: null, low: -1, high: 5, colormap: null });
});

test("a style with a colormap of one version is used for both", () => {
  const styled = facts({ rescale: [[0, 8]], colormap_name: "blues" });
  const style = { bands: null, low: 0, high: 8, colormap: "blues" };
  expect(commonStyle(styled, facts({ rescale: [[0.1, 7]] }))).toEqual(style);
  expect(commonStyle(facts({ rescale: [[0.1, 7]] }), styled)).toEqual(style);
});

test("images with three bands and rasters with a palette keep their own colours", () => {
  const picture = facts({
    bands: [
      ["r", null],
      ["g", null],
      ["b", null],
    ],
    rescale: [[0, 200]],
  });
  expect(commonStyle(picture, picture)).toEqual(DEFAULT_STYLE);
  expect(commonStyle(facts({ is_palette: true }), facts({ rescale: [[0, 1]] }))).toEqual(DEFAULT_STYLE);
});
