/** One job: what it is doing, why it is waiting, what failed first, and what can be done about it. */
import { useState } from "preact/hooks";
import { type ApiProblem, api, type Schemas, urlOf } from "../api/client";
import {
  Banner,
  Card,
  Confirm,
  CopyId,
  Elapsed,
  Facts,
  Json,
  Loaded,
  Meter,
  ProblemView,
  Skeleton,
  Tabs,
  Time,
} from "../components/basics";
import { Icon } from "../components/icons";
import { RerunList } from "../components/rerun";
import { StateBadge } from "../components/state";
import { toast } from "../components/toasts";
import { type Resource, useResource } from "../data";
import { duration, number, percent, plural, secondsBetween, sentence, shortId, words } from "../format";
import { useTitle } from "../frame";
import { Graph } from "../graph/graph";
import { MAX_LENGTHS } from "../limits";
import { type Change, concerns } from "../live";
import { href, query, setQuery } from "../router";
import type { PageProps } from "../routes";
import { may } from "../session";
import { EventList } from "./job_events";
import { LogView } from "./job_logs";
import { NodeDrawer } from "./job_node";
import { NodeTable } from "./job_nodes";
import { Timeline } from "./job_timeline";

type Detail = Schemas["JobDetail"];

export default function JobPage({ params }: PageProps) {
  const id = params.job ?? "";
  const isAffectedBy = (change: Change) => concerns(change, "job", id);
  const job = useResource(`job:${id}`, (signal) => api.get("/api/v1/jobs/{job_id}", { path: { job_id: id }, signal }), {
    isAffectedBy,
    atMostEveryMs: 700,
  });
  useTitle(job.data ? job.data.job.workflow_id : "Job", [{ label: "Jobs", to: "/jobs" }]);
  const isOver = job.data?.is_over ?? false;
  const refresh = { isAffectedBy, atMostEveryMs: 900, ...(isOver ? {} : { everyMs: 5000 }) };
  const graph = useResource(
    `graph:${id}`,
    (signal) => api.get("/api/v1/jobs/{job_id}/graph", { path: { job_id: id }, signal }),
    refresh,
  );
  const waiting = useResource(
    `waiting:${id}:${isOver}`,
    (signal) => api.get("/api/v1/jobs/{job_id}/waiting", { path: { job_id: id }, query: { limit: 20 }, signal }),
    { ...refresh, enabled: job.data !== null && !isOver },
  );
  const selected = query.value.get("node");
  // Job and graph are shown together: a graph that appears later would move the content below it.
  if (job.data === null || (graph.data === null && !graph.problem))
    return job.problem ? <NoJob problem={job.problem} onRetry={job.reload} /> : <Skeleton lines={10} />;
  const detail = job.data;
  return (
    <>
      <Head detail={detail} onChanged={job.reload} />
      {job.problem && !job.problem.isConnectionLoss && <ProblemView problem={job.problem} onRetry={job.reload} />}
      <Situation detail={detail} waiting={waiting} />
      <Tabs
        label="Parts of the job"
        tabs={[
          {
            id: "overview",
            label: "Overview",
            content: () => <Overview id={id} detail={detail} graph={graph} />,
          },
          { id: "nodes", label: "Nodes", content: () => <NodeTable id={id} detail={detail} /> },
          { id: "events", label: "Events", content: () => <EventList id={id} /> },
          { id: "data", label: "Inputs and outputs", content: () => <Data detail={detail} /> },
          { id: "logs", label: "Logs", content: () => <LogView id={id} isOver={isOver} /> },
        ]}
      />
      {selected && (
        <NodeDrawer
          key={selected}
          id={id}
          node={selected}
          isOver={isOver}
          onChanged={job.reload}
          onClose={() => setQuery({ node: null })}
        />
      )}
    </>
  );
}

function NoJob({ problem, onRetry }: { problem: ApiProblem; onRetry: () => void }) {
  return (
    <div class="stack">
      <ProblemView problem={problem} onRetry={onRetry} />
      <p>
        Jobs are deleted when their retention time is over. <a href={href("/jobs")}>All jobs</a>
      </p>
    </div>
  );
}

