-- part: job_summary
j.job_id, j.workflow_id, j.workflow_version, j.definition_hash, j.status, j.priority, j.correlation_id, j.submitted_by,
       j.asset_id, j.version_ordinal, left(j.error_message, 1000) AS error_message, j.resume_count,
       j.cancel_requested_at, j.version, j.last_sequence AS sequence, j.created_at, j.updated_at, j.started_at,
       j.completed_at

-- part: job_filters
(%(workflow_id)s::text IS NULL OR j.workflow_id = %(workflow_id)s)
   AND (%(workflow_ids)s::text[] IS NULL OR j.workflow_id = ANY (%(workflow_ids)s))
   AND (%(submitted_by)s::text IS NULL OR j.submitted_by = %(submitted_by)s)
   AND (%(submitters)s::text[] IS NULL OR j.submitted_by = ANY (%(submitters)s))
   AND (%(correlation_id)s::text IS NULL OR j.correlation_id = %(correlation_id)s)
   AND (%(created_after)s::timestamptz IS NULL
        OR j.created_at >= %(created_after)s
           AND j.job_id >= dagapp.first_uuid_at(greatest('epoch', %(created_after)s - interval '1 day')))
   AND (%(created_before)s::timestamptz IS NULL
        OR j.created_at < %(created_before)s
           AND j.job_id < dagapp.first_uuid_at(greatest('epoch', %(created_before)s + interval '1 day')))

-- name: api_jobs
-- Jobs, newest first, a page at a time. Ids begin with the time of creation on the submitter's clock, so a range of
-- creation times is a range of the index, extended by a day on both sides. A single value is compared by `=`: an index
-- that begins with this column then has the order of the page.
SELECT
-- use: job_summary
       , dagapp.clock() AS now
  FROM dagapp.dag_jobs AS j
 WHERE (%(after)s::uuid IS NULL OR j.job_id < %(after)s::uuid)
   AND (%(status)s::text IS NULL OR j.status = %(status)s)
   AND
-- use: job_filters
 ORDER BY j.job_id DESC
 LIMIT %(limit)s;

-- name: api_jobs_in_states
-- The same for several states: a page of each is read from the index of states, in its order.
SELECT page.*, dagapp.clock() AS now
  FROM unnest(%(statuses)s::text[]) AS s (status)
 CROSS JOIN LATERAL (SELECT
-- use: job_summary
                       FROM dagapp.dag_jobs AS j
                      WHERE j.status = s.status
                        AND (%(after)s::uuid IS NULL OR j.job_id < %(after)s::uuid)
                        AND
-- use: job_filters
                      ORDER BY j.job_id DESC
                      LIMIT %(limit)s) AS page
 ORDER BY page.job_id DESC
 LIMIT %(limit)s;

-- name: api_jobs_by_id
-- Some jobs, with the columns of lists.
SELECT
-- use: job_summary
       , dagapp.clock() AS now
  FROM dagapp.dag_jobs AS j
 WHERE j.job_id = ANY (%(job_ids)s::uuid[]);

-- name: api_search_jobs
-- The same for jobs in which all words occur. For rare words the planner reads their index, by a bitmap scan, and sorts
-- the jobs; for frequent words it reads jobs in the order of their ids. So bitmap scans must be enabled.
SELECT
-- use: job_summary
       , dagapp.clock() AS now
  FROM dagapp.dag_job_search AS s
  JOIN dagapp.dag_jobs AS j
    ON j.job_id = s.job_id
 WHERE s.document @@ dagapp.word_query(%(words)s)
   AND (%(after)s::uuid IS NULL OR s.job_id < %(after)s::uuid)
   AND (%(statuses)s::text[] IS NULL OR j.status = ANY (%(statuses)s))
   AND
-- use: job_filters
 ORDER BY s.job_id DESC
 LIMIT %(limit)s;

-- name: api_job_counts
-- How many jobs there are in each of these states, each counted up to a limit.
SELECT s.status, c.count
  FROM unnest(%(statuses)s::text[]) AS s (status)
 CROSS JOIN LATERAL (SELECT count(*)::int AS count
                       FROM (SELECT 1
                               FROM dagapp.dag_jobs AS j
                              WHERE j.status = s.status
                                AND
-- use: job_filters
                              LIMIT %(limit)s) AS few) AS c;

