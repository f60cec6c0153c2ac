/** One workflow: its graph, a form to run it, statistics of its jobs, and its earlier definitions. */
import { api, type Schemas } from "../api/client";
import {
  Banner,
  Card,
  CopyId,
  Elapsed,
  Empty,
  Facts,
  Loaded,
  ProblemView,
  ScrollableText,
  Tabs,
  Time,
} from "../components/basics";
import { Figure } from "../components/figure";
import { type ObjectSchema, SchemaForm, useSchemaForm } from "../components/schema_form";
import { StateBadge } from "../components/state";
import { toast } from "../components/toasts";
import { useResource } from "../data";
import { aroundChanges, diffLines } from "../diff";
import { duration, number, percent, plural, shortId } from "../format";
import { useTitle } from "../frame";
import { Graph } from "../graph/graph";
import { href, navigate, query, setQuery } from "../router";
import type { PageProps } from "../routes";
import { may } from "../session";

type Workflow = Schemas["WorkflowDetail"];

export default function WorkflowPage({ params }: PageProps) {
  const id = params.workflow ?? "";
  const workflow = useResource(`workflow:${id}`, (signal) =>
    api.get("/api/v1/workflows/{workflow_id}", { path: { workflow_id: id }, signal }),
  );
  useTitle(workflow.data?.name || id, [{ label: "Workflows", to: "/workflows" }]);
  return (
    <Loaded resource={workflow}>
      {(data) => (
        <>
          <div class="page-head">
            <h1>{data.name || data.workflow_id}</h1>
            <code class="muted">{data.workflow_id}</code>
            <span class="muted">version {data.version}</span>
          </div>
          {data.description && <p class="muted description">{data.description}</p>}
          <Tabs
            label="Parts of the workflow"
            tabs={[
              { id: "graph", label: "Graph", content: () => <WorkflowGraph id={id} /> },
              ...(may("jobs:submit") ? [{ id: "run", label: "Run", content: () => <Run workflow={data} /> }] : []),
              { id: "runs", label: "Runs", content: () => <Runs id={id} /> },
              { id: "versions", label: "Versions", content: () => <Versions id={id} /> },
            ]}
          />
        </>
      )}
    </Loaded>
  );
}

function WorkflowGraph({ id }: { id: string }) {
  const graph = useResource(`workflow-graph:${id}`, (signal) =>
    api.get("/api/v1/workflows/{workflow_id}/graph", { path: { workflow_id: id }, signal }),
  );
  const selected = query.value.get("node");
  return (
    <Loaded resource={graph}>
      {(data) => {
        const node = data.nodes.find((each) => each.node_id === selected);
        return (
          <div class="stack">
            <Card flush>
              <Graph
                label="Nodes of the workflow"
                nodes={data.nodes.map((each) => ({ id: each.node_id, type: each.type, handler: each.handler }))}
                edges={data.edges}
                selected={selected}
                onSelect={(name) => setQuery({ node: name === selected ? null : name })}
              />
            </Card>
            {node && (
              <Card title={node.node_id}>
                <Facts
                  items={[
                    ["Type", node.type.replace("_", "-")],
                    ["Handler", node.handler ?? "–"],
                    ["Stage", `${node.stage_number} ${node.stage}`],
                    ["Importance", node.importance],
                    ["Description", node.description || "–"],
                  ]}
                />
              </Card>
            )}
          </div>
        );
      }}
    </Loaded>
  );
}

function Run({ workflow }: { workflow: Workflow }) {
  const form = useSchemaForm(workflow.inputs_schema as ObjectSchema);
  const submit = (event: Event) => {
    event.preventDefault();
    form.submit(async (inputs) => {
      const result = await api.post("/api/v1/jobs", { body: { workflow_id: workflow.workflow_id, inputs } });
      if (result.status !== "accepted")
        toast("amber", `A job with these inputs already exists: ${result.status.replace(/_/g, " ")}`);
      navigate(`/jobs/${result.job_id}`);
    });
  };
  return (
    <Card title="Inputs">
      <form class="stack" onSubmit={submit} noValidate>
        {workflow.reserved_inputs.length > 0 && (
          <Banner tone="blue" title="Results of a job that is started here stay in storage and are not served.">
            <p>
              To publish data, <a href={href("/submit")}>submit it</a>.
            </p>
          </Banner>
        )}
        <SchemaForm {...form.fields} hidden={workflow.reserved_inputs} />
        {form.problem && <ProblemView problem={form.problem} />}
        <div>
          <button type="submit" class="button primary" disabled={form.isBusy}>
            Run
          </button>
        </div>
      </form>
    </Card>
  );
}