function Head({ detail, onChanged }: { detail: Detail; onChanged: () => void }) {
  const { job } = detail;
  const [dialog, setDialog] = useState<"cancel" | "resume" | null>(null);
  const canResume = ["failed", "partial_success", "cancelled"].includes(job.status);
  const isCancelling = Boolean(job.cancel_requested_at) && !detail.is_over;
  const act = async (path: "cancel" | "resume", reason: string) => {
    await api.post(`/api/v1/jobs/{job_id}/${path}`, { path: { job_id: job.job_id }, body: { reason: reason || null } });
    toast("green", path === "cancel" ? "Cancellation was requested" : "The job was resumed");
    onChanged();
  };
  return (
    <div class="page-head">
      <h1>{job.workflow_id}</h1>
      <CopyId id={job.job_id} noun="Job id" />
      <StateBadge state={job.status} />
      {isCancelling && <StateBadge state="cancelled" word="cancelling" />}
      <span class="muted">
        {detail.is_over ? "took " : "for "}
        <Elapsed from={job.started_at ?? job.created_at} to={job.completed_at ?? null} />
        {detail.eta_seconds !== null && detail.eta_seconds !== undefined && !detail.is_over && (
          <> · about {duration(Math.round(detail.eta_seconds))} left</>
        )}
        {job.resume_count ? <> · resumed {plural(job.resume_count, "time")}</> : null}
      </span>
      <div class="actions">
        {job.asset_id && (
          <a class="button" href={href(`/assets/${job.asset_id}`)}>
            <Icon name="assets" /> Asset
          </a>
        )}
        <a class="button" href={urlOf("/api/v1/jobs/{job_id}/export", { job_id: job.job_id })} download>
          <Icon name="download" /> Export
        </a>
        {may("jobs:operate") && !detail.is_over && (
          <button type="button" class="button danger" disabled={isCancelling} onClick={() => setDialog("cancel")}>
            Cancel
          </button>
        )}
        {may("jobs:operate") && canResume && (
          <button type="button" class="button primary" onClick={() => setDialog("resume")}>
            <Icon name="refresh" /> Resume
          </button>
        )}
      </div>
      {dialog === "cancel" && (
        <Confirm
          title="Cancel this job?"
          action="Cancel the job"
          isDanger
          offersReason
          maxReasonLength={MAX_LENGTHS.jobReason}
          onConfirm={(reason) => act("cancel", reason)}
          onClose={() => setDialog(null)}
        >
          <p>Waiting nodes are cancelled at once. Running tasks are asked to stop, and are killed if they do not.</p>
        </Confirm>
      )}
      {dialog === "resume" && (
        <Confirm
          title="Resume this job?"
          action="Resume the job"
          offersReason
          maxReasonLength={MAX_LENGTHS.jobReason}
          onConfirm={(reason) => act("resume", reason)}
          onClose={() => setDialog(null)}
        >
          <ResumePreview id={job.job_id} />
        </Confirm>
      )}
    </div>
  );
}

function ResumePreview({ id }: { id: string }) {
  const preview = useResource(`resume:${id}`, () =>
    api.post("/api/v1/jobs/{job_id}/resume", { path: { job_id: id }, query: { dry_run: true } }),
  );
  return (
    <Loaded resource={preview} lines={2}>
      {(result) => (
        <p>
          Completed nodes are kept. These parts of the job run again: <RerunList rerun={result} />
        </p>
      )}
    </Loaded>
  );
}

