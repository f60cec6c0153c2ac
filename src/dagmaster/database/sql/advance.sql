-- name: open_jobs
-- First statement of every step: lock the jobs that are still ours, in id order, mark their reported results as
-- processed and return these with the counters of their nodes, up to a limit for each job. Rows without a node are the
-- jobs themselves. A job that is not returned has another owner now, or has no reports while only jobs with reports
-- were requested. If the statement had to wait for a lock, the transaction with the lock has changed the token or the
-- sequence, so that nothing is decided from rows that were read before the wait.
WITH held AS MATERIALIZED (
    SELECT locked.*
      FROM (SELECT * FROM unnest(%(job_ids)s::uuid[], %(tokens)s::uuid[]) AS t (job_id, token) ORDER BY job_id) AS k
     CROSS JOIN LATERAL (
           SELECT j.job_id, j.epoch, j.last_sequence,
                  CASE WHEN j.stopping IS NOT NULL THEN NULL
                       WHEN j.cancel_requested_at IS NOT NULL
                       THEN jsonb_build_object('stop', 'cancelled', 'by', j.cancel_requested_by,
                                               'reason', j.cancel_reason)
                       WHEN j.deadline_at < dagapp.clock() THEN jsonb_build_object('stop', 'deadline') END AS stop
             FROM dagapp.dag_jobs j
            -- Not `j.owner_id =`: the planner could use the index by owner, and read all jobs of the owner for each of
            -- these.
            WHERE j.job_id = k.job_id AND j.owner_id IS NOT DISTINCT FROM %(owner_id)s AND j.claim_token = k.token
              AND j.status IN ('pending', 'running')
              AND (NOT %(reported_only)s
                   OR j.cancel_requested_at IS NOT NULL AND j.stopping IS NULL
                   OR EXISTS (SELECT 1 FROM dagapp.dag_task_results x WHERE x.job_id = k.job_id AND NOT x.processed))
              FOR NO KEY UPDATE) AS locked
), reported AS MATERIALIZED (
    SELECT r.job_id, r.node_id, r.place
      FROM held
     CROSS JOIN LATERAL (
           SELECT x.job_id, x.node_id, x.ctid AS place
             FROM dagapp.dag_task_results x
            WHERE x.job_id = held.job_id AND NOT x.processed
            LIMIT %(per_job)s) AS r
), taken AS (
    UPDATE dagapp.dag_task_results r
       SET processed = true
      FROM reported k
      JOIN dagapp.dag_node_states n
        ON n.job_id = k.job_id AND n.node_id = k.node_id
     -- By ctid: only the transaction that holds the job's lock changes its results. Not `NOT r.processed`: the planner
     -- could use the index of unprocessed results, which has only the job's id.
     WHERE r.ctid = k.place AND r.processed IS NOT TRUE
    RETURNING r.job_id, r.node_id, r.attempt, n.parent_node_id, n.fan_out_index, n.status, n.retry_count, n.loss_count,
              r.status AS task_status, r.started_at, r.reported_at AS finished_at,
              r.worker_id::text AS worker_id, r.error,
              n.parent_node_id IS NULL AND r.output_ref IS NULL
              AND coalesce(pg_column_size(r.output), 0) <= %(small)s AS has_output,
              CASE WHEN n.parent_node_id IS NULL AND pg_column_size(r.output) <= %(small)s THEN r.output END AS output
)
SELECT job_id, epoch, last_sequence, stop, NULL::text AS node_id, NULL::int AS attempt, NULL::text AS parent_node_id,
       NULL::int AS fan_out_index, NULL::text AS status, NULL::int AS retry_count, NULL::int AS loss_count,
       NULL::text AS task_status, NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at,
       NULL::text AS worker_id, NULL::jsonb AS error, NULL::boolean AS has_output, NULL::jsonb AS output
  FROM held
 UNION ALL
SELECT job_id, NULL, NULL, NULL, node_id, attempt, parent_node_id, fan_out_index, status, retry_count, loss_count,
       task_status, started_at, finished_at, worker_id, error, has_output, output
  FROM taken;

