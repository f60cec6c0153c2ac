/**
 * The review queue: revisions to approve or reject, with map, findings and provenance. It can be used with the keyboard
 * alone.
 */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Banner, Card, Confirm, Dialog, Empty, Loaded, Time } from "../components/basics";
import { PagedList } from "../components/paged_list";
import { ApproveDialog, RejectDialog, type ReviewTarget } from "../components/review";
import { Findings, Provenance } from "../components/revision";
import { StateBadge } from "../components/state";
import { toast } from "../components/toasts";
import { newestOf } from "../components/versions";
import { useResource } from "../data";
import { plural } from "../format";
import { useTitle } from "../frame";
import { RasterView } from "../map/raster_map";
import { previewUrl, tileJsonUrl } from "../map/tiles";
import { usePaged } from "../paged";
import { href, navigate, query, setQuery } from "../router";

const KEYS: [string, string][] = [
  ["J or ↓", "next"],
  ["K or ↑", "previous"],
  ["X", "select, to approve several at once"],
  ["A", "approve"],
  ["R", "reject"],
  ["O", "open the asset"],
  ["?", "show these shortcuts"],
];

export default function ReviewPage() {
  useTitle("Review");
  const paged = usePaged(
    "reviews",
    (after, signal) => api.get("/api/v1/reviews", { query: { after, limit: 50 }, signal }),
    (change) => change.kind === "asset",
  );
  const items = paged.items ?? [];
  const openKey = query.value.get("item");
  const indexInList = items.findIndex((item) => keyOf(item) === openKey);
  // A revision that was approved or rejected leaves the list: the next one, which now has its index, is shown.
  const lastIndex = useRef(0);
  const openIndex = indexInList >= 0 ? indexInList : Math.max(0, Math.min(lastIndex.current, items.length - 1));
  lastIndex.current = openIndex;
  const item = items[openIndex];
  const [dialog, setDialog] = useState<"keys" | "bulk" | null>(null);
  // The revision for which the dialog was opened: if someone else decides meanwhile, the list shows another one.
  const [decision, setDecision] = useState<{ action: "approve" | "reject"; target: ReviewTarget } | null>(null);
  const decide = (action: "approve" | "reject") => item && setDecision({ action, target: targetOf(item) });
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const open = (index: number) => {
    const next = items[Math.min(Math.max(0, index), items.length - 1)];
    if (next) setQuery({ item: keyOf(next), bands: null, low: null, high: null, colours: null, at: null });
  };
  const toggle = (key: string) => {
    const next = new Set(selected);
    if (!next.delete(key)) next.add(key);
    setSelected(next);
  };
  // A layout effect runs before the next key press is handled; an effect after painting might miss a key.
  useLayoutEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (target.matches("input:not([type=checkbox]),textarea,select,canvas")) return;
      const key = event.key.toLowerCase();
      if (key === "j" || event.key === "ArrowDown") open(openIndex + 1);
      else if (key === "k" || event.key === "ArrowUp") open(openIndex - 1);
      else if (key === "a" && item) decide("approve");
      else if (key === "r" && item) decide("reject");
      else if (key === "x" && item) toggle(keyOf(item));
      else if (key === "o" && item) navigate(`/assets/${item.asset_id}?v=${item.version_ordinal}`);
      else if (event.key === "?") setDialog("keys");
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  });
  // The data for the map of the next revision is loaded in advance, so that it is shown without delay.
  const following = items[openIndex + 1];
  useEffect(() => {
    if (following) fetch(tileJsonUrl(editionOf(following))).catch(() => {});
  }, [following && keyOf(following)]);
  const done = () => {
    setSelected(new Set());
    paged.reload();
  };
  const chosen = items.filter((each) => selected.has(keyOf(each)));
  return (
    <>
      <div class="page-head">
        <h1>Review</h1>
        {items.length > 0 && (
          <span class="muted">
            {plural(items.length, "revision")}
            {paged.hasMore ? " or more" : ""} to review
          </span>
        )}
        <div class="actions">
          {chosen.length > 0 && (
            <button type="button" class="button primary" onClick={() => setDialog("bulk")}>
              Approve {chosen.length}…
            </button>
          )}
          <button type="button" class="button" onClick={() => setDialog("keys")}>
            Shortcuts <kbd>?</kbd>
          </button>
        </div>
      </div>
      <PagedList
        paged={paged}
        empty={
          <Card>
            <Empty title="There are no versions to review">
              <p>New versions appear here when their processing has ended.</p>
            </Empty>
          </Card>
        }
      >
        {() => (
          <div class="review">
            <Card flush class="review-list">
              <ul class="pick-list" aria-label="To review">
                {items.map((each, index) => (
                  <li key={keyOf(each)} class="row">
                    <input
                      type="checkbox"
                      aria-label={`Select ${each.title ?? each.dataset_id}`}
                      checked={selected.has(keyOf(each))}
                      onChange={() => toggle(keyOf(each))}
                    />
                    <button type="button" aria-pressed={index === openIndex} onClick={() => open(index)}>
                      <img
                        class="thumb"
                        src={previewUrl(editionOf(each))}
                        alt=""
                        loading="lazy"
                        width="40"
                        height="40"
                      />
                      <span class="grow stack tighter">
                        <strong class="two-lines">{each.title ?? each.dataset_id}</strong>
                        <span class="muted ellipsis">
                          version {each.version_ordinal} · <Time at={each.waiting_since} /> · {each.platform_id}
                        </span>
                      </span>
                      {each.is_partial && <StateBadge state="partial" />}
                    </button>
                  </li>
                ))}
              </ul>
            </Card>
            {item && (
              <ReviewItem
                key={keyOf(item)}
                item={item}
                onApprove={() => decide("approve")}
                onReject={() => decide("reject")}
              />
            )}
          </div>
        )}
      </PagedList>
      {decision?.action === "approve" && (
        <ApproveDialog target={decision.target} onClose={() => setDecision(null)} onDone={done} />
      )}
      {decision?.action === "reject" && (
        <RejectDialog target={decision.target} onClose={() => setDecision(null)} onDone={done} />
      )}
      {dialog === "bulk" && <BulkApprove items={chosen} onClose={() => setDialog(null)} onDone={done} />}
      {dialog === "keys" && (
        <Dialog title="Keyboard shortcuts" onClose={() => setDialog(null)}>
          <dl class="facts">
            {KEYS.map(([key, meaning]) => [
              <dt key={key}>
                <kbd>{key}</kbd>
              </dt>,
              <dd key={meaning}>{meaning}</dd>,
            ])}
          </dl>
        </Dialog>
      )}
    </>
  );
}

