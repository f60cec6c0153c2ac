-- name: beat_worker
-- Write the heartbeat of a worker, with its queues and handlers.
INSERT INTO dagapp.workers AS w (worker_id, host, pid, software_version, worker_type, queues, handlers, stats)
VALUES (%(worker_id)s, %(host)s, %(pid)s, %(software_version)s, %(worker_type)s, %(queues)s, %(handlers)s, %(stats)s)
    ON CONFLICT (worker_id) DO UPDATE
   SET heartbeat_at = dagapp.clock(), stats = excluded.stats, queues = excluded.queues, handlers = excluded.handlers;

-- name: retire_worker
-- Delete the row of a worker that stopped cleanly.
DELETE FROM dagapp.workers
 WHERE worker_id = %(worker_id)s;

-- part: store_reports
-- Record finished tasks that this worker still holds. The clock is read in a subselect, which is evaluated once; a
-- plain call would be evaluated for every row.
report AS MATERIALIZED (
    SELECT r.*
      FROM jsonb_to_recordset(%(reports)s::jsonb)
           AS r (job_id uuid, node_id text, attempt int, status text, output jsonb, output_ref jsonb, error jsonb,
                 metrics jsonb)
     ORDER BY r.job_id, r.node_id, r.attempt
), held AS MATERIALIZED (
    SELECT r.*
      FROM report r
     CROSS JOIN LATERAL (
           SELECT 1
             FROM dagapp.dag_tasks t
            WHERE t.job_id = r.job_id AND t.node_id = r.node_id AND t.attempt = r.attempt
              AND t.status = 'running' AND t.worker_id = %(worker_id)s
              FOR NO KEY UPDATE) AS locked
), done AS (
    UPDATE dagapp.dag_tasks t
       SET status = h.status, finished_at = (SELECT dagapp.clock()), lease_until = NULL,
           log = CASE WHEN h.metrics ? 'log' THEN NULL ELSE t.log END
      FROM held h
     WHERE t.job_id = h.job_id AND t.node_id = h.node_id AND t.attempt = h.attempt
    RETURNING t.job_id, t.node_id, t.attempt, t.started_at, h.status, h.output, h.output_ref, h.error, h.metrics
), stored AS (
    INSERT INTO dagapp.dag_task_results
           (job_id, node_id, attempt, status, output, output_ref, error, error_message, metrics, worker_id, started_at,
            reported_at)
    SELECT job_id, node_id, attempt, status, output, output_ref, error, error ->> 'message', metrics, %(worker_id)s,
           started_at, (SELECT dagapp.clock())
      FROM done
)

-- part: waiting
-- The queued tasks of the queues in `searched_queues`: for each handler and priority, the oldest task. By a loose index
-- scan: each handler and priority costs one access, however many tasks it has. `rank` is the handler's place in
-- `wanted_handlers`, or `any_rank` if it is not in that list. If the rank is NULL, only the highest priority of the
-- handler is read.
waiting AS (
    SELECT q.queue, f.handler, f.rank, f.priority, f.position, f.available_at
      FROM searched_queues q
     CROSS JOIN LATERAL (
           SELECT t.handler, t.priority, t.position, t.available_at,
                  coalesce(array_position((SELECT handlers FROM wanted_handlers), t.handler),
                           (SELECT any_rank FROM wanted_handlers)) AS rank
             FROM dagapp.dag_tasks t
            WHERE t.status = 'queued' AND t.queue = q.queue
            ORDER BY t.handler, t.priority DESC, t.position
            LIMIT 1) AS f
     UNION ALL
    SELECT w.queue, f.handler, f.rank, f.priority, f.position, f.available_at
      FROM waiting w
     CROSS JOIN LATERAL (
           (SELECT t.handler, t.priority, t.position, t.available_at, w.rank
              FROM dagapp.dag_tasks t
             WHERE t.status = 'queued' AND t.queue = w.queue AND t.handler = w.handler AND t.priority < w.priority
               AND w.rank IS NOT NULL
             ORDER BY t.priority DESC, t.position
             LIMIT 1)
            UNION ALL
           (SELECT t.handler, t.priority, t.position, t.available_at,
                   coalesce(array_position((SELECT handlers FROM wanted_handlers), t.handler),
                            (SELECT any_rank FROM wanted_handlers))
              FROM dagapp.dag_tasks t
             WHERE t.status = 'queued' AND t.queue = w.queue AND t.handler > w.handler
             ORDER BY t.handler, t.priority DESC, t.position
             LIMIT 1)
            LIMIT 1) AS f
)

