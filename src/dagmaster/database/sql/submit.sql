-- name: insert_definitions
-- Store each definition once, under the hash of its content. In key order, so that concurrent submitters do not
-- deadlock.
INSERT INTO dagapp.dag_workflow_definitions (definition_hash, workflow_id, workflow_version, body)
SELECT d.definition_hash, d.workflow_id, d.workflow_version, d.body
  FROM jsonb_to_recordset(%(definitions)s::jsonb)
       AS d (definition_hash text, workflow_id text, workflow_version text, body jsonb)
 ORDER BY d.definition_hash
    ON CONFLICT DO NOTHING;

-- name: create_jobs
-- Create jobs, their nodes and their first events in one statement. A job or message that is known already is left as
-- it is.
WITH given AS MATERIALIZED (
    SELECT a.*
      FROM jsonb_to_recordset(%(jobs)s::jsonb)
           AS a (job_id uuid, workflow_id text, workflow_version text, definition_hash text, input_params jsonb,
                 priority int, correlation_id text, submitted_by text, callback_url text, subscriber jsonb,
                 idempotency_key text, message_id text, traceparent text, asset_id text, version_ordinal bigint,
                 timeout_seconds float8, nodes jsonb)
), created AS (
    INSERT INTO dagapp.dag_jobs
           (job_id, workflow_id, workflow_version, definition_hash, status, input_params, priority, correlation_id,
            submitted_by, callback_url, idempotency_key, message_id, traceparent, asset_id, version_ordinal,
            deadline_at, last_sequence)
    SELECT job_id, workflow_id, workflow_version, definition_hash, 'pending', input_params, priority, correlation_id,
           submitted_by, callback_url, idempotency_key, message_id, traceparent, asset_id, version_ordinal,
           dagapp.clock() + make_interval(secs => timeout_seconds), 2
      FROM given
     ORDER BY job_id
        ON CONFLICT DO NOTHING
    RETURNING job_id
), fresh AS MATERIALIZED (
    SELECT a.job_id, a.workflow_id, a.definition_hash, a.subscriber, a.nodes
      FROM given a
     WHERE a.job_id = ANY (ARRAY(SELECT job_id FROM created))
), nodes AS (
    INSERT INTO dagapp.dag_node_states (job_id, node_id, status, max_retries)
    SELECT a.job_id, n.node_id, n.status, n.max_retries
      FROM fresh a
     CROSS JOIN LATERAL jsonb_to_recordset(a.nodes) AS n (node_id text, status text, max_retries int)
    RETURNING job_id, node_id, status
), subscribers AS (
    INSERT INTO dagapp.callback_subscribers (kind, subject, in_progress_uri, failed_uri)
    SELECT 'job', a.job_id::text, a.subscriber ->> 'inProgressUri', a.subscriber ->> 'failedUri'
      FROM fresh a
     WHERE a.subscriber IS NOT NULL
), events AS (
    INSERT INTO dagapp.dag_job_events (job_id, sequence, node_id, event_type, event_status, epoch, event_data)
    SELECT a.job_id, 1, NULL, 'job_created', 'pending', 0,
           jsonb_build_object(
               'workflow_id', a.workflow_id,
               'definition_hash', a.definition_hash,
               'nodes', (SELECT jsonb_agg(n ->> 'node_id') FROM jsonb_array_elements(a.nodes) AS n))
      FROM fresh a
     UNION ALL
    SELECT job_id, 2, node_id, 'node_ready', 'ready', 0, NULL
      FROM nodes
     WHERE status = 'ready'
)
SELECT job_id
  FROM created;

-- name: job_of_message
-- The job that a message became, if any.
SELECT job_id
  FROM dagapp.dag_jobs
 WHERE message_id = %(message_id)s;

-- name: enqueue_message
-- Put a submission into the queue; the same message id is the same submission.
INSERT INTO dagapp.dag_job_messages (message_id, queue, body)
VALUES (%(message_id)s, %(queue)s, %(body)s)
    ON CONFLICT DO NOTHING
