/** Submit data: upload a file or choose one from the bronze zone, check what would happen, and submit. */
import { useEffect, useRef, useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Banner, Card, Empty, Facts, Loaded, ProblemView, SearchBox, Time } from "../components/basics";
import { Icon } from "../components/icons";
import { PagedList } from "../components/paged_list";
import { type Finding, Findings } from "../components/revision";
import { type ObjectSchema, SchemaForm, useSchemaForm } from "../components/schema_form";
import { toast } from "../components/toasts";
import { useResource } from "../data";
import { bytes, duration, number, plural, sentence, words } from "../format";
import { useTitle } from "../frame";
import { concerns } from "../live";
import { usePaged } from "../paged";
import { href, navigate } from "../router";
import { may, session } from "../session";
import { type UploadProgress, upload } from "../upload";

interface Source {
  container?: string | null;
  blob: string;
}

type Result = Schemas["AssetSubmissionResult"];

const SET_BY_SUBMISSION = [
  "container_name",
  "blob_name",
  "blob_path",
  "dataset_id",
  "collection_id",
  "version_ordinal",
  "revision",
  "source",
];

export default function SubmitPage() {
  useTitle("Submit");
  const [source, setSource] = useState<Source | null>(null);
  return (
    <>
      <div class="page-head">
        <h1>Submit data</h1>
      </div>
      <div class="columns">
        <div class="stack">
          <ChooseSource source={source} onChoose={setSource} />
          {source && may("jobs:submit") && <Verdict key={`${source.container}/${source.blob}`} source={source} />}
          {source && <SubmitForm key={source.blob} source={source} />}
        </div>
        <Bronze chosen={source?.blob ?? null} onChoose={setSource} />
      </div>
    </>
  );
}

function ChooseSource({ source, onChoose }: { source: Source | null; onChoose: (source: Source | null) => void }) {
  const input = useRef<HTMLInputElement>(null);
  const [isOver, setOver] = useState(false);
  const [progress, setProgress] = useState<UploadProgress | null>(null);
  const [name, setName] = useState("");
  const [problem, setProblem] = useState<Error | null>(null);
  const controller = useRef<AbortController | null>(null);
  const uploadFile = async (file: File | undefined) => {
    if (!file) return;
    setProblem(null);
    setName(file.name);
    setProgress({ sent: 0, total: file.size, isWaiting: false });
    controller.current = new AbortController();
    try {
      const done = await upload(file, session.value?.platform_id ?? null, setProgress, controller.current.signal);
      onChoose({ container: done.source.container, blob: done.source.blob });
      toast("green", `${file.name} is uploaded`);
    } catch (error) {
      if (!(error instanceof DOMException)) setProblem(error as Error);
    } finally {
      setProgress(null);
    }
  };
  return (
    <Card title="File">
      <div class="stack tight">
        {/* biome-ignore lint/a11y/noStaticElementInteractions: the button inside does the same with the keyboard */}
        <div
          class={`drop${isOver ? " over" : ""}`}
          onDragOver={(event) => {
            event.preventDefault();
            setOver(true);
          }}
          onDragLeave={() => setOver(false)}
          onDrop={(event) => {
            event.preventDefault();
            setOver(false);
            uploadFile(event.dataTransfer?.files[0]);
          }}
        >
          {progress ? (
            <div class="stack tight upload">
              <div class="row spread">
                <strong class="ellipsis">{name}</strong>
                <span class="numeric nowrap">
                  {bytes(progress.sent)} of {bytes(progress.total)}
                </span>
              </div>
              <progress max={Math.max(1, progress.total)} value={progress.sent} aria-label={`Upload of ${name}`} />
              <div class="row spread">
                <span class="muted" role="status">
                  {progress.isWaiting ? "The connection is lost. The upload continues automatically." : "Uploading"}
                </span>
                <button type="button" class="button small" onClick={() => controller.current?.abort()}>
                  Stop
                </button>
              </div>
            </div>
          ) : (
            <>
              <Icon name="submit" size={28} />
              <p>Drop a raster file here, or</p>
              <button type="button" class="button" onClick={() => input.current?.click()}>
                Choose a file
              </button>
              <input
                ref={input}
                type="file"
                class="visually-hidden"
                tabIndex={-1}
                aria-label="File to upload"
                onChange={(event) => uploadFile(event.currentTarget.files?.[0])}
              />
            </>
          )}
        </div>
        {problem && <ProblemView problem={problem} />}
        {source && (
          <Banner tone="green" title={`Chosen: ${source.blob}`}>
            <button type="button" class="link" onClick={() => onChoose(null)}>
              Choose another
            </button>
          </Banner>
        )}
      </div>
    </Card>
  );
}

