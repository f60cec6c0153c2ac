-- name: schema_is_deployed
-- Whether the schema is deployed.
SELECT to_regclass('dagapp.schema_info') IS NOT NULL AS is_deployed;

-- name: deployed_schema
-- The schema that was deployed last, and by which software.
SELECT fingerprint, software_version, deployed_at
  FROM dagapp.schema_info;

-- name: live_instances
-- Orchestrators and workers with a recent heartbeat.
SELECT 'orchestrator' AS role, host, pid, heartbeat_at
  FROM dagapp.orchestrators
 WHERE heartbeat_at > dagapp.clock() - make_interval(secs => %(within)s)
 UNION ALL
SELECT 'worker', host, pid, heartbeat_at
  FROM dagapp.workers
 WHERE heartbeat_at > dagapp.clock() - make_interval(secs => %(within)s);

-- name: jobs_between
-- The first few jobs of a range of ids, for a prefix of an id.
SELECT job_id
  FROM dagapp.dag_jobs
 WHERE job_id BETWEEN %(first)s AND %(last)s
 ORDER BY job_id
 LIMIT 5;

-- name: newest_job
-- The job that was created last.
SELECT job_id
  FROM dagapp.dag_jobs
 ORDER BY job_id DESC
 LIMIT 1;

-- name: watch_job
-- A job and its own nodes, cheap enough to be read several times a second: children are never listed. Ended children
-- are in the counters of their fan_out, running ones in the index of running tasks. A node without a row has no
-- node_id.
WITH running AS MATERIALIZED (
    SELECT r.parent, count(*)::int AS count
      FROM (SELECT (SELECT n.parent_node_id
                      FROM dagapp.dag_node_states n
                     WHERE n.job_id = t.job_id AND n.node_id = t.node_id) AS parent
              FROM dagapp.dag_tasks t
             WHERE t.job_id = %(job_id)s AND t.status = 'running') AS r
     GROUP BY r.parent
), retrying AS MATERIALIZED (
    SELECT w.parent, count(*)::int AS count
      FROM (SELECT n.parent_node_id AS parent
              FROM dagapp.dag_node_states n
             WHERE n.job_id = %(job_id)s AND n.not_before IS NOT NULL
             LIMIT 1000) AS w
     GROUP BY w.parent
)
SELECT j.status AS job_status, j.created_at AS job_created_at, j.started_at AS job_started_at,
       j.completed_at AS job_completed_at, j.error_message AS job_error_message, dagapp.clock() AS now,
       n.node_id, n.status, n.parent_node_id, n.fan_out_index, n.label, n.error_message, n.reason, n.attempt,
       n.retry_count, n.max_retries, n.loss_count, n.not_before, n.total, n.expanded, n.remaining, n.failed_count,
       n.cancelled_count, n.dispatched_at, n.started_at, n.completed_at,
       coalesce((SELECT r.count FROM running r WHERE r.parent = n.node_id), 0) AS running_count,
       coalesce((SELECT r.count FROM retrying r WHERE r.parent = n.node_id), 0) AS retrying_count,
       (SELECT t.progress
          FROM dagapp.dag_tasks t
         WHERE t.job_id = n.job_id
           AND t.node_id = n.node_id
           AND t.attempt = n.attempt
           AND t.status = 'running') AS progress
  FROM dagapp.dag_jobs j
  LEFT JOIN unnest(%(node_ids)s::text[]) WITH ORDINALITY AS k (node_id, place)
    ON true
  LEFT JOIN dagapp.dag_node_states n
    ON n.job_id = %(job_id)s AND n.node_id = k.node_id
 WHERE j.job_id = %(job_id)s
 ORDER BY k.place;

-- name: page_children
-- Some children of a fan_out in index order, each by its whole key: a page costs the same for any number of children.
-- With a status, children are read one by one until the page is full.
SELECT n.node_id, n.status, n.parent_node_id, n.fan_out_index, n.label, n.error_message, n.reason, n.attempt,
       n.retry_count, n.max_retries, n.loss_count, n.not_before, n.total, n.expanded, n.remaining, n.failed_count,
       n.cancelled_count, n.dispatched_at, n.started_at, n.completed_at, 0 AS running_count, 0 AS retrying_count,
       t.progress
  FROM generate_series(%(after)s::int + 1,
                       (SELECT least(p.expanded - 1,
                                     CASE WHEN %(statuses)s::text[] IS NULL THEN %(after)s + %(limit)s END)
                          FROM dagapp.dag_node_states p
                         WHERE p.job_id = %(job_id)s AND p.node_id = %(parent)s)) AS i (index)
 CROSS JOIN LATERAL (SELECT c.*
                       FROM dagapp.dag_node_states c
                      WHERE c.job_id = %(job_id)s AND c.node_id = %(parent)s || '__' || i.index::text
                        AND (%(statuses)s::text[] IS NULL OR c.status = ANY (%(statuses)s))
                     OFFSET 0) AS n
  LEFT JOIN LATERAL (SELECT a.progress
                       FROM dagapp.dag_tasks a
                      WHERE a.job_id = n.job_id AND a.node_id = n.node_id AND a.attempt = n.attempt
                        AND a.status = 'running'
                     OFFSET 0) AS t
    ON true
 LIMIT %(limit)s;

-- name: page_events
-- Events of a job after a sequence number, in order.
SELECT sequence, created_at, event_type, node_id, event_status, attempt, epoch, event_data
  FROM dagapp.dag_job_events
 WHERE job_id = %(job_id)s
   AND sequence > %(after)s
   AND (%(node_id)s::text IS NULL OR node_id = %(node_id)s)
 ORDER BY sequence
 LIMIT %(limit)s;
