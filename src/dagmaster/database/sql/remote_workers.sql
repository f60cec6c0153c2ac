-- Workers without database access: the API reads these for them.

-- name: held_task
-- What a worker may read with a task that it holds. A task is claimed once, so that its worker never changes.
SELECT t.queue, t.params_ref, t.params -> 'results_of' AS results_of
  FROM dagapp.dag_tasks t
 WHERE t.job_id = %(job_id)s AND t.node_id = %(node_id)s AND t.attempt = %(attempt)s
   AND t.status = 'running' AND t.worker_id = %(worker_id)s;

-- name: claimable_handlers
-- The handlers that have queued tasks, by queue; without queues that are paused or full. One access for each handler,
-- however many tasks it has.
WITH RECURSIVE searched_queues AS MATERIALIZED (
    SELECT q.name AS queue
      FROM unnest(%(queues)s::text[]) AS q (name)
      LEFT JOIN dagapp.dag_queues s
        ON s.queue = q.name
     WHERE s.queue IS NULL
        OR NOT s.is_paused
       AND (s.max_running IS NULL
            OR s.max_running > (SELECT count(*)
                                  FROM dagapp.dag_tasks t
                                 WHERE t.status = 'running' AND t.queue = q.name))
), wanted_handlers AS MATERIALIZED (
    SELECT NULL::text[] AS handlers, NULL::int AS any_rank
),
-- use: waiting
SELECT DISTINCT w.queue, w.handler
  FROM waiting w;
