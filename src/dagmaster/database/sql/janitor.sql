-- name: janitor_lock
-- One janitor at a time runs a rule, until its transaction ends.
SELECT pg_try_advisory_xact_lock(hashtext('dagapp.janitor'), hashtext(%(kind)s)) AS is_acquired;

-- name: janitor_neglected
-- Jobs whose owner is alive, but has neither claimed nor written them for a long time, although work on them was due
-- for as long. The reason is `action_type`; waiting for a worker, for a task or for a time is not neglect.
WITH threshold AS MATERIALIZED (
    SELECT dagapp.clock() - make_interval(secs => %(neglected_after)s) AS late_before
), held AS MATERIALIZED (
    SELECT j.job_id, j.owner_id, j.epoch, j.version, j.deadline_at, j.cancel_requested_at, j.stopping,
           threshold.late_before, extract(epoch FROM dagapp.clock() - j.owner_heartbeat_at)::float8 AS seconds
      FROM threshold
     CROSS JOIN dagapp.dag_jobs j
      JOIN dagapp.orchestrators o
        ON o.owner_id = j.owner_id AND o.heartbeat_at > dagapp.clock() - make_interval(secs => %(orphan_after)s)
     WHERE j.status IN ('pending', 'running') AND j.owner_heartbeat_at < threshold.late_before
), classified AS MATERIALIZED (
    SELECT h.job_id, h.owner_id, h.epoch, h.version, h.seconds,
           CASE
           WHEN h.stopping IS NULL AND h.cancel_requested_at < h.late_before THEN 'cancel_unheeded'
           WHEN h.stopping IS NULL AND h.deadline_at < h.late_before THEN 'deadline_passed'
           WHEN EXISTS (SELECT 1 FROM dagapp.dag_tasks t
                         WHERE t.job_id = h.job_id AND t.status = 'running' AND t.lease_until < h.late_before)
               THEN 'lease_lapsed'
           WHEN EXISTS (SELECT 1 FROM dagapp.dag_tasks t
                         WHERE t.job_id = h.job_id AND t.status = 'running'
                           AND t.started_at + make_interval(secs => t.timeout_seconds) < h.late_before)
               THEN 'task_overran'
           WHEN EXISTS (SELECT 1 FROM dagapp.dag_tasks t
                         WHERE t.job_id = h.job_id AND t.status = 'queued' AND t.expires_at IS NOT NULL
                           AND t.expires_at < h.late_before)
               THEN 'task_expired'
           WHEN EXISTS (SELECT 1 FROM dagapp.dag_task_results r
                         WHERE r.job_id = h.job_id AND NOT r.processed AND r.reported_at < h.late_before)
               THEN 'results_unread'
           WHEN EXISTS (SELECT 1 FROM dagapp.dag_node_states n
                         WHERE n.job_id = h.job_id AND n.not_before IS NOT NULL AND n.not_before < h.late_before)
               THEN 'wait_over'
           WHEN EXISTS (SELECT 1
                          FROM dagapp.dag_tasks t
                         WHERE t.job_id = h.job_id AND t.status IN ('queued', 'running'))
             OR EXISTS (SELECT 1 FROM dagapp.dag_node_states n WHERE n.job_id = h.job_id AND n.not_before IS NOT NULL)
             OR EXISTS (SELECT 1 FROM dagapp.dag_task_results r WHERE r.job_id = h.job_id AND NOT r.processed) THEN NULL
           WHEN EXISTS (SELECT 1 FROM dagapp.dag_node_states n
                         WHERE n.job_id = h.job_id
                           AND n.status NOT IN ('completed', 'failed', 'skipped', 'cancelled')) THEN 'job_stalled'
           ELSE 'job_unfinished' END AS action_type
      FROM held h
)
SELECT job_id, owner_id, epoch, version, seconds, action_type
  FROM classified
 WHERE action_type IS NOT NULL
 ORDER BY job_id
 LIMIT %(limit)s;

-- name: janitor_release
-- End the claims on neglected jobs, so that the next owner reads them from the database. Only where the job was not
-- written since it was read, and no other transaction has locked it.
WITH finding AS MATERIALIZED (
    SELECT s.*
      FROM jsonb_to_recordset(%(findings)s::jsonb)
           AS s (job_id uuid, owner_id uuid, epoch bigint, version bigint, action_type text, reason text, detail jsonb)
), held AS MATERIALIZED (
    SELECT j.job_id, s.action_type, s.reason, s.detail
      FROM finding s
      JOIN dagapp.dag_jobs j
        ON j.job_id = s.job_id
     WHERE j.owner_id = s.owner_id
       AND j.epoch = s.epoch
       AND j.version = s.version
       AND j.status IN ('pending', 'running')
     ORDER BY j.job_id
       FOR NO KEY UPDATE OF j SKIP LOCKED
), released AS (
    UPDATE dagapp.dag_jobs j
       SET owner_id = NULL, claim_token = NULL, updated_at = dagapp.clock(), version = j.version + 1
      FROM held
     WHERE j.job_id = held.job_id
)
INSERT INTO dagapp.dag_janitor_actions (run_id, action_type, target_type, target_id, reason, detail)
SELECT %(run_id)s::uuid, action_type, 'job', job_id::text, reason, detail
  FROM held
