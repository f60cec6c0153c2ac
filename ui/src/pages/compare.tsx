/** Compares two versions of an asset: one map with a divider, and a table of the differences. */
import { useEffect, useRef, useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Card, Empty, Loaded, ProblemView } from "../components/basics";
import { useResource } from "../data";
import { measure, words } from "../format";
import { useTitle } from "../frame";
import { useMap, useTileJson } from "../map/raster_map";
import { commonStyle, type Edition, tileTemplate, unwrapped } from "../map/tiles";
import { query, setQuery } from "../router";
import type { PageProps } from "../routes";

type Asset = Schemas["AssetInfo"];

export default function ComparePage({ params }: PageProps) {
  const id = params.asset ?? "";
  const asset = useResource(`asset:${id}`, (signal) =>
    api.get("/api/v1/assets/{asset_id}", { path: { asset_id: id }, signal }),
  );
  const name = asset.data?.title ?? asset.data?.dataset_id ?? "Asset";
  useTitle("Compare versions", [
    { label: "Assets", to: "/assets" },
    { label: name, to: `/assets/${id}` },
  ]);
  return (
    <>
      <div class="page-head">
        <h1>Compare versions of {name}</h1>
      </div>
      <Loaded resource={asset}>{(data) => <Comparison asset={data} />}</Loaded>
    </>
  );
}

function Comparison({ asset }: { asset: Asset }) {
  const usable = asset.versions.filter((version) => version.processing_state === "completed" && !version.deleted_at);
  if (usable.length < 2) return <Empty title="A comparison needs two versions with data" />;
  const find = (name: string, defaultIndex: number) =>
    usable.find((version) => String(version.version_ordinal) === query.value.get(name)) ??
    usable[defaultIndex] ??
    usable[0];
  const from = find("from", 0);
  const to = find("to", usable.length - 1);
  if (!from || !to) return null;
  const choose = (name: string, label: string, value: number) => (
    <label class="row">
      {label}
      <select class="input narrow" value={value} onChange={(event) => setQuery({ [name]: event.currentTarget.value })}>
        {usable.map((version) => (
          <option key={version.version_ordinal} value={version.version_ordinal}>
            Version {version.version_ordinal} ({version.version_label})
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <>
      <div class="row wrap compared">
        {choose("from", "Left", from.version_ordinal)}
        {choose("to", "Right", to.version_ordinal)}
      </div>
      <Swipe
        key={`${from.version_ordinal}-${to.version_ordinal}`}
        left={{
          asset: asset.asset_id,
          version: from.version_ordinal,
          revision: from.approved_revision ?? from.revision,
        }}
        right={{ asset: asset.asset_id, version: to.version_ordinal, revision: to.approved_revision ?? to.revision }}
      />
      <Differences asset={asset.asset_id} from={from.version_ordinal} to={to.version_ordinal} />
    </>
  );
}

function Swipe({ left, right }: { left: Edition; right: Edition }) {
  const [before, after] = [useTileJson(left), useTileJson(right)];
  const problem = before.problem ?? after.problem;
  const isReady = before.data !== null && after.data !== null;
  const box = before.data?.dagmaster.bbox ?? null;
  const first = useMap(box, isReady);
  const second = useMap(box, isReady);
  const [share, setShare] = useState(50);
  const area = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const [a, b] = [first.map, second.map];
    if (!a || !b || !before.data || !after.data) return;
    const [leftJson, rightJson] = [before.data, after.data];
    const style = commonStyle(leftJson.dagmaster, rightJson.dagmaster);
    import("../map/map").then(({ showRaster }) => {
      for (const [map, json] of [
        [a, leftJson],
        [b, rightJson],
      ] as const)
        showRaster(
          map,
          {
            template: tileTemplate(json, style, globalThis.location.origin),
            bounds: unwrapped(json.dagmaster.bbox),
            minzoom: json.minzoom,
            maxzoom: json.maxzoom,
          },
          1,
        );
    });
    let isFollowing = false;
    const follow = (leader: typeof a, follower: typeof a) => () => {
      if (isFollowing) return;
      isFollowing = true;
      follower.jumpTo({ center: leader.getCenter(), zoom: leader.getZoom() });
      isFollowing = false;
    };
    a.on("move", follow(a, b));
    b.on("move", follow(b, a));
  }, [first.map, second.map]);
  const drag = (event: PointerEvent) => {
    const box = area.current?.getBoundingClientRect();
    if (box && event.buttons) setShare(Math.min(98, Math.max(2, (100 * (event.clientX - box.left)) / box.width)));
  };
  return (
    <div class="map-box tall" ref={area}>
      <div class="map-canvas" ref={first.element} role="region" aria-label={`Version ${left.version}`} />
      <div
        class="map-canvas"
        ref={second.element}
        role="region"
        aria-label={`Version ${right.version}`}
        style={{ clipPath: `inset(0 0 0 ${share}%)` }}
      />
      {problem && (
        <div class="map-message">
          <ProblemView problem={problem} />
        </div>
      )}
      <div
        class="divider"
        style={{ left: `${share}%` }}
        role="slider"
        tabIndex={0}
        aria-label="Divider between the versions"
        aria-valuemin={2}
        aria-valuemax={98}
        aria-valuenow={Math.round(share)}
        onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
        onPointerMove={drag}
        onKeyDown={(event) => {
          const step = event.key === "ArrowLeft" ? -2 : event.key === "ArrowRight" ? 2 : 0;
          if (step) setShare(Math.min(98, Math.max(2, share + step)));
        }}
      />
      <span class="map-tag left">Version {left.version}</span>
      <span class="map-tag right">Version {right.version}</span>
    </div>
  );
}

function Differences({ asset, from, to }: { asset: string; from: number; to: number }) {
  const result = useResource(`compare:${asset}:${from}:${to}`, (signal) =>
    api.get("/api/v1/assets/{asset_id}/compare", { path: { asset_id: asset }, query: { from, to }, signal }),
  );
  return (
    <Card title="Differences" flush>
      <Loaded resource={result}>
        {(data) =>
          data.differences.length === 0 ? (
            <Empty title="Extent, CRS, bands, statistics and size are the same" />
          ) : (
            <div class="table-scroll">
              <table class="table cards-when-narrow">
                <thead>
                  <tr>
                    <th>Property</th>
                    <th>Version {from}</th>
                    <th>Version {to}</th>
                    <th class="numeric">Change</th>
                  </tr>
                </thead>
                <tbody>
                  {data.differences.map((each) => (
                    <tr key={each.field}>
                      <td data-label="Property">{words(each.field)}</td>
                      <td data-label={`Version ${from}`} class="anywhere">
                        {show(each.before)}
                      </td>
                      <td data-label={`Version ${to}`} class="anywhere">
                        {show(each.after)}
                      </td>
                      <td data-label="Change" class="numeric">
                        {typeof each.delta === "number" ? `${each.delta > 0 ? "+" : ""}${measure(each.delta)}` : "–"}
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )
        }
      </Loaded>
    </Card>
  );
}

function show(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return measure(value);
  if (Array.isArray(value)) return value.map(show).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