-- name: api_search_counts
-- The same for jobs in which all words occur: their newest ones, up to a limit for all states together.
SELECT matches.status, count(*)::int AS count
  FROM (SELECT j.status
          FROM dagapp.dag_job_search AS s
          JOIN dagapp.dag_jobs AS j
            ON j.job_id = s.job_id
         WHERE s.document @@ dagapp.word_query(%(words)s)
           AND
-- use: job_filters
         ORDER BY s.job_id DESC
         LIMIT %(limit)s) AS matches
 GROUP BY matches.status;

-- name: allow_bitmap_scans
-- Enable bitmap scans until the end of the transaction: the index of words can only be read by a bitmap scan.
SELECT set_config('enable_bitmapscan', 'on', true);

-- name: api_job
-- A job, without its claim token, which is secret.
SELECT job_id, workflow_id, workflow_version, definition_hash, status, input_params, priority, owner_id,
       owner_heartbeat_at, epoch, correlation_id, submitted_by, callback_url, idempotency_key, message_id, asset_id,
       version_ordinal, deadline_at, result_data, error_message, cancel_requested_at, cancel_requested_by,
       cancel_reason, stopping, resume_count, last_sequence, version, created_at, updated_at, started_at, completed_at
  FROM dagapp.dag_jobs
 WHERE job_id = %(job_id)s;

-- name: api_job_brief
-- The few columns of a job that reads of its nodes and events need.
SELECT status, definition_hash, owner_id, last_sequence, dagapp.clock() AS now,
       jsonb_path_query_array(deferred_work, '$[*] ? (exists (@.node_id) && exists (@.handler) && exists (@.known_at))')
           AS deferred_work
  FROM dagapp.dag_jobs
 WHERE job_id = %(job_id)s;

-- name: api_definition
-- The workflow of a job.
SELECT body
  FROM dagapp.dag_workflow_definitions
 WHERE definition_hash = %(definition_hash)s;

-- name: api_heads
-- The last event and the status of some jobs, both of the same moment.
SELECT job_id, status, last_sequence
  FROM dagapp.dag_jobs
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: api_node
-- One node, or one child.
SELECT job_id, node_id, status, task_id, parent_node_id, fan_out_index, label, input_params, output, output_ref,
       error_message, error, reason, attempt, retry_count, loss_count, max_retries, not_before, total, expanded,
       remaining, failed_count, cancelled_count, idle_count, is_idle, dispatched_at, started_at, completed_at, version,
       run
  FROM dagapp.dag_node_states
 WHERE job_id = %(job_id)s AND node_id = %(node_id)s;

-- name: api_stopping_tasks
-- The tasks of a job that were asked to stop, without those that had ended before the cancel request: when the handler
-- was notified, and how the task ended.
SELECT t.task_id, t.node_id, t.attempt, t.handler, t.status, t.worker_id, t.stop_requested_at AS requested_at,
       t.stop_seen_at AS acknowledged_at, t.finished_at
  FROM dagapp.dag_jobs j
  JOIN dagapp.dag_tasks t ON t.job_id = j.job_id
 WHERE j.job_id = %(job_id)s AND t.stop_requested_at IS NOT NULL
   AND greatest(t.stop_requested_at, t.finished_at) >= j.cancel_requested_at
 ORDER BY t.stop_requested_at DESC, t.node_id
 LIMIT %(limit)s;

-- name: api_checkpoints
-- The checkpoints of a node, the last one first.
SELECT name, attempt, saved_at, artifacts
  FROM dagapp.dag_checkpoints
 WHERE job_id = %(job_id)s AND node_id = %(node_id)s
 ORDER BY attempt DESC, saved_at DESC, name DESC
 LIMIT %(limit)s;

-- name: api_attempts
-- The attempts of a node, the last one first, each with its report.
SELECT t.attempt, t.task_id, t.status, t.queue, t.handler, t.priority, t.params, t.params_ref, t.timeout_seconds,
       t.retry_count,
       t.worker_id, t.lease_until, t.available_at AS queued_at, t.expires_at, t.started_at, t.finished_at, t.progress,
       t.log, r.status AS reported_status, r.output, r.output_ref, r.error, r.metrics, r.reported_at, r.accepted
  FROM dagapp.dag_tasks t
  LEFT JOIN LATERAL (SELECT x.status, x.output, x.output_ref, x.error, x.metrics, x.reported_at, x.accepted
                       FROM dagapp.dag_task_results x
                      WHERE x.job_id = t.job_id AND x.node_id = t.node_id AND x.attempt = t.attempt
                     OFFSET 0) AS r
    ON true
 WHERE t.job_id = %(job_id)s AND t.node_id = %(node_id)s
 ORDER BY t.attempt DESC
 LIMIT %(limit)s;

