/** Cancel, resume or retry many jobs, after a preview of the effects. */
import { useEffect, useState } from "preact/hooks";
import { api, type ResponseOf } from "../api/client";
import { plural, shortId } from "../format";
import { Dialog, ProblemView, Skeleton } from "./basics";
import { StateBadge } from "./state";
import { toast } from "./toasts";

export type BulkAction = "cancel" | "resume" | "retry";
type Result = ResponseOf<"post", "/api/v1/jobs/bulk">;

const WORDS: Record<BulkAction, { title: string; done: string }> = {
  cancel: { title: "Cancel jobs", done: "cancelled" },
  resume: { title: "Resume jobs", done: "resumed" },
  retry: { title: "Retry jobs", done: "retried" },
};

export function BulkDialog(props: { action: BulkAction; jobIds: string[]; onClose: () => void; onDone: () => void }) {
  const [preview, setPreview] = useState<Result | null>(null);
  const [problem, setProblem] = useState<Error | null>(null);
  const [reason, setReason] = useState("");
  const [isBusy, setBusy] = useState(false);
  const words = WORDS[props.action];
  const send = (isPreview: boolean) =>
    api.post("/api/v1/jobs/bulk", {
      body: { action: props.action, job_ids: props.jobIds, preview: isPreview, reason: reason || null },
    });
  useEffect(() => {
    send(true).then(setPreview, setProblem);
  }, []);
  const confirm = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const result = await send(false);
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
            maxLength={2000}
            value={reason}
            onInput={(event) => setReason(event.currentTarget.value)}
          />
        </div>
        <div class="buttons">
          <button type="button" class="button" onClick={props.onClose}>
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

function Preview({ result, action }: { result: Result; action: BulkAction }) {
  const rerunNodes = result.results.reduce((sum, each) => sum + each.nodes.length, 0);
  return (
    <div class="stack tight">
      <p>
        <strong>{plural(result.accepted, "job")}</strong> will be {WORDS[action].done}
        {action !== "cancel" && rerunNodes > 0 && `; ${plural(rerunNodes, "node")} will run again`}.
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
                  {each.outcome === "accepted"
                    ? each.nodes.length > 0
                      ? `runs again: ${each.nodes.join(", ")}`
                      : `will be ${WORDS[action].done}`
                    : (each.detail ?? each.outcome)}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}