-- part: claim
-- Claim queued tasks: as many light and heavy ones as the worker has free slots, within the limits of the queues.
open_queues AS MATERIALIZED (
    -- A queue with a limit is open only to a transaction that holds its budget (lock_budgets).
    -- `capacity` is the smaller one of the limits of the queue and of the worker; the latter is never NULL.
    SELECT q.name, q.place,
           least(q.free_slots,
                 CASE WHEN s.max_running IS NOT NULL
                      THEN s.max_running - (SELECT count(*)
                                              FROM dagapp.dag_tasks t
                                             WHERE t.status = 'running' AND t.queue = q.name) END) AS capacity
      FROM unnest(%(queues)s::text[], %(free_slots)s::int[]) WITH ORDINALITY AS q (name, free_slots, place)
      LEFT JOIN dagapp.dag_queues s
        ON s.queue = q.name
     WHERE s.queue IS NULL
        OR NOT s.is_paused AND (s.max_running IS NULL OR s.queue = ANY (%(budgets)s::text[]))
     ORDER BY q.place
), searched_queues AS MATERIALIZED (
    SELECT q.name AS queue
      FROM open_queues q
), wanted_handlers AS MATERIALIZED (
    SELECT %(light_handlers)s::text[] || %(heavy_handlers)s::text[] AS handlers, NULL::int AS any_rank
),
-- use: waiting
, candidates AS MATERIALIZED (
    -- The kinds that this worker has handlers for, in the order in which they are served.
    SELECT w.queue, w.handler, w.priority, w.position, w.rank <= cardinality(%(light_handlers)s::text[]) AS is_light
      FROM waiting w
     WHERE w.rank IS NOT NULL
     ORDER BY w.priority DESC, w.position
), light AS MATERIALIZED (
    -- By queue, handler and priority, one row after the other: no row is locked that is not claimed.
    SELECT c.place, q.name AS queue
      FROM open_queues q
     CROSS JOIN LATERAL (
           SELECT locked.place
             FROM candidates k
            CROSS JOIN LATERAL (
                  SELECT t.ctid AS place
                    FROM dagapp.dag_tasks t
                   WHERE t.status = 'queued' AND t.queue = k.queue AND t.handler = k.handler AND t.priority = k.priority
                     AND t.position >= k.position  -- before it there are only dead rows of claimed tasks
                   ORDER BY t.position
                   LIMIT %(light)s
                     FOR NO KEY UPDATE SKIP LOCKED) AS locked
            WHERE k.queue = q.name AND k.is_light
            LIMIT greatest(0, least(%(light)s, q.capacity))) AS c
     LIMIT %(light)s
), heavy AS MATERIALIZED (
    SELECT c.place, q.name AS queue
      FROM open_queues q
     CROSS JOIN LATERAL (
           SELECT locked.place
             FROM candidates k
            CROSS JOIN LATERAL (
                  SELECT t.ctid AS place
                    FROM dagapp.dag_tasks t
                   WHERE t.status = 'queued' AND t.queue = k.queue AND t.handler = k.handler AND t.priority = k.priority
                     AND t.position >= k.position
                   ORDER BY t.position
                   LIMIT %(heavy)s
                     FOR NO KEY UPDATE SKIP LOCKED) AS locked
            WHERE k.queue = q.name AND NOT k.is_light
            LIMIT greatest(0, least(%(heavy)s, q.capacity - (SELECT count(*) FROM light l WHERE l.queue = q.name)))
           ) AS c
     LIMIT %(heavy)s
), claimed AS (
    UPDATE dagapp.dag_tasks t
       SET status = 'running',
           worker_id = %(worker_id)s,
           started_at = (SELECT dagapp.clock()),
           lease_until = (SELECT dagapp.clock() + make_interval(secs => %(lease)s))
      FROM (SELECT * FROM light UNION ALL SELECT * FROM heavy) AS c
     -- By ctid: no other transaction moves a row that this one has locked. (A row that moved before the lock stays
     -- queued.)
     WHERE t.ctid = c.place
    RETURNING t.task_id, t.job_id, t.node_id, t.attempt, t.handler, t.params, t.queue, t.timeout_seconds, t.retry_count,
              -- Only for the few tasks with more attempts than their retries explain.
              CASE WHEN t.attempt - t.retry_count > 2
                   THEN (SELECT count(*)
                           FROM dagapp.dag_tasks p
                          WHERE p.job_id = t.job_id AND p.node_id = t.node_id AND p.status = 'lost')::int
                   ELSE 0 END AS losses,
              t.params_ref, t.traceparent
), taken AS (
    SELECT NULL::text AS limited_queue, task_id, job_id, node_id, attempt, handler, params, queue, timeout_seconds,
           retry_count, losses, params_ref, traceparent
      FROM claimed
     UNION ALL
    -- Queues with a limit that this worker did not know of, and that were closed to it: it knows them from now on.
    SELECT queue, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
      FROM dagapp.dag_queues
     WHERE queue = ANY (%(queues)s::text[]) AND max_running IS NOT NULL AND NOT queue = ANY (%(budgets)s::text[])
)

