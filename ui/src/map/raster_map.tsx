/** The map of one revision: its tiles, the controls for its style, the values at a point, and the legend. */
import { useEffect, useRef, useState } from "preact/hooks";
import { fetchResponse, problemOf } from "../api/client";
import { ProblemView, Skeleton } from "../components/basics";
import { useResource } from "../data";
import { measure } from "../format";
import { query, setQuery } from "../router";
import { HistogramRange } from "./histogram";
import type { RasterMap } from "./map";
import {
  COLORMAPS,
  DEFAULT_STYLE,
  type Edition,
  isSingleBand,
  type MapFacts,
  pointUrl,
  rampUrl,
  type Style,
  shownBands,
  statisticsUrl,
  styleFrom,
  styleQuery,
  type TileJson,
  tileJsonUrl,
  tileTemplate,
  unwrapped,
} from "./tiles";

export async function loadJson<T>(url: string, signal?: AbortSignal): Promise<T> {
  const response = await fetchResponse(url, { headers: { Accept: "application/json" }, signal: signal ?? null });
  if (!response.ok) throw await problemOf(response);
  return (await response.json()) as T;
}

export function useTileJson(edition: Edition) {
  const key = `tilejson:${edition.asset}:${edition.version}:${edition.revision}`;
  return useResource(key, (signal) => loadJson<TileJson>(tileJsonUrl(edition), signal));
}

/** A MapLibre map in an element, created once; null until the code of MapLibre is loaded. */
export function useMap(box: number[] | null, isReady: boolean, hasControls = false) {
  const element = useRef<HTMLDivElement>(null);
  const [map, setMap] = useState<RasterMap | null>(null);
  const [problem, setProblem] = useState<Error | null>(null);
  useEffect(() => {
    if (!isReady || !element.current) return;
    let created: RasterMap | null = null;
    let isRemoved = false;
    import("./map").then(
      ({ createMap }) => {
        if (isRemoved || !element.current) return;
        try {
          created = createMap(element.current, box ? unwrapped(box) : null, hasControls);
          setMap(created);
        } catch {
          setProblem(
            new Error("This browser cannot draw the map: it has no WebGL. The preview and the tiles still work."),
          );
        }
      },
      () => setProblem(new Error("The map could not be loaded. The platform may have been updated. Reload the page.")),
    );
    return () => {
      isRemoved = true;
      created?.remove();
      setMap(null);
    };
  }, [isReady]);
  return { element, map, problem };
}

/** `compact`: the controls are closed at first, because the map is narrow. */
export function RasterView(props: { edition: Edition; tall?: boolean; compact?: boolean }) {
  const { edition, tall = false, compact = false } = props;
  const tilejson = useTileJson(edition);
  if (tilejson.data === null)
    return (
      <div class={`map-box${tall ? " tall" : ""}`}>
        <div class="map-message">
          {tilejson.problem ? (
            <ProblemView problem={tilejson.problem} onRetry={tilejson.reload} />
          ) : (
            <Skeleton lines={4} />
          )}
        </div>
      </div>
    );
  return (
    <Loaded
      key={`${edition.version}-${edition.revision}`}
      edition={edition}
      tilejson={tilejson.data}
      tall={tall}
      compact={compact}
    />
  );
}

interface Point {
  lon: number;
  lat: number;
  values: (number | null)[] | null;
  problem: string | null;
}

