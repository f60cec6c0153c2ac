-- What operators look at: leases, and the health of the database.

-- name: system_leases
-- Running tasks, in the order in which their leases expire. Found by the index of running tasks, which is small: it has
-- only the tasks that workers run now.
WITH running AS MATERIALIZED (
    SELECT t.job_id, t.node_id, t.attempt, t.task_id, t.handler, t.queue, t.worker_id, t.started_at, t.lease_until
      FROM dagapp.dag_tasks t
     WHERE t.status = 'running'
       AND (%(within_seconds)s::float8 IS NULL
            OR t.lease_until < dagapp.clock() + make_interval(secs => %(within_seconds)s))
     ORDER BY t.lease_until, t.job_id, t.node_id
     LIMIT %(limit)s
)
SELECT r.task_id, r.job_id, r.node_id, r.attempt, r.handler, r.queue, r.worker_id, r.started_at, r.lease_until,
       extract(epoch FROM r.lease_until - dagapp.clock())::float8 AS remaining_seconds,
       (SELECT j.workflow_id FROM dagapp.dag_jobs j WHERE j.job_id = r.job_id) AS workflow_id,
       (SELECT w.host FROM dagapp.workers w WHERE w.worker_id = r.worker_id) AS worker_host,
       coalesce((SELECT w.heartbeat_at > dagapp.clock() - make_interval(secs => %(alive_within)s)
                   FROM dagapp.workers w
                  WHERE w.worker_id = r.worker_id), false) AS is_worker_alive
  FROM running r
 ORDER BY r.lease_until, r.job_id, r.node_id;

-- name: system_database
-- The server, its connections, and the size of the database.
SELECT current_setting('server_version') AS version, current_database() AS database,
       pg_database_size(current_database()) AS database_bytes,
       (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
       current_setting('max_connections')::int AS max_connections;

-- name: system_tables
-- Sizes and dead rows of our tables; partitions are counted for their table.
SELECT c.relname AS "table",
       sum(pg_total_relation_size(p.relid))::bigint AS bytes,
       coalesce(sum(s.n_live_tup), 0)::bigint AS live_rows,
       coalesce(sum(s.n_dead_tup), 0)::bigint AS dead_rows,
       (count(*) - 1)::int AS partitions,
       max(greatest(s.last_vacuum, s.last_autovacuum)) AS vacuumed_at
  FROM pg_class c
  JOIN pg_namespace n
    ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (SELECT t.relid::oid AS relid
                       FROM pg_partition_tree(c.oid) t
                      UNION
                     SELECT c.oid) AS p
  LEFT JOIN pg_stat_user_tables s
    ON s.relid = p.relid
 WHERE n.nspname = 'dagapp' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
 GROUP BY c.relname
 ORDER BY bytes DESC, c.relname;

-- name: system_partitions
-- The partitions of events, the newest months first.
SELECT c.relname AS partition, pg_total_relation_size(c.oid) AS bytes, greatest(c.reltuples, 0)::bigint AS rows
  FROM pg_inherits i
  JOIN pg_class c
    ON c.oid = i.inhrelid
 WHERE i.inhparent = 'dagapp.dag_job_events'::regclass
 ORDER BY c.relname DESC;