/** The result of the validation of a file, which starts when the file is chosen. The job writes no data. */
function Verdict({ source }: { source: Source }) {
  const started = useResource("verdict", (signal) =>
    api.post("/api/v1/jobs", {
      body: {
        workflow_id: "raster_validate",
        inputs: { container_name: source.container ?? "bronze", blob_name: source.blob },
      },
      signal,
    }),
  );
  const id = started.data?.job_id ?? "";
  const job = useResource(
    `verdict:${id}`,
    (signal) => api.get("/api/v1/jobs/{job_id}", { path: { job_id: id }, signal }),
    { enabled: id !== "", isAffectedBy: (change) => concerns(change, "job", id), atMostEveryMs: 200 },
  );
  const isOver = job.data?.is_over ?? false;
  // A second after the last response, not at an interval: `reload` aborts a request that is still running.
  useEffect(() => {
    if (!id || isOver || job.isLoading) return;
    const timer = setTimeout(job.reload, 1000);
    return () => clearTimeout(timer);
  }, [id, isOver, job.isLoading]);
  const problem = started.problem ?? (job.data ? null : job.problem);
  if (problem) return <ProblemView problem={problem} onRetry={started.reload} />;
  if (!job.data || !isOver)
    return (
      <Banner tone="blue" icon="running" title="The file is being checked">
        {id && <a href={href(`/jobs/${id}`)}>Show the job</a>}
      </Banner>
    );
  const failure = job.data.first_failure;
  if (failure || job.data.job.status !== "completed") {
    const message = failure?.error?.message ?? failure?.error_message ?? job.data.job.error_message;
    return (
      <Banner tone="red" title={`The file cannot be processed: ${message ?? words(job.data.job.status)}`}>
        {failure?.error?.hint ? <p class="anywhere">{sentence(String(failure.error.hint))}</p> : null}
        <a href={href(`/jobs/${id}`)}>Show the job</a>
      </Banner>
    );
  }
  const result = (job.data.job.result ?? {}) as Partial<Validation>;
  const facts = [result.detected_type, result.band_count && plural(result.band_count, "band"), result.data_type];
  return (
    <Banner
      tone={result.findings?.some((each) => each.severity !== "info") ? "amber" : "green"}
      title={`The file can be processed: ${[...facts, result.crs].filter(Boolean).join(", ")}`}
    >
      <Findings findings={result.findings ?? []} />
    </Banner>
  );
}

/** The result of the workflow raster_validate. */
interface Validation {
  findings: Finding[];
  detected_type: string;
  band_count: number;
  data_type: string;
  crs: string;
}

