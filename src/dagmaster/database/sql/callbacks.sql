-- name: callbacks_claim
-- Claim callbacks that are due, each for one attempt, and record that it has begun. Callbacks of a request to one URL
-- follow each other: an event waits while an earlier one is pending. At most a few attempts per receiver are under way,
-- so that a slow receiver does not delay the others. Receivers are found by jumping from one to the next in the index.
-- An attempt whose lease has expired was lost with its process; callbacks that have no attempt left become failed.
WITH RECURSIVE receivers AS (
    (SELECT e.receiver
       FROM dagapp.callback_events e
      WHERE e.state = 'pending'
      ORDER BY e.receiver
      LIMIT 1)
    UNION ALL
    SELECT (SELECT e.receiver
              FROM dagapp.callback_events e
             WHERE e.state = 'pending' AND e.receiver > r.receiver
             ORDER BY e.receiver
             LIMIT 1)
      FROM receivers r
     WHERE r.receiver IS NOT NULL
), candidates AS MATERIALIZED (
    SELECT d.callback_id, d.next_attempt_at, d.sequence
      FROM receivers r
     CROSS JOIN LATERAL (
           SELECT count(*) AS attempts
             FROM dagapp.callback_events e
            WHERE e.state = 'pending' AND e.receiver = r.receiver
              AND e.next_attempt_at BETWEEN dagapp.clock() AND dagapp.clock() + make_interval(secs => %(lease)s)
              AND e.lease_until > dagapp.clock()) AS under_way
     CROSS JOIN LATERAL (
           SELECT e.callback_id, e.next_attempt_at, e.sequence
             FROM dagapp.callback_events e
            WHERE e.state = 'pending' AND e.receiver = r.receiver AND e.next_attempt_at <= dagapp.clock()
              AND NOT EXISTS (SELECT 1
                                FROM dagapp.callback_events earlier
                               WHERE earlier.request_id = e.request_id
                                 AND earlier.platform_id = e.platform_id
                                 AND earlier.sequence < e.sequence
                                 AND earlier.job_id IS NOT DISTINCT FROM e.job_id
                                 AND earlier.url = e.url
                                 AND earlier.state = 'pending')
            ORDER BY e.next_attempt_at, e.sequence
            LIMIT greatest(0, %(per_receiver)s - under_way.attempts)) AS d
), due AS MATERIALIZED (
    SELECT e.callback_id
      FROM candidates c
      JOIN dagapp.callback_events e
        ON e.callback_id = c.callback_id
     WHERE e.state = 'pending' AND e.next_attempt_at <= dagapp.clock()
     ORDER BY c.next_attempt_at, c.sequence
     LIMIT %(limit)s
       FOR UPDATE OF e SKIP LOCKED
), lost AS (
    UPDATE dagapp.callback_deliveries d
       SET finished_at = dagapp.clock(), error = 'its process ended before the response was recorded'
      FROM due
     WHERE d.callback_id = due.callback_id AND d.finished_at IS NULL
), claimed AS (
    UPDATE dagapp.callback_events e
       SET state = CASE WHEN e.tries < %(max_tries)s THEN 'pending' ELSE 'failed' END,
           attempts = CASE WHEN e.tries < %(max_tries)s THEN e.attempts + 1 ELSE e.attempts END,
           tries = least(e.tries + 1, %(max_tries)s),
           lease_until = CASE WHEN e.tries < %(max_tries)s THEN dagapp.clock() + make_interval(secs => %(lease)s) END,
           next_attempt_at = CASE WHEN e.tries < %(max_tries)s
                                  THEN dagapp.clock() + make_interval(secs => %(lease)s)
                             END,
           ended_at = CASE WHEN e.tries < %(max_tries)s THEN NULL ELSE dagapp.clock() END
      FROM due
     WHERE e.callback_id = due.callback_id
    RETURNING e.*
), begun AS (
    INSERT INTO dagapp.callback_deliveries (callback_id, number, owner_id)
    SELECT callback_id, attempts, %(owner_id)s
      FROM claimed
     WHERE state = 'pending'
)
SELECT callback_id, sequence, request_id, platform_id, status, url, job_id, attempts AS number, tries,
       dagapp.clock() AS now,
       coalesce(
           (SELECT j.traceparent FROM dagapp.dag_jobs j WHERE j.job_id = claimed.job_id),
           (SELECT j.traceparent
              FROM dagapp.asset_events v
              JOIN dagapp.asset_submissions s
                ON s.asset_id = v.asset_id AND dagapp.shown_request_id(s.request_id) = claimed.request_id
              JOIN dagapp.asset_revisions r
                ON r.asset_id = s.asset_id AND r.version_ordinal = s.version_ordinal AND r.revision = s.revision
              JOIN dagapp.dag_jobs j
                ON j.job_id = r.job_id
             WHERE v.event_id = claimed.asset_event_id
             LIMIT 1)) AS traceparent
  FROM claimed
 WHERE state = 'pending'
 ORDER BY sequence;

-- name: callbacks_are_pending
-- Whether any callback waits for an attempt or has one under way.
SELECT EXISTS (SELECT 1 FROM dagapp.callback_events WHERE state = 'pending') AS are_pending;