-- name: api_log_lines
-- The log lines of a job's attempts by node, attempt and number: those of the report, or else the last ones that the
-- worker sent while the attempt ran. For a fan_out also the lines of its children.
SELECT t.node_id, t.attempt, l.number, l.line, t.available_at AS queued_at
  FROM dagapp.dag_tasks t
  LEFT JOIN LATERAL (SELECT x.metrics -> 'log' AS log
                       FROM dagapp.dag_task_results x
                      WHERE x.job_id = t.job_id AND x.node_id = t.node_id AND x.attempt = t.attempt
                     OFFSET 0) AS r
    ON true
 CROSS JOIN LATERAL (SELECT (e.line -> 'number')::int AS number, e.line
                       FROM jsonb_path_query(coalesce(r.log, t.log),
                                             '$[*] ? (@.number >= 1 && @.number <= 2147483647)') AS e (line)) AS l
 WHERE t.job_id = %(job_id)s
   AND (t.node_id, t.attempt) >= (%(after_node)s::text, %(after_attempt)s::int)
   AND (t.node_id, t.attempt, l.number) > (%(after_node)s::text, %(after_attempt)s::int, %(after_number)s::int)
   AND (%(node_id)s::text IS NULL OR t.node_id = %(node_id)s
        OR starts_with(t.node_id, %(node_id)s || '__') AND substr(t.node_id, length(%(node_id)s) + 3) ~ '^[0-9]+$')
   AND (%(attempt)s::int IS NULL OR t.attempt = %(attempt)s)
 ORDER BY t.node_id, t.attempt, l.number
 LIMIT %(limit)s;

-- name: api_running_log_lines
-- The same for running attempts, found by the index of running tasks.
SELECT t.node_id, t.attempt, l.number, l.line, t.available_at AS queued_at
  FROM dagapp.dag_tasks t
 CROSS JOIN LATERAL (SELECT (e.line -> 'number')::int AS number, e.line
                       FROM jsonb_path_query(t.log, '$[*] ? (@.number >= 1 && @.number <= 2147483647)')
                                AS e (line)) AS l
 WHERE t.job_id = %(job_id)s AND t.status = 'running'
   AND (t.node_id, t.attempt, l.number) > (%(after_node)s::text, %(after_attempt)s::int, %(after_number)s::int)
   AND (%(node_id)s::text IS NULL OR t.node_id = %(node_id)s
        OR starts_with(t.node_id, %(node_id)s || '__') AND substr(t.node_id, length(%(node_id)s) + 3) ~ '^[0-9]+$')
   AND (%(attempt)s::int IS NULL OR t.attempt = %(attempt)s)
 ORDER BY t.node_id, t.attempt, l.number
 LIMIT %(limit)s;

-- name: api_progress
-- The progress of the running attempts of some jobs; a limited number per job.
SELECT j.job_id, p.node_id, p.attempt, p.progress
  FROM unnest(%(job_ids)s::uuid[]) AS j (job_id)
 CROSS JOIN LATERAL (SELECT t.node_id, t.attempt, t.progress
                       FROM dagapp.dag_tasks t
                      WHERE t.job_id = j.job_id AND t.status = 'running' AND t.progress IS NOT NULL
                      ORDER BY t.node_id
                      LIMIT %(most)s) AS p;

-- name: api_task_holder
-- The worker of a task, and its status.
SELECT status, worker_id
  FROM dagapp.dag_tasks
 WHERE job_id = %(job_id)s AND node_id = %(node_id)s AND attempt = %(attempt)s;

-- part: timeline_bars
SELECT b.node_id, b.attempt, b.task_id, n.parent_node_id, n.label, b.status, b.queue, b.handler, b.worker_id,
       (SELECT w.host FROM dagapp.workers w WHERE w.worker_id = b.worker_id) AS worker_host,
       (SELECT left(r.error_message, 500)
          FROM dagapp.dag_task_results r
         WHERE r.job_id = b.job_id AND r.node_id = b.node_id AND r.attempt = b.attempt) AS error_message,
       b.available_at AS queued_at, b.started_at, b.finished_at

