-- name: history_jobs
-- The next jobs to check, by id, with how many events each has.
SELECT job_id, last_sequence
  FROM dagapp.dag_jobs
 WHERE job_id > %(after)s
 ORDER BY job_id
 LIMIT %(limit)s;

-- name: history_named_jobs
-- Which of the named jobs exist, and how many events each has.
SELECT job_id, last_sequence
  FROM dagapp.dag_jobs
 WHERE job_id = ANY (%(job_ids)s::uuid[])
 ORDER BY job_id;

-- name: history_rows_of_jobs
-- Some jobs in this snapshot, and whether they should have ended for longer than the margin: their deadline is over, or
-- all their nodes have ended.
SELECT j.job_id, j.status, j.definition_hash, j.last_sequence, j.epoch, j.resume_count,
       j.status IN ('pending', 'running')
       AND coalesce(j.deadline_at < dagapp.clock() - make_interval(secs => %(margin)s), false) AS is_overdue,
       j.status IN ('pending', 'running')
       AND NOT EXISTS (SELECT 1
                         FROM dagapp.dag_node_states n
                        WHERE n.job_id = j.job_id AND n.status IN ('pending', 'ready', 'dispatched', 'running'))
       AND coalesce((SELECT max(n.completed_at)
                       FROM dagapp.dag_node_states n
                      WHERE n.job_id = j.job_id) < dagapp.clock() - make_interval(secs => %(margin)s),
                      false) AS is_unconcluded
  FROM dagapp.dag_jobs j
 WHERE j.job_id = ANY (%(job_ids)s::uuid[])
 ORDER BY j.job_id;

-- name: history_definitions
-- The definitions that these jobs started with.
SELECT definition_hash, body
  FROM dagapp.dag_workflow_definitions
 WHERE definition_hash = ANY (%(hashes)s::text[]);

-- name: history_own_nodes
-- The nodes of the definitions themselves, by whole key, with the branch a conditional chose and what a fan_in counted.
SELECT n.job_id, n.node_id, n.status, n.parent_node_id, n.fan_out_index, n.attempt, n.retry_count, n.loss_count, n.run,
       n.total, n.expanded, n.remaining, n.failed_count, n.cancelled_count, n.idle_count,
       n.stale_count,
       CASE WHEN k.is_conditional THEN n.output -> 'next' END AS chosen,
       CASE WHEN k.is_fan_in AND jsonb_typeof(n.output -> 'count') = 'number'
            THEN (n.output ->> 'count')::numeric::int END AS gathered
  FROM unnest(%(job_ids)s::uuid[], %(node_ids)s::text[], %(are_conditional)s::bool[], %(are_fan_in)s::bool[])
       AS k (job_id, node_id, is_conditional, is_fan_in)
  JOIN dagapp.dag_node_states n
    ON n.job_id = k.job_id AND n.node_id = k.node_id;

-- name: history_events
-- The events of these jobs, in order.
SELECT job_id, sequence, node_id, event_type, event_status, attempt, epoch, event_data
  FROM dagapp.dag_job_events
 WHERE job_id = ANY (%(job_ids)s::uuid[])
 ORDER BY job_id, sequence;

-- name: history_nodes
-- Every node and child of these jobs, without the outputs.
SELECT job_id, node_id, status, parent_node_id, fan_out_index, attempt, retry_count, loss_count, run, total, expanded,
       remaining, failed_count, cancelled_count, idle_count, stale_count
  FROM dagapp.dag_node_states
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: history_tasks
-- Every task of these jobs, one per attempt.
SELECT job_id, node_id, attempt, status
  FROM dagapp.dag_tasks
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: history_results
-- Every reported result, and whether its node holds another output than the result that completed it.
SELECT r.job_id, r.node_id, r.attempt, r.status, r.accepted, r.processed,
       n.job_id IS NOT NULL
       AND (n.output IS DISTINCT FROM r.output OR n.output_ref IS DISTINCT FROM r.output_ref) AS is_other_output
  FROM dagapp.dag_task_results r
  LEFT JOIN dagapp.dag_node_states n
    ON n.job_id = r.job_id AND n.node_id = r.node_id AND n.attempt = r.attempt
   AND n.status = 'completed' AND r.accepted AND r.status = 'succeeded'
 WHERE r.job_id = ANY (%(job_ids)s::uuid[]);

