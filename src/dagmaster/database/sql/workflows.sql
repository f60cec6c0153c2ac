-- The stored definitions of workflows, and the results of their jobs.

-- part: definition_columns
d.definition_hash, d.workflow_version, d.created_at AS first_used_at, used.last_used_at,
       least(counted.count, %(most)s::int) AS jobs, counted.count <= %(most)s::int AS is_exact,
       d.definition_hash = %(current)s::text AS is_current

-- part: definition_uses
 CROSS JOIN LATERAL (SELECT count(*)::int AS count
                       FROM (SELECT 1
                               FROM dagapp.dag_jobs j
                              WHERE j.definition_hash = d.definition_hash
                              LIMIT %(most)s + 1) AS few) AS counted
  LEFT JOIN LATERAL (SELECT j.created_at AS last_used_at
                       FROM dagapp.dag_jobs j
                      WHERE j.workflow_id = d.workflow_id AND j.definition_hash = d.definition_hash
                      ORDER BY j.job_id DESC
                      LIMIT 1) AS used
    ON true

-- name: workflow_definitions
-- The definitions of a workflow, newest first, a page at a time.
SELECT
-- use: definition_columns
  FROM (SELECT *
          FROM dagapp.dag_workflow_definitions
         WHERE workflow_id = %(workflow_id)s
           AND (%(after_at)s::timestamptz IS NULL
                OR (created_at, definition_hash) < (%(after_at)s, %(after_hash)s::text))
         ORDER BY created_at DESC, definition_hash DESC
         LIMIT %(limit)s) AS d
-- use: definition_uses
 ORDER BY d.created_at DESC, d.definition_hash DESC;

-- name: workflow_definition
-- One definition of a workflow, with its content.
SELECT
-- use: definition_columns
       , d.body AS definition
  FROM dagapp.dag_workflow_definitions AS d
-- use: definition_uses
 WHERE d.workflow_id = %(workflow_id)s AND d.definition_hash = %(definition_hash)s;

-- name: workflow_results
-- The newest jobs of a workflow since a time, by status, and the durations of those that completed without a resume.
SELECT status, count(*)::int AS count,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) FILTER (WHERE is_typical) AS p50_seconds,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY seconds) FILTER (WHERE is_typical) AS p95_seconds
  FROM (SELECT status, extract(epoch FROM completed_at - created_at)::float8 AS seconds,
               status = 'completed' AND resume_count = 0 AS is_typical
          FROM dagapp.dag_jobs
         WHERE workflow_id = %(workflow_id)s
           AND job_id >= dagapp.first_uuid_at(dagapp.clock() - make_interval(days => %(days)s))
         ORDER BY job_id DESC
         LIMIT %(most)s) AS recent
 GROUP BY status;