/** Banners that say what failed first, and what the job is doing or what it is waiting for. */
function Situation({ detail, waiting }: { detail: Detail; waiting: Resource<Schemas["WaitingNodes"]> }) {
  const failure = detail.first_failure;
  const banners = [];
  if (failure)
    banners.push(
      <Banner
        key="failure"
        tone="red"
        title={`${detail.is_over ? "First failure" : "A node failed"}: ${failure.label ?? failure.node_id}, attempt ${failure.attempt}`}
      >
        <p class="anywhere">
          {sentence(failure.error?.message ? String(failure.error.message) : (failure.error_message ?? ""))}
        </p>
        {failure.error?.hint ? <p class="anywhere">What to do: {String(failure.error.hint)}</p> : null}
        <div class="row wrap">
          <button type="button" class="button small" onClick={() => setQuery({ node: failure.node_id })}>
            Show the attempt
          </button>
          {failure.not_run.length > 0 && (
            <span class="muted">
              {plural(failure.not_run.length, "node")} skipped because of it: {failure.not_run.slice(0, 4).join(", ")}
              {failure.not_run.length > 4 ? ", …" : ""}
            </span>
          )}
        </div>
      </Banner>,
    );
  else if (detail.job.error_message) banners.push(<Banner key="error" tone="red" title={detail.job.error_message} />);
  if (detail.job.cancel_requested_at)
    banners.push(<Cancellation key="cancel" id={detail.job.job_id} isOver={detail.is_over} />);
  if (detail.advance_error) banners.push(<Banner key="advance_error" tone="amber" title={detail.advance_error} />);
  if (!detail.is_over && waiting.data === null && !waiting.problem)
    banners.push(
      <div key="unknown" class="banner blue">
        <Skeleton lines={2} />
      </div>,
    );
  else if (!detail.is_over) {
    const reasons = (waiting.data?.nodes ?? []).flatMap((node) =>
      node.reasons.map((reason) => ({ node: node.label ?? node.node_id, id: node.node_id, reason })),
    );
    const [running, blocked] = [
      reasons.filter((each) => each.reason.code === "running"),
      reasons.filter((each) => !["running", "waiting_for_nodes", "waiting_for_children"].includes(each.reason.code)),
    ];
    const children = detail.nodes.reduce((sum, node) => sum + (node.children?.running ?? 0), 0);
    if (children > 0)
      banners.push(
        <Banner key="running" tone="blue" icon="running" title={runningTitle(detail, children + running.length)}>
          <ul class="plain">
            {[...running, ...blocked].slice(0, 4).map((each, place) => (
              <li key={place}>
                <NodeLink id={each.id}>{each.node}</NodeLink>: {each.reason.detail}
              </li>
            ))}
          </ul>
        </Banner>,
      );
    else if (blocked.length > 0)
      banners.push(
        <Banner key="waiting" tone="amber" icon="clock" title="Waiting">
          <ul class="plain">
            {blocked.slice(0, 5).map((each, place) => (
              <li key={place}>
                <NodeLink id={each.id}>{each.node}</NodeLink>: {each.reason.detail}
              </li>
            ))}
          </ul>
        </Banner>,
      );
    else if (running.length > 0)
      banners.push(
        <Banner key="running" tone="blue" icon="running" title={runningTitle(detail, running.length)}>
          <ul class="plain">
            {running.slice(0, 4).map((each, place) => (
              <li key={place}>
                <NodeLink id={each.id}>{each.node}</NodeLink>: {each.reason.detail}
              </li>
            ))}
          </ul>
        </Banner>,
      );
  }
  if (detail.is_over && !failure && detail.job.status === "completed" && detail.outcomes)
    banners.push(
      <Banner key="outcome" tone="green" title={detail.outcomes.primary.description}>
        <p>{detail.outcomes.primary.details}</p>
      </Banner>,
    );
  return banners.length > 0 ? <div class="stack tight">{banners}</div> : null;
}

/** Who cancelled the job, and which workers have acknowledged it. */
function Cancellation({ id, isOver }: { id: string; isOver: boolean }) {
  const progress = useResource(
    `cancel:${id}`,
    (signal) => api.get("/api/v1/jobs/{job_id}/cancel", { path: { job_id: id }, signal }),
    { isAffectedBy: (change) => concerns(change, "job", id), ...(isOver ? {} : { everyMs: 1000 }) },
  );
  const data = progress.data;
  if (!data?.requested_at) return null;
  const running = data.tasks.filter((task) => !task.finished_at).length;
  const state = data.status === "cancelled" ? "Cancelled" : isOver ? "Cancel requested" : "Cancelling";
  return (
    <Banner
      tone={isOver ? "grey" : "amber"}
      icon="stop"
      title={`${state} by ${data.requested_by ?? "the platform"}${running ? `: ${plural(running, "task")} still running` : ""}`}
    >
      {data.reason && <p class="anywhere">Reason: {data.reason}</p>}
      <ul class="plain">
        {data.tasks.slice(0, 5).map((task) => (
          <li key={task.task_id}>
            <NodeLink id={task.node_id}>{task.node_id}</NodeLink>, attempt {task.attempt}: {stopSteps(task)}
          </li>
        ))}
        {data.tasks.length > 5 && <li class="muted">and {number(data.tasks.length - 5)} more</li>}
      </ul>
    </Banner>
  );
}

function stopSteps(task: Schemas["StoppingTask"]): string {
  const after = (moment: string) => duration(Math.max(0, secondsBetween(task.requested_at, moment, 0)));
  const worker = task.worker_id ? `worker ${shortId(task.worker_id)}` : "the worker";
  const steps = [];
  if (task.acknowledged_at) steps.push(`${worker} acknowledged after ${after(task.acknowledged_at)}`);
  else if (!task.finished_at) steps.push(`${worker} has not acknowledged yet`);
  if (task.finished_at) steps.push(`ended after ${after(task.finished_at)}`);
  return steps.join(", ");
}

function runningTitle(detail: Detail, count: number): string {
  const fraction = detail.progress?.fraction;
  const share = fraction === null || fraction === undefined ? "" : `, ${percent(fraction)} done`;
  return `Running ${plural(count, "task")}${share}`;
}

function NodeLink({ id, children }: { id: string; children: string }) {
  return (
    <button type="button" class="link" onClick={() => setQuery({ node: id })}>
      {children}
    </button>
  );
}