RETURNING action_id, run_id, action_type, target_type, target_id, reason, detail, created_at;

-- name: janitor_unserved
-- The task that has waited longest, per job, queue and handler, if it has waited too long and no live worker takes such
-- tasks. Tasks of a paused queue wait on purpose.
WITH waiting AS MATERIALIZED (
    SELECT t.job_id, t.queue, t.handler, count(*)::int AS tasks,
           (array_agg(t.task_id ORDER BY t.position))[1] AS task_id,
           extract(epoch FROM dagapp.clock() - min(t.available_at))::float8 AS seconds
      FROM dagapp.dag_tasks t
     WHERE t.status = 'queued' AND t.available_at < dagapp.clock() - make_interval(secs => %(queued)s)
     GROUP BY t.job_id, t.queue, t.handler
)
SELECT w.job_id, w.queue, w.handler, w.tasks, w.task_id, w.seconds
  FROM waiting w
 WHERE NOT EXISTS (SELECT 1 FROM dagapp.dag_queues q WHERE q.queue = w.queue AND q.is_paused)
   AND NOT EXISTS (SELECT 1
                     FROM dagapp.workers k
                    WHERE k.heartbeat_at > dagapp.clock() - make_interval(secs => %(orphan_after)s)
                      AND w.queue = ANY (k.queues) AND w.handler = ANY (k.handlers))
 ORDER BY w.seconds DESC
 LIMIT %(limit)s;

-- name: janitor_unread
-- Queues with submissions that have waited for a long time: no orchestrator reads the queue, or all of them fail to.
SELECT m.queue, count(*)::int AS messages, (array_agg(m.message_id ORDER BY m.enqueued_at))[1] AS oldest,
       extract(epoch FROM dagapp.clock() - min(m.enqueued_at))::float8 AS seconds
  FROM dagapp.dag_job_messages m
 WHERE m.enqueued_at < dagapp.clock() - make_interval(secs => %(queued)s)
 GROUP BY m.queue
 ORDER BY m.queue
 LIMIT %(limit)s;

-- name: janitor_idle
-- Sessions that keep a transaction open without using it: meanwhile no dead row can be vacuumed. Ours may be ended.
SELECT a.pid, a.xact_start, a.application_name, a.usename::text AS role,
       a.usename = current_user AND a.application_name LIKE 'dagmaster-%%' AS is_ours,
       extract(epoch FROM clock_timestamp() - a.state_change)::float8 AS seconds
  FROM pg_stat_activity a
 WHERE a.datname = current_database()
   AND a.state IN ('idle in transaction', 'idle in transaction (aborted)')
   AND a.state_change < clock_timestamp() - make_interval(secs => %(idle_after)s)
   AND a.pid <> pg_backend_pid()
 ORDER BY a.pid
 LIMIT %(limit)s;

-- name: janitor_end_session
-- End a session, if it is still idle in the same transaction.
SELECT pg_terminate_backend(a.pid) AS is_ended
  FROM pg_stat_activity a
 WHERE a.pid = %(pid)s
   AND a.xact_start = %(xact_start)s
   AND a.usename = current_user
   AND a.state IN ('idle in transaction', 'idle in transaction (aborted)')
   AND a.state_change < clock_timestamp() - make_interval(secs => %(idle_after)s);

-- name: janitor_unused
-- Delete payloads that were stored long ago and that no row refers to: their worker died before its report, or their
-- job was deleted. The oldest first, up to a limit of bytes. Payloads that are stored again or used meanwhile are kept.
WITH unused AS MATERIALIZED (
    SELECT p.job_id, p.sha256, p.size_bytes, p.stored_at
      FROM dagapp.dag_payloads p
     WHERE NOT p.is_kept AND p.stored_at < dagapp.clock() - make_interval(secs => %(grace)s)
     ORDER BY p.stored_at
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), chosen AS MATERIALIZED (
    SELECT u.job_id, u.sha256, u.size_bytes
      FROM (SELECT unused.*, sum(size_bytes) OVER (ORDER BY stored_at, job_id, sha256) - size_bytes AS bytes_before
              FROM unused) AS u
     WHERE u.bytes_before < %(max_bytes)s
), parts AS (
    DELETE FROM dagapp.dag_payload_parts p
     USING chosen c
     WHERE p.job_id = c.job_id AND p.sha256 = c.sha256
), heads AS (
    DELETE FROM dagapp.dag_payloads p
     USING chosen c
     WHERE p.job_id = c.job_id AND p.sha256 = c.sha256
)
SELECT count(*)::int AS payloads, count(DISTINCT job_id)::int AS jobs, coalesce(sum(size_bytes), 0)::bigint AS bytes
  FROM chosen;

