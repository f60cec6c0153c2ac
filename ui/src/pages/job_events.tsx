/** The history of a job: its events in order, with the data of each. */

import { useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Card, Empty, Json } from "../components/basics";
import { PagedList } from "../components/paged_list";
import { absolute, words } from "../format";
import { concerns } from "../live";
import { asNumber, usePaged } from "../paged";
import { query, setQuery } from "../router";

type Entry = Schemas["EventEntry"];

export function EventList({ id }: { id: string }) {
  const node = query.value.get("of");
  const paged = usePaged<Entry>(
    `events:${id}:${node}`,
    (after, signal) =>
      api.get("/api/v1/jobs/{job_id}/events", {
        path: { job_id: id },
        query: { after: asNumber(after), node_id: node ?? undefined, limit: 200 },
        signal,
      }),
    (change) => concerns(change, "job", id),
  );
  return (
    <Card
      title="Events"
      flush
      actions={
        <input
          class="input narrow"
          placeholder="Node"
          aria-label="Only events of this node"
          value={node ?? ""}
          onChange={(event) => setQuery({ of: event.currentTarget.value.trim() || null })}
        />
      }
    >
      <PagedList
        paged={paged}
        empty={<Empty title={node ? `There are no events of the node ${node}` : "There are no events yet"} />}
      >
        {(items) => (
          <div class="table-scroll">
            <table class="table cards-when-narrow">
              <thead>
                <tr>
                  <th class="numeric">No.</th>
                  <th>Time</th>
                  <th>Event</th>
                  <th>Node</th>
                  <th class="numeric">Attempt</th>
                  <th class="numeric">Epoch</th>
                  <th>Data</th>
                </tr>
              </thead>
              <tbody>
                {items.map((entry) => (
                  <EventRow key={entry.sequence} entry={entry} />
                ))}
              </tbody>
            </table>
          </div>
        )}
      </PagedList>
    </Card>
  );
}

function EventRow({ entry }: { entry: Entry }) {
  const [isOpen, setOpen] = useState(false);
  const hasData = entry.event_data && Object.keys(entry.event_data).length > 0;
  return (
    <>
      <tr>
        <td class="numeric" data-label="No.">
          {entry.sequence}
        </td>
        <td class="nowrap muted" data-label="Time">
          {absolute(entry.created_at)}
        </td>
        <td data-label="Event">{words(entry.event_type)}</td>
        <td data-label="Node">
          {entry.node_id ? (
            <button type="button" class="link" onClick={() => setQuery({ node: entry.node_id })}>
              {entry.node_id}
            </button>
          ) : (
            "–"
          )}
        </td>
        <td class="numeric" data-label="Attempt">
          {entry.attempt ?? "–"}
        </td>
        <td class="numeric muted" data-label="Epoch">
          {entry.epoch ?? "–"}
        </td>
        <td data-label="Data">
          {hasData ? (
            <button type="button" class="button quiet small" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
              {isOpen ? "Hide" : "Show"}
            </button>
          ) : (
            <span class="muted">–</span>
          )}
        </td>
      </tr>
      {isOpen && (
        <tr>
          <td colSpan={7}>
            <Json value={entry.event_data} />
          </td>
        </tr>
      )}
    </>
  );
}