-- name: take_overdue
-- End overdue tasks: as lost if their lease expired, as failed if they ran past their timeout, and as cancelled if they
-- waited too long in their queue.
WITH late AS MATERIALIZED (
    SELECT t.job_id, t.node_id, t.attempt, t.status,
           t.lease_until < dagapp.clock() AS is_lost
      FROM dagapp.dag_tasks t
     WHERE t.job_id = ANY (%(job_ids)s::uuid[])
       AND (t.status = 'running'
            AND (t.lease_until < dagapp.clock()
                 OR t.started_at + make_interval(secs => t.timeout_seconds + %(overrun_grace)s) < dagapp.clock())
            OR t.status = 'queued' AND t.expires_at IS NOT NULL AND t.expires_at < dagapp.clock())
     ORDER BY t.job_id, t.node_id, t.attempt
     LIMIT %(limit)s
       FOR NO KEY UPDATE
), ended AS (
    UPDATE dagapp.dag_tasks t
       SET status = CASE WHEN late.status = 'queued' THEN 'cancelled' WHEN late.is_lost THEN 'lost' ELSE 'failed' END,
           finished_at = dagapp.clock(),
           lease_until = NULL
      FROM late
     WHERE t.job_id = late.job_id AND t.node_id = late.node_id AND t.attempt = late.attempt
    RETURNING t.job_id, t.node_id, t.attempt, t.status, t.started_at, t.worker_id, t.timeout_seconds,
              extract(epoch FROM t.expires_at - t.available_at)::float8 AS queue_seconds
)
SELECT CASE e.status WHEN 'lost' THEN 'lost' WHEN 'cancelled' THEN 'expired' ELSE 'overran' END AS kind,
       e.job_id, e.node_id, e.attempt, n.parent_node_id, n.fan_out_index, n.status,
       n.retry_count, n.loss_count, e.started_at, e.worker_id::text AS worker_id,
       CASE e.status WHEN 'cancelled' THEN e.queue_seconds ELSE e.timeout_seconds END AS seconds
  FROM ended e
  JOIN dagapp.dag_node_states n
    ON n.job_id = e.job_id AND n.node_id = e.node_id;

-- name: take_waiting
-- Ready nodes whose delay is over; of failing jobs, all nodes that wait.
SELECT 'due' AS kind, n.job_id, n.node_id, n.attempt, n.parent_node_id, n.fan_out_index, n.status,
       n.retry_count, n.loss_count, NULL::timestamptz AS started_at, NULL AS worker_id, NULL::float8 AS seconds
  FROM dagapp.dag_node_states n
 WHERE n.job_id = ANY (%(job_ids)s::uuid[])
   AND n.not_before IS NOT NULL
   AND (n.not_before <= dagapp.clock() OR n.job_id = ANY (%(failing)s::uuid[]))
 LIMIT %(limit)s;

-- name: take_started
-- Tasks that have run for a while although their nodes still show as dispatched.
SELECT 'started' AS kind, n.job_id, n.node_id, t.attempt, n.parent_node_id, n.fan_out_index, n.status,
       n.retry_count, n.loss_count, t.started_at, t.worker_id::text AS worker_id, NULL::float8 AS seconds
  FROM dagapp.dag_tasks t
  JOIN dagapp.dag_node_states n
    ON n.job_id = t.job_id AND n.node_id = t.node_id AND n.status = 'dispatched'
 WHERE t.job_id = ANY (%(job_ids)s::uuid[]) AND t.status = 'running'
 LIMIT %(limit)s;

-- name: withdraw_tasks
-- Cancel tasks that no worker has started.
WITH live AS MATERIALIZED (
    SELECT t.job_id, t.node_id, t.attempt
      FROM dagapp.dag_tasks t
     WHERE t.job_id = ANY (%(job_ids)s::uuid[]) AND t.status = 'queued'
     ORDER BY t.job_id, t.node_id, t.attempt
     LIMIT %(limit)s
       FOR NO KEY UPDATE
), ended AS (
    UPDATE dagapp.dag_tasks t
       SET status = 'cancelled', finished_at = dagapp.clock(), lease_until = NULL
      FROM live
     WHERE t.job_id = live.job_id AND t.node_id = live.node_id AND t.attempt = live.attempt
    RETURNING t.job_id, t.node_id, t.attempt, t.started_at, t.worker_id
)
SELECT 'withdrawn' AS kind, e.job_id, e.node_id, e.attempt, n.parent_node_id, n.fan_out_index,
       n.status, n.retry_count, n.loss_count, e.started_at, e.worker_id::text AS worker_id, NULL::float8 AS seconds
  FROM ended e
  JOIN dagapp.dag_node_states n
    ON n.job_id = e.job_id AND n.node_id = e.node_id;

