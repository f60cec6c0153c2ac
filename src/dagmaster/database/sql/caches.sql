-- Caches of all processes: a process reads one again when its generation has grown.

-- name: cache_state
-- The generation of the workflows, and the one that an orchestrator has recorded as read.
SELECT coalesce((SELECT generation FROM dagapp.cache_generations WHERE cache = 'workflows'), 0) AS generation,
       (SELECT workflow_generation FROM dagapp.orchestrators WHERE owner_id = %(owner_id)s) AS recorded;

-- name: cache_read
-- Record that an orchestrator has read its workflows.
UPDATE dagapp.orchestrators
   SET workflow_generation = %(generation)s,
       workflow_count = %(workflow_count)s,
       workflows_refused = %(refused)s,
       workflows_read_at = dagapp.clock()
 WHERE owner_id = %(owner_id)s;

-- name: cache_invalidate
-- Make all orchestrators read their workflows again.
INSERT INTO dagapp.cache_generations AS c (cache, invalidated_by)
VALUES ('workflows', %(actor)s)
    ON CONFLICT (cache) DO UPDATE
   SET generation = c.generation + 1,
       invalidated_at = dagapp.clock(),
       invalidated_by = excluded.invalidated_by
RETURNING c.generation;

-- name: cache_readers
-- The live orchestrators, and the generation of the workflows that each has read.
SELECT owner_id AS instance_id, host, pid, coalesce(workflow_generation, -1) >= %(generation)s AS is_reloaded,
       workflow_count, workflows_refused, workflows_read_at
  FROM dagapp.orchestrators
 WHERE heartbeat_at > dagapp.clock() - make_interval(secs => %(alive)s)
 ORDER BY started_at, owner_id;