-- name: exchange
-- Report finished tasks and claim new ones: one statement, one commit. A row has the number of accepted reports, the
-- name of a limited queue, or a task. The number comes first: everything that may wait for a lock precedes the claims,
-- which never wait.
WITH RECURSIVE
-- use: store_reports
,
-- use: claim
SELECT (SELECT count(*) FROM done)::int AS accepted, NULL::text AS limited_queue, NULL::text AS task_id,
       NULL::uuid AS job_id, NULL::text AS node_id, NULL::int AS attempt, NULL::text AS handler, NULL::jsonb AS params,
       NULL::text AS queue, NULL::float8 AS timeout_seconds, NULL::int AS retry_count, NULL::int AS losses,
       NULL::jsonb AS params_ref, NULL::text AS traceparent
 UNION ALL
SELECT NULL, limited_queue, task_id, job_id, node_id, attempt, handler, params, queue, timeout_seconds, retry_count,
       losses, params_ref, traceparent
  FROM taken;

-- name: report_tasks
-- Report finished tasks without claiming new ones.
WITH
-- use: store_reports
SELECT count(*)::int AS accepted
  FROM done;

-- name: claim_tasks
-- Claim new tasks, without reports. A row has a task, or the name of a limited queue.
WITH RECURSIVE
-- use: claim
SELECT limited_queue, task_id, job_id, node_id, attempt, handler, params, queue, timeout_seconds, retry_count, losses,
       params_ref, traceparent
  FROM taken;

-- name: lock_budgets
-- Lock the budgets of limited queues, which are their rows, until the transaction that claims from them commits, so
-- that two workers never use the same capacity. A separate statement, so that the one that counts running tasks sees
-- what was committed before.
SELECT queue
  FROM dagapp.dag_queues
 WHERE queue = ANY (%(queues)s::text[]) AND max_running IS NOT NULL
 ORDER BY queue
   FOR UPDATE;