-- name: ask_to_stop
-- Ask the workers, once, to stop the running tasks of jobs that are to end.
WITH live AS MATERIALIZED (
    SELECT t.job_id, t.node_id, t.attempt
      FROM dagapp.dag_tasks t
     WHERE t.job_id = ANY (%(job_ids)s::uuid[]) AND t.status = 'running' AND t.stop_requested_at IS NULL
     ORDER BY t.job_id, t.node_id, t.attempt
     LIMIT %(limit)s
       FOR NO KEY UPDATE
)
UPDATE dagapp.dag_tasks t
   SET stop_requested_at = dagapp.clock()
  FROM live
 WHERE t.job_id = live.job_id AND t.node_id = live.node_id AND t.attempt = live.attempt
RETURNING 'asked' AS kind, t.job_id;

-- name: take_idle
-- Children that wait to run again since their job was resumed, up to a given number for each fan_out.
SELECT 'idle' AS kind, c.job_id, c.node_id, c.attempt, k.fan_out AS parent_node_id, c.fan_out_index, c.status,
       c.retry_count, c.loss_count, NULL::timestamptz AS started_at, NULL AS worker_id, NULL::float8 AS seconds
  FROM unnest(%(job_ids)s::uuid[], %(fan_outs)s::text[], %(counts)s::int[]) AS k (job_id, fan_out, count)
 CROSS JOIN LATERAL (
       SELECT n.job_id, n.node_id, n.attempt, n.fan_out_index, n.status, n.retry_count, n.loss_count
         FROM dagapp.dag_node_states n
        WHERE n.job_id = k.job_id AND n.parent_node_id = k.fan_out AND n.is_idle
        ORDER BY n.fan_out_index
        LIMIT k.count) AS c
 LIMIT %(limit)s;

-- name: promote_nodes
-- Set nodes to `ready` that get another state later in this transaction: each change of state is a transition of its
-- own.
UPDATE dagapp.dag_node_states n
   SET status = 'ready', not_before = NULL, version = n.version + 1
  FROM unnest(%(job_ids)s::uuid[], %(node_ids)s::text[]) AS k (job_id, node_id)
 WHERE n.job_id = k.job_id AND n.node_id = k.node_id AND n.status <> 'ready';