function Loaded(props: { edition: Edition; tilejson: TileJson; tall: boolean; compact: boolean }) {
  const { edition, tilejson, tall } = props;
  const facts = tilejson.dagmaster;
  const { element, map, problem } = useMap(facts.bbox, true, true);
  const style = styleFrom(query.value);
  const [opacity, setOpacity] = useState(1);
  const [pointer, setPointer] = useState<[number, number] | null>(null);
  const [point, setPoint] = useState<Point | null>(null);
  const template = tileTemplate(tilejson, style, globalThis.location.origin);

  useEffect(() => {
    if (!map) return;
    import("./map").then(({ showRaster }) =>
      showRaster(
        map,
        { template, bounds: unwrapped(facts.bbox), minzoom: tilejson.minzoom, maxzoom: tilejson.maxzoom },
        opacity,
      ),
    );
  }, [map, template]);

  useEffect(() => {
    if (map) import("./map").then((module) => module.setOpacity(map, opacity));
  }, [map, opacity]);

  useEffect(() => {
    if (!map) return;
    const loadValues = async (lon: number, lat: number) => {
      setPoint({ lon, lat, values: null, problem: null });
      try {
        const response = await loadJson<{ values: (number | null)[] }>(pointUrl(edition, lon, lat));
        setPoint({ lon, lat, values: response.values, problem: null });
      } catch (error) {
        setPoint({ lon, lat, values: null, problem: (error as Error).message });
      }
    };
    map.on("click", (event) => {
      const { lng, lat } = event.lngLat.wrap();
      loadValues(lng, lat);
    });
    map.on("mousemove", (event) => {
      const { lng, lat } = event.lngLat.wrap();
      setPointer([lng, lat]);
    });
    const at = query.peek().get("at")?.split("/").map(Number);
    if (at?.length === 3 && at.every(Number.isFinite))
      map.jumpTo({ zoom: at[0] as number, center: [at[2] as number, at[1] as number] });
    map.on("moveend", (event) => {
      if (!(event as { originalEvent?: unknown }).originalEvent) return;
      const centre = map.getCenter();
      setQuery({ at: `${map.getZoom().toFixed(2)}/${centre.lat.toFixed(5)}/${centre.lng.toFixed(5)}` });
    });
    // For users of the keyboard: Enter shows the values at the centre of the map.
    map.getCanvas().addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      const centre = map.getCenter().wrap();
      loadValues(centre.lng, centre.lat);
    });
  }, [map]);

  return (
    <div class={`map-box${tall ? " tall" : ""}`}>
      <div class="map-canvas" ref={element} role="region" aria-label={`Map of ${tilejson.name ?? facts.dataset_id}`} />
      {problem && (
        <div class="map-message">
          <ProblemView problem={problem} />
        </div>
      )}
      <MapControls
        compact={props.compact}
        edition={edition}
        facts={facts}
        style={style}
        opacity={opacity}
        onOpacity={setOpacity}
      />
      <div class="map-status mono">
        {pointer ? `${pointer[1].toFixed(5)}°, ${pointer[0].toFixed(5)}°` : "Click the map for values"}
      </div>
      {point && (
        <div class="map-point card" role="status">
          <div class="row spread">
            <strong>
              {point.lat.toFixed(5)}°, {point.lon.toFixed(5)}°
            </strong>
            <button
              type="button"
              class="button quiet small"
              aria-label="Close the values"
              onClick={() => setPoint(null)}
            >
              ×
            </button>
          </div>
          {point.problem && <p class="error-text">{point.problem}</p>}
          {!point.values && !point.problem && <p class="muted">Loading…</p>}
          {point.values && (
            <dl class="facts">
              {point.values.map((value, place) => [
                <dt key={`n${place}`}>{bandName(facts, place + 1)}</dt>,
                <dd key={`v${place}`} class="numeric">
                  {value === null ? "no data" : measure(value)}
                </dd>,
              ])}
            </dl>
          )}
        </div>
      )}
    </div>
  );
}

export function bandName(facts: MapFacts, band: number): string {
  const known = facts.bands[band - 1];
  const text = known?.[1] ?? known?.[0];
  return text && text !== `b${band}` ? `${band} ${text}` : `Band ${band}`;
}

