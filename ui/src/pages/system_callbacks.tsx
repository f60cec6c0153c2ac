/** Callbacks to submitters: their deliveries and failures, and a button to send one again. */
import { useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Card, Drawer, Empty, Facts, Json, Loaded, Time } from "../components/basics";
import { PagedList } from "../components/paged_list";
import { StateBadge } from "../components/state";
import { Table } from "../components/table";
import { toast } from "../components/toasts";
import { useResource } from "../data";
import { number, words } from "../format";
import { asNumber, usePaged } from "../paged";
import { allowedValue, query, setQuery } from "../router";

type Callback = Schemas["CallbackInfo"];
const STATES = ["pending", "delivered", "failed"] as const;

export function Callbacks() {
  const [shown, setShown] = useState<string | null>(null);
  const state = allowedValue(STATES, query.value.get("state"));
  const paged = usePaged<Callback>(
    `callbacks:${state}`,
    (after, signal) =>
      api.get("/api/v1/callbacks", {
        query: { state, after: asNumber(after), limit: 50 },
        signal,
      }),
    (change) => change.kind === "asset" || change.kind === "job",
  );
  return (
    <Card
      title="Callbacks"
      flush
      actions={
        <select
          class="input narrow"
          aria-label="State of the callbacks"
          value={state ?? ""}
          onChange={(event) => setQuery({ state: event.currentTarget.value || null })}
        >
          <option value="">All states</option>
          {STATES.map((each) => (
            <option key={each} value={each}>
              {each}
            </option>
          ))}
        </select>
      }
    >
      <PagedList
        paged={paged}
        empty={
          <Empty title="There are no callbacks">
            <p>
              Callbacks are sent to the <code>callback_url</code> or the subscriber of a submission when its status
              changes. They are listed here.
            </p>
          </Empty>
        }
      >
        {(items) => (
          <Table
            keyOf={(callback) => callback.callback_id}
            items={items}
            columns={[
              { name: "Created", cell: (callback) => <Time at={callback.created_at} /> },
              { name: "State", cell: (callback) => <StateBadge state={callback.state} /> },
              { name: "Status sent", cell: (callback) => words(callback.status) },
              { name: "Platform", cell: (callback) => callback.platform_id },
              { name: "Request", wide: true, cell: (callback) => <code>{callback.request_id}</code> },
              { name: "Attempts", numeric: true, cell: (callback) => number(callback.attempts) },
              {
                name: "Last response",
                wide: true,
                cell: (callback) =>
                  callback.last_error ?? (callback.last_status_code ? `HTTP ${callback.last_status_code}` : "–"),
              },
              {
                name: "",
                cell: (callback) => (
                  <button type="button" class="button small" onClick={() => setShown(callback.callback_id)}>
                    Show
                  </button>
                ),
              },
            ]}
          />
        )}
      </PagedList>
      {shown && <CallbackDrawer id={shown} onClose={() => setShown(null)} onChanged={paged.reload} />}
    </Card>
  );
}

function CallbackDrawer({ id, onClose, onChanged }: { id: string; onClose: () => void; onChanged: () => void }) {
  const callback = useResource(`callback:${id}`, (signal) =>
    api.get("/api/v1/callbacks/{callback_id}", { path: { callback_id: id }, signal }),
  );
  const repeat = async () => {
    try {
      await api.post("/api/v1/callbacks/{callback_id}/repeat", { path: { callback_id: id } });
      toast("green", "The callback is sent again");
      callback.reload();
      onChanged();
    } catch (error) {
      toast("red", (error as Error).message);
    }
  };
  return (
    <Drawer title="Callback" onClose={onClose}>
      <Loaded resource={callback}>
        {(data) => (
          <>
            <div class="row">
              <StateBadge state={data.state} />
              <span class="grow" />
              <button type="button" class="button small" disabled={data.is_under_way} onClick={repeat}>
                Send again
              </button>
            </div>
            <Facts
              items={[
                [
                  "URL",
                  <span key="u" class="mono anywhere">
                    {data.url}
                  </span>,
                ],
                ["Request", data.request_id],
                ["Next attempt", <Time key="n" at={data.next_attempt_at} empty="none" />],
              ]}
            />
            <h3>Content</h3>
            <Json value={data.payload} />
            <h3>Deliveries</h3>
            <Table
              keyOf={(each) => String(each.number)}
              items={data.deliveries}
              columns={[
                { name: "No.", numeric: true, cell: (each) => each.number },
                { name: "Time", cell: (each) => <Time at={each.started_at} /> },
                {
                  name: "Response",
                  wide: true,
                  cell: (each) => each.error ?? (each.status_code ? `HTTP ${each.status_code}` : "in progress"),
                },
              ]}
            />
          </>
        )}
      </Loaded>
    </Drawer>
  );
}
