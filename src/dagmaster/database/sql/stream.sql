-- What the stream of the platform reads: everything that changed since a time, of all jobs and assets.

-- name: stream_jobs
-- Jobs that changed after a time: active jobs, and jobs that have ended since then. Each change of an active job that
-- is shown sets updated_at. Both parts use an index, so only active jobs and jobs that have ended since then are read.
SELECT job_id, workflow_id, definition_hash, status, version, last_sequence AS sequence, priority, correlation_id,
       submitted_by, left(error_message, 1000) AS error_message, resume_count, cancel_requested_at, created_at,
       updated_at, started_at, completed_at
  FROM (SELECT *
          FROM dagapp.dag_jobs
         WHERE status IN ('pending', 'running') AND updated_at > %(since)s::timestamptz
         UNION ALL
        SELECT *
          FROM dagapp.dag_jobs
         WHERE completed_at > %(since)s::timestamptz AND status NOT IN ('pending', 'running')) AS changed
 LIMIT %(limit)s;

-- name: stream_assets
-- Events of assets after a time, with what decides who may see them.
SELECT e.event_id, e.asset_id, a.dataset_id, a.platform_id, e.action, e.version_ordinal, e.revision, e.created_at,
       a.clearance_state AS clearance,
       a.deleted_at IS NULL AND a.latest_approved_version_ordinal IS NOT NULL AS is_published
  FROM dagapp.asset_events AS e
  JOIN dagapp.geospatial_assets AS a
    ON a.asset_id = e.asset_id
 WHERE e.created_at > %(since)s::timestamptz
 ORDER BY e.event_id
 LIMIT %(limit)s;

-- name: stream_platform
-- The time, and two texts that change with the queues and with the instances of the platform.
SELECT dagapp.clock() AS now,
       md5(concat_ws(' ', (SELECT last_value FROM dagapp.dag_task_position),
                     (SELECT count(*) FROM dagapp.dag_queues),
                     (SELECT max(q.updated_at) FROM dagapp.dag_queues q),
                     (SELECT count(*) FROM dagapp.dag_job_messages),
                     (SELECT string_agg(w.stats::text, ' ' ORDER BY w.worker_id) FROM dagapp.workers w))) AS queues,
       md5(concat_ws(' ',
           (SELECT string_agg(
                       concat_ws(' ', w.worker_id, w.heartbeat_at > dagapp.clock() - make_interval(secs => %(within)s)),
                       ' ' ORDER BY w.worker_id
                   )
              FROM dagapp.workers w),
           (SELECT string_agg(
                       concat_ws(' ', o.owner_id, o.heartbeat_at > dagapp.clock() - make_interval(secs => %(within)s)),
                       ' ' ORDER BY o.owner_id
                   )
              FROM dagapp.orchestrators o))) AS instances;

-- name: job_progress
-- The progress of some jobs, by the nodes of their definitions: each is read by its key, children are in its counters.
SELECT k.job_id, count(*)::int AS nodes,
       count(*) FILTER (WHERE n.is_ended)::int AS ended,
       count(*) FILTER (WHERE n.status = 'failed')::int AS failed,
       coalesce(sum(n.total), 0)::int AS children,
       coalesce(sum(n.total - n.remaining), 0)::int AS children_ended,
       coalesce(sum(n.failed_count), 0)::int AS children_failed,
       round(avg(CASE WHEN n.is_ended THEN 1
                      WHEN n.total > 0 THEN (n.total - n.remaining)::numeric / n.total
                      ELSE 0 END), 4)::float8 AS fraction
  FROM unnest(%(job_ids)s::uuid[], %(node_ids)s::text[]) AS k (job_id, node_id)
  LEFT JOIN LATERAL (SELECT c.status, c.total, c.remaining, c.failed_count,
                            c.status IN ('completed', 'failed', 'skipped', 'cancelled')
                            AND NOT (c.status = 'completed' AND coalesce(c.remaining, 0) > 0) AS is_ended
                       FROM dagapp.dag_node_states c
                      WHERE c.job_id = k.job_id AND c.node_id = k.node_id
                     OFFSET 0) AS n
    ON true
 GROUP BY k.job_id;

-- name: past_nodes
-- The nodes of the last jobs of a workflow that completed, each read by its key.
SELECT j.job_id AS run, n.node_id, n.status, coalesce(n.dispatched_at, n.started_at) AS began_at, n.completed_at
  FROM (SELECT r.job_id
          FROM (SELECT job_id, status
                  FROM dagapp.dag_jobs
                 WHERE workflow_id = %(workflow_id)s
                 ORDER BY job_id DESC
                 LIMIT %(searched)s) AS r
         WHERE r.status = 'completed'
         LIMIT %(runs)s) AS j
 CROSS JOIN unnest(%(node_ids)s::text[]) AS k (node_id)
 CROSS JOIN LATERAL (SELECT c.node_id, c.status, c.dispatched_at, c.started_at, c.completed_at
                       FROM dagapp.dag_node_states c
                      WHERE c.job_id = j.job_id AND c.node_id = k.node_id
                     OFFSET 0) AS n;

-- name: usual_seconds
-- The median duration of the last jobs of some workflows that completed.
SELECT k.workflow_id, m.seconds
  FROM unnest(%(workflow_ids)s::text[]) AS k (workflow_id)
 CROSS JOIN LATERAL (SELECT percentile_cont(0.5) WITHIN GROUP (
                                ORDER BY extract(epoch FROM r.completed_at - r.created_at)::float8) AS seconds
                       FROM (SELECT j.status, j.created_at, j.completed_at, j.resume_count
                               FROM dagapp.dag_jobs j
                              WHERE j.workflow_id = k.workflow_id
                              ORDER BY j.job_id DESC
                              LIMIT %(searched)s) AS r
                      WHERE r.status = 'completed' AND r.resume_count = 0) AS m
 WHERE m.seconds IS NOT NULL;