-- part: timeline_nodes
  LEFT JOIN LATERAL (SELECT c.parent_node_id, c.label
                       FROM dagapp.dag_node_states c
                      WHERE c.job_id = %(job_id)s AND c.node_id = b.node_id
                     OFFSET 0) AS n
    ON true

-- name: api_timeline
-- Attempts of a job in the order of their keys, so that a page costs the same for any number of children.
-- use: timeline_bars
  FROM (SELECT t.*
          FROM dagapp.dag_tasks t
         WHERE t.job_id = %(job_id)s
           AND (t.node_id, t.attempt) > (%(after_node)s::text, %(after_attempt)s::int)
           AND (%(statuses)s::text[] IS NULL OR t.status = ANY (%(statuses)s))
         ORDER BY t.node_id, t.attempt
         LIMIT %(limit)s) AS b
-- use: timeline_nodes
 ORDER BY b.node_id, b.attempt;

-- name: api_timeline_of_nodes
-- Attempts of these nodes only, each read by its key.
-- use: timeline_bars
  FROM (SELECT t.*
          FROM unnest(%(node_ids)s::text[]) AS k (node_id)
         CROSS JOIN LATERAL (SELECT a.*
                               FROM dagapp.dag_tasks a
                              WHERE a.job_id = %(job_id)s AND a.node_id = k.node_id
                                AND (a.node_id, a.attempt) > (%(after_node)s::text, %(after_attempt)s::int)
                                AND (%(statuses)s::text[] IS NULL OR a.status = ANY (%(statuses)s))
                             OFFSET 0) AS t
         ORDER BY t.node_id, t.attempt
         LIMIT %(limit)s) AS b
-- use: timeline_nodes
 ORDER BY b.node_id, b.attempt;

-- name: api_timeline_of_children
-- Attempts of the children of a fan_out, in the order of their index.
-- use: timeline_bars
  FROM (SELECT t.*, i.index
          FROM generate_series(%(after_index)s::int,
                               (SELECT p.expanded - 1
                                  FROM dagapp.dag_node_states p
                                 WHERE p.job_id = %(job_id)s AND p.node_id = %(parent)s)) AS i (index)
         CROSS JOIN LATERAL (SELECT a.*
                               FROM dagapp.dag_tasks a
                              WHERE a.job_id = %(job_id)s AND a.node_id = %(parent)s || '__' || i.index::text
                                AND (i.index > %(after_index)s OR a.attempt > %(after_attempt)s::int)
                                AND (%(statuses)s::text[] IS NULL OR a.status = ANY (%(statuses)s))
                              ORDER BY a.attempt) AS t
         LIMIT %(limit)s) AS b
-- use: timeline_nodes
 ORDER BY b.index, b.attempt;

-- name: api_live_tasks
-- The queued or running task of each of these nodes, with the number of tasks before it in its queue (counted up to a
-- limit, once per queue) and of live workers that can run it.
WITH RECURSIVE live AS MATERIALIZED (
    SELECT t.*
      FROM unnest(%(node_ids)s::text[]) AS k (node_id)
     CROSS JOIN LATERAL (SELECT a.node_id, a.status, a.queue, a.handler, a.priority, a.position, a.available_at,
                                a.started_at, a.worker_id, a.progress
                           FROM dagapp.dag_tasks a
                          WHERE a.job_id = %(job_id)s AND a.node_id = k.node_id AND a.status IN ('queued', 'running')
                         OFFSET 0) AS t
), searched_queues AS MATERIALIZED (
    SELECT DISTINCT l.queue
      FROM live l
     WHERE l.status = 'queued'
), wanted_handlers AS MATERIALIZED (
    SELECT NULL::text[] AS handlers, 0 AS any_rank
),
-- use: waiting
, first_tasks AS MATERIALIZED (
    SELECT f.position, row_number() OVER (PARTITION BY w.queue ORDER BY f.priority DESC, f.position)::int - 1 AS place
      FROM waiting w
     CROSS JOIN LATERAL (SELECT t.priority, t.position
                           FROM dagapp.dag_tasks t
                          WHERE t.status = 'queued' AND t.queue = w.queue AND t.handler = w.handler
                            AND t.priority = w.priority
                          ORDER BY t.position
                          LIMIT %(most)s) AS f
)
SELECT l.node_id, l.status, l.queue, l.handler, l.priority, l.available_at AS queued_at, l.started_at, l.worker_id,
       (SELECT w.host FROM dagapp.workers w WHERE w.worker_id = l.worker_id) AS worker_host,
       (SELECT w.pid FROM dagapp.workers w WHERE w.worker_id = l.worker_id) AS worker_pid,
       l.progress, served_by.live_workers, served_by.serving_workers,
       CASE WHEN l.status = 'queued'
            THEN least((SELECT min(f.place) FROM first_tasks f WHERE f.position = l.position), %(most)s::int)
       END AS tasks_ahead
  FROM live l
  JOIN (SELECT k.queue, k.handler, count(w.worker_id) FILTER (WHERE k.handler = ANY (w.handlers))::int AS live_workers,
               count(w.worker_id)::int AS serving_workers
          FROM (SELECT DISTINCT l.queue, l.handler FROM live l) AS k
          LEFT JOIN dagapp.workers w
            ON w.heartbeat_at > dagapp.clock() - make_interval(secs => %(within)s) AND k.queue = ANY (w.queues)
         GROUP BY k.queue, k.handler) AS served_by
    ON served_by.queue = l.queue AND served_by.handler = l.handler;