function Overview(props: { id: string; detail: Detail; graph: Resource<Schemas["JobGraph"]> }) {
  const { detail } = props;
  const selected = query.value.get("node");
  const select = (node: string) => setQuery({ node: node === selected ? null : node });
  return (
    <div class="stack">
      <Card title="Graph" flush>
        <Loaded resource={props.graph}>
          {(graph) => (
            <Graph
              label="Nodes of the job"
              nodes={graph.nodes.map((node) => ({
                id: node.node_id,
                type: node.type,
                handler: node.handler,
                state: node.state,
                detail: describe(node),
                children: node.children ?? null,
              }))}
              edges={graph.edges}
              selected={selected}
              onSelect={select}
            />
          )}
        </Loaded>
      </Card>
      <Timeline
        id={props.id}
        isOver={detail.is_over}
        nodes={detail.nodes}
        edges={props.graph.data?.edges ?? []}
        onSelect={select}
      />
      <Stages stages={detail.stages} />
    </div>
  );
}

function describe(node: Schemas["JobGraph"]["nodes"][number]): string | null {
  if (node.error_message) return node.error_message;
  if (node.state === "running" && node.eta_seconds) return `${duration(Math.round(node.eta_seconds))} left`;
  if (node.seconds !== null && node.seconds !== undefined && node.state === "completed" && node.handler)
    return `${node.handler} · ${duration(node.seconds)}`;
  return null;
}

function Stages({ stages }: { stages: Schemas["StageSummary"][] }) {
  return (
    <Card title="Stages" flush>
      <div class="table-scroll">
        <table class="table cards-when-narrow">
          <thead>
            <tr>
              <th class="numeric">No.</th>
              <th>Stage</th>
              <th>State</th>
              <th>Nodes</th>
              <th class="numeric">Children</th>
              <th>Started</th>
              <th class="numeric">Time</th>
              <th class="numeric">Remaining</th>
            </tr>
          </thead>
          <tbody>
            {stages.map((stage) => (
              <tr key={stage.number}>
                <td class="numeric" data-label="No.">
                  {stage.number}
                </td>
                <td data-label="Stage">{stage.name}</td>
                <td data-label="State">
                  <StateBadge state={stage.status} />
                </td>
                <td data-label="Nodes" class="stage-meter">
                  <span>
                    <Meter
                      total={stage.nodes}
                      parts={[
                        { name: "completed", count: stage.completed, tone: "green" },
                        { name: "failed", count: stage.failed, tone: "red" },
                      ]}
                    />
                    <span class="numeric nowrap">
                      {number(stage.completed)} of {number(stage.nodes)}
                    </span>
                  </span>
                </td>
                <td class="numeric" data-label="Children">
                  {stage.children ? number(stage.children) : "–"}
                </td>
                <td data-label="Started">
                  <Time at={stage.started_at} />
                </td>
                <td class="numeric" data-label="Time">
                  {stage.elapsed_seconds === null || stage.elapsed_seconds === undefined
                    ? "–"
                    : duration(stage.elapsed_seconds)}
                </td>
                <td class="numeric" data-label="Remaining">
                  {stage.eta_seconds === null || stage.eta_seconds === undefined
                    ? "–"
                    : duration(Math.round(stage.eta_seconds))}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

function Data({ detail }: { detail: Detail }) {
  const { job } = detail;
  return (
    <div class="columns even">
      <Card title="Inputs">
        <Json value={job.inputs} />
      </Card>
      <Card title="Result">
        <Json value={job.result} empty={detail.is_over ? "The job has no result" : "The job has not ended"} />
      </Card>
      <Card title="About this job">
        <Facts
          items={[
            [
              "Workflow",
              <a
                key="w"
                href={href(`/workflows/${job.workflow_id}`)}
              >{`${job.workflow_id}, version ${job.workflow_version}`}</a>,
            ],
            ["Definition", <CopyId key="d" id={job.definition_hash} noun="Definition hash" />],
            ["Submitted by", job.submitted_by ?? "–"],
            ["Correlation id", job.correlation_id ?? "–"],
            ["Priority", job.priority ?? 0],
            ["Created", <Time key="c" at={job.created_at} />],
            ["Started", <Time key="s" at={job.started_at} empty="not yet" />],
            ["Ended", <Time key="e" at={job.completed_at} empty="not yet" />],
            ["Deadline", <Time key="l" at={job.deadline_at} />],
            ["Owner", job.owner_id ? `orchestrator ${shortId(job.owner_id)}, epoch ${job.epoch}` : "none"],
          ]}
        />
      </Card>
      {Object.keys(detail.deliverables).length > 0 && (
        <Card title="Deliverables">
          <Facts
            items={Object.entries(detail.deliverables).map(([name, each]) => [
              words(name),
              `${number(each.count)}${each.location ? ` at ${each.location}` : ""}${each.usable ? "" : " (not usable)"}`,
            ])}
          />
        </Card>
      )}
    </div>
  );
}