-- name: callbacks_finish
-- Record how an attempt ended. The callback itself changes only if this is still its latest attempt.
WITH finished AS (
    UPDATE dagapp.callback_deliveries d
       SET finished_at = dagapp.clock(), status_code = %(status_code)s, error = %(error)s,
           next_attempt_at = dagapp.clock() + make_interval(secs => %(delay)s::float8)
     WHERE d.callback_id = %(callback_id)s AND d.number = %(number)s
)
UPDATE dagapp.callback_events e
   SET state = %(state)s,
       next_attempt_at = CASE WHEN %(state)s = 'pending'
                              THEN dagapp.clock() + make_interval(secs => coalesce(%(delay)s::float8, 0)) END,
       lease_until = NULL,
       ended_at = CASE WHEN %(state)s = 'pending' THEN NULL ELSE dagapp.clock() END
 WHERE e.callback_id = %(callback_id)s AND e.attempts = %(number)s AND e.state = 'pending' AND e.lease_until IS NOT NULL
RETURNING e.callback_id;

-- name: callbacks_repeat
-- Deliver a callback again: now, and with as many attempts as a new one. Not while an attempt is under way.
UPDATE dagapp.callback_events e
   SET state = 'pending', tries = 0, next_attempt_at = dagapp.clock(), lease_until = NULL, ended_at = NULL
 WHERE e.callback_id = %(callback_id)s
   AND (e.lease_until IS NULL OR e.lease_until <= dagapp.clock())
RETURNING e.request_id, e.platform_id, e.status;

-- name: callbacks_exists
-- Whether there is such a callback.
SELECT callback_id
  FROM dagapp.callback_events
 WHERE callback_id = %(callback_id)s;

-- name: callbacks_note_repeat
-- Record who requested the repetition.
INSERT INTO dagapp.asset_events (platform_id, request_id, action, actor, detail)
VALUES (%(platform_id)s, %(request_id)s, 'callback_repeated', %(actor)s,
        jsonb_build_object('callback_id', %(callback_id)s::uuid, 'status', %(status)s::text));

-- name: callbacks_secrets
-- The secrets that sign callbacks of these platforms now, the newest first.
SELECT platform_id, secret
  FROM dagapp.platform_secrets
 WHERE platform_id = ANY (%(platform_ids)s) AND (expires_at IS NULL OR expires_at > dagapp.clock())
 ORDER BY platform_id, expires_at DESC NULLS FIRST, created_at DESC;

-- name: callbacks_first_secret
-- Give a platform its first secret, unless it has one.
INSERT INTO dagapp.platform_secrets (platform_id, secret)
SELECT platform_id, %(secret)s
  FROM dagapp.platforms
 WHERE platform_id = %(platform_id)s
    ON CONFLICT (platform_id) WHERE expires_at IS NULL DO NOTHING;

-- name: callbacks_lock_platform
-- One rotation of a platform's secret at a time.
SELECT platform_id
  FROM dagapp.platforms
 WHERE platform_id = %(platform_id)s
   FOR NO KEY UPDATE;

-- name: callbacks_expire_secrets
-- Set when replaced secrets expire: at once, or after a while.
UPDATE dagapp.platform_secrets
   SET expires_at = dagapp.clock() + make_interval(secs => %(overlap)s)
 WHERE platform_id = %(platform_id)s
   AND (expires_at IS NULL OR expires_at > dagapp.clock() + make_interval(secs => %(overlap)s));

-- name: callbacks_forget_secrets
-- Delete expired secrets.
DELETE FROM dagapp.platform_secrets
 WHERE platform_id = %(platform_id)s AND expires_at <= dagapp.clock();

-- name: callbacks_new_secret
-- Insert the current secret, after the expiry of the previous one was set.
INSERT INTO dagapp.platform_secrets (platform_id, secret, created_by)
VALUES (%(platform_id)s, %(secret)s, %(actor)s)
RETURNING created_at,
          (SELECT max(expires_at) FROM dagapp.platform_secrets WHERE platform_id = %(platform_id)s) AS previous_until;

-- name: callbacks_note_rotation
-- Record who rotated the secret, without the secret itself.
INSERT INTO dagapp.asset_events (platform_id, action, actor, detail)
VALUES (%(platform_id)s, 'secret_rotated', %(actor)s, jsonb_build_object('overlap_seconds', %(overlap)s::float8));

-- part: shown_callbacks
SELECT e.callback_id, e.sequence, e.request_id, e.platform_id, e.status, e.url, e.job_id, e.state,
       coalesce(e.lease_until > dagapp.clock(), false) AS is_under_way, e.attempts, e.next_attempt_at, e.created_at,
       e.ended_at, last.status_code AS last_status_code, last.error AS last_error
  FROM dagapp.callback_events e
  LEFT JOIN LATERAL (
       SELECT d.status_code, d.error
         FROM dagapp.callback_deliveries d
        WHERE d.callback_id = e.callback_id AND d.finished_at IS NOT NULL
        ORDER BY d.number DESC
        LIMIT 1) AS last
    ON true

-- name: api_callbacks
-- Callbacks, newest first, a page at a time, each with the result of its last attempt; or the one with an id.
-- use: shown_callbacks
 WHERE (%(after)s::bigint IS NULL OR e.sequence < %(after)s)
   AND (%(request_id)s::text IS NULL OR e.request_id = %(request_id)s)
   AND (%(platform_id)s::text IS NULL OR e.platform_id = %(platform_id)s)
   AND (%(state)s::text IS NULL OR e.state = %(state)s)
   AND (%(callback_id)s::uuid IS NULL OR e.callback_id = %(callback_id)s)
 ORDER BY e.sequence DESC
 LIMIT %(limit)s;

-- name: api_deliveries
-- The attempts to deliver a callback, newest first.
SELECT number, started_at, finished_at, status_code, error, next_attempt_at
  FROM dagapp.callback_deliveries
 WHERE callback_id = %(callback_id)s
 ORDER BY number DESC
 LIMIT 1000;
