-- part: outbox_queues
-- The names of the queues that have messages in the outbox, by a loose index scan: one access per queue.
name AS (
    (SELECT o.queue
       FROM dagapp.dag_outbox o
      ORDER BY o.queue
      LIMIT 1)
     UNION ALL
    SELECT (SELECT o.queue
              FROM dagapp.dag_outbox o
             WHERE o.queue > n.queue
             ORDER BY o.queue
             LIMIT 1)
      FROM name n
     WHERE n.queue IS NOT NULL
)

-- name: outbox_claim
-- Claim messages of the outbox that are due: of each queue the oldest, up to its limit, and of some queues a few of the
-- newest. If their relay dies, another one may send them when the lease is over. A message whose task is no longer
-- queued need not be sent.
WITH RECURSIVE
-- use: outbox_queues
, due AS MATERIALIZED (
    SELECT d.job_id, d.node_id, d.attempt
      FROM name n
      LEFT JOIN unnest(%(queues)s::text[], %(limits)s::int[]) AS l (queue, size)
        ON l.queue = n.queue
     CROSS JOIN LATERAL (
           SELECT o.job_id, o.node_id, o.attempt
             FROM dagapp.dag_outbox o
            WHERE o.queue = n.queue AND o.not_before <= (SELECT dagapp.clock())
            ORDER BY o.not_before
            LIMIT coalesce(l.size, %(limit)s)
              FOR NO KEY UPDATE SKIP LOCKED) AS d
     WHERE n.queue IS NOT NULL
), newest AS MATERIALIZED (
    SELECT d.job_id, d.node_id, d.attempt
      FROM unnest(%(newest)s::text[]) AS n (queue)
     CROSS JOIN LATERAL (
           SELECT o.job_id, o.node_id, o.attempt
             FROM dagapp.dag_outbox o
            WHERE o.queue = n.queue AND o.not_before <= (SELECT dagapp.clock())
            ORDER BY o.not_before DESC
            LIMIT %(newest_limit)s
              FOR NO KEY UPDATE SKIP LOCKED) AS d
)
UPDATE dagapp.dag_outbox o
   SET not_before = (SELECT dagapp.clock() + make_interval(secs => %(lease)s)), tries = o.tries + 1
  FROM (SELECT * FROM due UNION ALL SELECT * FROM newest) AS d
 WHERE o.job_id = d.job_id AND o.node_id = d.node_id AND o.attempt = d.attempt
RETURNING o.job_id, o.node_id, o.attempt, o.queue, o.tries,
          EXISTS (SELECT 1
                    FROM dagapp.dag_tasks t
                   WHERE t.job_id = o.job_id AND t.node_id = o.node_id AND t.attempt = o.attempt
                     AND t.status IS NOT DISTINCT FROM 'queued') AS is_queued;

-- name: outbox_forget
-- Delete messages whose tasks are no longer queued, among the oldest of each queue: tasks are claimed in about the same
-- order. Only those are locked. An attempt that is no longer queued never will be again.
WITH RECURSIVE
-- use: outbox_queues
, head AS MATERIALIZED (
    SELECT h.job_id, h.node_id, h.attempt
      FROM name n
     CROSS JOIN LATERAL (
           SELECT o.job_id, o.node_id, o.attempt
             FROM dagapp.dag_outbox o
            WHERE o.queue = n.queue
            ORDER BY o.not_before
            LIMIT %(limit)s) AS h
     WHERE n.queue IS NOT NULL
), unneeded AS MATERIALIZED (
    SELECT h.job_id, h.node_id, h.attempt
      FROM head h
     WHERE NOT EXISTS (SELECT 1
                         FROM dagapp.dag_tasks t
                        WHERE t.job_id = h.job_id AND t.node_id = h.node_id AND t.attempt = h.attempt
                          AND t.status IS NOT DISTINCT FROM 'queued'
                       OFFSET 0)  -- by its key, for each row
), locked AS MATERIALIZED (
    SELECT o.job_id, o.node_id, o.attempt
      FROM unneeded u
      JOIN dagapp.dag_outbox o
        ON o.job_id = u.job_id AND o.node_id = u.node_id AND o.attempt = u.attempt
       FOR UPDATE OF o SKIP LOCKED
)
DELETE FROM dagapp.dag_outbox o
 USING locked l
 WHERE o.job_id = l.job_id AND o.node_id = l.node_id AND o.attempt = l.attempt
RETURNING 1 AS one;