function Runs({ id }: { id: string }) {
  const statistics = useResource(
    `workflow-statistics:${id}`,
    (signal) =>
      api.get("/api/v1/workflows/{workflow_id}/statistics", { path: { workflow_id: id }, query: { days: 30 }, signal }),
    { isAffectedBy: (change) => change.kind === "job" && change.data.workflow_id === id, atMostEveryMs: 3000 },
  );
  return (
    <Loaded resource={statistics}>
      {(data) => (
        <div class="stack">
          <div class="figures">
            <Figure
              label="Success rate"
              value={data.success_rate === null || data.success_rate === undefined ? "–" : percent(data.success_rate)}
            />
            <Figure label="Median duration" value={duration(data.p50_seconds)} />
            <Figure label="95th percentile" value={duration(data.p95_seconds)} />
            <Figure label={`Jobs in ${data.days} days`} value={`${number(data.jobs)}${data.is_complete ? "" : "+"}`} />
            <Figure label="Active now" value={number((data.by_status.pending ?? 0) + (data.by_status.running ?? 0))} />
          </div>
          <Card
            title="Recent runs"
            flush
            actions={
              <a class="button small" href={href(`/jobs?workflow=${encodeURIComponent(id)}`)}>
                All jobs
              </a>
            }
          >
            {data.recent.length === 0 ? (
              <Empty title="This workflow has not run yet" />
            ) : (
              <div class="table-scroll">
                <table class="table cards-when-narrow">
                  <thead>
                    <tr>
                      <th>State</th>
                      <th>Job</th>
                      <th>Submitted by</th>
                      <th>Created</th>
                      <th class="numeric">Time</th>
                    </tr>
                  </thead>
                  <tbody>
                    {data.recent.map((job) => (
                      <tr key={job.job_id}>
                        <td data-label="State">
                          <StateBadge state={job.status} />
                        </td>
                        <td data-label="Job">
                          <a class="mono" href={href(`/jobs/${job.job_id}`)}>
                            {shortId(job.job_id)}
                          </a>
                        </td>
                        <td data-label="Submitted by" class="muted">
                          {job.submitted_by ?? "–"}
                        </td>
                        <td data-label="Created">
                          <Time at={job.created_at} />
                        </td>
                        <td data-label="Time" class="numeric">
                          <Elapsed from={job.started_at ?? null} to={job.completed_at ?? null} />
                        </td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            )}
          </Card>
        </div>
      )}
    </Loaded>
  );
}

function Versions({ id }: { id: string }) {
  const definitions = useResource(`definitions:${id}`, (signal) =>
    api.get("/api/v1/workflows/{workflow_id}/definitions", { path: { workflow_id: id }, query: { limit: 50 }, signal }),
  );
  return (
    <Loaded resource={definitions}>
      {(data) => {
        const { items } = data;
        if (items.length === 0) return <Empty title="No job has used this workflow yet" />;
        const after = query.value.get("after") ?? items[0]?.definition_hash ?? "";
        const before = query.value.get("before") ?? items[1]?.definition_hash ?? after;
        const choose = (name: string, label: string, value: string) => (
          <label class="row">
            {label}
            <select
              class="input narrow"
              value={value}
              onChange={(event) => setQuery({ [name]: event.currentTarget.value })}
            >
              {items.map((each) => (
                <option key={each.definition_hash} value={each.definition_hash}>
                  {each.workflow_version} · {each.definition_hash.slice(0, 10)}
                  {each.is_current ? " (current)" : ""}
                </option>
              ))}
            </select>
          </label>
        );
        return (
          <div class="stack">
            <Card title={plural(items.length, "definition")} flush>
              <div class="table-scroll">
                <table class="table cards-when-narrow">
                  <thead>
                    <tr>
                      <th>Version</th>
                      <th>Definition</th>
                      <th class="numeric">Jobs</th>
                      <th>First used</th>
                      <th>Last used</th>
                    </tr>
                  </thead>
                  <tbody>
                    {items.map((each) => (
                      <tr key={each.definition_hash}>
                        <td data-label="Version">
                          {each.workflow_version} {each.is_current && <span class="muted">current</span>}
                        </td>
                        <td data-label="Definition">
                          <CopyId id={each.definition_hash} noun="Hash" />
                        </td>
                        <td data-label="Jobs" class="numeric">
                          {number(each.jobs)}
                        </td>
                        <td data-label="First used">
                          <Time at={each.first_used_at} />
                        </td>
                        <td data-label="Last used">
                          <Time at={each.last_used_at} empty="never" />
                        </td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            </Card>
            <div class="row wrap">
              {choose("before", "From", before)}
              {choose("after", "To", after)}
            </div>
            <Difference key={`${before}-${after}`} id={id} before={before} after={after} />
          </div>
        );
      }}
    </Loaded>
  );
}

function Difference({ id, before, after }: { id: string; before: string; after: string }) {
  const texts = useResource(`difference:${id}:${before}:${after}`, async (signal) => {
    const load = (hash: string) =>
      api.get("/api/v1/workflows/{workflow_id}/definitions/{definition_hash}", {
        path: { workflow_id: id, definition_hash: hash },
        signal,
      });
    const [old, fresh] = await Promise.all([load(before), load(after)]);
    return { old: old.yaml, fresh: fresh.yaml };
  });
  return (
    <Card title={before === after ? "Definition" : "Differences"} flush>
      <Loaded resource={texts}>
        {({ old, fresh }) => {
          if (before === after)
            return (
              <ScrollableText label="Definition" class="code">
                {fresh}
              </ScrollableText>
            );
          const lines = aroundChanges(diffLines(old, fresh));
          if (lines.every((line) => line === null)) return <Empty title="The definitions are the same" />;
          return (
            <ScrollableText label="Differences" class="code">
              {lines.map((line, place) =>
                line === null ? (
                  <div key={place} class="muted">
                    …
                  </div>
                ) : (
                  <div key={place} class={`diff ${line.kind}`}>
                    <span aria-hidden="true">
                      {line.kind === "added" ? "+ " : line.kind === "removed" ? "- " : "  "}
                    </span>
                    {line.kind !== "same" && <span class="visually-hidden">{line.kind}: </span>}
                    {line.text}
                  </div>
                ),
              )}
            </ScrollableText>
          );
        }}
      </Loaded>
    </Card>
  );
}
