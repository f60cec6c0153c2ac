/** Cancel, resume or retry many jobs, after a preview of the effects. */
import { useEffect, useState } from "preact/hooks";
import { api, type ResponseOf } from "../api/client";
import { useResource } from "../data";
import { plural, shortId } from "../format";
import { MAX_LENGTHS } from "../limits";
import { type PartKind, partsOf, rerunCounts } from "../rerun";
import { Confirm, Dialog, ProblemView, Skeleton } from "./basics";
import { RerunList } from "./rerun";
import { StateBadge } from "./state";
import { toast } from "./toasts";

export type BulkAction = "cancel" | "resume" | "retry";
type Result = ResponseOf<"post", "/api/v1/jobs/bulk">;

const WORDS: Record<BulkAction, { title: string; done: string }> = {
  cancel: { title: "Cancel jobs", done: "cancelled" },
  resume: { title: "Resume jobs", done: "resumed" },
  retry: { title: "Retry jobs", done: "retried" },
};

const PART_KINDS: Record<PartKind, string> = {
  node: "A node",
  stage: "A stage",
  failed_children: "The failed children of a fan-out",
};

interface Part {
  kind: PartKind;
  name: string;
}

interface Props {
  action: BulkAction;
  jobIds: string[];
  onClose: () => void;
  onDone: () => void;
}

/** For a retry, a first dialog asks which part of the jobs runs again. */
export function BulkDialog(props: Props) {
  const [part, setPart] = useState<Part>({ kind: "node", name: "" });
  const [isPartChosen, setPartChosen] = useState(false);
  if (props.action !== "retry") return <PreviewDialog {...props} part={null} onBack={props.onClose} />;
  if (isPartChosen) return <PreviewDialog {...props} part={part} onBack={() => setPartChosen(false)} />;
  return <PartDialog {...props} part={part} onChange={setPart} onChosen={() => setPartChosen(true)} />;
}

/** Suggests the parts of the first selected job. */
function PartDialog(props: Props & { part: Part; onChange: (part: Part) => void; onChosen: () => void }) {
  const { part, onChange } = props;
  const id = props.jobIds[0] ?? "";
  const job = useResource(`job:${id}`, (signal) => api.get("/api/v1/jobs/{job_id}", { path: { job_id: id }, signal }));
  return (
    <Confirm
      title={WORDS.retry.title}
      action="Preview"
      closesWhenDone={false}
      onClose={props.onClose}
      onConfirm={async () => props.onChosen()}
    >
      <p>A part of each job runs again, with everything downstream of it.</p>
      <div class="field">
        <label for="part-kind">Part</label>
        <select
          id="part-kind"
          class="input"
          value={part.kind}
          onChange={(event) => onChange({ kind: event.currentTarget.value as PartKind, name: "" })}
        >
          {Object.entries(PART_KINDS).map(([kind, label]) => (
            <option key={kind} value={kind}>
              {label}
            </option>
          ))}
        </select>
      </div>
      <div class="field">
        <label for="part-name">Name of the {part.kind === "failed_children" ? "fan-out" : part.kind}</label>
        <input
          id="part-name"
          class="input"
          list="part-names"
          required
          maxLength={MAX_LENGTHS[part.kind]}
          value={part.name}
          onInput={(event) => onChange({ ...part, name: event.currentTarget.value })}
        />
        <datalist id="part-names">
          {partsOf(job.data?.nodes ?? [], part.kind).map((name) => (
            <option key={name} value={name} />
          ))}
        </datalist>
      </div>
    </Confirm>
  );
}

function PreviewDialog(props: Props & { part: Part | null; onBack: () => void }) {
  const [preview, setPreview] = useState<Result | null>(null);
  const [problem, setProblem] = useState<Error | null>(null);
  const [reason, setReason] = useState("");
  const [isBusy, setBusy] = useState(false);
  const words = WORDS[props.action];
  const part = props.part && { [props.part.kind]: props.part.name.trim() };
  const send = (jobIds: string[], isPreview: boolean) =>
    api.post("/api/v1/jobs/bulk", {
      body: { action: props.action, job_ids: jobIds, part, preview: isPreview, reason: reason || null },
    });
  useEffect(() => {
    send(props.jobIds, true).then(setPreview, setProblem);
  }, []);
  const acceptedIds = (preview?.results ?? []).filter(isAccepted).map((each) => each.job_id);
  const confirm = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const result = await send(acceptedIds, false);
      toast(
        result.refused ? "amber" : "green",
        `${plural(result.accepted, "job")} ${words.done}${result.refused ? `, ${result.refused} refused` : ""}`,
      );
      props.onDone();
      props.onClose();
    } catch (error) {
      setProblem(error as Error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={words.title} onClose={props.onClose} wide>
      <form class="stack" onSubmit={confirm}>
        {problem && <ProblemView problem={problem} />}
        {!preview && !problem && <Skeleton lines={4} />}
        {preview && <Preview result={preview} action={props.action} />}
        <div class="field">
          <label for="bulk-reason">Reason (optional)</label>
          <input
            id="bulk-reason"
            class="input"
            maxLength={MAX_LENGTHS.jobReason}
            value={reason}
            onInput={(event) => setReason(event.currentTarget.value)}
          />
        </div>
        <div class="buttons">
          <button type="button" class="button" onClick={props.onBack}>
            Back
          </button>
          <button
            type="submit"
            class={`button primary${props.action === "cancel" ? " danger" : ""}`}
            disabled={isBusy || !preview?.accepted}
          >
            {props.action === "cancel" ? "Cancel" : props.action === "resume" ? "Resume" : "Retry"}{" "}
            {plural(preview?.accepted ?? 0, "job")}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function isAccepted(result: Result["results"][number]): boolean {
  return result.outcome === "accepted";
}

function Preview({ result, action }: { result: Result; action: BulkAction }) {
  const rerunText = rerunCounts(result.results);
  return (
    <div class="stack tight">
      <p>
        <strong>{plural(result.accepted, "job")}</strong> will be {WORDS[action].done}
        {rerunText && `; ${rerunText} will run again`}.
        {result.refused > 0 && ` ${plural(result.refused, "job")} cannot be ${WORDS[action].done}.`}
        {result.unchanged > 0 && ` ${plural(result.unchanged, "job")} will not change.`}
      </p>
      <div class="table-scroll bulk-results">
        <table class="table">
          <thead>
            <tr>
              <th>Job</th>
              <th>Workflow</th>
              <th>State</th>
              <th>Effect</th>
            </tr>
          </thead>
          <tbody>
            {result.results.slice(0, 200).map((each) => (
              <tr key={each.job_id}>
                <td class="mono">{shortId(each.job_id)}</td>
                <td>{each.workflow_id ?? "–"}</td>
                <td>{each.status && <StateBadge state={each.status} />}</td>
                <td>
                  {!isAccepted(each) ? (
                    (each.detail ?? each.outcome)
                  ) : action === "cancel" ? (
                    "will be cancelled"
                  ) : (
                    <>
                      runs again: <RerunList rerun={each} />
                    </>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}