-- name: api_unfinished_children
-- Children of a fan_out that have not ended, in the order of their keys: those with a live task, and those that wait
-- for their next attempt. Both have an index of their own.
WITH live AS MATERIALIZED (
    SELECT t.node_id
      FROM dagapp.dag_tasks t
     WHERE t.job_id = %(job_id)s AND t.status IN ('queued', 'running') AND t.node_id > %(after)s::text
       AND (SELECT c.parent_node_id
              FROM dagapp.dag_node_states c
             WHERE c.job_id = t.job_id AND c.node_id = t.node_id) = %(parent)s::text
     ORDER BY t.node_id
     LIMIT %(limit)s
), waiting AS MATERIALIZED (
    SELECT n.node_id, n.parent_node_id
      FROM dagapp.dag_node_states n
     WHERE n.job_id = %(job_id)s AND n.not_before IS NOT NULL
), unfinished AS MATERIALIZED (
    SELECT l.node_id
      FROM live l
     UNION
    (SELECT w.node_id
       FROM waiting w
      WHERE w.parent_node_id = %(parent)s::text AND w.node_id > %(after)s::text
      ORDER BY w.node_id
      LIMIT %(limit)s)
)
SELECT n.node_id, n.status, n.parent_node_id, n.fan_out_index, n.label, n.error_message, n.reason, n.attempt,
       n.retry_count, n.max_retries, n.loss_count, n.not_before, n.total, n.expanded, n.remaining, n.failed_count,
       n.cancelled_count, n.dispatched_at, n.started_at, n.completed_at, 0 AS running_count, 0 AS retrying_count
  FROM unfinished u
 CROSS JOIN LATERAL (SELECT c.*
                       FROM dagapp.dag_node_states c
                      WHERE c.job_id = %(job_id)s AND c.node_id = u.node_id
                     OFFSET 0) AS n
 ORDER BY n.node_id
 LIMIT %(limit)s;

-- name: api_first_queued_child
-- One queued child of each of these fan_outs, to explain what all of them wait for.
SELECT f.parent, c.node_id
  FROM unnest(%(parents)s::text[]) AS f (parent)
 CROSS JOIN LATERAL (SELECT t.node_id
                       FROM dagapp.dag_tasks t
                      WHERE t.job_id = %(job_id)s AND t.status = 'queued'
                        AND (SELECT n.parent_node_id
                               FROM dagapp.dag_node_states n
                              WHERE n.job_id = t.job_id AND n.node_id = t.node_id) = f.parent
                      LIMIT 1) AS c;

-- name: api_next_retry
-- When the next attempt of a waiting child is due, for each fan_out of a job that has such children.
SELECT w.parent_node_id AS parent, min(w.not_before) AS due_at
  FROM (SELECT n.parent_node_id, n.not_before
          FROM dagapp.dag_node_states n
         WHERE n.job_id = %(job_id)s AND n.not_before IS NOT NULL AND n.parent_node_id IS NOT NULL
         ORDER BY n.not_before
         LIMIT 1000) AS w
 GROUP BY w.parent_node_id;

