-- name: beat_orchestrator
-- Write the heartbeat of an orchestrator.
INSERT INTO dagapp.orchestrators AS o (owner_id, host, pid, software_version, stats, handlers, queues)
VALUES (%(owner_id)s, %(host)s, %(pid)s, %(software_version)s, %(stats)s, %(handlers)s, %(queues)s)
    ON CONFLICT (owner_id) DO UPDATE
   SET heartbeat_at = dagapp.clock(), stats = excluded.stats;

-- name: end_stuck_owners
-- End the sessions of owners that were paused inside a transaction: they keep the rows of their jobs locked, so that no
-- other instance can claim them. No timeout of the server ends such a session: psycopg's pipelines close with Sync and
-- Flush, and the Flush stops the timer of idle transactions.
SELECT pg_terminate_backend(a.pid) AS ended
  FROM dagapp.dag_jobs j
  JOIN pg_stat_activity a
    ON a.backend_xid = j.xmax
 WHERE j.status IN ('pending', 'running')
   AND NOT EXISTS (SELECT 1
                     FROM dagapp.orchestrators o
                    WHERE o.owner_id = j.owner_id
                      AND o.heartbeat_at > dagapp.clock() - make_interval(secs => %(orphan_after)s))
   AND a.datname = current_database()
   AND a.usename = current_user
   AND a.xact_start < clock_timestamp() - make_interval(secs => %(orphan_after)s)
 GROUP BY a.pid;

