/** One node: its attempts with errors and logs, its parameters and output, and a button to run it again. */
import { useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Banner, Confirm, Drawer, Elapsed, Facts, Json, Loaded, ScrollableText, Time } from "../components/basics";
import { RerunList } from "../components/rerun";
import { StateBadge } from "../components/state";
import { toast } from "../components/toasts";
import { useResource } from "../data";
import { duration, percent, plural, secondsBetween, words } from "../format";
import { MAX_LENGTHS } from "../limits";
import { concerns } from "../live";
import { setQuery } from "../router";
import { may } from "../session";

type Attempt = Schemas["Attempt"];

export function NodeDrawer(props: {
  id: string;
  node: string;
  isOver: boolean;
  onChanged: () => void;
  onClose: () => void;
}) {
  const detail = useResource(
    `node:${props.id}:${props.node}`,
    (signal) =>
      api.get("/api/v1/jobs/{job_id}/nodes/{node_id}", { path: { job_id: props.id, node_id: props.node }, signal }),
    { isAffectedBy: (change) => concerns(change, "job", props.id), atMostEveryMs: 900 },
  );
  return (
    <Drawer title={props.node} onClose={props.onClose}>
      <Loaded resource={detail}>{(data) => <Content {...props} data={data} reload={detail.reload} />}</Loaded>
    </Drawer>
  );
}

function Content(props: {
  id: string;
  node: string;
  isOver: boolean;
  data: Schemas["NodeDetail"];
  reload: () => void;
  onChanged: () => void;
}) {
  const { node, attempts, checkpoints } = props.data;
  const [isRetrying, setRetrying] = useState(false);
  const canRetry = may("jobs:operate") && props.isOver;
  return (
    <>
      <div class="row wrap">
        <StateBadge state={node.status} />
        <span class="muted">
          {props.data.type.replace("_", "-")} · stage {props.data.stage}
        </span>
        <span class="grow" />
        {node.total !== null && node.total !== undefined && (
          <button
            type="button"
            class="button small"
            onClick={() => setQuery({ tab: "nodes", parent: node.node_id, only: null, node: null })}
          >
            {plural(node.total, "child", "children")}
          </button>
        )}
        {canRetry && (
          <button type="button" class="button small" onClick={() => setRetrying(true)}>
            Run again from here…
          </button>
        )}
      </div>
      {node.error_message && (
        <Banner tone="red" title={node.error_message}>
          {typeof node.error?.hint === "string" && <p>What to do: {node.error.hint}</p>}
          {typeof node.error?.code === "string" && <code>{node.error.code}</code>}
        </Banner>
      )}
      {node.reason && <p class="muted">{words(node.reason)}</p>}
      <section class="stack tight">
        <h3>Attempts</h3>
        {attempts.length === 0 && <p class="muted">No worker has run this node.</p>}
        {attempts.map((attempt, place) => (
          <AttemptCard key={attempt.attempt} attempt={attempt} isOpen={place === 0} />
        ))}
      </section>
      {checkpoints.length > 0 && (
        <section class="stack tight">
          <h3>Checkpoints</h3>
          {checkpoints.map((each) => (
            <p key={each.name}>
              <code>{each.name}</code> in attempt {each.attempt}, <Time at={each.saved_at} />
            </p>
          ))}
        </section>
      )}
      <section class="stack tight">
        <h3>Parameters</h3>
        <Json value={node.params} empty="none" />
      </section>
      <section class="stack tight">
        <h3>Output</h3>
        {props.data.output_url && node.output === null ? (
          <a href={props.data.output_url} download>
            Download the output
          </a>
        ) : (
          <Json value={node.output} empty="none" />
        )}
      </section>
      {isRetrying && (
        <Confirm
          title={`Run ${node.node_id} again?`}
          action="Run again"
          offersReason
          maxReasonLength={MAX_LENGTHS.jobReason}
          onClose={() => setRetrying(false)}
          onConfirm={async (reason) => {
            await api.post("/api/v1/jobs/{job_id}/retry", {
              path: { job_id: props.id },
              body: { node: node.node_id, reason: reason || null },
            });
            toast("green", `${node.node_id} runs again`);
            props.reload();
            props.onChanged();
          }}
        >
          <RetryPreview id={props.id} node={node.node_id} />
        </Confirm>
      )}
    </>
  );
}

function RetryPreview({ id, node }: { id: string; node: string }) {
  const preview = useResource(`retry:${id}:${node}`, () =>
    api.post("/api/v1/jobs/{job_id}/retry", { path: { job_id: id }, query: { dry_run: true }, body: { node } }),
  );
  return (
    <Loaded resource={preview} lines={2}>
      {(result) => (
        <p>
          These parts of the job run again: <RerunList rerun={result} />
        </p>
      )}
    </Loaded>
  );
}

function AttemptCard({ attempt, isOpen }: { attempt: Attempt; isOpen: boolean }) {
  const wait = secondsBetween(attempt.queued_at, attempt.started_at ?? attempt.finished_at, Date.now());
  const message = typeof attempt.error?.message === "string" ? attempt.error.message : null;
  const trace = typeof attempt.error?.traceback === "string" ? attempt.error.traceback : null;
  const fraction = typeof attempt.progress?.fraction === "number" ? attempt.progress.fraction : null;
  return (
    <details class="card attempt" open={isOpen}>
      <summary>
        <strong>Attempt {attempt.attempt}</strong> <StateBadge state={attempt.status} />
        <span class="muted grow numeric">
          waited {duration(wait)} · ran <Elapsed from={attempt.started_at} to={attempt.finished_at} />
        </span>
      </summary>
      <div class="body stack tight">
        {fraction !== null && attempt.status === "running" && (
          <div class="row">
            <progress max={1} value={fraction} aria-label="Progress of the attempt" /> {percent(fraction)}
            {typeof attempt.progress?.message === "string" && <span class="muted">{attempt.progress.message}</span>}
          </div>
        )}
        {message && <p class="error-text anywhere">{message}</p>}
        {trace && (
          <ScrollableText label="Traceback" class="trace">
            {trace}
          </ScrollableText>
        )}
        <Facts
          items={[
            ["Queue", attempt.queue],
            ["Handler", attempt.handler],
            ["Worker", attempt.worker_id ?? "–"],
            ["Queued", <Time key="q" at={attempt.queued_at} />],
            ["Started", <Time key="s" at={attempt.started_at} empty="not yet" />],
            ["Finished", <Time key="f" at={attempt.finished_at} empty="not yet" />],
          ]}
        />
        {attempt.log.length > 0 && (
          <div class="log small" role="log" aria-label={`Log of attempt ${attempt.attempt}`}>
            {attempt.log.map((line) => (
              <div key={line.number} class={`log-line level-${line.level}`}>
                <span class="muted">{line.at.slice(11, 23)}</span>
                <span class="log-level">{line.level}</span>
                <span class="anywhere">{line.text}</span>
              </div>
            ))}
          </div>
        )}
      </div>
    </details>
  );
}