-- name: outbox_workers
-- How many live workers serve each queue.
SELECT q.queue, count(*)::int AS workers
  FROM dagapp.workers w
 CROSS JOIN LATERAL unnest(w.queues) AS q (queue)
 WHERE w.heartbeat_at > dagapp.clock() - make_interval(secs => %(alive)s)
 GROUP BY q.queue;

-- name: outbox_delete
-- Delete messages that the broker has acknowledged, or whose tasks are no longer queued.
WITH sent AS MATERIALIZED (
    SELECT o.job_id, o.node_id, o.attempt
      FROM unnest(%(job_ids)s::uuid[], %(node_ids)s::text[], %(attempts)s::int[]) AS k (job_id, node_id, attempt)
      JOIN dagapp.dag_outbox o
        ON o.job_id = k.job_id AND o.node_id = k.node_id AND o.attempt = k.attempt
     ORDER BY o.job_id, o.node_id, o.attempt
       FOR UPDATE OF o
)
DELETE FROM dagapp.dag_outbox o
 USING sent s
 WHERE o.job_id = s.job_id AND o.node_id = s.node_id AND o.attempt = s.attempt;

-- name: outbox_postpone
-- Postpone messages that the broker has not accepted: they are sent again later.
WITH failed AS MATERIALIZED (
    SELECT o.job_id, o.node_id, o.attempt
      FROM unnest(%(job_ids)s::uuid[], %(node_ids)s::text[], %(attempts)s::int[]) AS k (job_id, node_id, attempt)
      JOIN dagapp.dag_outbox o
        ON o.job_id = k.job_id AND o.node_id = k.node_id AND o.attempt = k.attempt
     ORDER BY o.job_id, o.node_id, o.attempt
       FOR NO KEY UPDATE OF o
)
UPDATE dagapp.dag_outbox o
   SET not_before = (SELECT dagapp.clock() + make_interval(secs => %(delay)s)), error = %(error)s
  FROM failed f
 WHERE o.job_id = f.job_id AND o.node_id = f.node_id AND o.attempt = f.attempt;

-- name: outbox_take_tasks
-- Claim queued tasks whose message the broker will never accept, in order to report them as failed.
WITH refused AS MATERIALIZED (
    SELECT t.job_id, t.node_id, t.attempt
      FROM unnest(%(job_ids)s::uuid[], %(node_ids)s::text[], %(attempts)s::int[]) AS k (job_id, node_id, attempt)
      JOIN dagapp.dag_tasks t
        ON t.job_id = k.job_id
       AND t.node_id = k.node_id
       AND t.attempt = k.attempt
       AND t.status IS NOT DISTINCT FROM 'queued'
     ORDER BY t.job_id, t.node_id, t.attempt
       FOR NO KEY UPDATE OF t
)
UPDATE dagapp.dag_tasks t
   SET status = 'running', worker_id = %(worker_id)s, started_at = (SELECT dagapp.clock()),
       lease_until = (SELECT dagapp.clock() + make_interval(secs => 60))
  FROM refused r
 WHERE t.job_id = r.job_id AND t.node_id = r.node_id AND t.attempt = r.attempt
RETURNING t.job_id, t.node_id, t.attempt;

-- name: outbox_facts
-- For each queue: how many messages wait in the outbox and for how long, how many of them the broker has not accepted,
-- and the last error. Only the first 100,000 of a queue are counted: while workers are busy, a large fan_out leaves
-- many more there.
WITH RECURSIVE
-- use: outbox_queues
SELECT n.queue, f.messages, f.postponed, f.oldest_seconds, f.error
  FROM name n
 CROSS JOIN LATERAL (
       SELECT count(*)::int AS messages, count(o.error)::int AS postponed,
              extract(epoch FROM dagapp.clock() - min(o.written_at))::float8 AS oldest_seconds, max(o.error) AS error
         FROM (SELECT error, written_at
                 FROM dagapp.dag_outbox
                WHERE queue = n.queue
                ORDER BY not_before
                LIMIT 100000) AS o) AS f
 WHERE n.queue IS NOT NULL
 ORDER BY n.queue;

-- name: queued_tasks
-- Which of these tasks are still queued. The key of a task follows from its id, which ends with the attempt.
SELECT k.task_id
  FROM unnest(%(task_ids)s::text[], %(job_ids)s::uuid[], %(node_ids)s::text[], %(attempts)s::int[])
       AS k (task_id, job_id, node_id, attempt)
  JOIN dagapp.dag_tasks t
    ON t.job_id = k.job_id AND t.node_id = k.node_id AND t.attempt = k.attempt
 WHERE t.status IS NOT DISTINCT FROM 'queued';