-- name: claim_jobs
-- Claim jobs without an owner and (with `orphans`) those whose owner sends no heartbeat, up to a fair share; beyond it
-- only jobs that waited too long. A missing owner row counts as a dead owner. An instance that has sent no heartbeat
-- itself claims no orphans: after an outage this applies to all instances, which would otherwise claim each other's
-- jobs. Materialized, so that LIMIT is applied exactly once.
WITH alive AS (
    SELECT owner_id, handlers, queues
      FROM dagapp.orchestrators
     WHERE heartbeat_at > dagapp.clock() - make_interval(secs => %(orphan_after)s)
), load AS (
    SELECT count(*) AS active,
           count(*) FILTER (WHERE owner_id = %(owner_id)s) AS owned
      FROM dagapp.dag_jobs
     WHERE status IN ('pending', 'running')
), share AS (
    SELECT greatest(0, least(%(limit)s, ceil(active::float8 / greatest(1, (SELECT count(*) FROM alive))) - owned))::int
               AS capacity
      FROM load
), candidates AS MATERIALIZED (
    SELECT j.job_id
      FROM dagapp.dag_jobs j
     CROSS JOIN share
     WHERE j.status IN ('pending', 'running')
       AND (j.owner_id IS NULL
            OR %(orphans)s
               AND NOT EXISTS (SELECT 1 FROM alive a WHERE a.owner_id = j.owner_id)
               AND EXISTS (SELECT 1 FROM alive a WHERE a.owner_id = %(owner_id)s))
       -- Deferred work waits for an instance that can route it, as long as one is alive.
       AND (j.deferred_work IS NULL
            OR coalesce((SELECT bool_or(a.owner_id = %(owner_id)s)
                           FROM alive a
                          CROSS JOIN LATERAL jsonb_path_query(j.deferred_work, '$[*]') AS d
                          WHERE d ->> 'handler' = ANY (a.handlers)
                            AND (d ->> 'queue' IS NULL OR d ->> 'queue' = ANY (a.queues))), true))
       AND (share.capacity > 0 OR j.updated_at < dagapp.clock() - make_interval(secs => %(unclaimed_after)s))
     ORDER BY j.priority DESC, j.job_id
     LIMIT (SELECT CASE WHEN capacity > 0 THEN capacity ELSE %(limit)s END FROM share)
       FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE dagapp.dag_jobs j
   SET owner_id = %(owner_id)s,
       claim_token = gen_random_uuid(),
       epoch = j.epoch + 1,
       owner_heartbeat_at = dagapp.clock(),
       updated_at = dagapp.clock(),
       version = j.version + 1
  FROM candidates c
 WHERE j.job_id = c.job_id
RETURNING j.job_id, j.claim_token AS token, j.epoch;

-- name: load_jobs
-- Jobs by id.
SELECT job_id, status, definition_hash, input_params, priority, correlation_id, submitted_by, result_data,
       error_message, last_sequence, stopping, resume_count, traceparent,
       jsonb_path_query_array(deferred_work, '$[*] ? (exists (@.node_id) && exists (@.handler) && exists (@.known_at))')
           AS deferred_work
  FROM dagapp.dag_jobs
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: load_definitions
-- The definitions of jobs, as they were submitted.
SELECT definition_hash, body
  FROM dagapp.dag_workflow_definitions
 WHERE definition_hash = ANY (%(hashes)s::text[]);

-- name: load_nodes
-- The nodes of a job's definition with small outputs, by whole key so that children are never read.
SELECT n.job_id,
       (n.status = 'completed' AND n.output_ref IS NULL AND coalesce(pg_column_size(n.output), 0) <= %(small)s)
           AS has_output,
       n.node_id, n.status, n.attempt, n.retry_count, n.loss_count, n.reason, n.error_message, n.total, n.expanded,
       n.remaining, n.failed_count, n.cancelled_count, n.idle_count, n.stale_count,
       CASE WHEN coalesce(pg_column_size(n.output), 0) <= %(small)s THEN n.output END AS output
  FROM unnest(%(job_ids)s::uuid[], %(node_ids)s::text[]) AS k (job_id, node_id)
  JOIN dagapp.dag_node_states n
    ON n.job_id = k.job_id AND n.node_id = k.node_id;

-- name: load_outputs
-- The outputs of some nodes of a job.
SELECT node_id, output, output_ref
  FROM dagapp.dag_node_states
 WHERE job_id = %(job_id)s AND node_id = ANY (%(node_ids)s::text[]) AND status = 'completed';

-- name: reported_jobs
-- Which of an owner's jobs have unprocessed results, or a request to cancel.
SELECT j.job_id
  FROM dagapp.dag_jobs j
 WHERE j.owner_id = %(owner_id)s
   AND j.status IN ('pending', 'running')
   AND (j.cancel_requested_at IS NOT NULL AND j.stopping IS NULL
        OR EXISTS (SELECT 1 FROM dagapp.dag_task_results r WHERE r.job_id = j.job_id AND NOT r.processed));

-- name: sweep_jobs
-- Which of an owner's jobs have reports (as in reported_jobs), are past their deadline, have expired leases, tasks past
-- their time, waits that are over, or tasks to show as running; and how many jobs it owns.
WITH owned AS MATERIALIZED (
    SELECT job_id, deadline_at < dagapp.clock() AND stopping IS NULL AS is_overdue,
           cancel_requested_at IS NOT NULL AND stopping IS NULL AS is_to_stop
      FROM dagapp.dag_jobs
     WHERE owner_id = %(owner_id)s AND status IN ('pending', 'running')
), running AS (
    SELECT t.job_id, t.node_id, t.started_at,
           t.lease_until < dagapp.clock()
           OR t.started_at + make_interval(secs => t.timeout_seconds + %(overrun_grace)s) < dagapp.clock() AS is_overdue
      FROM owned
      JOIN dagapp.dag_tasks t
        ON t.job_id = owned.job_id AND t.status = 'running'
), waits AS (
    SELECT n.job_id, n.not_before
      FROM owned
      JOIN dagapp.dag_node_states n
        ON n.job_id = owned.job_id AND n.not_before IS NOT NULL
)
SELECT 'reported' AS kind, job_id, NULL::float8 AS seconds, NULL::int AS jobs
  FROM owned
 WHERE is_to_stop OR EXISTS (SELECT 1 FROM dagapp.dag_task_results r WHERE r.job_id = owned.job_id AND NOT r.processed)
 UNION ALL
SELECT 'overdue', job_id, NULL, NULL FROM running WHERE is_overdue GROUP BY job_id
 UNION ALL
SELECT 'overdue', job_id, NULL, NULL FROM owned WHERE is_overdue
 UNION ALL
SELECT 'overdue', job_id, NULL, NULL FROM waits WHERE not_before <= dagapp.clock() GROUP BY job_id
 UNION ALL
SELECT 'overdue', t.job_id, NULL, NULL
  FROM owned
  JOIN dagapp.dag_tasks t
    ON t.job_id = owned.job_id AND t.status = 'queued' AND t.expires_at IS NOT NULL AND t.expires_at < dagapp.clock()
 GROUP BY t.job_id
 UNION ALL
SELECT 'started', r.job_id, NULL, NULL
  FROM running r
  JOIN dagapp.dag_node_states n
    ON n.job_id = r.job_id AND n.node_id = r.node_id AND n.status = 'dispatched'
 WHERE r.started_at < dagapp.clock() - make_interval(secs => %(started_after)s)
 GROUP BY r.job_id
 UNION ALL
SELECT 'next', NULL, extract(epoch FROM min(not_before) - dagapp.clock())::float8, NULL
  FROM waits
 WHERE not_before > dagapp.clock()
HAVING count(*) > 0
 UNION ALL
SELECT 'owned', NULL, NULL, count(*)::int FROM owned;

-- name: review_deferred
-- Deferred work of an owner's jobs: release the jobs that another live orchestrator can advance, note which work a live
-- process knows (at most every twentieth of that time, so that few rows are written), and return which work has been
-- unknown too long.
WITH alive AS MATERIALIZED (
    SELECT owner_id, handlers, queues
      FROM dagapp.orchestrators
     WHERE heartbeat_at > dagapp.clock() - make_interval(secs => %(alive)s)
     UNION ALL
    SELECT NULL, handlers, queues
      FROM dagapp.workers
     WHERE heartbeat_at > dagapp.clock() - make_interval(secs => %(alive)s)
), held AS MATERIALIZED (
    SELECT j.job_id, j.deferred_work
      FROM unnest(%(job_ids)s::uuid[], %(tokens)s::uuid[]) AS k (job_id, token)
      JOIN dagapp.dag_jobs j
        ON j.job_id = k.job_id AND j.claim_token = k.token
     WHERE j.deferred_work IS NOT NULL
     ORDER BY j.job_id
       FOR NO KEY UPDATE OF j
), work AS MATERIALIZED (
    SELECT h.job_id, d.place, d.value ->> 'node_id' AS node_id, d.value ->> 'handler' AS handler,
           d.value ->> 'queue' AS queue, (d.value ->> 'known_at')::timestamptz AS known_at, k.is_routable, k.is_known
      FROM held h
     CROSS JOIN LATERAL jsonb_path_query(h.deferred_work, '$[*]') WITH ORDINALITY AS d (value, place)
     CROSS JOIN LATERAL (
           SELECT coalesce(bool_or(a.owner_id IS NOT NULL), false) AS is_routable, count(*) > 0 AS is_known
             FROM alive a
            WHERE d.value ->> 'handler' = ANY (a.handlers)
              AND (d.value ->> 'queue' IS NULL OR d.value ->> 'queue' = ANY (a.queues))) AS k
), noted AS MATERIALIZED (
    SELECT job_id, bool_or(is_routable) AS is_routable,
           bool_or(is_known AND known_at < dagapp.clock() - make_interval(secs => %(unknown_after)s / 20))
               AS is_outdated,
           jsonb_agg(jsonb_build_object('node_id', node_id, 'handler', handler, 'queue', queue,
                                        'known_at', CASE WHEN is_known THEN dagapp.clock() ELSE known_at END)
                     ORDER BY place) AS deferred_work
      FROM work
     GROUP BY job_id
), written AS (
    UPDATE dagapp.dag_jobs j
       SET deferred_work = n.deferred_work,
           owner_id = CASE WHEN n.is_routable THEN NULL ELSE j.owner_id END,
           claim_token = CASE WHEN n.is_routable THEN NULL ELSE j.claim_token END,
           updated_at = CASE WHEN n.is_routable THEN dagapp.clock() ELSE j.updated_at END,
           version = j.version + 1
      FROM noted n
     WHERE j.job_id = n.job_id AND (n.is_routable OR n.is_outdated)
)
SELECT w.job_id, w.handler, w.queue, n.is_routable AS is_released,
       NOT w.is_known AND w.known_at < dagapp.clock() - make_interval(secs => %(unknown_after)s) AS is_unroutable
  FROM work w
  JOIN noted n
    ON n.job_id = w.job_id;

-- name: release_unknown_jobs
-- Release the jobs that an owner does not know of: the response to their claim was lost.
WITH unknown AS MATERIALIZED (
    SELECT job_id
      FROM dagapp.dag_jobs
     WHERE owner_id = %(owner_id)s AND status IN ('pending', 'running') AND job_id <> ALL (%(known)s::uuid[])
     ORDER BY job_id
       FOR NO KEY UPDATE
)
UPDATE dagapp.dag_jobs j
   SET owner_id = NULL, claim_token = NULL, updated_at = dagapp.clock(), version = j.version + 1
  FROM unknown
 WHERE j.job_id = unknown.job_id
RETURNING j.job_id;

-- name: retire_orchestrator
-- A clean stop: release every job of this owner, and delete the instance.
WITH deleted AS (
    DELETE FROM dagapp.orchestrators
     WHERE owner_id = %(owner_id)s
), held AS MATERIALIZED (
    SELECT job_id
      FROM dagapp.dag_jobs
     WHERE owner_id = %(owner_id)s AND status IN ('pending', 'running')
     ORDER BY job_id
       FOR NO KEY UPDATE
)
UPDATE dagapp.dag_jobs j
   SET owner_id = NULL, claim_token = NULL, updated_at = dagapp.clock(), version = j.version + 1
  FROM held
 WHERE j.job_id = held.job_id
RETURNING j.job_id;

-- name: notify_channels
-- Notify these channels. The commit need not wait for the disk: a lost notification does no harm.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(channel, '')
  FROM unnest(%(channels)s::text[]) AS channel;

-- name: forget_silent_instances
-- Delete workers without a heartbeat for a day, and such orchestrators if they own no jobs.
WITH deleted AS (
    DELETE FROM dagapp.workers
     WHERE heartbeat_at < dagapp.clock() - interval '1 day'
)
DELETE FROM dagapp.orchestrators o
 WHERE o.heartbeat_at < dagapp.clock() - interval '1 day'
   AND NOT EXISTS (SELECT 1
                     FROM dagapp.dag_jobs j
                    WHERE j.owner_id = o.owner_id AND j.status IN ('pending', 'running'));

-- name: make_event_partitions
-- Create the partitions for the events of this month and the next ones.
SELECT dagapp.ensure_event_partitions();
