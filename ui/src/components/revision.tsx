/** What is known about a revision: findings of its validation, where it comes from, its export. */
import type { Schemas } from "../api/client";
import { bytes, sentence } from "../format";
import { href } from "../router";
import { CopyId, Facts, Time } from "./basics";
import { Icon } from "./icons";
import { StateBadge } from "./state";

type Revision = Schemas["RevisionInfo"];

export interface Finding {
  code?: string | null;
  severity?: string | null;
  message?: string | null;
  hint?: string | null;
}

export function Findings({ findings }: { findings: readonly Finding[] }) {
  if (findings.length === 0)
    return (
      <p class="row muted">
        <Icon name="check" /> The validation has no findings.
      </p>
    );
  return (
    <ul class="findings">
      {findings.map((finding, place) => {
        const isSevere = ["error", "reject", "critical"].includes(finding.severity ?? "");
        return (
          <li key={place} class={`tone-${isSevere ? "red" : finding.severity === "info" ? "blue" : "amber"}`}>
            <Icon name={finding.severity === "info" ? "info" : "warning"} size={14} />
            <div class="stack tighter">
              <span class="anywhere">{sentence(finding.message ?? finding.code ?? "")}</span>
              {finding.hint && <span class="muted anywhere">{sentence(finding.hint)}</span>}
              {finding.code && <code class="muted">{finding.code}</code>}
            </div>
          </li>
        );
      })}
    </ul>
  );
}

export function Provenance({ revision }: { revision: Revision }) {
  const source = revision.source as { container?: string; blob?: string; blobs?: string[]; size_bytes?: number };
  const names = source.blobs ?? (source.blob ? [source.blob] : []);
  return (
    <Facts
      items={[
        [
          "Source",
          <span key="s" class="mono anywhere">
            {names
              .slice(0, 4)
              .map((name) => `${source.container ?? "bronze"}/${name}`)
              .join(", ") || "–"}
            {names.length > 4 ? ` and ${names.length - 4} more` : ""}
          </span>,
        ],
        ...(source.size_bytes ? [["Size", bytes(source.size_bytes)] as [string, string]] : []),
        ["SHA-256", revision.content_hash ? <CopyId key="h" id={revision.content_hash} noun="SHA-256" /> : "–"],
        ...(revision.same_content_as !== null && revision.same_content_as !== undefined
          ? [["Same content as", `version ${revision.same_content_as}`] as [string, string]]
          : []),
        ["Workflow", revision.workflow_id ?? "–"],
        [
          "Job",
          revision.job_id ? (
            <a key="j" href={href(`/jobs/${revision.job_id}`)}>
              Show the job
            </a>
          ) : (
            "–"
          ),
        ],
        ["Submitted by", revision.submitted_by ?? "–"],
        ["Submitted", <Time key="t" at={revision.created_at} />],
        ["Processed", <Time key="p" at={revision.processed_at} empty="not yet" />],
      ]}
    />
  );
}

export function ExportState({ revision }: { revision: Revision }) {
  const { external } = revision;
  if (!external || external.state === "none") return <span class="muted">none</span>;
  return (
    <div class="stack tighter">
      <div class="row wrap">
        <StateBadge state={external.state ?? "none"} /> <Time at={external.exported_at} empty="" />
      </div>
      {external.error && <span class="error-text anywhere">{external.error}</span>}
      {external.run_id && <span class="muted">Run {external.run_id}</span>}
      {external.url ? (
        <a class="anywhere" href={external.url}>
          {external.blob_path}
        </a>
      ) : (
        external.blob_path && <code class="anywhere">{external.blob_path}</code>
      )}
      {external.job_id && <a href={href(`/jobs/${external.job_id}`)}>Show the job</a>}
    </div>
  );
}