RETURNING message_id;

-- name: has_message
-- Whether a submission was stored: it waits, or has become a job or a dead letter.
SELECT 1
 WHERE EXISTS (SELECT 1 FROM dagapp.dag_job_messages WHERE message_id = %(message_id)s)
    OR EXISTS (SELECT 1 FROM dagapp.dag_jobs WHERE message_id = %(message_id)s)
    OR EXISTS (SELECT 1 FROM dagapp.dag_dead_letters WHERE queue = %(queue)s AND message_id = %(message_id)s);

-- name: has_messages
-- Whether a submission waits. Usually none does, and no transaction is needed.
SELECT 1
  FROM dagapp.dag_job_messages
 WHERE queue = %(queue)s
 LIMIT 1;

-- name: take_messages
-- Delete waiting submissions from the queue, in the transaction that turns them into jobs. Those of unknown workflows
-- stay for a while: another orchestrator may know the workflow.
WITH waiting AS MATERIALIZED (
    SELECT message_id
      FROM dagapp.dag_job_messages
     WHERE queue = %(queue)s
       AND (coalesce(jsonb_typeof(body -> 'workflow_id'), 'null') <> 'string'
            OR body ->> 'workflow_id' = ANY (%(workflow_ids)s::text[])
            OR enqueued_at <= dagapp.clock() - make_interval(secs => %(unknown_after)s))
     ORDER BY enqueued_at
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM dagapp.dag_job_messages m
 USING waiting w
 WHERE m.message_id = w.message_id
RETURNING m.message_id, m.queue, m.body, m.enqueued_at;

-- name: insert_dead_letters
-- Store refused messages with the reason. A message that is delivered and refused again has its dead letter already. No
-- other transaction can add that one meanwhile, because this transaction has deleted the message.
INSERT INTO dagapp.dag_dead_letters (queue, message_id, reason, description, body)
SELECT d.queue, d.message_id, d.reason, d.description, d.body
  FROM jsonb_to_recordset(%(letters)s::jsonb)
       AS d (queue text, message_id text, reason text, description text, body jsonb)
 WHERE NOT EXISTS (SELECT 1
                     FROM dagapp.dag_dead_letters e
                    WHERE e.queue = d.queue AND e.message_id = d.message_id AND e.body IS NOT DISTINCT FROM d.body);

-- name: reserve_key
-- Reserve an idempotency key for a job, or return the job that has it. A concurrent submission with the same key waits
-- for the first one. With `force` the key moves to the new job, if the request is the same.
INSERT INTO dagapp.dag_idempotency_keys AS k (submitted_by, idempotency_key, request_hash, job_id)
VALUES (%(submitted_by)s, %(idempotency_key)s, %(request_hash)s, %(job_id)s)
    ON CONFLICT (submitted_by, idempotency_key) DO UPDATE
   SET job_id = CASE WHEN %(force)s AND k.request_hash = excluded.request_hash THEN excluded.job_id ELSE k.job_id END
RETURNING job_id, request_hash;

-- name: replay_dead_letter
-- Put a submission that was refused back into its queue.
WITH letter AS (
    DELETE FROM dagapp.dag_dead_letters
     WHERE dead_letter_id = %(dead_letter_id)s AND queue = %(queue)s
    RETURNING dead_letter_id, queue, message_id, body
)
INSERT INTO dagapp.dag_job_messages (message_id, queue, body)
SELECT coalesce(message_id, dead_letter_id::text), queue, body
  FROM letter
    ON CONFLICT (message_id) DO UPDATE
   SET body = excluded.body
RETURNING message_id;

-- name: drop_dead_letter
-- Delete a dead letter.
DELETE FROM dagapp.dag_dead_letters
 WHERE dead_letter_id = %(dead_letter_id)s;
