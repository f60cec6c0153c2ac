-- name: lock_ended_job
-- Lock the row of a job before a rerun; a job that has ended has no owner.
SELECT status
  FROM dagapp.dag_jobs
 WHERE job_id = %(job_id)s
   FOR NO KEY UPDATE;

-- name: rerun
-- Run an ended job again. The named nodes are reset, except for their attempts. All children of a fan_out that reads
-- its source again become stale. Children of other fan_outs run again if they are named themselves, or if they failed
-- or were cancelled and their fan_out is named. Every reset has its event, in one sequence. With discards_checkpoints,
-- the checkpoints of these nodes are deleted.
WITH job AS MATERIALIZED (
    SELECT job_id, epoch, last_sequence
      FROM dagapp.dag_jobs
     WHERE job_id = %(job_id)s
), named AS MATERIALIZED (
    SELECT n.node_id, n.place, n.node_id = ANY (%(reexpanded)s::text[]) AS is_reexpanded
      FROM unnest(%(node_ids)s::text[]) WITH ORDINALITY AS n (node_id, place)
), child AS MATERIALIZED (
    SELECT c.node_id, c.parent_node_id, c.status,
           c.parent_node_id = ANY (%(reexpanded)s::text[]) OR c.fan_out_index >= coalesce(p.expanded, 0) AS is_stale,
           row_number() OVER (ORDER BY c.parent_node_id, c.fan_out_index) AS place
      FROM dagapp.dag_node_states c
     CROSS JOIN LATERAL (SELECT f.expanded
                           FROM dagapp.dag_node_states f
                          WHERE f.job_id = c.job_id AND f.node_id = c.parent_node_id
                          LIMIT 1) AS p
     WHERE c.job_id = %(job_id)s
       AND (c.parent_node_id = ANY (%(reexpanded)s::text[])
            OR c.parent_node_id = ANY (%(fan_outs)s::text[]) AND c.status IN ('failed', 'cancelled')
            OR c.node_id = ANY (%(children)s::text[]))
), family AS MATERIALIZED (
    SELECT parent_node_id AS node_id,
           count(*) FILTER (WHERE NOT is_stale)::int AS idle,
           count(*) FILTER (WHERE is_stale)::int AS stale,
           count(*) FILTER (WHERE NOT is_stale AND status = 'failed')::int AS failed,
           count(*) FILTER (WHERE NOT is_stale AND status = 'cancelled')::int AS cancelled
      FROM child
     GROUP BY parent_node_id
), reset_children AS (
    UPDATE dagapp.dag_node_states n
       SET status = 'pending', run = n.run + 1, is_idle = true, retry_count = 0, loss_count = 0, reason = NULL,
           error = NULL, error_message = NULL, output = NULL, output_ref = NULL, started_at = NULL, completed_at = NULL,
           version = n.version + 1
      FROM child
     WHERE n.job_id = %(job_id)s AND n.node_id = child.node_id
    RETURNING n.node_id
), reset_nodes AS (
    UPDATE dagapp.dag_node_states n
       SET status = CASE WHEN k.is_named THEN 'pending' ELSE n.status END,
           run = n.run + k.is_named::int,
           retry_count = CASE WHEN k.is_named THEN 0 ELSE n.retry_count END,
           loss_count = CASE WHEN k.is_named THEN 0 ELSE n.loss_count END,
           reason = CASE WHEN NOT k.is_named THEN n.reason END,
           error = CASE WHEN NOT k.is_named THEN n.error END,
           error_message = CASE WHEN NOT k.is_named THEN n.error_message END,
           output = CASE WHEN NOT k.is_named THEN n.output END,
           output_ref = CASE WHEN NOT k.is_named THEN n.output_ref END,
           started_at = CASE WHEN NOT k.is_named THEN n.started_at END,
           completed_at = CASE WHEN NOT k.is_named THEN n.completed_at END,
           total = CASE WHEN NOT k.is_reexpanded THEN n.total END,
           expanded = CASE WHEN NOT k.is_reexpanded THEN n.expanded END,
           remaining = CASE WHEN NOT k.is_reexpanded THEN n.remaining + k.idle END,
           failed_count = CASE WHEN NOT k.is_reexpanded THEN n.failed_count - k.failed END,
           cancelled_count = CASE WHEN NOT k.is_reexpanded THEN n.cancelled_count - k.cancelled END,
           idle_count = CASE WHEN k.is_reexpanded THEN NULL WHEN k.idle > 0 THEN k.idle ELSE n.idle_count END,
           stale_count = CASE WHEN k.stale > 0 THEN k.stale ELSE n.stale_count END,
           version = n.version + 1
      FROM (SELECT coalesce(a.node_id, f.node_id) AS node_id, a.node_id IS NOT NULL AS is_named,
                   coalesce(a.is_reexpanded, false) AS is_reexpanded, coalesce(f.idle, 0) AS idle,
                   coalesce(f.stale, 0) AS stale, coalesce(f.failed, 0) AS failed, coalesce(f.cancelled, 0) AS cancelled
              FROM named a
              FULL JOIN family f ON f.node_id = a.node_id) AS k
     WHERE n.job_id = %(job_id)s AND n.node_id = k.node_id
), deleted_checkpoints AS (
    DELETE FROM dagapp.dag_checkpoints c
     USING (SELECT node_id FROM named UNION ALL SELECT node_id FROM child) AS n
     WHERE %(discards_checkpoints)s AND c.job_id = %(job_id)s AND c.node_id = n.node_id
), recorded AS (
    INSERT INTO dagapp.dag_job_events (job_id, sequence, node_id, event_type, event_status, epoch, event_data)
    SELECT job_id, last_sequence + 1, NULL, 'job_resumed', 'running', epoch, %(event_data)s::jsonb
      FROM job
     UNION ALL
    SELECT job_id, last_sequence + 1 + a.place, a.node_id, 'node_reset', 'pending', epoch,
           CASE WHEN a.is_reexpanded THEN '{"is_reexpanded": true, "anew": true}'::jsonb END
      FROM job
     CROSS JOIN named a
     UNION ALL
    SELECT job_id, last_sequence + 1 + (SELECT count(*) FROM named) + c.place, c.node_id, 'node_reset', 'pending',
           epoch, NULL
      FROM job
     CROSS JOIN child c
)
UPDATE dagapp.dag_jobs j
   SET status = 'running',
       resume_count = j.resume_count + 1,
       last_sequence = j.last_sequence + 1 + (SELECT count(*) FROM named) + (SELECT count(*) FROM child),
       owner_id = NULL,
       claim_token = NULL,
       completed_at = NULL,
       result_data = NULL,
       error_message = NULL,
       cancel_requested_at = NULL,
       cancel_requested_by = NULL,
       cancel_reason = NULL,
       stopping = NULL,
       deadline_at = dagapp.clock() + make_interval(secs => %(timeout_seconds)s),
       updated_at = dagapp.clock(),
       version = j.version + 1
  FROM job
 WHERE j.job_id = job.job_id
RETURNING j.resume_count;

-- name: request_cancel
-- Request a job's end; its owner acts on it. Only the first request is stored.
WITH requested AS (
    UPDATE dagapp.dag_jobs
       SET cancel_requested_at = dagapp.clock(), cancel_requested_by = %(by)s, cancel_reason = %(reason)s,
           updated_at = dagapp.clock(), version = version + 1
     WHERE job_id = %(job_id)s AND status IN ('pending', 'running') AND cancel_requested_at IS NULL
    RETURNING job_id
)
SELECT j.status, EXISTS (SELECT 1 FROM requested) AS is_new
  FROM dagapp.dag_jobs j
 WHERE j.job_id = %(job_id)s;
