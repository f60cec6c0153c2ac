/** One asset: its map, versions and revisions, findings and history, and the actions of reviewers. */
import { useState } from "preact/hooks";
import { api, type Schemas, urlOf } from "../api/client";
import { Banner, Card, CopyId, Empty, Facts, Loaded, Tabs, Time } from "../components/basics";
import { Icon } from "../components/icons";
import { LayerMetadata } from "../components/layer_metadata";
import { PagedList } from "../components/paged_list";
import { ApproveDialog, ClearanceDialog, RejectDialog, WithdrawDialog } from "../components/review";
import { ExportState, Findings, Provenance } from "../components/revision";
import { StateBadge } from "../components/state";
import { newestOf, type Publishable, publishableOf, stateOf } from "../components/versions";
import { useResource } from "../data";
import { plural, words } from "../format";
import { useTitle } from "../frame";
import { concerns } from "../live";
import { RasterView } from "../map/raster_map";
import { asNumber, usePaged } from "../paged";
import { href, query, setQuery } from "../router";
import type { PageProps } from "../routes";
import { may, session } from "../session";

type Asset = Schemas["AssetInfo"];
type Version = Schemas["VersionInfo"];
type Revision = Schemas["RevisionInfo"];

export default function AssetPage({ params }: PageProps) {
  const id = params.asset ?? "";
  const asset = useResource(
    `asset:${id}`,
    (signal) => api.get("/api/v1/assets/{asset_id}", { path: { asset_id: id }, signal }),
    {
      isAffectedBy: (change) => concerns(change, "asset", id),
      atMostEveryMs: 800,
      everyMs: 10_000,
    },
  );
  const name = asset.data?.title ?? asset.data?.dataset_id ?? "Asset";
  useTitle(name, [{ label: "Assets", to: "/assets" }]);
  return <Loaded resource={asset}>{(data) => <Content asset={data} reload={asset.reload} />}</Loaded>;
}

type DialogName = "approve" | "reject" | "unpublish" | "delete" | "clear";

interface OpenDialog {
  name: DialogName;
  asset: Asset;
  version: number;
  revision: number;
  isEarlier?: boolean;
}

function Content({ asset, reload }: { asset: Asset; reload: () => void }) {
  const versions = [...asset.versions].sort((a, b) => b.version_ordinal - a.version_ordinal);
  const ordinal = query.value.get("v");
  const version = versions.find((each) => String(each.version_ordinal) === ordinal) ?? versions[0];
  const revisionNumber = Number(query.value.get("r") ?? version?.revision);
  const revision =
    version?.revisions.find((each) => each.revision === revisionNumber) ?? (version && newestOf(version));
  // The asset as it was when the dialog was opened: if it has changed since, the server refuses the decision.
  const [dialog, setDialog] = useState<OpenDialog | null>(null);
  const open = (name: DialogName, published?: Publishable) =>
    setDialog({
      name,
      asset,
      version: version?.version_ordinal ?? 0,
      revision: published?.revision ?? revision?.revision ?? 0,
      isEarlier: published?.isEarlier,
    });
  const close = () => setDialog(null);
  const canReview = may("assets:review");
  const canDelete = may("assets:delete");
  const publishable = version ? publishableOf(version) : null;
  const isNewest = revision?.revision === version?.revision;
  const isPending = publishable?.isEarlier === false && version?.approval_state === "pending_review";
  return (
    <>
      <div class="page-head">
        <h1>{asset.title ?? asset.dataset_id}</h1>
        <CopyId id={asset.asset_id} noun="Asset id" />
        {asset.deleted_at ? <StateBadge state="deleted" /> : <StateBadge state={asset.clearance_state} />}
        <span class="muted">{asset.platform_id}</span>
        <div class="actions">
          {canReview && publishable && (isNewest || publishable.isEarlier) && (
            <button type="button" class="button primary" onClick={() => open("approve", publishable)}>
              <Icon name="check" /> Approve
            </button>
          )}
          {canReview && isPending && isNewest && (
            <button type="button" class="button danger" onClick={() => open("reject")}>
              Reject
            </button>
          )}
          {canReview && !asset.deleted_at && (
            <button type="button" class="button" onClick={() => open("clear")}>
              <Icon name="lock" /> Clearance
            </button>
          )}
          {canReview && version?.is_served && (
            <button type="button" class="button" onClick={() => open("unpublish")}>
              Unpublish
            </button>
          )}
          {canDelete && version && !version.deleted_at && (
            <button type="button" class="button danger" onClick={() => open("delete")}>
              Delete
            </button>
          )}
        </div>
      </div>
      {version && revision ? <Situation version={version} revision={revision} /> : null}
      {version && revision ? (
        <div class="columns">
          <div class="stack">
            {revision.processing_state === "completed" && !revision.purged_at ? (
              <RasterView
                key={`${version.version_ordinal}-${revision.revision}`}
                edition={{ asset: asset.asset_id, version: version.version_ordinal, revision: revision.revision }}
                tall
              />
            ) : (
              <Card>
                <Empty
                  title={
                    revision.purged_at
                      ? "The data of this revision was removed"
                      : revision.processing_state === "failed"
                        ? "Processing failed: there is no data to show"
                        : "The map appears when processing has ended"
                  }
                >
                  {revision.job_id && <a href={href(`/jobs/${revision.job_id}`)}>Show the job</a>}
                </Empty>
              </Card>
            )}
          </div>
          <Tabs
            label="About the asset"
            tabs={[
              {
                id: "version",
                label: "Version",
                content: () => <VersionPanel asset={asset} versions={versions} version={version} revision={revision} />,
              },
              ...(canReview || session.value?.platform_id === asset.platform_id
                ? [{ id: "layer", label: "Layer", content: () => <LayerMetadata asset={asset} /> }]
                : []),
              ...(canReview
                ? [
                    { id: "requests", label: "Requests", content: () => <Requests asset={asset.asset_id} /> },
                    { id: "history", label: "History", content: () => <History asset={asset.asset_id} /> },
                  ]
                : []),
            ]}
          />
        </div>
      ) : (
        <Empty title="This asset has no versions" />
      )}
      {dialog?.name === "approve" && <ApproveDialog target={dialog} onClose={close} onDone={reload} />}
      {dialog?.name === "reject" && <RejectDialog target={dialog} onClose={close} onDone={reload} />}
      {(dialog?.name === "unpublish" || dialog?.name === "delete") && (
        <WithdrawDialog
          asset={dialog.asset}
          version={dialog.version}
          action={dialog.name}
          onClose={close}
          onDone={reload}
        />
      )}
      {dialog?.name === "clear" && <ClearanceDialog asset={dialog.asset} onClose={close} onDone={reload} />}
    </>
  );
}

