/** The lines that handlers have logged, by attempt. */

import { useEffect, useRef, useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Card, Empty } from "../components/basics";
import { PagedList } from "../components/paged_list";
import { concerns } from "../live";
import { usePaged } from "../paged";

type Line = Schemas["JobLogLine"];

export function LogView({
  id,
  isOver,
  node,
  attempt,
}: {
  id: string;
  isOver: boolean;
  node?: string;
  attempt?: number;
}) {
  const [follows, setFollows] = useState(!isOver);
  const end = useRef<HTMLDivElement>(null);
  const paged = usePaged<Line>(
    `logs:${id}:${node}:${attempt}`,
    (after, signal) =>
      api.get("/api/v1/jobs/{job_id}/logs", {
        path: { job_id: id },
        query: { node_id: node, attempt, after, limit: 200 },
        signal,
      }),
    (change) => concerns(change, "job", id) && !isOver,
  );
  useEffect(() => {
    if (!follows || !paged.items) return;
    if (paged.hasMore) paged.more();
    end.current?.scrollIntoView({ block: "nearest" });
  }, [paged.items?.length, follows]);
  const text = () =>
    (paged.items ?? [])
      .map((line) => `${line.at} ${line.level} ${line.node_id}#${line.attempt} ${line.text}`)
      .join("\n");
  return (
    <Card
      title="Logs"
      flush
      actions={
        <>
          {!isOver && (
            <label class="row">
              <input type="checkbox" checked={follows} onChange={(event) => setFollows(event.currentTarget.checked)} />
              Follow
            </label>
          )}
          <button
            type="button"
            class="button small"
            onClick={() => {
              const url = URL.createObjectURL(new Blob([text()], { type: "text/plain" }));
              const link = document.createElement("a");
              link.href = url;
              link.download = `job-${id}.log`;
              link.click();
              URL.revokeObjectURL(url);
            }}
          >
            Download
          </button>
        </>
      }
    >
      <PagedList
        paged={paged}
        empty={
          <Empty title="There are no log lines">
            <p>
              Messages that handlers log with <code>ctx.logger</code> appear here, by attempt.
            </p>
          </Empty>
        }
      >
        {(items) => (
          <div class="log" role="log" aria-label="Log lines" tabIndex={0}>
            {items.map((line, place) => (
              <div key={place} class={`log-line level-${line.level}`}>
                <span class="muted">{line.at.slice(11, 23)}</span>
                <span class="log-level">{line.level}</span>
                {!node && (
                  <span class="muted ellipsis" title={`${line.node_id}, attempt ${line.attempt}`}>
                    {line.node_id}
                  </span>
                )}
                <span class="anywhere">{line.text}</span>
              </div>
            ))}
            <div ref={end} />
          </div>
        )}
      </PagedList>
    </Card>
  );
}