function Bronze({ chosen, onChoose }: { chosen: string | null; onChoose: (source: Source) => void }) {
  const [prefix, setPrefix] = useState("");
  const paged = usePaged(`sources:${prefix}`, (after, signal) =>
    api.get("/api/v1/sources", { query: { prefix: prefix || undefined, after, limit: 50 }, signal }),
  );
  return (
    <Card
      title="Files in the bronze zone"
      flush
      actions={<SearchBox label="Names that begin with" value={prefix} onChange={setPrefix} />}
    >
      <PagedList paged={paged} empty={<Empty title={prefix ? "No matching file names" : "No files yet"} />}>
        {(items) => (
          <ul class="pick-list">
            {items.map((item) => (
              <li key={`${item.container}/${item.blob}`}>
                <button type="button" aria-pressed={item.blob === chosen} onClick={() => onChoose(item)}>
                  <span class="grow stack tighter">
                    <span class="ellipsis" title={item.blob}>
                      {item.blob}
                    </span>
                    <span class="muted">
                      {bytes(item.size_bytes)} · <Time at={item.modified_at} />
                    </span>
                  </span>
                </button>
              </li>
            ))}
          </ul>
        )}
      </PagedList>
    </Card>
  );
}

function suggestedRef(blob: string): string {
  const name = blob.split("/").at(-1) ?? blob;
  return name
    .replace(/\.[a-z0-9]{2,5}$/i, "")
    .toLowerCase()
    .replace(/[^a-z0-9-]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 60);
}

function SubmitForm({ source }: { source: Source }) {
  const platforms = useResource("platforms", (signal) =>
    api.get("/api/v1/platforms", { query: { limit: 100 }, signal }),
  );
  const [platformId, setPlatformId] = useState(session.value?.platform_id ?? source.blob.split("/")[0] ?? "local");
  const platform =
    platforms.data?.items.find((each) => each.platform_id === platformId) ??
    platforms.data?.items.find((each) => each.platform_id === "local");
  const [refs, setRefs] = useState<Record<string, string>>({});
  const [label, setLabel] = useState("");
  const [workflow, setWorkflow] = useState("raster_ingest");
  const [preview, setPreview] = useState<Result | null>(null);
  const workflows = useResource("workflow-names", (signal) =>
    api.get("/api/v1/workflows", { query: { limit: 200 }, signal }),
  );
  const definition = useResource(`workflow:${workflow}`, (signal) =>
    api.get("/api/v1/workflows/{workflow_id}", { path: { workflow_id: workflow }, signal }),
  );
  const schema = (definition.data?.inputs_schema ?? {}) as ObjectSchema;
  const form = useSchemaForm({ properties: visible(schema, definition.data?.reserved_inputs ?? []) });
  const needed = platform?.required_refs ?? [];
  const refOf = (name: string) => refs[name] ?? (needed.length === 1 ? suggestedRef(source.blob) : "");
  const send = (isDry: boolean) =>
    form.submit(async (parameters) => {
      const result = await api.post("/api/v1/submit", {
        body: {
          platform_id: platform?.platform_id ?? platformId,
          platform_refs: Object.fromEntries(needed.map((name) => [name, refOf(name)])),
          version_label: label || null,
          source: { container: source.container ?? null, blob: source.blob },
          workflow_id: workflow,
          parameters,
          dry_run: isDry,
        },
      });
      if (isDry) setPreview(result);
      else {
        toast("green", `Submitted: ${words(result.outcome ?? "accepted")}`);
        navigate(result.job_id ? `/jobs/${result.job_id}` : `/assets/${result.asset_id}`);
      }
    });
  return (
    <Card title="Submission">
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          send(false);
        }}
      >
        <div class="form-grid">
          <div class="field">
            <label for="platform">Platform</label>
            <select
              id="platform"
              class="input"
              value={platform?.platform_id ?? ""}
              onChange={(event) => setPlatformId(event.currentTarget.value)}
            >
              {(platforms.data?.items ?? []).map((each) => (
                <option key={each.platform_id} value={each.platform_id}>
                  {each.display_name}
                </option>
              ))}
            </select>
          </div>
          {needed.map((name) => (
            <div key={name} class="field">
              <label for={`ref-${name}`}>{words(name)}</label>
              <input
                id={`ref-${name}`}
                class="input"
                required
                maxLength={200}
                value={refOf(name)}
                onInput={(event) => setRefs({ ...refs, [name]: event.currentTarget.value })}
              />
            </div>
          ))}
          <div class="field">
            <label for="label">Version label (optional)</label>
            <input
              id="label"
              class="input"
              maxLength={200}
              value={label}
              onInput={(event) => setLabel(event.currentTarget.value)}
            />
            <span class="hint">
              A new label creates a new version; without a label, the newest version is processed again.
            </span>
          </div>
          <div class="field">
            <label for="workflow">Workflow</label>
            <select
              id="workflow"
              class="input"
              value={workflow}
              onChange={(event) => setWorkflow(event.currentTarget.value)}
            >
              {(workflows.data?.items ?? []).filter(takesOneObject).map((each) => (
                <option key={each.workflow_id} value={each.workflow_id}>
                  {each.workflow_id}
                </option>
              ))}
            </select>
          </div>
        </div>
        <details>
          <summary>Parameters of {workflow}</summary>
          <Loaded resource={definition} lines={3}>
            {() => <SchemaForm {...form.fields} />}
          </Loaded>
        </details>
        {form.problem && <ProblemView problem={form.problem} />}
        {preview && <DryRun result={preview} />}
        <div class="row wrap">
          <button type="button" class="button" disabled={form.isBusy} onClick={() => send(true)}>
            Check what would happen
          </button>
          <button type="submit" class="button primary" disabled={form.isBusy}>
            {form.isBusy && <Icon name="running" spins size={13} />} Submit
          </button>
        </div>
      </form>
    </Card>
  );
}

