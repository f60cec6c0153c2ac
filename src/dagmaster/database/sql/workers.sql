-- name: beat_worker
-- Show that a worker lives, and what it offers.
INSERT INTO dagapp.workers AS w (worker_id, host, pid, software_version, worker_type, queues, handlers, stats)
VALUES (%(worker_id)s, %(host)s, %(pid)s, %(software_version)s, %(worker_type)s, %(queues)s, %(handlers)s, %(stats)s)
    ON CONFLICT (worker_id) DO UPDATE
   SET heartbeat_at = dagapp.clock(), stats = excluded.stats, queues = excluded.queues, handlers = excluded.handlers;

-- name: retire_worker
-- A worker stopped cleanly.
DELETE FROM dagapp.workers
 WHERE worker_id = %(worker_id)s;

-- name: exchange
-- Hand in what is finished, where this worker still holds it, and take new tasks: one statement, one commit. A report that
-- comes too late is kept and marked as not accepted. Tasks are locked in key order; claiming never waits.
WITH report AS MATERIALIZED (
    SELECT r.*
      FROM jsonb_to_recordset(%(reports)s::jsonb)
           AS r (job_id uuid, node_id text, attempt int, status text, output jsonb, error jsonb, metrics jsonb)
), held AS MATERIALIZED (
    SELECT t.job_id, t.node_id, t.attempt
      FROM report r
      JOIN dagapp.dag_tasks t
        ON t.job_id = r.job_id AND t.node_id = r.node_id AND t.attempt = r.attempt
     WHERE t.status = 'running' AND t.worker_id = %(worker_id)s
     ORDER BY t.job_id, t.node_id, t.attempt
       FOR NO KEY UPDATE OF t
), done AS (
    UPDATE dagapp.dag_tasks t
       SET status = r.status, finished_at = dagapp.clock(), lease_until = NULL
      FROM held h
      JOIN report r
        ON r.job_id = h.job_id AND r.node_id = h.node_id AND r.attempt = h.attempt
     WHERE t.job_id = h.job_id AND t.node_id = h.node_id AND t.attempt = h.attempt
    RETURNING t.job_id, t.node_id, t.attempt, t.started_at
), stored AS (
    INSERT INTO dagapp.dag_task_results
           (job_id, node_id, attempt, status, output, error, error_message, metrics, worker_id, started_at, processed, accepted)
    SELECT r.job_id, r.node_id, r.attempt, r.status, r.output, r.error, r.error ->> 'message', r.metrics,
           %(worker_id)s, d.started_at, d.job_id IS NULL, d.job_id IS NOT NULL
      FROM report r
      LEFT JOIN done d
        ON d.job_id = r.job_id AND d.node_id = r.node_id AND d.attempt = r.attempt
     WHERE d.job_id IS NOT NULL
        OR EXISTS (SELECT 1
                     FROM dagapp.dag_tasks t
                    WHERE t.job_id = r.job_id AND t.node_id = r.node_id AND t.attempt = r.attempt)
     ORDER BY r.job_id, r.node_id, r.attempt
        ON CONFLICT DO NOTHING
), light AS MATERIALIZED (
    SELECT c.job_id, c.node_id, c.attempt
      FROM unnest(%(queues)s::text[]) AS q (name)
     CROSS JOIN LATERAL (
           SELECT t.job_id, t.node_id, t.attempt
             FROM dagapp.dag_tasks t
            WHERE t.status = 'queued' AND t.queue = q.name AND t.handler = ANY (%(light_handlers)s::text[])
            ORDER BY t.priority DESC, t.position
            LIMIT %(light)s
              FOR NO KEY UPDATE SKIP LOCKED) AS c
     LIMIT %(light)s
), heavy AS MATERIALIZED (
    SELECT c.job_id, c.node_id, c.attempt
      FROM unnest(%(queues)s::text[]) AS q (name)
     CROSS JOIN LATERAL (
           SELECT t.job_id, t.node_id, t.attempt
             FROM dagapp.dag_tasks t
            WHERE t.status = 'queued' AND t.queue = q.name AND t.handler = ANY (%(heavy_handlers)s::text[])
            ORDER BY t.priority DESC, t.position
            LIMIT %(heavy)s
              FOR NO KEY UPDATE SKIP LOCKED) AS c
     LIMIT %(heavy)s
), claimed AS (
    UPDATE dagapp.dag_tasks t
       SET status = 'running',
           worker_id = %(worker_id)s,
           started_at = dagapp.clock(),
           lease_until = dagapp.clock() + make_interval(secs => %(lease)s)
      FROM (SELECT * FROM light UNION ALL SELECT * FROM heavy) AS c
     WHERE t.job_id = c.job_id AND t.node_id = c.node_id AND t.attempt = c.attempt
    RETURNING t.task_id, t.job_id, t.node_id, t.attempt, t.handler, t.params, t.queue, t.timeout_seconds, t.retry_count
)
SELECT task_id, job_id, node_id, attempt, handler, params, queue, timeout_seconds, retry_count
  FROM claimed
 UNION ALL