-- part: write
-- What nearly every step writes: node states, tasks, events and the jobs themselves. The rows to join are expanded
-- first (materialized), so that tables are only accessed by their whole key.
change AS MATERIALIZED (
    SELECT (c ->> 'job_id')::uuid AS job_id, (c ->> 'epoch')::bigint AS epoch, (c ->> 'priority')::smallint AS priority,
           (c ->> 'sequence')::bigint AS sequence, c
      FROM jsonb_array_elements(%(changes)s::jsonb) AS c
), node AS MATERIALIZED (
    SELECT change.job_id, m.*
      FROM change
     CROSS JOIN LATERAL jsonb_to_recordset(change.c -> 'nodes')
           AS m (node_id text, status text, attempt int, retry_count int, loss_count int, max_retries int, reason text,
                 error jsonb, output jsonb, takes_result boolean, input_params jsonb, wait_seconds float8, total int,
                 expanded int, ended int, ended_failed int, ended_cancelled int, woken int, settled_stale int,
                 label text, started_at timestamptz, finished_at timestamptz)
), moved AS (
    UPDATE dagapp.dag_node_states n
       SET status = m.status,
           attempt = coalesce(m.attempt, n.attempt),
           retry_count = coalesce(m.retry_count, n.retry_count),
           loss_count = coalesce(m.loss_count, n.loss_count),
           max_retries = coalesce(m.max_retries, n.max_retries),
           -- A fan_out that failed or was cancelled still counts its children down: that is no transition.
           reason = CASE WHEN m.status = n.status THEN coalesce(m.reason, n.reason) ELSE m.reason END,
           error = CASE WHEN m.status = n.status THEN coalesce(m.error, n.error) ELSE m.error END,
           error_message = CASE WHEN m.status = n.status THEN coalesce(m.error ->> 'message', n.error_message)
                                ELSE m.error ->> 'message' END,
           output = CASE WHEN m.takes_result THEN r.output ELSE coalesce(m.output, n.output) END,
           output_ref = CASE WHEN m.takes_result THEN r.output_ref ELSE n.output_ref END,
           input_params = coalesce(m.input_params, n.input_params),
           not_before = CASE WHEN m.wait_seconds IS NOT NULL
                             THEN (SELECT dagapp.clock()) + make_interval(secs => m.wait_seconds) END,
           total = coalesce(m.total, n.total),
           expanded = coalesce(m.expanded, n.expanded),
           remaining = coalesce(m.total, n.remaining) - coalesce(m.ended, 0),
           failed_count = CASE WHEN n.total IS NOT NULL OR m.total IS NOT NULL
                               THEN coalesce(n.failed_count, 0) + coalesce(m.ended_failed, 0) END,
           cancelled_count = CASE WHEN n.total IS NOT NULL OR m.total IS NOT NULL
                                  THEN coalesce(n.cancelled_count, 0) + coalesce(m.ended_cancelled, 0) END,
           idle_count = n.idle_count - coalesce(m.woken, 0),
           stale_count = n.stale_count - coalesce(m.settled_stale, 0),
           label = coalesce(m.label, n.label),
           is_idle = CASE WHEN m.status = 'pending' THEN n.is_idle END,
           dispatched_at = CASE WHEN m.status = 'dispatched' THEN (SELECT dagapp.clock()) ELSE n.dispatched_at END,
           started_at = coalesce(m.started_at, n.started_at),
           completed_at = CASE WHEN m.status IN ('completed', 'failed', 'skipped', 'cancelled')
                               THEN coalesce(m.finished_at, n.completed_at, (SELECT dagapp.clock())) END,
           version = n.version + 1
      FROM node m
      LEFT JOIN dagapp.dag_task_results r
        ON r.job_id = m.job_id AND r.node_id = m.node_id AND r.attempt = CASE WHEN m.takes_result THEN m.attempt END
     WHERE n.job_id = m.job_id AND n.node_id = m.node_id
    RETURNING 1
), queued AS (
    INSERT INTO dagapp.dag_tasks
           (job_id, node_id, attempt, queue, handler, priority, status, params, params_ref, timeout_seconds,
            retry_count, expires_at, traceparent)
    SELECT change.job_id, t.node_id, t.attempt, t.queue, t.handler, change.priority, 'queued', t.params, t.params_ref,
           t.timeout_seconds, t.retry_count, (SELECT dagapp.clock()) + make_interval(secs => t.queue_timeout_seconds),
           change.c ->> 'traceparent'
      FROM change
     CROSS JOIN LATERAL jsonb_to_recordset(change.c -> 'tasks')
           AS t (node_id text, attempt int, queue text, handler text, params jsonb, params_ref jsonb,
                 timeout_seconds float8, retry_count int, queue_timeout_seconds float8)
    RETURNING job_id, node_id, attempt, queue
), recorded AS (
    INSERT INTO dagapp.dag_job_events
           (job_id, sequence, node_id, event_type, event_status, attempt, epoch, event_data, created_at)
    SELECT change.job_id, e.sequence, e.node_id, e.type, e.status, e.attempt, change.epoch, e.data,
           coalesce(e.at, (SELECT dagapp.clock()))
      FROM change
     CROSS JOIN LATERAL jsonb_to_recordset(change.c -> 'events')
           AS e (sequence bigint, type text, node_id text, status text, attempt int, data jsonb, at timestamptz)
    RETURNING 1
), jobs AS (
    UPDATE dagapp.dag_jobs j
       SET last_sequence = change.sequence,
           status = coalesce(m.status, j.status),
           started_at = CASE WHEN m.status = 'running' THEN dagapp.clock() ELSE j.started_at END,
           completed_at = CASE WHEN m.status <> 'running' THEN dagapp.clock() ELSE j.completed_at END,
           result_data = coalesce(m.result_data, j.result_data),
           error_message = coalesce(m.error_message, j.error_message),
           stopping = coalesce(change.c ->> 'stopping', j.stopping),
           -- Work that was deferred before keeps the time at which a live process last knew it.
           deferred_work = CASE WHEN change.c ? 'deferred' THEN (
               SELECT jsonb_agg(d || jsonb_build_object('known_at', coalesce(b.known_at, to_jsonb(dagapp.clock()))))
                 FROM jsonb_array_elements(change.c -> 'deferred') AS d
                 LEFT JOIN LATERAL (
                      SELECT b -> 'known_at' AS known_at
                        FROM jsonb_path_query(j.deferred_work, '$[*]') AS b
                       WHERE b ->> 'handler' = d ->> 'handler' AND b ->> 'queue' IS NOT DISTINCT FROM d ->> 'queue'
                       LIMIT 1) AS b
                   ON true) ELSE j.deferred_work END,
           owner_id = CASE WHEN m.status <> 'running' THEN NULL ELSE j.owner_id END,
           claim_token = CASE WHEN m.status <> 'running' THEN NULL ELSE j.claim_token END,
           owner_heartbeat_at = (SELECT dagapp.clock()),
           updated_at = (SELECT dagapp.clock()),
           version = j.version + 1
      FROM change
      LEFT JOIN LATERAL jsonb_to_record(change.c -> 'job_moves' -> 0)
           AS m (status text, result_data jsonb, error_message text)
        ON true
     WHERE j.job_id = change.job_id
    RETURNING 1
)