-- name: api_orchestrators
-- Orchestrators by id, with the age of their heartbeat and their jobs: the number, and the oldest few in detail.
SELECT o.owner_id, o.host, o.pid, o.software_version, o.started_at, o.heartbeat_at, o.stats,
       o.workflow_generation, o.workflow_count, o.workflows_refused, o.workflows_read_at,
       extract(epoch FROM dagapp.clock() - o.heartbeat_at)::float8 AS heartbeat_age_seconds,
       o.heartbeat_at > dagapp.clock() - make_interval(secs => %(within)s) AS is_alive,
       (SELECT count(*)::int
          FROM dagapp.dag_jobs j
         WHERE j.owner_id = o.owner_id AND j.status IN ('pending', 'running')) AS job_count,
       coalesce((SELECT jsonb_agg(to_jsonb(f) ORDER BY f.job_id)
                   FROM (SELECT j.job_id, j.workflow_id, j.status, j.created_at, j.started_at
                           FROM dagapp.dag_jobs j
                          WHERE j.owner_id = o.owner_id AND j.status IN ('pending', 'running')
                          ORDER BY j.job_id
                          LIMIT 20) AS f), '[]') AS jobs
  FROM dagapp.orchestrators o
 WHERE (%(after)s::uuid IS NULL OR o.owner_id > %(after)s::uuid)
 ORDER BY o.owner_id
 LIMIT %(limit)s;

-- name: api_workers
-- Workers by id, with the age of their heartbeat and their tasks: the number, and the longest running few in detail.
WITH running AS MATERIALIZED (
    SELECT t.worker_id, t.task_id, t.handler, t.queue, t.started_at, t.progress,
           row_number() OVER (PARTITION BY t.worker_id ORDER BY t.started_at, t.task_id) AS place
      FROM dagapp.dag_tasks t
     WHERE t.status = 'running'
)
SELECT w.worker_id, w.host, w.pid, w.software_version, w.worker_type, w.queues, w.handlers, w.started_at,
       w.heartbeat_at, w.stats,
       extract(epoch FROM dagapp.clock() - w.heartbeat_at)::float8 AS heartbeat_age_seconds,
       w.heartbeat_at > dagapp.clock() - make_interval(secs => %(within)s) AS is_alive,
       (SELECT count(*)::int FROM running r WHERE r.worker_id = w.worker_id) AS running_count,
       coalesce((SELECT jsonb_agg(jsonb_build_object('task_id', r.task_id, 'handler', r.handler, 'queue', r.queue,
                                                     'started_at', r.started_at, 'progress', r.progress)
                                  ORDER BY r.place)
                   FROM running r
                  WHERE r.worker_id = w.worker_id AND r.place <= 20), '[]') AS running
  FROM dagapp.workers w
 WHERE (%(after)s::uuid IS NULL OR w.worker_id > %(after)s::uuid)
 ORDER BY w.worker_id
 LIMIT %(limit)s;

