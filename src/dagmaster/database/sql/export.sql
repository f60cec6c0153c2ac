-- The parts of a job that its export reads, by key, a page at a time.

-- name: export_nodes
-- Nodes and children.
SELECT node_id, status, parent_node_id, fan_out_index, label, input_params, output, output_ref, error_message, error,
       reason, attempt, retry_count, loss_count, max_retries, not_before, total, expanded, remaining, failed_count,
       cancelled_count, idle_count, stale_count, dispatched_at, started_at, completed_at, version, run
  FROM dagapp.dag_node_states
 WHERE job_id = %(job_id)s AND node_id > %(node_id)s::text
 ORDER BY node_id
 LIMIT %(limit)s;

-- name: export_attempts
-- Attempts with their reports, without log lines: these are a list of their own.
SELECT t.node_id, t.attempt, t.task_id, t.status, t.queue, t.handler, t.priority, t.params, t.params_ref,
       t.timeout_seconds, t.retry_count, t.worker_id, t.lease_until, t.available_at AS queued_at, t.expires_at,
       t.stop_requested_at, t.stop_seen_at, t.started_at, t.finished_at, t.progress, r.status AS reported_status,
       r.output, r.output_ref, r.error, r.metrics - 'log' AS metrics, r.reported_at, r.accepted
  FROM dagapp.dag_tasks t
  LEFT JOIN LATERAL (SELECT x.status, x.output, x.output_ref, x.error, x.metrics, x.reported_at, x.accepted
                       FROM dagapp.dag_task_results x
                      WHERE x.job_id = t.job_id AND x.node_id = t.node_id AND x.attempt = t.attempt
                     OFFSET 0) AS r
    ON true
 WHERE t.job_id = %(job_id)s AND (t.node_id, t.attempt) > (%(node_id)s::text, %(attempt)s::int)
 ORDER BY t.node_id, t.attempt
 LIMIT %(limit)s;

-- name: export_checkpoints
-- Checkpoints of all nodes.
SELECT node_id, name, attempt, data, saved_at, artifacts
  FROM dagapp.dag_checkpoints
 WHERE job_id = %(job_id)s AND (node_id, name) > (%(node_id)s::text, %(name)s::text)
 ORDER BY node_id, name
 LIMIT %(limit)s;
