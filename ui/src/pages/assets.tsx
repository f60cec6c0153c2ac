/** All assets: a list, and their extents on a map. */
import { useEffect } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Card, Empty, openRow, SearchBox, Time } from "../components/basics";
import { PagedList } from "../components/paged_list";
import { StateBadge } from "../components/state";
import { useResource } from "../data";
import { plural } from "../format";
import { useTitle } from "../frame";
import { useMap } from "../map/raster_map";
import { unwrapped } from "../map/tiles";
import { usePaged } from "../paged";
import { href, navigate, query, setQuery } from "../router";
import { may } from "../session";

type Asset = Schemas["ListedAsset"];
const STATES = ["needs_review", "published", "approved", "processing", "rejected", "failed"] as const;

export default function AssetsPage() {
  useTitle("Assets");
  const q = query.value.get("q") ?? "";
  const state = STATES.filter((each) => query.value.getAll("state").includes(each));
  const platform = query.value.get("platform");
  const paged = usePaged<Asset>(
    `assets:${q}:${state.join()}:${platform}`,
    (after, signal) =>
      api.get("/api/v1/assets", {
        query: { q: q || undefined, state, platform_id: platform ?? undefined, after, limit: 50 },
        signal,
      }),
    (change) => change.kind === "asset",
  );
  const platforms = useResource("platforms", (signal) =>
    api.get("/api/v1/platforms", { query: { limit: 100 }, signal }),
  );
  const toggle = (name: (typeof STATES)[number]) =>
    setQuery({ state: state.includes(name) ? state.filter((each) => each !== name) : [...state, name] });
  return (
    <>
      <div class="page-head">
        <h1>Assets</h1>
        <div class="actions">
          {may("assets:submit") && (
            <a class="button primary" href={href("/submit")}>
              Submit data
            </a>
          )}
        </div>
      </div>
      <div class="row wrap filters">
        <div class="search">
          <SearchBox
            label="Search in titles, names and references"
            value={q}
            onChange={(value) => setQuery({ q: value || null })}
          />
        </div>
        <select
          class="input narrow"
          aria-label="Platform"
          value={platform ?? ""}
          onChange={(event) => setQuery({ platform: event.currentTarget.value || null })}
        >
          <option value="">All platforms</option>
          {(platforms.data?.items ?? []).map((each) => (
            <option key={each.platform_id} value={each.platform_id}>
              {each.display_name}
            </option>
          ))}
        </select>
        <div class="chips" role="group" aria-label="State">
          {STATES.map((name) => (
            <button
              key={name}
              type="button"
              class="chip"
              aria-pressed={state.includes(name)}
              onClick={() => toggle(name)}
            >
              <StateBadge state={name === "needs_review" ? "pending_review" : name} plain />
            </button>
          ))}
        </div>
      </div>
      <div class="columns">
        <Card title="List" flush>
          <PagedList
            paged={paged}
            empty={
              q || state.length || platform ? (
                <Empty title="No asset matches these filters" />
              ) : (
                <Empty title="There are no assets yet">
                  <p>
                    <a href={href("/submit")}>Submit a file</a>, or run
                  </p>
                  <code>dagmaster process scene.tif</code>
                </Empty>
              )
            }
          >
            {(items) => <Table items={items} />}
          </PagedList>
        </Card>
        <Card title="Extents" flush>
          <Extents assets={paged.items ?? []} />
        </Card>
      </div>
    </>
  );
}

function Table({ items }: { items: Asset[] }) {
  return (
    <div class="table-scroll">
      <table class="table cards-when-narrow">
        <thead>
          <tr>
            <th>Asset</th>
            <th>State</th>
            <th>Clearance</th>
            <th>Platform</th>
            <th class="numeric">Versions</th>
            <th>Changed</th>
          </tr>
        </thead>
        <tbody>
          {items.map((asset) => (
            <tr key={asset.asset_id} onClick={openRow(`/assets/${asset.asset_id}`)} class="clickable">
              <td data-label="Asset">
                <a href={href(`/assets/${asset.asset_id}`)} class="anywhere">
                  {asset.title ?? asset.dataset_id}
                </a>
              </td>
              <td data-label="State">
                <span class="row wrap">
                  {(asset.states ?? []).map((state) => (
                    <StateBadge
                      key={state}
                      state={state === "needs_review" ? "pending_review" : state}
                      word={state === "needs_review" ? `${asset.to_review} to review` : undefined}
                    />
                  ))}
                </span>
              </td>
              <td data-label="Clearance">
                <StateBadge state={asset.clearance_state} plain />
              </td>
              <td data-label="Platform" class="muted">
                {asset.platform_id}
              </td>
              <td data-label="Versions" class="numeric">
                {asset.version_count}
              </td>
              <td data-label="Changed" class="muted">
                <Time at={asset.updated_at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Extents({ assets }: { assets: Asset[] }) {
  const located = assets.filter((asset) => asset.bbox);
  const { element, map, problem } = useMap(null, true);
  const key = located.map((asset) => `${asset.asset_id}${asset.bbox?.join()}`).join();
  useEffect(() => {
    if (!map) return;
    const boxes = located.map((asset) => ({ id: asset.asset_id, bbox: unwrapped(asset.bbox ?? []) }));
    import("../map/map").then(({ showExtents, maplibregl }) => {
      showExtents(map, boxes, (id) => navigate(`/assets/${id}`));
      if (boxes.length === 0) return;
      const all = new maplibregl.LngLatBounds();
      for (const { bbox } of boxes) all.extend([bbox[0], bbox[1]]).extend([bbox[2], bbox[3]]);
      map.fitBounds(all, { padding: 40, maxZoom: 9, animate: false });
    });
  }, [map, key]);
  return (
    <div class="map-box plain">
      <div
        class="map-canvas"
        ref={element}
        role="region"
        aria-label={`Extents of ${plural(located.length, "asset")}`}
      />
      {problem && <p class="map-message">{problem.message}</p>}
    </div>
  );
}
