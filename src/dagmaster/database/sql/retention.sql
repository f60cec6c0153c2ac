-- Delete jobs that ended long ago. The comment of a statement names the rows that it deletes.

-- name: retention_lock
-- One instance deletes at a time, until its transaction ends.
SELECT pg_try_advisory_xact_lock(hashtext('dagapp.retention')) AS is_acquired;

-- name: retention_pick
-- The oldest jobs that ended long enough ago, locked. Jobs that run again or are being resumed are skipped. Ids begin
-- with the time of creation, so younger jobs are not read.
SELECT j.job_id, j.last_sequence
  FROM dagapp.dag_jobs j
 WHERE j.job_id < dagapp.first_uuid_at(dagapp.clock() - make_interval(secs => %(age)s))
   AND j.status NOT IN ('pending', 'running')
   AND j.completed_at < dagapp.clock() - make_interval(secs => %(age)s)
 ORDER BY j.job_id
 LIMIT %(limit)s
   FOR UPDATE SKIP LOCKED;

-- name: retention_count
-- How many jobs could be deleted, counted up to a limit.
SELECT count(*)::int AS jobs
  FROM (SELECT 1
          FROM dagapp.dag_jobs j
         WHERE j.job_id < dagapp.first_uuid_at(dagapp.clock() - make_interval(secs => %(age)s))
           AND j.status NOT IN ('pending', 'running')
           AND j.completed_at < dagapp.clock() - make_interval(secs => %(age)s)
         LIMIT %(limit)s) AS old;

-- name: retention_keys
-- Idempotency keys of the deleted jobs: before the jobs, because a submission takes its key first. They are locked in
-- the order in which an orchestrator reserves the keys of several messages.
WITH old AS MATERIALIZED (
    SELECT submitted_by, idempotency_key
      FROM dagapp.dag_idempotency_keys
     WHERE job_id = ANY (%(job_ids)s::uuid[])
     ORDER BY submitted_by COLLATE "C", idempotency_key COLLATE "C"
       FOR UPDATE
)
DELETE FROM dagapp.dag_idempotency_keys k
 USING old
 WHERE k.submitted_by = old.submitted_by AND k.idempotency_key = old.idempotency_key;

-- name: retention_outbox
-- Ids of tasks that were never sent, for example because the transport was changed.
DELETE FROM dagapp.dag_outbox
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_tasks
-- Tasks: before the results, because a late report locks its task until its transaction ends.
DELETE FROM dagapp.dag_tasks
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_results
-- Results of the deleted jobs.
DELETE FROM dagapp.dag_task_results
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_payloads
-- Payloads of the deleted jobs. A payload that a worker stores at this moment becomes unused, and the janitor deletes
-- it.
WITH parts AS (
    DELETE FROM dagapp.dag_payload_parts
     WHERE job_id = ANY (%(job_ids)s::uuid[])
)
DELETE FROM dagapp.dag_payloads
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_checkpoints
-- Checkpoints of the deleted jobs.
DELETE FROM dagapp.dag_checkpoints
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_documents
-- STAC documents of the deleted jobs that were not submitted as assets. Those of assets belong to their revisions.
DELETE FROM dagapp.stac_documents
 WHERE dataset_id = ANY (SELECT 'job-' || job_id::text FROM unnest(%(job_ids)s::uuid[]) AS old (job_id));

-- name: retention_events
-- Events of the deleted jobs. Their space is freed when the partition of the month is dropped.
DELETE FROM dagapp.dag_job_events
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_nodes
-- Nodes of the deleted jobs.
DELETE FROM dagapp.dag_node_states
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_subscribers
-- The subscribers of the deleted jobs.
DELETE FROM dagapp.callback_subscribers
 WHERE kind = 'job' AND subject = ANY (SELECT job_id::text FROM unnest(%(job_ids)s::uuid[]) AS old (job_id));

-- name: retention_search
-- The words of the deleted jobs.
DELETE FROM dagapp.dag_job_search
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: retention_jobs
-- The jobs themselves, last.
DELETE FROM dagapp.dag_jobs
 WHERE job_id = ANY (%(job_ids)s::uuid[])
RETURNING job_id;

-- name: retention_letters
-- Dead letters of tasks whose job was deleted. A refused submission stays until an operator replays it.
WITH old AS MATERIALIZED (
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
 USING old
 WHERE d.dead_letter_id = old.dead_letter_id
RETURNING d.dead_letter_id;

-- name: retention_actions
-- Old actions of the janitor.
WITH old AS MATERIALIZED (
    SELECT a.action_id
      FROM dagapp.dag_janitor_actions a
     WHERE a.created_at < dagapp.clock() - make_interval(secs => %(age)s)
     ORDER BY a.created_at, a.action_id
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM dagapp.dag_janitor_actions a
 USING old
 WHERE a.action_id = old.action_id
RETURNING a.action_id;

-- name: retention_callbacks
-- Callbacks that ended long ago, with the record of their attempts.
WITH old AS MATERIALIZED (
    SELECT e.callback_id
      FROM dagapp.callback_events e
     WHERE e.ended_at < dagapp.clock() - make_interval(secs => %(age)s)
     ORDER BY e.ended_at, e.sequence
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM dagapp.callback_events e
 USING old
 WHERE e.callback_id = old.callback_id
RETURNING e.callback_id;

-- name: retention_definitions
-- Definitions that no job uses any more.
SELECT dagapp.forget_definitions(dagapp.clock() - make_interval(secs => %(age)s)) AS deleted;

-- name: retention_partition
-- Drop a month of events that has no job left.
SELECT dagapp.drop_event_partition(dagapp.clock() - make_interval(secs => %(age)s)) AS name;
