/** Queues with their limits and rates, and the leases of running tasks. */
import { useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Card, Confirm, Empty, Loaded } from "../components/basics";
import { PagedList } from "../components/paged_list";
import { StateBadge } from "../components/state";
import { Table } from "../components/table";
import { toast } from "../components/toasts";
import { useResource } from "../data";
import { duration, number } from "../format";
import { usePaged } from "../paged";
import { href } from "../router";
import { may } from "../session";

type Queue = Schemas["QueueSummary"];

export function Queues() {
  const [edited, setEdited] = useState<Queue | null>(null);
  const queues = useResource("queues", (signal) => api.get("/api/v1/queues", { signal }), {
    isAffectedBy: (change) => change.kind === "queue",
    atMostEveryMs: 2000,
    everyMs: 5000,
  });
  // Only what is changed is sent, so that a simultaneous change of the other setting is kept.
  const change = async ({ queue }: Queue, changed: Schemas["QueueLimits"]) => {
    await api.patch("/api/v1/queues/{queue}", { path: { queue }, body: changed });
    toast("green", `${queue} is changed`);
    queues.reload();
  };
  const rate = (value: number | null | undefined) =>
    value === null || value === undefined ? "–" : `${number(Math.round(value * 10) / 10)}/min`;
  return (
    <Card title="Queues" flush>
      <Loaded resource={queues}>
        {(data) => (
          <Table
            keyOf={(queue) => queue.queue}
            items={data.items}
            columns={[
              { name: "Queue", cell: (queue) => <strong>{queue.queue}</strong> },
              {
                name: "State",
                cell: (queue) =>
                  queue.is_paused ? <StateBadge state="paused" /> : <StateBadge state="alive" word="open" />,
              },
              { name: "Waiting", numeric: true, cell: (queue) => number(queue.depth) },
              { name: "Oldest", numeric: true, cell: (queue) => duration(queue.oldest_age_seconds) },
              {
                name: "Running",
                numeric: true,
                cell: (queue) =>
                  `${number(queue.running_count)}${queue.max_running === null ? "" : ` of ${queue.max_running}`}`,
              },
              { name: "Enqueued", numeric: true, cell: (queue) => rate(queue.enqueued_per_minute) },
              { name: "Started", numeric: true, cell: (queue) => rate(queue.started_per_minute) },
              { name: "Finished", numeric: true, cell: (queue) => rate(queue.finished_per_minute) },
              { name: "Workers", numeric: true, cell: (queue) => number(queue.live_workers) },
              {
                name: "",
                cell: (queue) =>
                  may("queues:operate") && queue.kind === "tasks" ? (
                    <span class="row">
                      <button
                        type="button"
                        class="button small"
                        onClick={() =>
                          change(queue, { is_paused: !queue.is_paused }).catch((problem: Error) =>
                            toast("red", problem.message),
                          )
                        }
                      >
                        {queue.is_paused ? "Resume" : "Pause"}
                      </button>
                      <button type="button" class="button small" onClick={() => setEdited(queue)}>
                        Limit…
                      </button>
                    </span>
                  ) : null,
              },
            ]}
          />
        )}
      </Loaded>
      {edited && (
        <LimitDialog
          queue={edited}
          onClose={() => setEdited(null)}
          onChange={(limit) => change(edited, { max_running: limit })}
        />
      )}
    </Card>
  );
}

function LimitDialog(props: { queue: Queue; onClose: () => void; onChange: (limit: number | null) => Promise<void> }) {
  const [text, setText] = useState(props.queue.max_running === null ? "" : String(props.queue.max_running));
  return (
    <Confirm
      title={`Limit of ${props.queue.queue}`}
      action="Set the limit"
      onClose={props.onClose}
      onConfirm={async () => {
        const limit = text.trim() === "" ? null : Number(text);
        if (limit !== null && (!Number.isInteger(limit) || limit < 1))
          throw new Error("Enter a whole number of at least 1, or leave the field empty for no limit.");
        await props.onChange(limit);
      }}
    >
      <div class="field">
        <label for="limit">Maximum number of running tasks, over all workers</label>
        <input
          id="limit"
          class="input"
          inputMode="numeric"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <span class="hint">Empty means no limit.</span>
      </div>
    </Confirm>
  );
}

export function Leases() {
  const paged = usePaged(
    "leases",
    (_, signal) => api.get("/api/v1/leases", { query: { limit: 200 }, signal }),
    (change) => change.kind === "queue" || change.kind === "instance",
  );
  return (
    <Card title="Leases of running tasks, ordered by expiry" flush>
      <PagedList
        paged={paged}
        empty={
          <Empty title="No tasks are running">
            <p>
              A running task has a lease, which its worker renews. If the lease expires, another worker runs the task.
            </p>
          </Empty>
        }
      >
        {(items) => (
          <Table
            keyOf={(lease) => lease.task_id}
            items={items}
            columns={[
              {
                name: "Task",
                cell: (lease) => (
                  <a href={href(`/jobs/${lease.job_id}?node=${encodeURIComponent(lease.node_id)}`)}>{lease.node_id}</a>
                ),
              },
              { name: "Workflow", cell: (lease) => lease.workflow_id },
              { name: "Handler", cell: (lease) => lease.handler },
              { name: "Queue", cell: (lease) => lease.queue },
              {
                name: "Worker",
                cell: (lease) => (
                  <span class="row">
                    <StateBadge state={lease.is_worker_alive ? "alive" : "silent"} plain word="" />
                    {lease.worker_host ?? "–"}
                  </span>
                ),
              },
              { name: "Attempt", numeric: true, cell: (lease) => lease.attempt },
              {
                name: "Lease",
                numeric: true,
                cell: (lease) =>
                  lease.remaining_seconds === null || lease.remaining_seconds === undefined ? (
                    "–"
                  ) : lease.remaining_seconds < 0 ? (
                    <span class="error-text">expired {duration(-lease.remaining_seconds)} ago</span>
                  ) : (
                    `${duration(lease.remaining_seconds)} left`
                  ),
              },
            ]}
          />
        )}
      </PagedList>
    </Card>
  );
}