type Item = Schemas["PendingReview"];

function nameOf(item: Item): string {
  return `${item.title ?? item.dataset_id}, version ${item.version_ordinal}`;
}

function keyOf(item: Item): string {
  return `${item.asset_id}-${item.version_ordinal}-${item.revision}`;
}

/** The queue does not contain the clearance of the asset: the dialog loads it. */
function targetOf(item: Item): ReviewTarget {
  const asset = { ...item, title: item.title ?? null, clearance_state: "unknown" as const };
  return { asset, version: item.version_ordinal, revision: item.revision };
}

function editionOf(item: Item) {
  return { asset: item.asset_id, version: item.version_ordinal, revision: item.revision };
}

function ReviewItem({ item, onApprove, onReject }: { item: Item; onApprove: () => void; onReject: () => void }) {
  const asset = useResource(`asset:${item.asset_id}`, (signal) =>
    api.get("/api/v1/assets/{asset_id}", { path: { asset_id: item.asset_id }, signal }),
  );
  return (
    <>
      <RasterView edition={editionOf(item)} tall compact />
      <div class="stack">
        <Card title={item.title ?? item.dataset_id}>
          <div class="stack">
            <div class="row">
              <button type="button" class="button primary grow" onClick={onApprove}>
                Approve <kbd>A</kbd>
              </button>
              <button type="button" class="button danger grow" onClick={onReject}>
                Reject <kbd>R</kbd>
              </button>
            </div>
            <a href={href(`/assets/${item.asset_id}?v=${item.version_ordinal}`)}>Open the asset</a>
          </div>
        </Card>
        <Loaded resource={asset}>
          {(data) => {
            const version = data.versions.find((each) => each.version_ordinal === item.version_ordinal);
            const revision =
              version && (version.revisions.find((each) => each.revision === item.revision) ?? newestOf(version));
            if (!version || !revision)
              return <Banner tone="amber" title="This revision was replaced. Continue with the next one." />;
            return (
              <>
                <Card title="Findings">
                  <Findings findings={revision.findings ?? []} />
                </Card>
                <Card title="Provenance">
                  <Provenance revision={revision} />
                </Card>
              </>
            );
          }}
        </Loaded>
      </div>
    </>
  );
}

