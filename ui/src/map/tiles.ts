/** URLs of the map server for one revision of an asset, and the style of its map tiles. Pure. */
import { urlOf } from "../api/client";

export interface Edition {
  asset: string;
  version: number;
  revision: number;
}

export interface MapFacts {
  dataset_id: string;
  bbox: [number, number, number, number];
  bands: [string, string | null][];
  shown: number[];
  data_type: string;
  kind: string;
  rescale: [number, number][] | null;
  colormap_name: string | null;
  is_palette: boolean;
  is_published: boolean;
  version: number;
  revision: number;
  classes?: { value: number; color?: string; colour?: string; label?: string; description?: string }[] | null;
}

export interface TileJson {
  name?: string;
  tiles: string[];
  minzoom: number;
  maxzoom: number;
  bounds: [number, number, number, number];
  dagmaster: MapFacts;
}

export interface Style {
  bands: number[] | null;
  low: number | null;
  high: number | null;
  colormap: string | null;
}

export const DEFAULT_STYLE: Style = { bands: null, low: null, high: null, colormap: null };

export const COLORMAPS = [
  "viridis",
  "magma",
  "inferno",
  "plasma",
  "cividis",
  "turbo",
  "terrain",
  "gist_earth",
  "spectral_r",
  "rdylgn",
  "rdbu_r",
  "blues",
  "greens",
  "ylorrd",
];

function base(edition: Edition): string {
  return `/tiles/${encodeURIComponent(edition.asset)}`;
}

function revisionQuery(edition: Edition) {
  return { version: edition.version, rev: edition.revision };
}

export function tileJsonUrl(edition: Edition): string {
  return urlOf(`${base(edition)}/WebMercatorQuad/tilejson.json`, {}, { ...revisionQuery(edition), tilesize: 512 });
}

export function pointUrl(edition: Edition, lon: number, lat: number): string {
  return urlOf(`${base(edition)}/point/${lon.toFixed(7)},${lat.toFixed(7)}`, {}, revisionQuery(edition));
}

export function statisticsUrl(edition: Edition, bands: number[]): string {
  return urlOf(`${base(edition)}/statistics`, {}, { ...revisionQuery(edition), bidx: bands, histogram_bins: 48 });
}

export function previewUrl(edition: Edition): string {
  return urlOf(`${base(edition)}/preview.png`, {}, { ...revisionQuery(edition), max_size: 256 });
}

export function rampUrl(style: Style, facts: MapFacts): string {
  return `/colormaps/${style.colormap ?? facts.colormap_name ?? "gray"}.png`;
}

/** The URL template of the tiles with the origin of this page, even if the TileJSON names another host. */
export function tileTemplate(tilejson: TileJson, style: Style, origin: string): string {
  const path = (tilejson.tiles[0] ?? "").replace(/^https?:\/\/[^/]+/, "");
  const parameters = new URLSearchParams();
  for (const band of style.bands ?? []) parameters.append("bidx", String(band));
  if (style.low !== null && style.high !== null) parameters.set("rescale", `${style.low},${style.high}`);
  if (style.colormap) parameters.set("colormap_name", style.colormap);
  const extra = parameters.toString();
  return `${origin}${path}${extra ? `${path.includes("?") ? "&" : "?"}${extra}` : ""}`;
}

export function shownBands(style: Style, facts: MapFacts): number[] {
  if (style.bands) return style.bands;
  if (facts.shown.length > 0) return facts.shown;
  return facts.bands.length >= 3 ? [1, 2, 3] : [1];
}

export function isSingleBand(style: Style, facts: MapFacts): boolean {
  return shownBands(style, facts).length === 1;
}

/** One style for two versions, so that a value has the same colour in both: if one has a colormap, its style. */
export function commonStyle(one: MapFacts, other: MapFacts): Style {
  const both = [one, other];
  if (both.some((facts) => facts.is_palette || !isSingleBand(DEFAULT_STYLE, facts))) return DEFAULT_STYLE;
  const styled = both.find((facts) => facts.colormap_name !== null);
  const ranges = (styled ? [styled] : both).flatMap((facts) => facts.rescale?.slice(0, 1) ?? []);
  return {
    bands: null,
    low: ranges.length > 0 ? Math.min(...ranges.map(([low]) => low)) : null,
    high: ranges.length > 0 ? Math.max(...ranges.map(([, high]) => high)) : null,
    colormap: styled?.colormap_name ?? null,
  };
}

export function styleFrom(query: URLSearchParams): Style {
  const number = (name: string) => {
    const value = query.get(name);
    return value === null || value === "" || !Number.isFinite(Number(value)) ? null : Number(value);
  };
  const bands = query.get("bands")?.split(",").map(Number);
  const areBands = bands?.every((band) => Number.isInteger(band) && band > 0) && [1, 3].includes(bands.length);
  return {
    bands: areBands ? (bands ?? null) : null,
    low: number("low"),
    high: number("high"),
    colormap: COLORMAPS.includes(query.get("colours") ?? "") ? query.get("colours") : null,
  };
}

export function styleQuery(style: Style): Record<string, string | null> {
  return {
    bands: style.bands?.join(",") ?? null,
    low: style.low === null ? null : String(style.low),
    high: style.high === null ? null : String(style.high),
    colours: style.colormap,
  };
}

/** Boxes across the antimeridian have west > east; MapLibre needs an east that is greater than 180° instead. */
export function unwrapped(bbox: readonly number[]): [number, number, number, number] {
  const [west = -180, south = -85, east = 180, north = 85] = bbox;
  return [west, Math.max(-85, south), west > east ? east + 360 : east, Math.min(85, north)];
}
