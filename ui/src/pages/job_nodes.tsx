/** The nodes of a job, and the children of a fan-out, page by page. */

import { api, type Schemas } from "../api/client";
import { Card, Elapsed, Empty, Meter } from "../components/basics";
import { PagedList } from "../components/paged_list";
import { StateBadge, wordOf } from "../components/state";
import { VirtualList } from "../components/virtual";
import { duration, number, plural, words } from "../format";
import { partsOf } from "../graph/graph";
import { concerns } from "../live";
import { asNumber, usePaged } from "../paged";
import { allowedValue, query, setQuery } from "../router";

type NodeRow = Schemas["PublicNode"];
const STATES = ["running", "failed", "ready", "dispatched", "pending", "completed", "skipped", "cancelled"] as const;

export function NodeTable({ id, detail }: { id: string; detail: Schemas["JobDetail"] }) {
  const parent = query.value.get("parent");
  return parent ? <Children id={id} parent={parent} /> : <TopLevel detail={detail} />;
}

function TopLevel({ detail }: { detail: Schemas["JobDetail"] }) {
  const state = allowedValue(STATES, query.value.get("only"));
  const nodes = detail.nodes.filter((node) => !state || node.status === state);
  return (
    <Card title={plural(detail.nodes.length, "node")} actions={<StateFilter value={state} />} flush>
      <div class="table-scroll">
        <table class="table cards-when-narrow">
          <thead>
            <tr>
              <th>Node</th>
              <th>State</th>
              <th>Handler</th>
              <th>Children</th>
              <th class="numeric">Attempts</th>
              <th class="numeric">Time</th>
              <th class="numeric">Remaining</th>
              <th>Error or reason</th>
            </tr>
          </thead>
          <tbody>
            {nodes.map((node) => (
              <tr key={node.node_id}>
                <td data-label="Node">
                  <button type="button" class="link" onClick={() => setQuery({ node: node.node_id })}>
                    {node.node_id}
                  </button>
                </td>
                <td data-label="State">
                  <StateBadge state={node.status} />
                </td>
                <td data-label="Handler" class="muted">
                  {node.handler ?? node.type.replace("_", "-")}
                </td>
                <td data-label="Children">
                  {node.children ? (
                    <button
                      type="button"
                      class="link child-link"
                      onClick={() => setQuery({ parent: node.node_id, only: null })}
                    >
                      <Meter parts={partsOf(node.children)} total={node.children.total} />
                      <span class="numeric nowrap">
                        {number(node.children.done)} of {number(node.children.total)}
                      </span>
                    </button>
                  ) : (
                    "–"
                  )}
                </td>
                <td class="numeric" data-label="Attempts">
                  {node.attempt || "–"}
                </td>
                <td class="numeric" data-label="Time">
                  <Elapsed from={node.started_at} to={node.completed_at} />
                </td>
                <td class="numeric" data-label="Remaining">
                  {node.eta_seconds === null || node.eta_seconds === undefined
                    ? "–"
                    : duration(Math.round(node.eta_seconds))}
                </td>
                <td data-label="Error" class="anywhere">
                  {node.error_message ? <span class="error-text">{node.error_message}</span> : words(node.reason ?? "")}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
        {nodes.length === 0 && <Empty title={`No node is ${wordOf(state ?? "")}`} />}
      </div>
    </Card>
  );
}

function StateFilter({ value }: { value: string | null }) {
  return (
    <select
      class="input narrow"
      aria-label="State of the nodes"
      value={value ?? ""}
      onChange={(event) => setQuery({ only: event.currentTarget.value || null })}
    >
      <option value="">All states</option>
      {STATES.map((state) => (
        <option key={state} value={state}>
          {wordOf(state)}
        </option>
      ))}
    </select>
  );
}

function Children({ id, parent }: { id: string; parent: string }) {
  const state = allowedValue(STATES, query.value.get("only"));
  const paged = usePaged<NodeRow>(
    `children:${id}:${parent}:${state}`,
    (after, signal) =>
      api.get("/api/v1/jobs/{job_id}/nodes", {
        path: { job_id: id },
        query: { parent, status: state && [state], after: asNumber(after), limit: 200 },
        signal,
      }),
    (change) => concerns(change, "job", id),
  );
  return (
    <Card
      title={
        <span class="row">
          <button type="button" class="link" onClick={() => setQuery({ parent: null, only: null })}>
            Nodes
          </button>
          <span class="muted">/</span> Children of {parent}
        </span>
      }
      actions={<StateFilter value={state} />}
      flush
    >
      <PagedList
        paged={paged}
        empty={
          state ? (
            <Empty title={`No child is ${wordOf(state)}`} />
          ) : (
            <Empty title="There are no children">
              <p>A fan-out has one child for each item of the list that it gets from the nodes before it.</p>
            </Empty>
          )
        }
      >
        {(items) => (
          <VirtualList
            label={`Children of ${parent}`}
            count={items.length}
            rowHeight={36}
            hasMore={paged.hasMore}
            head={<ChildHead />}
            onNearEnd={paged.more}
            row={(index) => {
              const node = items[index];
              return node && <ChildRow node={node} />;
            }}
          />
        )}
      </PagedList>
    </Card>
  );
}

function ChildHead() {
  return (
    <div role="row" aria-rowindex={1} class="child-row head">
      <span role="columnheader" class="numeric">
        No.
      </span>
      <span role="columnheader">Child</span>
      <span role="columnheader">State</span>
      <span role="columnheader" class="numeric">
        Time
      </span>
      <span role="columnheader">Error</span>
    </div>
  );
}

function ChildRow({ node }: { node: NodeRow }) {
  return (
    <div class="child-row">
      <span role="cell" class="numeric muted">
        {node.fan_out_index}
      </span>
      <span role="cell" class="ellipsis">
        <button type="button" class="link" onClick={() => setQuery({ node: node.node_id })}>
          {node.label ?? node.node_id}
        </button>
      </span>
      <span role="cell">
        <StateBadge state={node.status} />
      </span>
      <span role="cell" class="numeric">
        <Elapsed from={node.started_at} to={node.completed_at} />
      </span>
      <span role="cell" class="ellipsis error-text" title={node.error_message ?? undefined}>
        {node.error_message}
      </span>
    </div>
  );
}