function Situation({ version, revision }: { version: Version; revision: Revision }) {
  if (revision.error_message)
    return (
      <Banner tone="red" title={`Processing failed: ${revision.error_message}`}>
        {revision.job_id && <a href={href(`/jobs/${revision.job_id}`)}>Show the job</a>}
      </Banner>
    );
  if (version.approval_state === "rejected" && version.rejection_reason && revision.revision === version.revision)
    return <Banner tone="red" title={`Rejected by ${version.reviewer ?? "a reviewer"}: ${version.rejection_reason}`} />;
  if (revision.is_partial)
    return <Banner tone="amber" title="Processing succeeded in part. The job shows which nodes failed." />;
  if (version.unpublished_at)
    return <Banner tone="amber" title="This version is unpublished: none of its revisions is served." />;
  if (
    version.approved_revision !== null &&
    version.approved_revision !== undefined &&
    version.approved_revision !== revision.revision
  )
    return (
      <Banner
        tone="blue"
        title={`This is a preview of revision ${revision.revision}. Revision ${version.approved_revision} is served.`}
      />
    );
  if (version.approval_state === "pending_review" && revision.processing_state === "completed")
    return (
      <Banner tone="amber" icon="review" title="This is a preview. The revision is not served before it is approved." />
    );
  return null;
}