SELECT NULL, r.job_id, r.node_id, r.attempt, NULL, NULL, NULL, NULL, NULL
  FROM report r
 WHERE NOT EXISTS (SELECT 1
                     FROM done d
                    WHERE d.job_id = r.job_id AND d.node_id = r.node_id AND d.attempt = r.attempt);

-- name: renew_leases
-- Prolong the leases of tasks that this worker runs, keep their progress, and name those that are no longer its own.
WITH told AS MATERIALIZED (
    SELECT h.*
      FROM jsonb_to_recordset(%(held)s::jsonb) AS h (job_id uuid, node_id text, attempt int, progress jsonb)
), held AS MATERIALIZED (
    SELECT t.job_id, t.node_id, t.attempt
      FROM told h
      JOIN dagapp.dag_tasks t
        ON t.job_id = h.job_id AND t.node_id = h.node_id AND t.attempt = h.attempt
     WHERE t.status = 'running' AND t.worker_id = %(worker_id)s
     ORDER BY t.job_id, t.node_id, t.attempt
       FOR NO KEY UPDATE OF t
), renewed AS (
    UPDATE dagapp.dag_tasks t
       SET lease_until = dagapp.clock() + make_interval(secs => %(lease)s),
           progress = coalesce(told.progress, t.progress)
      FROM held h
      JOIN told
        ON told.job_id = h.job_id AND told.node_id = h.node_id AND told.attempt = h.attempt
     WHERE t.job_id = h.job_id AND t.node_id = h.node_id AND t.attempt = h.attempt
    RETURNING t.job_id, t.node_id, t.attempt
)
SELECT h.job_id::text || '_' || h.node_id || '_' || h.attempt::text AS task_id
  FROM told h
 WHERE NOT EXISTS (SELECT 1
                     FROM renewed r
                    WHERE r.job_id = h.job_id AND r.node_id = h.node_id AND r.attempt = h.attempt);

-- name: read_results
-- A slice of the results of a fan_out's children, in index order, by whole key.
SELECT n.fan_out_index AS index, n.node_id, n.status, n.output, n.error_message
  FROM generate_series(%(offset)s::int, %(offset)s::int + %(limit)s::int - 1) AS i (index)
  JOIN dagapp.dag_node_states n
    ON n.job_id = %(job_id)s AND n.node_id = %(node_id)s::text || '__' || i.index::text
 ORDER BY n.fan_out_index;

-- name: save_checkpoint
-- Keep a phase's state, if this attempt still holds its task.
INSERT INTO dagapp.dag_checkpoints AS c (job_id, node_id, name, attempt, data)
SELECT t.job_id, t.node_id, %(name)s, t.attempt, %(data)s
  FROM dagapp.dag_tasks t
 WHERE t.job_id = %(job_id)s AND t.node_id = %(node_id)s AND t.attempt = %(attempt)s AND t.status = 'running'
    ON CONFLICT (job_id, node_id, name) DO UPDATE
   SET attempt = excluded.attempt, data = excluded.data, saved_at = dagapp.clock()
RETURNING name;

-- name: load_checkpoints
-- The checkpoints of a node, oldest first.
SELECT job_id, node_id, name, attempt, data, saved_at
  FROM dagapp.dag_checkpoints
 WHERE job_id = %(job_id)s AND node_id = %(node_id)s
 ORDER BY saved_at, name;

-- name: clock
-- The time that everything is compared with.
SELECT dagapp.clock() AS now;