function MapControls(props: {
  compact: boolean;
  edition: Edition;
  facts: MapFacts;
  style: Style;
  opacity: number;
  onOpacity: (value: number) => void;
}) {
  const { facts, style, edition } = props;
  const [isOpen, setOpen] = useState(!props.compact && globalThis.innerWidth > 900);
  const isSingle = isSingleBand(style, facts);
  const bands = shownBands(style, facts);
  const change = (changes: Partial<Style>) => setQuery(styleQuery({ ...style, ...changes }));
  const statistics = useResource(
    `statistics:${edition.asset}:${edition.version}:${edition.revision}:${bands.join()}`,
    (signal) => loadJson<Record<string, BandStatistics>>(statisticsUrl(edition, bands), signal),
    { enabled: isOpen && !facts.is_palette },
  );
  const first = statistics.data ? Object.values(statistics.data)[0] : undefined;
  const defaultRange =
    facts.rescale?.[0] ?? (first ? [first.percentile_2 ?? first.min, first.percentile_98 ?? first.max] : null);
  return (
    <div class="map-controls card">
      <button type="button" class="button quiet small" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        Style
      </button>
      {isOpen && (
        <div class="stack tight">
          {facts.bands.length > 1 && (
            <fieldset class="bands">
              <legend>Bands</legend>
              {facts.bands.length >= 3 && (
                <label class="row">
                  <input
                    type="checkbox"
                    checked={!isSingle}
                    onChange={(event) =>
                      change({
                        bands: event.currentTarget.checked ? [1, 2, 3] : [1],
                        low: null,
                        high: null,
                        colormap: null,
                      })
                    }
                  />
                  Show three bands as red, green and blue
                </label>
              )}
              {bands.map((band, place) => (
                <select
                  key={place}
                  class="input"
                  aria-label={isSingle ? "Band" : ["Red", "Green", "Blue"][place]}
                  value={band}
                  onChange={(event) => {
                    const next = [...bands];
                    next[place] = Number(event.currentTarget.value);
                    change({ bands: next });
                  }}
                >
                  {facts.bands.map((_, index) => (
                    <option key={index} value={index + 1}>
                      {isSingle ? "" : `${["Red", "Green", "Blue"][place]}: `}
                      {bandName(facts, index + 1)}
                    </option>
                  ))}
                </select>
              ))}
            </fieldset>
          )}
          {!facts.is_palette && (
            <HistogramRange
              histogram={first?.histogram ?? null}
              low={style.low ?? defaultRange?.[0] ?? null}
              high={style.high ?? defaultRange?.[1] ?? null}
              onChange={(low, high) => change({ low, high })}
            />
          )}
          {statistics.problem && (
            <p class="hint muted">The statistics of this band could not be read: {statistics.problem.message}</p>
          )}
          {isSingle && !facts.is_palette && (
            <div class="field">
              <label for="colours">Colours</label>
              <select
                id="colours"
                class="input"
                value={style.colormap ?? ""}
                onChange={(event) => change({ colormap: event.currentTarget.value || null })}
              >
                <option value="">{facts.colormap_name ? `${facts.colormap_name} (default)` : "grey (default)"}</option>
                {COLORMAPS.filter((name) => name !== facts.colormap_name).map((name) => (
                  <option key={name} value={name}>
                    {name}
                  </option>
                ))}
              </select>
              <Legend
                style={style}
                facts={facts}
                low={style.low ?? defaultRange?.[0] ?? null}
                high={style.high ?? defaultRange?.[1] ?? null}
              />
            </div>
          )}
          {facts.classes && facts.classes.length > 0 && !style.colormap && <Classes classes={facts.classes} />}
          <div class="field">
            <label for="opacity">Opacity: {Math.round(props.opacity * 100)} %</label>
            <input
              id="opacity"
              type="range"
              min={0}
              max={1}
              step={0.05}
              value={props.opacity}
              onInput={(event) => props.onOpacity(Number(event.currentTarget.value))}
            />
          </div>
          <button type="button" class="button small" onClick={() => setQuery(styleQuery(DEFAULT_STYLE))}>
            Default style
          </button>
        </div>
      )}
    </div>
  );
}

interface BandStatistics {
  min: number;
  max: number;
  mean: number;
  percentile_2?: number;
  percentile_98?: number;
  histogram: [number[], number[]];
}

function Legend(props: { style: Style; facts: MapFacts; low: number | null; high: number | null }) {
  if (props.low === null || props.high === null) return null;
  return (
    <div class="ramp">
      <img src={rampUrl(props.style, props.facts)} alt="Colours from low to high" width="100%" height="12" />
      <div class="row spread numeric">
        <span>{measure(props.low)}</span>
        <span>{measure(props.high)}</span>
      </div>
    </div>
  );
}

function Classes({ classes }: { classes: NonNullable<MapFacts["classes"]> }) {
  return (
    <ul class="classes">
      {classes.slice(0, 60).map((each) => (
        <li key={each.value}>
          <span class="class-swatch" style={{ background: each.color ?? each.colour ?? "transparent" }} />
          {each.label ?? each.description ?? each.value}
        </li>
      ))}
    </ul>
  );
}