-- part: write_more
-- What a step can write in addition: children, next attempts and poisoned tasks.
next_attempt AS MATERIALIZED (
    SELECT change.job_id, a.node_id, a.attempt, a.attempt - 1 AS previous_attempt, a.retry_count
      FROM change
     CROSS JOIN LATERAL jsonb_to_recordset(change.c -> 'next_attempts')
           AS a (node_id text, attempt int, retry_count int)
), new_children AS (
    INSERT INTO dagapp.dag_node_states
           (job_id, node_id, status, parent_node_id, fan_out_index, label, attempt, max_retries, dispatched_at)
    SELECT change.job_id, b.node_id, 'dispatched', family.key, b.index, b.label, 1, b.max_retries,
           (SELECT dagapp.clock())
      FROM change
     CROSS JOIN LATERAL jsonb_each(change.c -> 'children') AS family
     CROSS JOIN LATERAL jsonb_to_recordset(family.value)
           AS b (node_id text, index int, label text, max_retries int)
    RETURNING 1
), queued_again AS (
    INSERT INTO dagapp.dag_tasks
           (job_id, node_id, attempt, queue, handler, priority, status, params, params_ref, timeout_seconds,
            retry_count, expires_at, traceparent)
    SELECT p.job_id, p.node_id, a.attempt, p.queue, p.handler, p.priority, 'queued', p.params, p.params_ref,
           p.timeout_seconds, a.retry_count, dagapp.clock() + (p.expires_at - p.available_at), p.traceparent
      FROM next_attempt a
      JOIN dagapp.dag_tasks p
        ON p.job_id = a.job_id AND p.node_id = a.node_id AND p.attempt = a.previous_attempt
    RETURNING job_id, node_id, attempt, queue
), poison AS MATERIALIZED (
    SELECT change.job_id, d.node_id, d.attempt, d.description
      FROM change
     CROSS JOIN LATERAL jsonb_to_recordset(change.c -> 'poisoned')
           AS d (node_id text, attempt int, description text)
), dead_letters AS (
    INSERT INTO dagapp.dag_dead_letters (queue, message_id, reason, description, body)
    SELECT t.queue, t.task_id, 'PoisonTask', d.description,
           jsonb_build_object('task_id', t.task_id, 'job_id', t.job_id, 'node_id', t.node_id, 'handler', t.handler,
                              'attempt', t.attempt, 'params', t.params)
           || CASE WHEN t.params_ref IS NULL THEN '{}' ELSE jsonb_build_object('params_ref', t.params_ref) END
      FROM poison d
      JOIN dagapp.dag_tasks t
        ON t.job_id = d.job_id AND t.node_id = d.node_id AND t.attempt = d.attempt
)

-- part: all_written
SELECT dagapp.demand_counts(
           ARRAY[(SELECT count(*) FROM moved),
                 (SELECT count(*) FROM new_children),
                 (SELECT count(*) FROM queued) + (SELECT count(*) FROM queued_again),
                 (SELECT count(*) FROM recorded),
                 (SELECT count(*) FROM jobs)],
           %(counts)s::bigint[]),
       ARRAY(SELECT queue FROM queued_again) AS queues

