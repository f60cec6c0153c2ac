/** Actions of the janitor, and dead letters. */
import { useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Card, Confirm, Drawer, Empty, Json, Time } from "../components/basics";
import { PagedList } from "../components/paged_list";
import { Table } from "../components/table";
import { toast } from "../components/toasts";
import { words } from "../format";
import { usePaged } from "../paged";
import { href } from "../router";
import { may } from "../session";

export function JanitorLog() {
  const paged = usePaged<Schemas["JanitorAction"]>(
    "janitor",
    (after, signal) => api.get("/api/v1/janitor/actions", { query: { after, limit: 50 }, signal }),
    (change) => change.kind === "job",
  );
  return (
    <Card title="Actions of the janitor" flush>
      <PagedList
        paged={paged}
        empty={
          <Empty title="There are no actions yet">
            <p>The janitor looks for jobs, tasks and database sessions that are stuck. Its actions are listed here.</p>
          </Empty>
        }
      >
        {(items) => (
          <Table
            keyOf={(action) => action.action_id}
            items={items}
            columns={[
              { name: "Time", cell: (action) => <Time at={action.created_at} /> },
              { name: "Action", cell: (action) => words(action.action_type) },
              {
                name: "Target",
                wide: true,
                cell: (action) =>
                  action.target_type === "job" ? (
                    <a href={href(`/jobs/${action.target_id}`)}>{action.target_id}</a>
                  ) : (
                    `${words(action.target_type)} ${action.target_id}`
                  ),
              },
              { name: "Reason", wide: true, cell: (action) => action.reason },
            ]}
          />
        )}
      </PagedList>
    </Card>
  );
}

type DeadLetter = Schemas["DeadLetterSummary"];

export function DeadLetters() {
  const [shown, setShown] = useState<DeadLetter | null>(null);
  const [replayed, setReplayed] = useState<DeadLetter | null>(null);
  const paged = usePaged<DeadLetter>(
    "dead-letters",
    (after, signal) => api.get("/api/v1/dead-letters", { query: { after, limit: 50 }, signal }),
    (change) => change.kind === "queue",
  );
  return (
    <Card title="Dead letters" flush>
      <PagedList
        paged={paged}
        empty={
          <Empty title="There are no dead letters">
            <p>
              Messages that could not be processed and tasks that were given up are listed here, and can be replayed.
            </p>
          </Empty>
        }
      >
        {(items) => (
          <Table
            keyOf={(letter) => letter.dead_letter_id}
            items={items}
            columns={[
              { name: "Time", cell: (letter) => <Time at={letter.created_at} /> },
              { name: "Queue", cell: (letter) => letter.queue },
              { name: "Reason", cell: (letter) => words(letter.reason) },
              { name: "Description", wide: true, cell: (letter) => letter.description },
              {
                name: "",
                cell: (letter) => (
                  <span class="row">
                    <button type="button" class="button small" onClick={() => setShown(letter)}>
                      Show
                    </button>
                    {may("queues:operate") && letter.is_replayable && (
                      <button type="button" class="button small" onClick={() => setReplayed(letter)}>
                        Replay…
                      </button>
                    )}
                  </span>
                ),
              },
            ]}
          />
        )}
      </PagedList>
      {shown && (
        <Drawer title="Dead letter" onClose={() => setShown(null)}>
          <p>{shown.description}</p>
          <Json value={shown.body} />
        </Drawer>
      )}
      {replayed && (
        <Confirm
          title="Replay this dead letter?"
          action="Replay"
          onClose={() => setReplayed(null)}
          onConfirm={async () => {
            const result = await api.post("/api/v1/dead-letters/{dead_letter_id}/replay", {
              path: { dead_letter_id: replayed.dead_letter_id },
            });
            toast(
              "green",
              "The dead letter was replayed",
              result.job_id ? { to: `/jobs/${result.job_id}`, label: "Show the job" } : null,
            );
            paged.reload();
          }}
        >
          <p>
            A message is put back into its queue ({replayed.queue}); for a task that was given up, its job is resumed.
            First correct the cause: {replayed.description}
          </p>
        </Confirm>
      )}
    </Card>
  );
}
