/** Orchestrators and workers: their heartbeats, versions and running tasks, and the health checks. */
import { api, type Schemas } from "../api/client";
import { Card, Empty, Loaded, Time } from "../components/basics";
import { Figure } from "../components/figure";
import { StateBadge } from "../components/state";
import { type Column, Table } from "../components/table";
import { useResource } from "../data";
import { duration, number, percent, shortId } from "../format";
import { href } from "../router";

type Orchestrator = Schemas["OrchestratorSummary"];
type Worker = Schemas["WorkerSummary"];

const REFRESH = {
  isAffectedBy: (change: { kind: string }) => change.kind === "instance" || change.kind === "queue",
  atMostEveryMs: 2000,
  everyMs: 10_000,
};

export function Instances() {
  const health = useResource("health", (signal) => api.get("/api/v1/health", { signal }), REFRESH);
  const stats = useResource("stats", (signal) => api.get("/api/v1/stats", { signal }), REFRESH);
  const orchestrators = useResource(
    "orchestrators",
    (signal) => api.get("/api/v1/orchestrators", { query: { limit: 100 }, signal }),
    REFRESH,
  );
  const workers = useResource(
    "workers",
    (signal) => api.get("/api/v1/workers", { query: { limit: 100 }, signal }),
    REFRESH,
  );
  return (
    <div class="stack">
      <div class="figures">
        <Figure label="Live orchestrators" value={number(health.data?.live_orchestrators ?? 0)} />
        <Figure label="Live workers" value={number(health.data?.live_workers ?? 0)} />
        <Figure label="Running jobs" value={number(stats.data?.jobs.running ?? 0)} />
        <Figure label="Waiting jobs" value={number(stats.data?.jobs.pending ?? 0)} />
        <Figure label="Database responds in" value={duration(health.data?.database_seconds)} />
      </div>
      <Card title="Health" flush>
        <Loaded resource={health} lines={3}>
          {(data) => (
            <Table
              keyOf={(check) => check.name}
              items={data.checks}
              columns={[
                { name: "Check", cell: (check) => check.name },
                {
                  name: "State",
                  cell: (check) => (
                    <StateBadge state={check.is_ok ? "alive" : "silent"} word={check.is_ok ? "OK" : "not OK"} />
                  ),
                },
                { name: "Detail", wide: true, cell: (check) => `${check.detail}${check.hint ? ` ${check.hint}` : ""}` },
              ]}
            />
          )}
        </Loaded>
      </Card>
      <Card title="Orchestrators" flush>
        <Loaded resource={orchestrators}>
          {(data) =>
            data.items.length ? (
              <Table keyOf={(each) => each.owner_id} items={data.items} columns={ORCHESTRATORS} />
            ) : (
              <Empty title="No orchestrator has run yet" />
            )
          }
        </Loaded>
      </Card>
      <Card title="Workers" flush>
        <Loaded resource={workers}>
          {(data) =>
            data.items.length ? (
              <Table keyOf={(each) => each.worker_id} items={data.items} columns={WORKERS} />
            ) : (
              <Empty title="No worker is running">
                <code>dagmaster worker</code>
              </Empty>
            )
          }
        </Loaded>
      </Card>
    </div>
  );
}

const ORCHESTRATORS: Column<Orchestrator>[] = [
  { name: "State", cell: (each) => <StateBadge state={each.is_alive ? "alive" : "silent"} /> },
  { name: "Host", cell: (each) => `${each.host}, process ${each.pid}` },
  { name: "Id", cell: (each) => <code>{shortId(each.owner_id)}</code> },
  { name: "Version", cell: (each) => each.software_version },
  { name: "Jobs", numeric: true, cell: (each) => number(each.job_count) },
  { name: "Heartbeat", numeric: true, cell: (each) => `${duration(each.heartbeat_age_seconds)} ago` },
  { name: "Started", cell: (each) => <Time at={each.started_at} /> },
];

const WORKERS: Column<Worker>[] = [
  { name: "State", cell: (each) => <StateBadge state={each.is_alive ? "alive" : "silent"} /> },
  { name: "Host", cell: (each) => `${each.host}, process ${each.pid}` },
  { name: "Queues", wide: true, cell: (each) => each.queues.join(", ") },
  {
    name: "Running now",
    wide: true,
    cell: (each) =>
      each.running.length === 0
        ? "no tasks"
        : each.running.slice(0, 3).map((task) => (
            <div key={task.task_id}>
              <a href={href(`/jobs/${task.task_id.split("_")[0]}`)}>{task.handler}</a>
              {typeof task.progress?.fraction === "number" ? ` ${percent(task.progress.fraction)}` : ""}
            </div>
          )),
  },
  { name: "Heartbeat", numeric: true, cell: (each) => `${duration(each.heartbeat_age_seconds)} ago` },
  { name: "Version", cell: (each) => each.software_version },
  { name: "Started", cell: (each) => <Time at={each.started_at} /> },
];