-- name: api_queues
-- Every queue that is configured, limited, served by a live worker, or holds work. Queues that hold work are found by
-- jumping from one name to the next in their index.
WITH RECURSIVE holding AS (
    (SELECT t.queue FROM dagapp.dag_tasks t WHERE t.status = 'queued' ORDER BY t.queue LIMIT 1)
     UNION ALL
    SELECT (SELECT t.queue
              FROM dagapp.dag_tasks t
             WHERE t.status = 'queued' AND t.queue > h.queue
             ORDER BY t.queue
             LIMIT 1)
      FROM holding h
     WHERE h.queue IS NOT NULL
), searched_queues AS MATERIALIZED (
    SELECT h.queue
      FROM holding h
     WHERE h.queue IS NOT NULL
), wanted_handlers AS MATERIALIZED (
    SELECT NULL::text[] AS handlers, 0 AS any_rank
),
-- use: waiting
, running AS MATERIALIZED (
    SELECT t.queue, count(*)::int AS count
      FROM dagapp.dag_tasks t
     WHERE t.status = 'running'
     GROUP BY t.queue
), serving AS MATERIALIZED (
    SELECT q.queue, count(*)::int AS count
      FROM dagapp.workers w
     CROSS JOIN LATERAL unnest(w.queues) AS q (queue)
     WHERE w.heartbeat_at > dagapp.clock() - make_interval(secs => %(within)s)
     GROUP BY q.queue
), rates AS MATERIALIZED (
    -- Per minute, by queue, as live workers and orchestrators report them with their heartbeats.
    SELECT r.queue, sum(r.rate) FILTER (WHERE s.name = 'enqueued_per_minute') AS enqueued,
           sum(r.rate) FILTER (WHERE s.name = 'started_per_minute') AS started,
           sum(r.rate) FILTER (WHERE s.name = 'finished_per_minute') AS finished
      FROM (SELECT o.stats
              FROM dagapp.orchestrators o
             WHERE o.heartbeat_at > dagapp.clock() - make_interval(secs => %(within)s)
             UNION ALL
            SELECT w.stats
              FROM dagapp.workers w
             WHERE w.heartbeat_at > dagapp.clock() - make_interval(secs => %(within)s)) AS live
     CROSS JOIN LATERAL (SELECT e.key AS name, e.value
                           FROM jsonb_each(CASE jsonb_typeof(live.stats) WHEN 'object' THEN live.stats ELSE '{}' END)
                                    AS e
                          WHERE e.key IN ('enqueued_per_minute', 'started_per_minute', 'finished_per_minute')
                            AND jsonb_typeof(e.value) = 'object') AS s
     CROSS JOIN LATERAL (SELECT v.key AS queue, (v.value #>> '{}')::float8 AS rate
                           FROM jsonb_each(CASE jsonb_typeof(s.value) WHEN 'object' THEN s.value ELSE '{}' END) AS v
                          WHERE jsonb_typeof(v.value) = 'number') AS r
     GROUP BY r.queue
), named AS MATERIALIZED (
    SELECT k.queue FROM unnest(%(known)s::text[]) AS k (queue)
     UNION
    SELECT s.queue FROM dagapp.dag_queues s
     UNION
    SELECT v.queue FROM serving v
     UNION
    SELECT r.queue FROM running r
     UNION
    SELECT h.queue FROM searched_queues h
)
SELECT n.queue, 'tasks' AS kind,
       (SELECT count(*)::int FROM dagapp.dag_tasks t WHERE t.status = 'queued' AND t.queue = n.queue) AS depth,
       (SELECT extract(epoch FROM dagapp.clock() - min(w.available_at))::float8
          FROM waiting w
         WHERE w.queue = n.queue) AS oldest_age_seconds,
       coalesce((SELECT r.count FROM running r WHERE r.queue = n.queue), 0) AS running_count,
       coalesce((SELECT v.count FROM serving v WHERE v.queue = n.queue), 0) AS live_workers,
       s.max_running, coalesce(s.is_paused, false) AS is_paused,
       coalesce((SELECT r.enqueued FROM rates r WHERE r.queue = n.queue), 0) AS enqueued_per_minute,
       coalesce((SELECT r.started FROM rates r WHERE r.queue = n.queue), 0) AS started_per_minute,
       coalesce((SELECT r.finished FROM rates r WHERE r.queue = n.queue), 0) AS finished_per_minute
  FROM named n
  LEFT JOIN dagapp.dag_queues s
    ON s.queue = n.queue
 WHERE (%(only)s::text IS NULL OR n.queue = %(only)s)
 UNION ALL
SELECT %(job_queue)s::text, 'submissions', count(*)::int,
       extract(epoch FROM dagapp.clock() - min(m.enqueued_at))::float8, 0, 0, NULL, false, NULL, NULL, NULL
  FROM dagapp.dag_job_messages m
 WHERE m.queue = %(job_queue)s AND %(only)s::text IS NULL
HAVING %(only)s::text IS NULL
 ORDER BY 1;

-- name: api_queue_settings
-- The limits of queues, and which queues are paused; only queues that have such settings.
SELECT queue, max_running, is_paused, updated_at
  FROM dagapp.dag_queues;

-- name: api_queue_running
-- How many tasks of each of these queues run now.
SELECT t.queue, count(*)::int AS count
  FROM dagapp.dag_tasks t
 WHERE t.status = 'running' AND t.queue = ANY (%(queues)s::text[])
 GROUP BY t.queue;

-- name: api_dead_letters
-- Dead letters, newest first.
SELECT dead_letter_id, queue, message_id, reason, description, body, created_at,
       queue = %(job_queue)s OR reason = 'PoisonTask' AS is_replayable,
       CASE WHEN reason = 'PoisonTask' THEN (body ->> 'job_id')::uuid END AS job_id,
       CASE WHEN reason = 'PoisonTask' THEN body ->> 'node_id' END AS node_id
  FROM dagapp.dag_dead_letters
 WHERE (%(after_at)s::timestamptz IS NULL OR (created_at, dead_letter_id) < (%(after_at)s, %(after_id)s::uuid))
   AND (%(reason)s::text IS NULL OR reason = %(reason)s)
 ORDER BY created_at DESC, dead_letter_id DESC
 LIMIT %(limit)s;

-- name: api_dead_letter
-- One dead letter.
SELECT dead_letter_id, queue, message_id, reason, description, body, created_at,
       queue = %(job_queue)s OR reason = 'PoisonTask' AS is_replayable,
       CASE WHEN reason = 'PoisonTask' THEN (body ->> 'job_id')::uuid END AS job_id,
       CASE WHEN reason = 'PoisonTask' THEN body ->> 'node_id' END AS node_id
  FROM dagapp.dag_dead_letters
 WHERE dead_letter_id = %(dead_letter_id)s;

-- name: api_jobs_by_status
-- How many jobs there are in each state.
SELECT status, count(*)::int AS count
  FROM dagapp.dag_jobs
 GROUP BY status;

-- name: api_recent_workflows
-- Statistics of the jobs of the last hours, by workflow. Ids begin with the time of creation.
SELECT workflow_id,
       count(*)::int AS jobs,
       count(*) FILTER (WHERE status IN ('pending', 'running'))::int AS active,
       count(*) FILTER (WHERE status = 'completed')::int AS completed,
       count(*) FILTER (WHERE status IN ('failed', 'partial_success', 'cancelled'))::int AS not_completed,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM completed_at - created_at)::float8)
           AS p50_seconds,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM completed_at - created_at)::float8)
           AS p95_seconds
  FROM dagapp.dag_jobs
 WHERE job_id >= dagapp.first_uuid_at(dagapp.clock() - make_interval(hours => %(hours)s))
 GROUP BY workflow_id
 ORDER BY jobs DESC, workflow_id
 LIMIT 100;

