-- name: retention_lock
-- One instance deletes at a time, until its transaction ends.
SELECT pg_try_advisory_xact_lock(hashtext('dagapp.retention')) AS is_ours;

-- name: retention_pick
-- The oldest jobs that ended long enough ago, locked. A job that runs again, or that someone is about to resume, is not among
-- them. Ids begin with the time of birth, so nothing younger is looked at.
SELECT j.job_id, j.last_sequence
  FROM dagapp.dag_jobs j
 WHERE j.job_id < dagapp.first_uuid_at(dagapp.clock() - make_interval(secs => %(age)s))
   AND j.status NOT IN ('pending', 'running')
   AND j.completed_at < dagapp.clock() - make_interval(secs => %(age)s)
 ORDER BY j.job_id
 LIMIT %(limit)s
   FOR UPDATE SKIP LOCKED;

-- name: retention_count
-- How many jobs could go, as far as is counted.
SELECT count(*)::int AS jobs
  FROM (SELECT 1
          FROM dagapp.dag_jobs j
         WHERE j.job_id < dagapp.first_uuid_at(dagapp.clock() - make_interval(secs => %(age)s))
           AND j.status NOT IN ('pending', 'running')
           AND j.completed_at < dagapp.clock() - make_interval(secs => %(age)s)
         LIMIT %(limit)s) AS found;

-- name: retention_keys
-- Idempotency keys of jobs that go: before the jobs, because whoever submits takes its key first.
DELETE FROM dagapp.dag_idempotency_keys
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_tasks
-- Tasks: before the results, because a report that comes too late holds its task until it is kept.
DELETE FROM dagapp.dag_tasks
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_results
-- Results of jobs that go.
DELETE FROM dagapp.dag_task_results
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_payloads
-- Payloads of jobs that go. What a worker is storing right now is nobody's then, and deleted as such.
WITH gone AS (
    DELETE FROM dagapp.dag_payload_parts
     WHERE job_id = ANY (%(job_ids)s::uuid[])
)
DELETE FROM dagapp.dag_payloads
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_checkpoints
-- Checkpoints of jobs that go.
DELETE FROM dagapp.dag_checkpoints
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_events
-- Events of jobs that go. Their space comes back when the month's partition is dropped.
DELETE FROM dagapp.dag_job_events
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_nodes
-- Nodes of jobs that go.
DELETE FROM dagapp.dag_node_states
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_jobs
-- The jobs themselves, last.
DELETE FROM dagapp.dag_jobs
 WHERE job_id = ANY (%(job_ids)s::uuid[])
RETURNING job_id;

-- name: retention_letters
-- Dead letters about tasks of jobs that are gone. A refused submission stays until someone has looked at it.
WITH gone AS MATERIALIZED (
    SELECT d.dead_letter_id
      FROM dagapp.dag_dead_letters d
     WHERE d.reason = 'PoisonTask'
       AND NOT EXISTS (SELECT 1 FROM dagapp.dag_jobs j WHERE j.job_id = (d.body ->> 'job_id')::uuid)
       AND d.created_at < dagapp.clock() - make_interval(secs => %(age)s)
     ORDER BY d.dead_letter_id
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM dagapp.dag_dead_letters d
 USING gone
 WHERE d.dead_letter_id = gone.dead_letter_id
RETURNING d.dead_letter_id;

-- name: retention_actions
-- What the janitor did long ago.
WITH gone AS MATERIALIZED (
    SELECT a.action_id
      FROM dagapp.dag_janitor_actions a
     WHERE a.created_at < dagapp.clock() - make_interval(secs => %(age)s)
     ORDER BY a.created_at, a.action_id
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM dagapp.dag_janitor_actions a
 USING gone
 WHERE a.action_id = gone.action_id
RETURNING a.action_id;

-- name: retention_definitions
-- Definitions that no job uses any more.
SELECT dagapp.forget_definitions(dagapp.clock() - make_interval(secs => %(age)s)) AS gone;

-- name: retention_partition
-- A month of events without a job.
SELECT dagapp.drop_event_partition(dagapp.clock() - make_interval(secs => %(age)s)) AS name;
