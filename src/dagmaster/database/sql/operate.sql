-- name: lock_ended_job
-- Whoever revives a job holds its row; nobody owns it meanwhile.
SELECT status
  FROM dagapp.dag_jobs
 WHERE job_id = %(job_id)s
   FOR NO KEY UPDATE;

-- name: revive
-- A job that has ended runs again: the nodes that are named, and the children of the named fan_outs that failed or were cancelled,
-- are as if they had never run, but for their attempts, which stay. Every step has its event, in one sequence.
WITH job AS MATERIALIZED (
    SELECT job_id, epoch, last_sequence
      FROM dagapp.dag_jobs
     WHERE job_id = %(job_id)s
), asked AS MATERIALIZED (
    SELECT n.node_id, n.place
      FROM unnest(%(node_ids)s::text[]) WITH ORDINALITY AS n (node_id, place)
), child AS MATERIALIZED (
    SELECT c.node_id, c.parent_node_id, row_number() OVER (ORDER BY c.parent_node_id, c.fan_out_index) AS place
      FROM dagapp.dag_node_states c
     WHERE c.job_id = %(job_id)s AND c.parent_node_id = ANY (%(fan_outs)s::text[]) AND c.status IN ('failed', 'cancelled')
), family AS MATERIALIZED (
    SELECT parent_node_id AS node_id, count(*)::int AS children
      FROM child
     GROUP BY parent_node_id
), revived_children AS (
    UPDATE dagapp.dag_node_states n
       SET status = 'pending', run = n.run + 1, is_idle = true, retry_count = 0, loss_count = 0, reason = NULL, error = NULL,
           error_message = NULL, started_at = NULL, completed_at = NULL, version = n.version + 1
      FROM child
     WHERE n.job_id = %(job_id)s AND n.node_id = child.node_id
    RETURNING n.node_id
), revived_nodes AS (
    UPDATE dagapp.dag_node_states n
       SET status = CASE WHEN k.is_asked THEN 'pending' ELSE n.status END,
           run = n.run + k.is_asked::int,
           retry_count = CASE WHEN k.is_asked THEN 0 ELSE n.retry_count END,
           loss_count = CASE WHEN k.is_asked THEN 0 ELSE n.loss_count END,
           reason = CASE WHEN NOT k.is_asked THEN n.reason END,
           error = CASE WHEN NOT k.is_asked THEN n.error END,
           error_message = CASE WHEN NOT k.is_asked THEN n.error_message END,
           started_at = CASE WHEN NOT k.is_asked THEN n.started_at END,
           completed_at = CASE WHEN NOT k.is_asked THEN n.completed_at END,
           remaining = n.remaining + k.children,
           failed_count = CASE WHEN k.children > 0 THEN 0 ELSE n.failed_count END,
           cancelled_count = CASE WHEN k.children > 0 THEN 0 ELSE n.cancelled_count END,
           idle_count = CASE WHEN k.children > 0 THEN k.children ELSE n.idle_count END,
           version = n.version + 1
      FROM (SELECT coalesce(a.node_id, f.node_id) AS node_id, a.node_id IS NOT NULL AS is_asked,
                   coalesce(f.children, 0) AS children
              FROM asked a
              FULL JOIN family f ON f.node_id = a.node_id) AS k
     WHERE n.job_id = %(job_id)s AND n.node_id = k.node_id
), told AS (
    INSERT INTO dagapp.dag_job_events (job_id, sequence, node_id, event_type, event_status, epoch, event_data)
    SELECT job_id, last_sequence + 1, NULL, 'job_resumed', 'running', epoch, %(facts)s::jsonb
      FROM job
     UNION ALL
    SELECT job_id, last_sequence + 1 + a.place, a.node_id, 'node_reset', 'pending', epoch, NULL
      FROM job
     CROSS JOIN asked a
     UNION ALL
    SELECT job_id, last_sequence + 1 + (SELECT count(*) FROM asked) + c.place, c.node_id, 'node_reset', 'pending', epoch, NULL
      FROM job
     CROSS JOIN child c
)
UPDATE dagapp.dag_jobs j
   SET status = 'running',
       resume_count = j.resume_count + 1,
       last_sequence = j.last_sequence + 1 + (SELECT count(*) FROM asked) + (SELECT count(*) FROM child),
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
-- Ask for a job's end; its owner acts on it. Whoever asks first is remembered.
WITH asked AS (
    UPDATE dagapp.dag_jobs
       SET cancel_requested_at = dagapp.clock(), cancel_requested_by = %(by)s, cancel_reason = %(reason)s,
           updated_at = dagapp.clock(), version = version + 1
     WHERE job_id = %(job_id)s AND status IN ('pending', 'running') AND cancel_requested_at IS NULL
    RETURNING job_id
)
SELECT j.status, EXISTS (SELECT 1 FROM asked) AS is_new
  FROM dagapp.dag_jobs j
 WHERE j.job_id = %(job_id)s;
