-- name: store_payload
-- Insert the row of a payload, or reset its age if it is stored again. Another transaction that stores the same payload
-- waits here. The parts follow in the same transaction.
INSERT INTO dagapp.dag_payloads AS p (job_id, sha256, size_bytes, is_kept)
VALUES (%(job_id)s, %(sha256)s, %(size_bytes)s, %(is_kept)s)
    ON CONFLICT (job_id, sha256) DO UPDATE
   SET stored_at = dagapp.clock(), is_kept = p.is_kept OR excluded.is_kept;

-- name: store_payload_part
-- Store one part of a payload. An existing part stays, unless its content is different.
INSERT INTO dagapp.dag_payload_parts AS p (job_id, sha256, part, data)
VALUES (%(job_id)s, %(sha256)s, %(part)s, %(data)s)
    ON CONFLICT (job_id, sha256, part) DO UPDATE
   SET data = excluded.data
 WHERE p.data IS DISTINCT FROM excluded.data;

-- name: load_payload_part
-- One part of a payload.
SELECT data
  FROM dagapp.dag_payload_parts
 WHERE job_id = %(job_id)s AND sha256 = %(sha256)s AND part = %(part)s;

-- name: payload_size
-- How large a payload is.
SELECT size_bytes
  FROM dagapp.dag_payloads
 WHERE job_id = %(job_id)s AND sha256 = %(sha256)s;

-- name: keep_payloads
-- Mark the payloads of these reports as in use, in the transaction that stores the results: they are no longer deleted.
-- Returns those that do not exist.
WITH used AS MATERIALIZED (
    SELECT DISTINCT r.job_id, r.output_ref ->> 'sha256' AS sha256
      FROM unnest(%(job_ids)s::uuid[], %(node_ids)s::text[], %(attempts)s::int[]) AS k (job_id, node_id, attempt)
      JOIN dagapp.dag_task_results r
        ON r.job_id = k.job_id AND r.node_id = k.node_id AND r.attempt = k.attempt
     WHERE r.output_ref IS NOT NULL
), held AS MATERIALIZED (
    SELECT p.job_id, p.sha256
      FROM used u
      JOIN dagapp.dag_payloads p
        ON p.job_id = u.job_id AND p.sha256 = u.sha256
     ORDER BY p.job_id, p.sha256
       FOR NO KEY UPDATE OF p
), kept AS (
    UPDATE dagapp.dag_payloads p
       SET is_kept = true
      FROM held h
     WHERE p.job_id = h.job_id AND p.sha256 = h.sha256
)
SELECT u.job_id, u.sha256
  FROM used u
 WHERE NOT EXISTS (SELECT 1 FROM held h WHERE h.job_id = u.job_id AND h.sha256 = u.sha256);