/** The result of the command `assets.review_many`. */
interface ReviewManyResult {
  changed: number;
  unchanged: number;
  results: { outcome: string; message: string | null }[];
}

/** The greatest number of revisions that one command approves. */
const MAX_AT_ONCE = 100;

function BulkApprove({ items, onClose, onDone }: { items: Item[]; onClose: () => void; onDone: () => void }) {
  const [clearance, setClearance] = useState<"ouo" | "public" | "">("");
  // A copy: the list of the page may change while the dialog is open.
  const [sent] = useState(() => items.slice(0, MAX_AT_ONCE));
  const [result, setResult] = useState<ReviewManyResult | null>(null);
  if (result) return <BulkResult items={sent} result={result} onClose={onClose} />;
  return (
    <Confirm
      title={`Approve ${plural(sent.length, "version")}`}
      action="Approve all"
      offersReason
      closesWhenDone={false}
      onClose={onClose}
      onConfirm={async (reason) => {
        const entries = sent.map((item) => ({
          asset: item.asset_id,
          version_ordinal: item.version_ordinal,
          revision: item.revision,
        }));
        const response = (await api.post("/api/v1/commands/{name}", {
          path: { name: "assets.review_many" },
          body: { action: "approve", entries, clearance_level: clearance || null, reason: reason || null },
        })) as object as ReviewManyResult;
        onDone();
        if (response.changed + response.unchanged < sent.length) return setResult(response);
        toast("green", `${plural(sent.length, "version")} approved`);
        onClose();
      }}
    >
      {items.length > sent.length && (
        <p>
          Only the first {sent.length} of {items.length} versions are approved: this is the limit of one request.
        </p>
      )}
      <ul class="plain scroll">
        {sent.map((item) => (
          <li key={keyOf(item)}>{nameOf(item)}</li>
        ))}
      </ul>
      <div class="field">
        <label for="bulk-clearance">Clearance of assets that are not cleared yet</label>
        <select
          id="bulk-clearance"
          class="input"
          value={clearance}
          onChange={(event) => setClearance(event.currentTarget.value as "ouo" | "public" | "")}
        >
          <option value="">Keep the current clearance of each asset</option>
          <option value="ouo">Official use only</option>
          <option value="public">Public</option>
        </select>
      </div>
    </Confirm>
  );
}

/** The versions that were not approved, each with the reason. */
function BulkResult({ items, result, onClose }: { items: Item[]; result: ReviewManyResult; onClose: () => void }) {
  const refused = items.flatMap((item, index) => {
    const entry = result.results[index];
    if (!entry || entry.outcome === "changed" || entry.outcome === "unchanged") return [];
    return [{ item, reason: entry.message ?? "The command timed out. Approve this version again." }];
  });
  return (
    <Dialog title={`${items.length - refused.length} of ${plural(items.length, "version")} approved`} onClose={onClose}>
      <Banner tone="amber" title={`${plural(refused.length, "version")} not approved`} />
      <dl class="scroll refusals">
        {refused.map(({ item, reason }) => [
          <dt key={keyOf(item)}>{nameOf(item)}</dt>,
          <dd key={`${keyOf(item)}-reason`} class="anywhere">
            {reason}
          </dd>,
        ])}
      </dl>
      <div class="buttons">
        <button type="button" class="button primary" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