-- name: set_queue
-- Limit, pause or resume a queue. Other settings stay: two requests may each change one at the same time.
INSERT INTO dagapp.dag_queues AS q (queue, max_running, is_paused)
VALUES (%(queue)s, %(max_running)s, coalesce(%(is_paused)s::boolean, false))
    ON CONFLICT (queue) DO UPDATE
   SET max_running = CASE WHEN %(sets_limit)s::boolean THEN excluded.max_running ELSE q.max_running END,
       is_paused = coalesce(%(is_paused)s::boolean, q.is_paused),
       updated_at = dagapp.clock();

-- name: record_late_reports
-- Store reports that came too late, for diagnosis, and return them. Nothing is stored for a task that this worker has
-- never held. A report that this worker has sent before, and whose response was lost, is not late: it was accepted
-- then.
WITH report AS MATERIALIZED (
    SELECT r.*
      FROM jsonb_to_recordset(%(reports)s::jsonb)
           AS r (job_id uuid, node_id text, attempt int, status text, output jsonb, output_ref jsonb, error jsonb,
                 metrics jsonb)
), late AS MATERIALIZED (
    SELECT r.*
      FROM report r
      LEFT JOIN dagapp.dag_task_results x
        ON x.job_id = r.job_id AND x.node_id = r.node_id AND x.attempt = r.attempt
       AND x.accepted AND x.worker_id = %(worker_id)s
     WHERE x.job_id IS NULL
), kept AS (
    INSERT INTO dagapp.dag_task_results
           (job_id, node_id, attempt, status, output, output_ref, error, error_message, metrics, worker_id, processed,
            accepted)
    SELECT l.job_id, l.node_id, l.attempt, l.status, l.output, l.output_ref, l.error, l.error ->> 'message', l.metrics,
           %(worker_id)s, true, false
      FROM late l
      JOIN dagapp.dag_tasks t
        ON t.job_id = l.job_id AND t.node_id = l.node_id AND t.attempt = l.attempt
       AND t.status NOT IN ('queued', 'running') AND t.worker_id = %(worker_id)s
     ORDER BY l.job_id, l.node_id, l.attempt
       FOR KEY SHARE OF t  -- retention deletes a task first and then its results, so none is left behind
        ON CONFLICT DO NOTHING
)
SELECT job_id, node_id, attempt
  FROM late;

-- name: renew_leases
-- Renew the leases of tasks that this worker runs, store their progress and last log lines, and return those that it no
-- longer holds. A task that had to wait for a slot starts when its handler does: until then, its start is set to now.
WITH sent AS MATERIALIZED (
    SELECT h.*
      FROM jsonb_to_recordset(%(held)s::jsonb) AS h (job_id uuid, node_id text, attempt int, progress jsonb, log jsonb,
                                                             run_seconds float8)
     ORDER BY h.job_id, h.node_id, h.attempt
), held AS MATERIALIZED (
    SELECT h.*
      FROM sent h
     CROSS JOIN LATERAL (
           SELECT 1
             FROM dagapp.dag_tasks t
            WHERE t.job_id = h.job_id AND t.node_id = h.node_id AND t.attempt = h.attempt
              AND t.status = 'running' AND t.worker_id = %(worker_id)s
              FOR NO KEY UPDATE) AS locked
), renewed AS (
    UPDATE dagapp.dag_tasks t
       SET lease_until = dagapp.clock() + make_interval(secs => %(lease)s),
           progress = coalesce(h.progress, t.progress),
           log = coalesce(h.log, t.log),
           started_at = greatest(t.started_at, dagapp.clock() - make_interval(secs => h.run_seconds))
      FROM held h
     WHERE t.job_id = h.job_id AND t.node_id = h.node_id AND t.attempt = h.attempt
    RETURNING t.job_id, t.node_id, t.attempt
)
SELECT h.job_id::text || '_' || h.node_id || '_' || h.attempt::text AS task_id
  FROM sent h
 WHERE NOT EXISTS (SELECT 1
                     FROM renewed r
                    WHERE r.job_id = h.job_id AND r.node_id = h.node_id AND r.attempt = h.attempt);