-- name: history_references
-- References to payloads that are missing, could be deleted, or have another size than the reference says. A job's
-- result has them as {"output_ref": {"sha256": …, "bytes": …}}.
WITH referred AS MATERIALIZED (
    SELECT r.job_id, r.node_id, r.output_ref AS reference
      FROM dagapp.dag_task_results r
     WHERE r.job_id = ANY (%(job_ids)s::uuid[]) AND r.output_ref ? 'sha256'
     UNION
    SELECT n.job_id, n.node_id, n.output_ref
      FROM dagapp.dag_node_states n
     WHERE n.job_id = ANY (%(job_ids)s::uuid[]) AND n.output_ref ? 'sha256'
     UNION
    SELECT t.job_id, t.node_id, t.params_ref
      FROM dagapp.dag_tasks t
     WHERE t.job_id = ANY (%(job_ids)s::uuid[]) AND t.params_ref IS NOT NULL
     UNION
    SELECT j.job_id, NULL, named.value -> 'output_ref'
      FROM dagapp.dag_jobs j
     CROSS JOIN LATERAL jsonb_each(CASE jsonb_typeof(j.result_data) WHEN 'object' THEN j.result_data ELSE '{}' END)
             AS named
     WHERE j.job_id = ANY (%(job_ids)s::uuid[])
       AND named.value -> 'output_ref' ?& ARRAY['sha256', 'bytes'] AND named.value ->> 'output_ref' ~ '"[0-9a-f]{64}"'
), resolved AS MATERIALIZED (
    SELECT r.job_id, r.node_id, r.reference ->> 'sha256' AS sha256, (r.reference ->> 'bytes')::bigint AS size_bytes,
           p.is_kept, p.size_bytes AS recorded_bytes,
           (SELECT coalesce(sum(octet_length(d.data)), 0)
              FROM dagapp.dag_payload_parts d
             WHERE d.job_id = r.job_id AND d.sha256 = r.reference ->> 'sha256')::bigint AS stored_bytes
      FROM referred r
      LEFT JOIN dagapp.dag_payloads p
        ON p.job_id = r.job_id AND p.sha256 = r.reference ->> 'sha256'
)
SELECT job_id, node_id, sha256, size_bytes, is_kept, stored_bytes
  FROM resolved
 WHERE is_kept IS NOT TRUE OR recorded_bytes <> size_bytes OR stored_bytes <> size_bytes
 ORDER BY job_id, node_id, sha256;

-- name: history_payload_parts
-- The parts of the payloads of these jobs, in order.
SELECT job_id, sha256, data
  FROM dagapp.dag_payload_parts
 WHERE job_id = ANY (%(job_ids)s::uuid[])
 ORDER BY job_id, sha256, part;

-- name: history_orphans
-- Rows whose job does not exist.
SELECT o.job_id, o.kind, sum(o.rows)::bigint AS rows
  FROM (SELECT job_id, 'node states' AS kind, count(*) AS rows FROM dagapp.dag_node_states GROUP BY job_id
         UNION ALL
        SELECT job_id, 'tasks', count(*) FROM dagapp.dag_tasks GROUP BY job_id
         UNION ALL
        SELECT job_id, 'results', count(*) FROM dagapp.dag_task_results GROUP BY job_id
         UNION ALL
        SELECT job_id, 'checkpoints', count(*) FROM dagapp.dag_checkpoints GROUP BY job_id
         UNION ALL
        SELECT job_id, 'events', count(*) FROM dagapp.dag_job_events WHERE job_id IS NOT NULL GROUP BY job_id) AS o
 WHERE NOT EXISTS (SELECT 1 FROM dagapp.dag_jobs j WHERE j.job_id = o.job_id)
 GROUP BY o.job_id, o.kind
 ORDER BY o.job_id, o.kind
 LIMIT %(limit)s;