-- name: api_live_task_counts
-- Queued and running tasks by queue.
SELECT queue, status, count(*)::int AS count
  FROM dagapp.dag_tasks
 WHERE status = 'queued'
 GROUP BY queue, status
 UNION ALL
SELECT queue, status, count(*)::int
  FROM dagapp.dag_tasks
 WHERE status = 'running'
 GROUP BY queue, status;

-- name: api_task_counts
-- All tasks by queue and status. Reads the whole table: only for small tables.
SELECT queue, status, count(*)::int AS count
  FROM dagapp.dag_tasks
 GROUP BY queue, status;

-- name: api_sizes
-- The estimated rows of the large tables, and the size of the database.
SELECT (SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint
          FROM pg_partition_tree('dagapp.dag_job_events') p
          JOIN pg_class c ON c.oid = p.relid) AS events_estimate,
       (SELECT pg_relation_size('dagapp.dag_tasks')) AS tasks_bytes,
       (SELECT count(*)::int FROM dagapp.dag_dead_letters) AS dead_letters,
       pg_database_size(current_database()) AS database_bytes;

-- name: api_liveness
-- What readiness depends on: the deployed schema, and the age of an orchestrator's heartbeat.
SELECT i.fingerprint, current_database() AS database,
       (SELECT extract(epoch FROM dagapp.clock() - o.heartbeat_at)::float8
          FROM dagapp.orchestrators o
         WHERE o.owner_id = %(owner_id)s::uuid) AS beat_age_seconds,
       (SELECT count(*)::int
          FROM dagapp.orchestrators o
         WHERE o.heartbeat_at > dagapp.clock() - make_interval(secs => %(within)s)) AS live_orchestrators,
       (SELECT count(*)::int
          FROM dagapp.workers w
         WHERE w.heartbeat_at > dagapp.clock() - make_interval(secs => %(within)s)) AS live_workers
  FROM dagapp.schema_info i;

-- name: deployed_parts
-- The columns and functions of the deployed schema, with which a process compares those that it needs.
SELECT concat(c.relname, '.', a.attname) AS name
  FROM pg_class c
  JOIN pg_attribute a ON a.attrelid = c.oid
 WHERE c.relnamespace = to_regnamespace('dagapp')
   AND c.relkind IN ('r', 'p')
   AND NOT c.relispartition
   AND a.attnum > 0
   AND NOT a.attisdropped
 UNION ALL
SELECT concat(proname, '()')
  FROM pg_proc
 WHERE pronamespace = to_regnamespace('dagapp');

-- name: api_database_name
-- The name that confirms a destructive operation.
SELECT current_database() AS database;
