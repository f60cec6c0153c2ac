/** The dialogs that approve, reject, clear, unpublish and delete. The asset page and the review queue share them. */
import { useId, useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { useResource } from "../data";
import { Confirm } from "./basics";
import { toast } from "./toasts";

type Clearance = Schemas["AssetInfo"]["clearance_state"];
type Asset = Pick<Schemas["AssetInfo"], "asset_id" | "etag" | "dataset_id"> & {
  title?: string | null;
  clearance_state: Clearance | "unknown";
};

export interface ReviewTarget {
  asset: Asset;
  version: number;
  revision: number;
  /** An earlier revision is published again: the request then contains no revision. */
  isEarlier?: boolean;
}

function nameOf(asset: Asset): string {
  return asset.title ?? asset.dataset_id;
}

function headers(asset: Asset): Record<string, string> {
  return asset.etag ? { "If-Match": asset.etag } : {};
}

const KEEP_LABELS: Record<string, string> = {
  ouo: "Keep: official use only",
  public: "Keep: public",
  unknown: "Keep the current clearance",
};

export function ApproveDialog(props: { target: ReviewTarget; onClose: () => void; onDone: () => void }) {
  const { asset, version, revision, isEarlier } = props.target;
  const current = useResource(
    `clearance:${asset.asset_id}`,
    (signal) => api.get("/api/v1/assets/{asset_id}", { path: { asset_id: asset.asset_id }, signal }),
    { enabled: asset.clearance_state === "unknown" },
  );
  const before = current.data?.clearance_state ?? asset.clearance_state;
  const isCleared = before !== "uncleared";
  const [clearance, setClearance] = useState<"ouo" | "public" | "">("");
  const id = useId();
  return (
    <Confirm
      title={`Approve ${nameOf(asset)}`}
      action="Approve"
      offersReason
      onClose={props.onClose}
      onOutdated={props.onDone}
      onConfirm={async (reason) => {
        if (!isCleared && !clearance) throw new Error("Choose who may see the data.");
        await api.post("/api/v1/assets/{asset_id}/versions/{version_ordinal}/approve", {
          path: { asset_id: asset.asset_id, version_ordinal: version },
          body: { clearance_level: clearance || null, revision: isEarlier ? null : revision, reason: reason || null },
          headers: headers(asset),
        });
        toast("green", `${nameOf(asset)} is approved`);
        props.onDone();
      }}
    >
      <p>
        Version {version}, revision {revision} will be served to those who may see it, from the next request on.
        {isEarlier && " The newest revision has failed, so the one that was approved before is published again."}
      </p>
      <div class="field">
        <label for={id}>Who may see it</label>
        <select
          id={id}
          class="input"
          required={!isCleared}
          value={clearance}
          onChange={(event) => setClearance(event.currentTarget.value as "ouo" | "public" | "")}
        >
          <option value="">{KEEP_LABELS[before] ?? "Choose…"}</option>
          <option value="ouo">Official use only: internal users</option>
          <option value="public">Public: everyone; the version is also exported</option>
        </select>
      </div>
    </Confirm>
  );
}

export function RejectDialog(props: { target: ReviewTarget; onClose: () => void; onDone: () => void }) {
  const { asset, version, revision } = props.target;
  return (
    <Confirm
      title={`Reject ${nameOf(asset)}`}
      action="Reject"
      isDanger
      needsReason
      onClose={props.onClose}
      onOutdated={props.onDone}
      onConfirm={async (reason) => {
        await api.post("/api/v1/assets/{asset_id}/versions/{version_ordinal}/reject", {
          path: { asset_id: asset.asset_id, version_ordinal: version },
          body: { reason, revision },
          headers: headers(asset),
        });
        toast("green", `${nameOf(asset)} is rejected`);
        props.onDone();
      }}
    >
      <p>
        Version {version}, revision {revision} will not be published. A revision that is already approved is still
        served. The submitter can read the reason.
      </p>
    </Confirm>
  );
}

export function WithdrawDialog(props: {
  asset: Asset;
  version: number | null;
  action: "unpublish" | "delete";
  onClose: () => void;
  onDone: () => void;
}) {
  const { asset, version, action } = props;
  const subject = version === null ? `all versions of ${nameOf(asset)}` : `version ${version} of ${nameOf(asset)}`;
  return (
    <Confirm
      title={`${action === "unpublish" ? "Unpublish" : "Delete"} ${subject}?`}
      action={action === "unpublish" ? "Unpublish" : "Delete"}
      isDanger
      offersReason
      onClose={props.onClose}
      onOutdated={props.onDone}
      onConfirm={async (reason) => {
        const path = { asset_id: asset.asset_id, version_ordinal: version ?? 0 };
        const options = { path, headers: headers(asset) };
        if (action === "unpublish") {
          const body = { reason: reason || null };
          if (version === null) await api.post("/api/v1/assets/{asset_id}/unpublish", { ...options, body });
          else await api.post("/api/v1/assets/{asset_id}/versions/{version_ordinal}/unpublish", { ...options, body });
        } else {
          const query = { reason: reason || undefined };
          if (version === null) await api.delete("/api/v1/assets/{asset_id}", { ...options, query });
          else await api.delete("/api/v1/assets/{asset_id}/versions/{version_ordinal}", { ...options, query });
        }
        toast(
          "green",
          `${subject[0]?.toUpperCase()}${subject.slice(1)} ${action === "unpublish" ? "unpublished" : "deleted"}`,
        );
        props.onDone();
      }}
    >
      <p>
        {action === "unpublish"
          ? "It will no longer be served; external copies are removed. The data is kept: approving publishes it again."
          : "It will no longer be served. Its data is removed after the number of days in the setting PURGE_DAYS; 0 keeps it."}
      </p>
    </Confirm>
  );
}

export function ClearanceDialog(props: { asset: Asset; onClose: () => void; onDone: () => void }) {
  const [level, setLevel] = useState<Clearance>(
    props.asset.clearance_state === "unknown" ? "uncleared" : props.asset.clearance_state,
  );
  const id = useId();
  return (
    <Confirm
      title={`Change who may see ${nameOf(props.asset)}`}
      action="Change"
      offersReason
      onClose={props.onClose}
      onOutdated={props.onDone}
      onConfirm={async (reason) => {
        await api.post("/api/v1/assets/{asset_id}/clear", {
          path: { asset_id: props.asset.asset_id },
          body: { clearance_level: level, reason: reason || null },
          headers: headers(props.asset),
        });
        toast("green", "The clearance is changed");
        props.onDone();
      }}
    >
      <div class="field">
        <label for={id}>Clearance</label>
        <select
          id={id}
          class="input"
          value={level}
          onChange={(event) => setLevel(event.currentTarget.value as typeof level)}
        >
          <option value="uncleared">Not cleared: reviewers only</option>
          <option value="ouo">Official use only: internal users</option>
          <option value="public">Public: everyone; approved versions are exported</option>
        </select>
      </div>
    </Confirm>
  );
}
