/** When each attempt waited and ran. */
import { useState } from "preact/hooks";
import { api } from "../api/client";
import { Card, Empty } from "../components/basics";
import { PagedList } from "../components/paged_list";
import { lookOf, wordOf } from "../components/state";
import { VirtualList } from "../components/virtual";
import { now } from "../data";
import { duration } from "../format";
import { concerns } from "../live";
import { usePaged } from "../paged";
import { type Bar, ticks, timelineOf } from "../timeline";

export function Timeline({ id, isOver, onSelect }: { id: string; isOver: boolean; onSelect: (node: string) => void }) {
  const [isFailedOnly, setFailedOnly] = useState(false);
  const paged = usePaged(
    `timeline:${id}:${isFailedOnly}`,
    (after, signal) =>
      api.get("/api/v1/jobs/{job_id}/timeline", {
        path: { job_id: id },
        query: { status: isFailedOnly ? ["failed", "lost"] : null, after, limit: 200 },
        signal,
      }),
    (change) => concerns(change, "job", id),
  );
  return (
    <Card
      title="Timeline"
      flush
      actions={
        <>
          <span class="row muted legend">
            <span class="swatch wait" /> in the queue <span class="swatch run" /> running
          </span>
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
      <PagedList
        paged={paged}
        empty={<Empty title={isFailedOnly ? "No attempt has failed" : "No task has been queued yet"} />}
      >
        {(items) => {
          const model = timelineOf(items, isOver ? 0 : now.value);
          const span = model.end - model.start;
          const share = (at: number) => `${(100 * (at - model.start)) / span}%`;
          return (
            <div class="timeline">
              <div class="timeline-axis" aria-hidden="true">
                {ticks(model.start, model.end, 8).map((at) => (
                  <span key={at} style={{ left: share(model.start + at) }}>
                    {duration(at / 1000)}
                  </span>
                ))}
              </div>
              <VirtualList
                label="Attempts"
                class="timeline-rows"
                count={model.rows.length}
                rowHeight={28}
                onNearEnd={paged.more}
                row={(index) => {
                  const row = model.rows[index];
                  return (
                    row && (
                      <div key={row.id} role="row" class="timeline-row">
                        <span role="rowheader" class="ellipsis">
                          <button type="button" class="link ellipsis" onClick={() => onSelect(row.id)} title={row.id}>
                            {row.label}
                          </button>
                        </span>
                        <span role="cell" class="track">
                          {row.bars.map((bar) => (
                            <BarView key={bar.attempt} bar={bar} share={share} />
                          ))}
                        </span>
                      </div>
                    )
                  );
                }}
              />
            </div>
          );
        }}
      </PagedList>
    </Card>
  );
}

function BarView({ bar, share }: { bar: Bar; share: (at: number) => string }) {
  const runFrom = bar.runFrom ?? bar.to;
  const text = `attempt ${bar.attempt}, ${wordOf(bar.status)}: waited ${duration((runFrom - bar.waitFrom) / 1000)}${
    bar.runFrom === null ? "" : `, ran ${duration((bar.to - bar.runFrom) / 1000)}`
  }`;
  return (
    <span title={text}>
      <span class="visually-hidden">{text}</span>
      <span class="bar wait" style={{ left: share(bar.waitFrom), right: `calc(100% - ${share(runFrom)})` }} />
      {bar.runFrom !== null && (
        <span
          class={`bar tone-${lookOf(bar.status).tone} fill${bar.status === "failed" || bar.status === "lost" ? " hatched" : ""}`}
          style={{ left: share(bar.runFrom), right: `calc(100% - ${share(bar.to)})` }}
        />
      )}
    </span>
  );
}