-- name: take_stops
-- The tasks that a worker is asked to stop, until they have ended: a response may be lost. stop_seen_at records the
-- first time.
WITH unseen AS MATERIALIZED (
    SELECT t.job_id, t.node_id, t.attempt
      FROM dagapp.dag_tasks t
     WHERE t.worker_id = %(worker_id)s AND t.stop_requested_at IS NOT NULL AND t.stop_seen_at IS NULL
       -- Not `t.status = 'running'`: the planner could use the index of the running tasks of all workers.
       AND t.status IS NOT DISTINCT FROM 'running'
     ORDER BY t.job_id, t.node_id, t.attempt
       FOR NO KEY UPDATE
), seen AS (
    UPDATE dagapp.dag_tasks t
       SET stop_seen_at = dagapp.clock()
      FROM unseen a
     WHERE t.job_id = a.job_id AND t.node_id = a.node_id AND t.attempt = a.attempt
)
SELECT t.task_id
  FROM dagapp.dag_tasks t
 WHERE t.worker_id = %(worker_id)s AND t.stop_requested_at IS NOT NULL AND t.status IS NOT DISTINCT FROM 'running';

-- name: read_results
-- A slice of the results of a fan_out's children, in index order, by whole key: as many as a reader can hold, and at
-- least one. Only values that are long enough to be compressed are decompressed to get their real size.
WITH child AS MATERIALIZED (
    SELECT i.index, c.node_id, c.status, c.output, c.error_message, c.output_ref,
           coalesce((c.output_ref ->> 'bytes')::bigint,
                    CASE WHEN pg_column_size(c.output) > 1900 THEN octet_length(c.output::text)
                         ELSE pg_column_size(c.output) END, 0) AS size_bytes
      FROM generate_series(%(offset)s::int, %(offset)s::int + %(limit)s::int - 1) AS i (index)
     CROSS JOIN LATERAL (
           SELECT n.node_id, n.status, n.output, n.error_message, n.output_ref
             FROM dagapp.dag_node_states n
            WHERE n.job_id = %(job_id)s AND n.node_id = %(node_id)s::text || '__' || i.index::text
            LIMIT 1) AS c
)
SELECT w.index, w.node_id, w.status, w.output, w.error_message, w.output_ref
  FROM (SELECT child.*, sum(size_bytes) OVER (ORDER BY index) AS bytes_so_far FROM child) AS w
 WHERE w.bytes_so_far <= %(max_bytes)s OR w.index = %(offset)s
 ORDER BY w.index;

-- name: save_checkpoint
-- Store a phase's state, if this attempt still holds its task; the lock ensures that it holds it until the commit.
INSERT INTO dagapp.dag_checkpoints AS c (job_id, node_id, name, attempt, data, artifacts)
SELECT t.job_id, t.node_id, %(name)s, t.attempt, %(data)s, %(artifacts)s::jsonb
  FROM dagapp.dag_tasks t
 WHERE t.job_id = %(job_id)s AND t.node_id = %(node_id)s AND t.attempt = %(attempt)s AND t.status = 'running'
   FOR NO KEY UPDATE OF t
    ON CONFLICT (job_id, node_id, name) DO UPDATE
   SET attempt = excluded.attempt, data = excluded.data, artifacts = excluded.artifacts, saved_at = dagapp.clock()
RETURNING name;

-- name: load_checkpoints
-- The checkpoints of a node, oldest first.
SELECT job_id, node_id, name, attempt, data, saved_at, artifacts
  FROM dagapp.dag_checkpoints
 WHERE job_id = %(job_id)s AND node_id = %(node_id)s
 ORDER BY attempt, saved_at, name;

-- name: clock
-- The time of the server, which all times are compared with.
SELECT dagapp.clock() AS now;
