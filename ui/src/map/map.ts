/** MapLibre with our background. This module is loaded when a map is opened. */
import * as maplibregl from "maplibre-gl";
import "maplibre-gl/dist/maplibre-gl.css";
import workerUrl from "maplibre-gl/dist/maplibre-gl-worker.mjs?url";
import { graticule } from "./graticule";

maplibregl.setWorkerUrl(workerUrl);

export type Box = [number, number, number, number];
export type RasterMap = maplibregl.Map;

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888888";
}

/**
 * Maps whose `load` event has fired, so that layers can be added. The event fires once, and `map.loaded()` is also
 * false while tiles are loaded.
 */
const loaded = new WeakSet<RasterMap>();

function whenLoaded(map: RasterMap, work: () => void): void {
  if (loaded.has(map)) work();
  else map.once("load", work);
}

const RETRY_SCHEME = "retry://";
const RETRIED_STATUSES = new Set([429, 502, 503, 504]);
const MAX_RETRIES = 5;

/** Requests tiles again that a busy server refuses: otherwise they would be missing until the user moves the map. */
maplibregl.addProtocol("retry", async (request, { signal }) => {
  const url = request.url.slice(RETRY_SCHEME.length);
  for (let count = 0; ; count += 1) {
    const response = await fetch(url, { signal });
    if (response.ok) return { data: await response.arrayBuffer() };
    if (!RETRIED_STATUSES.has(response.status) || count >= MAX_RETRIES)
      throw new maplibregl.AJAXError(response.status, response.statusText, url, await response.blob());
    await new Promise((done) => setTimeout(done, 500 * 2 ** count));
    signal.throwIfAborted();
  }
});

const MARGIN = 32;
const CONTROLS_WIDTH = 236;

/** `box` is the area to show. If a wide map has controls, which are on its left, the area is placed to their right. */
export function createMap(container: HTMLElement, box: Box | null, hasControls: boolean): RasterMap {
  const left = hasControls && container.clientWidth > 2.5 * CONTROLS_WIDTH ? MARGIN + CONTROLS_WIDTH : MARGIN;
  const map = new maplibregl.Map({
    container,
    style: {
      version: 8,
      sources: { graticule: { type: "geojson", data: graticule([-180, -85, 180, 85], 0) as never } },
      layers: [
        { id: "background", type: "background", paint: { "background-color": colour("--map-land") } },
        {
          id: "graticule",
          type: "line",
          source: "graticule",
          paint: { "line-color": colour("--map-line"), "line-width": 1 },
        },
      ],
    },
    bounds: box ?? [-180, -60, 180, 75],
    fitBoundsOptions: { padding: { top: MARGIN, right: MARGIN, bottom: MARGIN, left } },
    attributionControl: false,
    renderWorldCopies: true,
    maxZoom: 24,
    fadeDuration: 150,
    dragRotate: false,
    pitchWithRotate: false,
  });
  map.touchZoomRotate.disableRotation();
  map.addControl(new maplibregl.NavigationControl({ showCompass: false }), "top-right");
  map.addControl(new maplibregl.ScaleControl({ maxWidth: 120 }), "bottom-left");
  const drawGrid = () => {
    const bounds = map.getBounds();
    const source = map.getSource("graticule") as maplibregl.GeoJSONSource | undefined;
    source?.setData(
      graticule([bounds.getWest(), bounds.getSouth(), bounds.getEast(), bounds.getNorth()], map.getZoom()) as never,
    );
  };
  // For screenshots and tests: whether everything is drawn.
  map.on("dataloading", () => delete container.dataset.drawn);
  map.on("idle", () => {
    container.dataset.drawn = "true";
  });
  map.on("moveend", drawGrid);
  map.once("load", () => {
    loaded.add(map);
    drawGrid();
  });
  const repaint = () => {
    if (!map.getLayer("background")) return;
    map.setPaintProperty("background", "background-color", colour("--map-land"));
    map.setPaintProperty("graticule", "line-color", colour("--map-line"));
  };
  const themes = new MutationObserver(repaint);
  themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  map.once("remove", () => themes.disconnect());
  return map;
}

export interface RasterLayer {
  template: string;
  bounds: Box;
  minzoom: number;
  maxzoom: number;
}

/** Show a raster. The previous one stays until the new tiles are drawn, so that the map does not flash. */
export function showRaster(map: RasterMap, layer: RasterLayer, opacity: number): void {
  const name = `raster-${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 6)}`;
  const add = () => {
    const previousIds = map
      .getStyle()
      .layers.filter((each) => each.id.startsWith("raster-"))
      .map((each) => each.id);
    map.addSource(name, {
      type: "raster",
      tiles: [`${RETRY_SCHEME}${layer.template}`],
      tileSize: 512,
      bounds: layer.bounds[2] > 180 ? undefined : layer.bounds,
      minzoom: layer.minzoom,
      maxzoom: Math.max(layer.minzoom, layer.maxzoom - 1), // a tile of 512 pixels has the resolution of the next zoom level
    } as never);
    const above = map.getLayer("extent-line") ? "extent-line" : undefined;
    map.addLayer(
      { id: name, type: "raster", source: name, paint: { "raster-opacity": opacity, "raster-fade-duration": 150 } },
      above,
    );
    const clean = () => {
      for (const id of previousIds) {
        if (map.getLayer(id)) map.removeLayer(id);
        if (map.getSource(id)) map.removeSource(id);
      }
    };
    map.once("idle", clean);
  };
  whenLoaded(map, add);
}

export function setOpacity(map: RasterMap, opacity: number): void {
  for (const layer of map.getStyle().layers)
    if (layer.id.startsWith("raster-")) map.setPaintProperty(layer.id, "raster-opacity", opacity);
}

export interface Extent {
  id: string;
  bbox: Box;
}

function polygon(bbox: Box) {
  const [west, south, east, north] = bbox;
  return {
    type: "Polygon" as const,
    coordinates: [
      [
        [west, south],
        [east, south],
        [east, north],
        [west, north],
        [west, south],
      ],
    ],
  };
}

/** Show the bounding boxes of assets. A click on one calls `onChoose`. */
export function showExtents(map: RasterMap, extents: Extent[], onChoose?: (id: string) => void): void {
  const data = {
    type: "FeatureCollection",
    features: extents.map((each) => ({ type: "Feature", properties: { id: each.id }, geometry: polygon(each.bbox) })),
  };
  const add = () => {
    const source = map.getSource("extent") as maplibregl.GeoJSONSource | undefined;
    if (source) {
      source.setData(data as never);
      return;
    }
    map.addSource("extent", { type: "geojson", data: data as never });
    map.addLayer({
      id: "extent-fill",
      type: "fill",
      source: "extent",
      paint: { "fill-color": colour("--accent"), "fill-opacity": 0.14 },
    });
    map.addLayer({
      id: "extent-line",
      type: "line",
      source: "extent",
      paint: { "line-color": colour("--accent"), "line-width": 1.5 },
    });
    if (onChoose) {
      map.on("click", "extent-fill", (event) => {
        const id = event.features?.[0]?.properties?.id as string | undefined;
        if (id) onChoose(id);
      });
      map.on("mouseenter", "extent-fill", () => {
        map.getCanvas().style.cursor = "pointer";
      });
      map.on("mouseleave", "extent-fill", () => {
        map.getCanvas().style.cursor = "";
      });
    }
  };
  whenLoaded(map, add);
}

export { maplibregl };