function visible(schema: ObjectSchema, reserved: readonly string[]): NonNullable<ObjectSchema["properties"]> {
  const hidden = new Set([...SET_BY_SUBMISSION, ...reserved]);
  return Object.fromEntries(Object.entries(schema.properties ?? {}).filter(([name]) => !hidden.has(name)));
}

/** Whether a workflow creates a version of an asset from one object; others cannot be submitted with this form. */
function takesOneObject(workflow: Schemas["WorkflowSummary"]): boolean {
  return workflow.reserved_inputs.includes("dataset_id") && workflow.inputs.includes("blob_name");
}

/** For some files it is not known before the job opens them whether they are split into tiles. */
function tilesText(result: Result): string {
  if (result.is_tiled === null || result.is_tiled === undefined) return "unknown";
  if (!result.is_tiled) return "one COG";
  return result.estimate?.tile_count ? number(result.estimate.tile_count) : "yes";
}

function DryRun({ result }: { result: Result }) {
  const refusal = result.refusal as { detail?: string; code?: string; hint?: string } | null;
  if (refusal)
    return (
      <Banner tone="red" title={`The submission would be refused: ${refusal.detail ?? refusal.code}`}>
        {refusal.hint && <p>{refusal.hint}</p>}
      </Banner>
    );
  return (
    <Banner tone="blue" title={`The submission would be accepted: ${words(result.outcome ?? "")}`}>
      <Facts
        items={[
          [
            "Asset",
            <a key="a" href={href(`/assets/${result.asset_id}`)}>
              {result.dataset_id}
            </a>,
          ],
          [
            "Version",
            `${result.version_ordinal ?? "–"}${result.version_label ? ` (${result.version_label})` : ""}, revision ${result.revision ?? "–"}`,
          ],
          ["Workflow", result.workflow_id],
          ["Tiles", tilesText(result)],
          ["Size", result.estimate?.size_bytes ? bytes(result.estimate.size_bytes) : "unknown"],
          [
            "Time",
            result.estimate?.seconds
              ? `about ${duration(result.estimate.seconds)}, from ${plural(result.estimate.based_on_runs, "earlier run")}`
              : "unknown: no earlier runs",
          ],
          ...(result.same_content_as !== null && result.same_content_as !== undefined
            ? [["Same content as", `version ${result.same_content_as}`] as [string, string]]
            : []),
        ]}
      />
    </Banner>
  );
}