function VersionPanel(props: { asset: Asset; versions: Version[]; version: Version; revision: Revision }) {
  const { asset, versions, version, revision } = props;
  return (
    <div class="stack">
      <Card
        title={plural(versions.length, "version")}
        flush
        actions={versions.length > 1 && <CompareLink asset={asset.asset_id} versions={versions} />}
      >
        <ul class="pick-list">
          {versions.map((each) => (
            <li key={each.version_ordinal}>
              <button
                type="button"
                aria-pressed={each === version}
                onClick={() => setQuery({ v: String(each.version_ordinal), r: null, at: null })}
              >
                <span class="grow ellipsis">
                  <strong>Version {each.version_ordinal}</strong> <span class="muted">{each.version_label}</span>
                </span>
                {each.is_latest && <span class="muted">latest</span>}
                <StateBadge state={stateOf(each)} />
              </button>
            </li>
          ))}
        </ul>
      </Card>
      <Card
        title={`Revision ${revision.revision} of version ${version.version_ordinal}`}
        actions={
          version.revisions.length > 1 && (
            <select
              class="input narrow"
              aria-label="Revision"
              value={revision.revision}
              onChange={(event) => setQuery({ r: event.currentTarget.value })}
            >
              {version.revisions.map((each) => (
                <option key={each.revision} value={each.revision}>
                  {each.revision}
                  {each.is_served ? " (served)" : ""}
                </option>
              ))}
            </select>
          )
        }
      >
        <div class="stack">
          <section class="stack tight">
            <h3>Findings</h3>
            <Findings findings={revision.findings ?? []} />
          </section>
          <section class="stack tight">
            <h3>Provenance</h3>
            <Provenance revision={revision} />
          </section>
          <section class="stack tight">
            <h3>Served</h3>
            <Facts
              items={[
                ["Served now", revision.is_served ? "yes" : "no"],
                ["Exposure", words(asset.exposure)],
                [
                  "Reviewed",
                  version.reviewed_at ? (
                    <span key="r">
                      by {version.reviewer}, <Time at={version.reviewed_at} />
                    </span>
                  ) : (
                    "not yet"
                  ),
                ],
                ["External export", <ExportState key="x" revision={revision} />],
                [
                  "Links",
                  <span key="l" class="row wrap">
                    <a
                      href={urlOf(
                        `/tiles/${encodeURIComponent(asset.asset_id)}/map`,
                        {},
                        { version: version.version_ordinal, rev: revision.revision },
                      )}
                    >
                      Map page
                    </a>
                    <a href={`/stac/collections/${encodeURIComponent(asset.dataset_id)}`}>STAC</a>
                  </span>,
                ],
              ]}
            />
          </section>
        </div>
      </Card>
    </div>
  );
}

function CompareLink({ asset, versions }: { asset: string; versions: Version[] }) {
  const [to, from] = versions;
  return (
    <a
      class="button small"
      href={href(`/assets/${asset}/compare?from=${from?.version_ordinal}&to=${to?.version_ordinal}`)}
    >
      Compare
    </a>
  );
}

function History({ asset }: { asset: string }) {
  const paged = usePaged<Schemas["AssetHistoryEntry"]>(
    `history:${asset}`,
    (after, signal) =>
      api.get("/api/v1/assets/{asset_id}/history", {
        path: { asset_id: asset },
        query: { after: asNumber(after), limit: 50 },
        signal,
      }),
    (change) => concerns(change, "asset", asset),
  );
  return (
    <Card title="History" flush>
      <PagedList paged={paged} empty={<Empty title="There are no events yet" />}>
        {(items) => (
          <ol class="history">
            {items.map((entry) => (
              <li key={entry.event_id}>
                <div class="row wrap">
                  <strong>{words(entry.action)}</strong>
                  {entry.version_ordinal !== null && entry.version_ordinal !== undefined && (
                    <span class="muted">
                      version {entry.version_ordinal}
                      {entry.revision ? `, revision ${entry.revision}` : ""}
                    </span>
                  )}
                  <span class="grow" />
                  <span class="muted">
                    <Time at={entry.created_at} />
                  </span>
                </div>
                <div class="muted">
                  {entry.actor}
                  {entry.reason ? `: ${entry.reason}` : ""}
                </div>
              </li>
            ))}
          </ol>
        )}
      </PagedList>
    </Card>
  );
}

function Requests({ asset }: { asset: string }) {
  const paged = usePaged(
    `requests:${asset}`,
    (after, signal) =>
      api.get("/api/v1/assets/{asset_id}/requests", {
        path: { asset_id: asset },
        query: { after, limit: 50 },
        signal,
      }),
    (change) => concerns(change, "asset", asset),
  );
  return (
    <Card title="Requests of the platform" flush>
      <PagedList paged={paged} empty={<Empty title="No platform has sent a request for this asset" />}>
        {(items) => (
          <ol class="history">
            {items.map((request) => (
              <li key={request.request_id}>
                <div class="row wrap">
                  <CopyId id={request.request_id} noun="Request id" />
                  <StateBadge state={request.status} />
                  <span class="muted grow">
                    version {request.version_ordinal}, revision {request.revision}
                  </span>
                  <Time at={request.created_at} />
                </div>
                {request.reason && <div class="error-text anywhere">{request.reason}</div>}
                {(request.callbacks ?? []).map((callback) => (
                  <div key={callback.callback_id} class="row wrap">
                    <span class="muted">callback “{words(callback.status)}”</span>
                    <StateBadge state={callback.state} />
                    <span class="muted">
                      {plural(callback.attempts, "attempt")}
                      {callback.last_status_code ? `, HTTP ${callback.last_status_code}` : ""}
                      {callback.last_error ? `, ${callback.last_error}` : ""}
                    </span>
                  </div>
                ))}
              </li>
            ))}
          </ol>
        )}
      </PagedList>
    </Card>
  );
}