-- name: janitor_leftovers
-- Some of the jobs with files in storage, and which of their files may be removed: files of deleted jobs, and files of
-- jobs that ended long enough ago and have no running task. The latter jobs are locked, so that they cannot be resumed
-- meanwhile. Outputs stay as long as the job. In random order, so that files that cannot be removed do not block the
-- others.
WITH files AS MATERIALIZED (
    SELECT f.job_id, f.has_scratch, f.has_blobs, f.has_outputs
      FROM unnest(%(job_ids)s::uuid[], %(with_scratch)s::boolean[], %(with_blobs)s::boolean[],
                  %(with_outputs)s::boolean[])
           AS f (job_id, has_scratch, has_blobs, has_outputs)
), ended AS MATERIALIZED (
    SELECT j.job_id, due.has_scratch, due.has_blobs, false AS has_outputs, j.status::text AS status
      FROM files f
      JOIN dagapp.dag_jobs j
        ON j.job_id = f.job_id
     CROSS JOIN LATERAL (
           SELECT f.has_scratch
                  AND j.completed_at < dagapp.clock() - make_interval(secs => %(scratch)s::float8) AS has_scratch,
                  f.has_blobs
                  AND coalesce(j.completed_at < dagapp.clock() - make_interval(
                          secs => CASE WHEN j.status = 'completed'
                                       THEN %(completed)s::float8
                                       ELSE %(failed)s::float8
                                  END),
                          false) AS has_blobs) AS due
     WHERE j.status NOT IN ('pending', 'running')
       AND (due.has_scratch OR due.has_blobs)
       AND NOT EXISTS (SELECT 1
                         FROM dagapp.dag_tasks t
                        WHERE t.job_id = j.job_id AND t.status = 'running' AND t.lease_until > dagapp.clock())
     ORDER BY random()
     LIMIT %(limit)s
       FOR NO KEY UPDATE OF j SKIP LOCKED
), deleted AS MATERIALIZED (
    SELECT f.job_id, f.has_scratch, f.has_blobs, f.has_outputs, NULL AS status
      FROM files f
     WHERE f.job_id < dagapp.first_uuid_at(dagapp.clock() - make_interval(secs => %(deleted)s::float8))
       AND NOT EXISTS (SELECT 1 FROM dagapp.dag_jobs j WHERE j.job_id = f.job_id)
     ORDER BY random()
     LIMIT %(limit)s
)
SELECT job_id, has_scratch, has_blobs, has_outputs, status FROM ended
 UNION ALL
SELECT job_id, has_scratch, has_blobs, has_outputs, status FROM deleted;

-- name: janitor_note
-- Record findings, except those that were recorded for the same target a short time ago.
INSERT INTO dagapp.dag_janitor_actions (run_id, action_type, target_type, target_id, reason, detail)
SELECT %(run_id)s::uuid, s.action_type, s.target_type, s.target_id, s.reason, s.detail
  FROM jsonb_to_recordset(%(findings)s::jsonb)
       AS s (action_type text, target_type text, target_id text, reason text, detail jsonb)
 WHERE NOT EXISTS (SELECT 1
                     FROM dagapp.dag_janitor_actions a
                    WHERE a.target_id = s.target_id AND a.action_type = s.action_type
                      AND a.created_at > dagapp.clock() - make_interval(secs => %(repeat)s))
 ORDER BY s.target_id
RETURNING action_id, run_id, action_type, target_type, target_id, reason, detail, created_at;

-- name: janitor_note_stuck
-- Record that an owner cannot advance its job, as long as it is the owner.
INSERT INTO dagapp.dag_janitor_actions (run_id, action_type, target_type, target_id, reason, detail)
SELECT %(run_id)s::uuid, 'job_stuck', 'job', j.job_id::text, %(reason)s,
       %(detail)s::jsonb || jsonb_build_object('last_sequence', j.last_sequence)
  FROM dagapp.dag_jobs j
 WHERE j.job_id = %(job_id)s
   AND j.epoch = %(epoch)s
   AND j.owner_id = %(owner_id)s
   AND j.status IN ('pending', 'running')
   AND NOT EXISTS (SELECT 1
                     FROM dagapp.dag_janitor_actions a
                    WHERE a.target_id = j.job_id::text AND a.action_type = 'job_stuck'
                      AND a.created_at > dagapp.clock() - make_interval(secs => %(repeat)s))
RETURNING action_id, run_id, action_type, target_type, target_id, reason, detail, created_at;

-- name: janitor_actions
-- The actions of janitors, newest first.
SELECT action_id, run_id, action_type, target_type, target_id, reason, detail, created_at
  FROM dagapp.dag_janitor_actions
 WHERE (%(after_at)s::timestamptz IS NULL OR (created_at, action_id) < (%(after_at)s, %(after_id)s::uuid))
   AND (%(action_type)s::text IS NULL OR action_type = %(action_type)s)
   AND (%(target_id)s::text IS NULL OR target_id = %(target_id)s)
   AND (%(run_id)s::uuid IS NULL OR run_id = %(run_id)s)
   AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
 ORDER BY created_at DESC, action_id DESC
 LIMIT %(limit)s;