-- part: step_written
SELECT dagapp.demand_counts(
           ARRAY[(SELECT count(*) FROM moved),
                 0,
                 (SELECT count(*) FROM queued),
                 (SELECT count(*) FROM recorded),
                 (SELECT count(*) FROM jobs)],
           %(counts)s::bigint[]),
       '{}'::text[] AS queues

-- name: apply_changes
-- Write the changes of a step, with everything that they can contain: also children, next attempts and poisoned tasks.
WITH
-- use: write
,
-- use: write_more
-- use: all_written
;

-- name: apply_steps
-- Write the changes of a step that contain no children, next attempts or poisoned tasks: the statement is cheaper
-- without them.
WITH
-- use: write
-- use: step_written
;

-- name: apply_changes_with_outbox
-- The same as apply_changes, for a message broker: each new task is also written to the outbox.
WITH
-- use: write
,
-- use: write_more
, outbox AS (
    INSERT INTO dagapp.dag_outbox (job_id, node_id, attempt, queue)
    SELECT job_id, node_id, attempt, queue FROM queued
     UNION ALL
    SELECT job_id, node_id, attempt, queue FROM queued_again
)
-- use: all_written
;

-- name: apply_steps_with_outbox
-- The same as apply_steps, for a message broker: each new task is also written to the outbox.
WITH
-- use: write
, outbox AS (
    INSERT INTO dagapp.dag_outbox (job_id, node_id, attempt, queue)
    SELECT job_id, node_id, attempt, queue FROM queued
)
-- use: step_written
;

-- name: fan_out_total
-- How many children a fan_out has.
SELECT coalesce(total, 0) AS total
  FROM dagapp.dag_node_states
 WHERE job_id = %(job_id)s AND node_id = %(node_id)s;

-- name: gather_children
-- Fill in the output of fan_ins that this transaction completed, from their children's rows, in index order. An output
-- that is too large to be stored twice is stored as a reference to those rows; so is an output that contains payloads.
-- Only jobs that have payloads are checked for these.
WITH wanted AS MATERIALIZED (
    SELECT g.*,
           CASE WHEN EXISTS (SELECT 1 FROM dagapp.dag_payloads p WHERE p.job_id = g.job_id)
                THEN dagapp.referred_bytes(g.job_id, g.fan_out, g.aggregation) END AS referred
      FROM jsonb_to_recordset(%(gatherings)s::jsonb) AS g (job_id uuid, node_id text, fan_out text, aggregation text)
), gathered AS MATERIALIZED (
    SELECT w.job_id, w.node_id, w.fan_out, w.aggregation, w.referred,
           CASE WHEN w.referred IS NULL THEN dagapp.gather(w.job_id, w.fan_out, w.aggregation) END AS output
      FROM wanted w
), measured AS (
    SELECT g.*, coalesce(g.referred, octet_length(g.output::text)) AS bytes
      FROM gathered g
)
UPDATE dagapp.dag_node_states n
   SET output = CASE WHEN g.referred IS NULL AND g.bytes <= %(inline)s THEN g.output END,
       output_ref = CASE WHEN g.referred IS NOT NULL OR g.bytes > %(inline)s
                         THEN jsonb_build_object('results_of', g.fan_out, 'aggregation', g.aggregation,
                                                 'bytes', g.bytes) END
  FROM measured g
 WHERE n.job_id = g.job_id AND n.node_id = g.node_id;

-- name: lock_claimed_job
-- Lock a job, if its claim is still valid.
SELECT job_id
  FROM dagapp.dag_jobs
 WHERE job_id = %(job_id)s AND owner_id IS NOT DISTINCT FROM %(owner_id)s AND claim_token = %(token)s
   AND status IN ('pending', 'running')
   FOR NO KEY UPDATE;

-- name: cancel_tasks
-- Cancel the queued and running tasks of a job. From then on no worker can report a result to it.
UPDATE dagapp.dag_tasks t
   SET status = 'cancelled', finished_at = dagapp.clock(), lease_until = NULL
  FROM (SELECT job_id, node_id, attempt
          FROM dagapp.dag_tasks
         WHERE job_id = %(job_id)s AND status IN ('queued', 'running')
         ORDER BY job_id, node_id, attempt
           FOR NO KEY UPDATE) AS live
 WHERE t.job_id = live.job_id AND t.node_id = live.node_id AND t.attempt = live.attempt;

