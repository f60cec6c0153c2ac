/** When each attempt waited and ran. */
import { useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Card, Empty } from "../components/basics";
import { Icon } from "../components/icons";
import { PagedList } from "../components/paged_list";
import { appearanceOf, wordOf } from "../components/state";
import { VirtualList } from "../components/virtual";
import { now } from "../data";
import { duration, plural } from "../format";
import { concerns } from "../live";
import { usePaged } from "../paged";
import { type Bar, type Span, type TimelineRow, tickLabel, ticks, timelineOf } from "../timeline";

type Node = Schemas["JobDetail"]["nodes"][number];
const ROW_HEIGHT = 28;
const MAX_ROWS = 12;

/** Shows the nodes, with one row for each fan-out, or the children of one fan-out, or only the failed attempts. */
export function Timeline(props: {
  id: string;
  isOver: boolean;
  nodes: Node[];
  edges: { source: string; target: string }[];
  onSelect: (node: string) => void;
}) {
  const { id, isOver, onSelect } = props;
  const [isFailedOnly, setFailedOnly] = useState(false);
  const [parent, setParent] = useState<string | null>(null);
  const fanOuts = props.nodes.filter((node) => node.children && node.children.total > 0);
  const paged = usePaged(
    `timeline:${id}:${isFailedOnly}:${parent}`,
    (after, signal) =>
      api.get("/api/v1/jobs/{job_id}/timeline", {
        path: { job_id: id },
        query: {
          status: isFailedOnly ? ["failed", "lost"] : null,
          parent,
          top_level: parent === null && !isFailedOnly,
          after,
          limit: 200,
        },
        signal,
      }),
    (change) => concerns(change, "job", id),
  );
  const spans = parent === null && !isFailedOnly ? fanOuts.map((node) => spanOf(node, props)) : [];
  const emptyTitle = isFailedOnly ? "No attempt has failed" : "No task has been queued yet";
  const rows = (items: Schemas["TimelineEntry"][]) => (
    <Rows
      model={timelineOf(items, isOver ? 0 : now.value, spans)}
      hasMore={paged.hasMore}
      onNearEnd={paged.more}
      onSelect={onSelect}
      onOpen={setParent}
    />
  );
  const expected = props.nodes.filter((node) => node.attempt > 0 && node.handler).length + fanOuts.length;
  return (
    <Card
      title="Timeline"
      flush
      actions={
        <>
          <span class="row muted legend">
            <span class="swatch wait" /> in the queue <span class="swatch run" /> running
          </span>
          {fanOuts.length > 0 && (
            <select
              class="input narrow"
              aria-label="Rows of the timeline"
              value={parent ?? ""}
              onChange={(event) => setParent(event.currentTarget.value || null)}
            >
              <option value="">All nodes</option>
              {fanOuts.map((node) => (
                <option key={node.node_id} value={node.node_id}>
                  Children of {node.node_id}
                </option>
              ))}
            </select>
          )}
          <label class="row">
            <input
              type="checkbox"
              checked={isFailedOnly}
              onChange={(event) => setFailedOnly(event.currentTarget.checked)}
            />
            Failed only
          </label>
        </>
      }
    >
      {paged.items === null && !paged.problem ? (
        <div class="timeline" style={{ height: `${24 + 6 + ROW_HEIGHT * Math.min(MAX_ROWS, expected)}px` }} />
      ) : (
        <PagedList paged={paged} empty={spans.length > 0 ? rows([]) : <Empty title={emptyTitle} />}>
          {rows}
        </PagedList>
      )}
    </Card>
  );
}

function Rows(props: {
  model: ReturnType<typeof timelineOf>;
  hasMore: boolean;
  onNearEnd: () => void;
  onSelect: (node: string) => void;
  onOpen: (fanOut: string) => void;
}) {
  const { model } = props;
  const span = model.end - model.start;
  const share = (at: number) => `${(100 * (at - model.start)) / span}%`;
  return (
    <div class="timeline">
      <div class="timeline-axis" aria-hidden="true">
        {ticks(model.start, model.end, globalThis.innerWidth < 700 ? 4 : 8).map((at) => (
          <span key={at} style={{ left: share(model.start + at) }}>
            {tickLabel(at)}
          </span>
        ))}
      </div>
      <VirtualList
        label="Attempts"
        class="timeline-rows"
        count={model.rows.length}
        rowHeight={ROW_HEIGHT}
        hasMore={props.hasMore}
        onNearEnd={props.onNearEnd}
        row={(index) => {
          const row = model.rows[index];
          return row && <Row row={row} share={share} onSelect={props.onSelect} onOpen={props.onOpen} />;
        }}
      />
    </div>
  );
}

function Row(props: {
  row: TimelineRow;
  share: (at: number) => string;
  onSelect: (node: string) => void;
  onOpen: (fanOut: string) => void;
}) {
  const { row } = props;
  return (
    <div class="timeline-row">
      <span role="rowheader" class="ellipsis">
        <button type="button" class="link ellipsis" onClick={() => props.onSelect(row.id)} title={row.id}>
          {row.label}
        </button>
      </span>
      <span role="cell" class="track">
        {row.bars.map((bar) => (
          <BarView key={bar.attempt} bar={bar} share={props.share} count={row.children} />
        ))}
        {row.children !== undefined && (
          <button type="button" class="fan" onClick={() => props.onOpen(row.id)}>
            {plural(row.children, "child", "children")} <Icon name="chevron" size={11} />
          </button>
        )}
      </span>
    </div>
  );
}

function BarView(props: { bar: Bar; share: (at: number) => string; count: number | undefined }) {
  const { bar, share } = props;
  const runFrom = bar.runFrom ?? bar.to;
  const ran = bar.runFrom === null ? "" : `ran ${duration((bar.to - bar.runFrom) / 1000)}`;
  const text =
    props.count === undefined
      ? `attempt ${bar.attempt}, ${wordOf(bar.status)}: waited ${duration((runFrom - bar.waitFrom) / 1000)}${ran && `, ${ran}`}`
      : `${plural(props.count, "child", "children")}, ${wordOf(bar.status)}: ${ran}`;
  const isFailed = bar.status === "failed" || bar.status === "lost";
  return (
    <span title={text}>
      <span class="visually-hidden">{text}</span>
      <span class="bar wait" style={{ left: share(bar.waitFrom), right: `calc(100% - ${share(runFrom)})` }} />
      {bar.runFrom !== null && (
        <span
          class={`bar tone-${appearanceOf(bar.status).tone} fill${isFailed ? " hatched" : ""}${props.count === undefined ? "" : " span"}`}
          style={{ left: share(bar.runFrom), right: `calc(100% - ${share(bar.to)})` }}
        />
      )}
    </span>
  );
}

/** The children of a fan-out run from the end of the nodes before it until the fan-in after it has ended. */
function spanOf(node: Node, job: { nodes: Node[]; edges: { source: string; target: string }[] }): Span {
  const endsOf = (ids: string[]) =>
    job.nodes.flatMap((each) => (ids.includes(each.node_id) && each.completed_at ? [each.completed_at] : [])).sort();
  const before = endsOf(job.edges.filter((edge) => edge.target === node.node_id).map((edge) => edge.source));
  const after = endsOf(job.edges.filter((edge) => edge.source === node.node_id).map((edge) => edge.target));
  return {
    id: node.node_id,
    status: node.state,
    count: node.children?.total ?? 0,
    started_at: node.started_at ?? before.at(-1) ?? null,
    finished_at: node.state === "running" ? null : (after[0] ?? node.completed_at),
  };
}
