-- name: legacy_children
-- For each of these fan_outs: when its last child ended, and the COGs that its children wrote. Reads all children.
SELECT n.parent_node_id AS node_id,
       max(n.completed_at) AS completed_at,
       count(*) FILTER (WHERE %(with_outputs)s::boolean AND n.output ? 'cog_blob')::int AS cogs_created,
       least(coalesce(sum(CASE WHEN jsonb_typeof(n.output -> 'size_mb') = 'number'
                               THEN (n.output ->> 'size_mb')::numeric
                          END)
                FILTER (WHERE %(with_outputs)s AND n.output ? 'cog_blob'), 0), 1e15)::float8 AS total_size_mb
  FROM dagapp.dag_node_states n
 WHERE n.job_id = %(job_id)s AND n.parent_node_id = ANY (%(fan_outs)s::text[])
 GROUP BY n.parent_node_id;

-- name: legacy_output_fields
-- Some fields of the outputs of nodes; an output that is not an object has none.
SELECT n.node_id, jsonb_object_agg(f.name, n.output -> f.name) AS fields
  FROM dagapp.dag_node_states n
  JOIN unnest(%(names)s::text[]) AS f (name)
    ON jsonb_typeof(n.output) = 'object' AND n.output ? f.name
 WHERE n.job_id = %(job_id)s AND n.node_id = ANY (%(node_ids)s::text[])
 GROUP BY n.node_id;

-- name: legacy_tasks
-- Tasks of nodes and of the children of fan_outs, in the order of the given names and by index, without large values.
SELECT n.node_id, n.parent_node_id, n.fan_out_index, n.task_id, n.status,
       CASE WHEN pg_column_size(n.input_params) <= %(max_bytes)s::int THEN n.input_params END AS input_params,
       CASE WHEN pg_column_size(n.output) <= %(max_bytes)s THEN n.output END AS output,
       n.error_message, n.retry_count, n.dispatched_at, n.started_at, n.completed_at
  FROM dagapp.dag_node_states n
 WHERE n.job_id = %(job_id)s
   AND coalesce(n.parent_node_id, n.node_id) = ANY (%(node_ids)s::text[])
   AND n.total IS NULL
 ORDER BY array_position(%(node_ids)s, coalesce(n.parent_node_id, n.node_id)), n.fan_out_index NULLS FIRST, n.node_id
 LIMIT %(limit)s
OFFSET %(offset)s;