-- name: fail_job
-- End a job that cannot be advanced and has no task left: cancel its nodes, count its children, fail the job. No JSON
-- of its rows is read, because that may be what fails. Results that were not processed stay without effect.
WITH held AS MATERIALIZED (
    SELECT j.job_id, j.epoch, j.last_sequence
      FROM dagapp.dag_jobs j
     WHERE j.job_id = %(job_id)s
), processed AS (
    UPDATE dagapp.dag_task_results r
       SET processed = true
      FROM held
     WHERE r.job_id = held.job_id AND NOT r.processed
), open_nodes AS MATERIALIZED (
    SELECT n.job_id, n.node_id, n.parent_node_id, n.is_idle AND n.fan_out_index < p.expanded AS is_idle,
           coalesce(n.is_idle AND n.fan_out_index >= coalesce(p.expanded, 0), false) AS is_stale,
           CASE WHEN n.status IN ('dispatched', 'running') THEN n.attempt END AS live_attempt,
           row_number() OVER (ORDER BY n.parent_node_id NULLS LAST, n.fan_out_index, n.node_id) AS place
      FROM held
      JOIN dagapp.dag_node_states n
        ON n.job_id = held.job_id AND n.status IN ('pending', 'ready', 'dispatched', 'running')
      LEFT JOIN dagapp.dag_node_states p
        ON p.job_id = n.job_id AND p.node_id = n.parent_node_id
), parents AS MATERIALIZED (
    SELECT job_id, parent_node_id AS node_id, count(*) FILTER (WHERE NOT is_stale) AS ended,
           count(*) FILTER (WHERE is_idle) AS idle, count(*) FILTER (WHERE is_stale) AS stale
      FROM open_nodes
     WHERE parent_node_id IS NOT NULL
     GROUP BY job_id, parent_node_id
), touched AS MATERIALIZED (
    SELECT job_id, node_id, o.place IS NOT NULL AS is_open, coalesce(p.ended, 0) AS ended, coalesce(p.idle, 0) AS idle,
           coalesce(p.stale, 0) AS stale
      FROM open_nodes o
      FULL JOIN parents p
     USING (job_id, node_id)
), closed AS (
    UPDATE dagapp.dag_node_states n
       SET status = CASE WHEN t.is_open THEN 'cancelled' ELSE n.status END,
           reason = CASE WHEN t.is_open THEN 'not_advanced' ELSE n.reason END,
           completed_at = CASE WHEN t.is_open THEN dagapp.clock() ELSE n.completed_at END,
           is_idle = CASE WHEN t.is_open THEN NULL ELSE n.is_idle END,
           not_before = NULL,
           remaining = n.remaining - t.ended,
           cancelled_count = n.cancelled_count + t.ended,
           idle_count = n.idle_count - t.idle,
           stale_count = n.stale_count - t.stale,
           version = n.version + 1
      FROM touched t
     WHERE n.job_id = t.job_id AND n.node_id = t.node_id
), recorded AS (
    INSERT INTO dagapp.dag_job_events
           (job_id, sequence, node_id, event_type, event_status, attempt, epoch, event_data, created_at)
    SELECT held.job_id, held.last_sequence + o.place, o.node_id, 'node_cancelled', 'cancelled', o.live_attempt,
           held.epoch, '{"reason": "not_advanced"}'::jsonb, dagapp.clock()
      FROM held
      JOIN open_nodes o
     USING (job_id)
     UNION ALL
    SELECT held.job_id, held.last_sequence + 1 + (SELECT count(*) FROM open_nodes), NULL, 'job_failed', 'failed', NULL,
           held.epoch, jsonb_build_object('error_message', %(error_message)s::text, 'reason', 'not_advanced'),
           dagapp.clock()
      FROM held
)
UPDATE dagapp.dag_jobs j
   SET status = 'failed',
       completed_at = dagapp.clock(),
       error_message = %(error_message)s,
       last_sequence = j.last_sequence + 1 + (SELECT count(*) FROM open_nodes),
       deferred_work = NULL,
       owner_id = NULL,
       claim_token = NULL,
       updated_at = dagapp.clock(),
       version = j.version + 1
  FROM held
 WHERE j.job_id = held.job_id;
