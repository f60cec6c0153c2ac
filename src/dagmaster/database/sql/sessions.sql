-- Sessions of browsers: looked up for each request, started by signing in and ended by signing out.

-- name: find_session
-- The session of a request. It is valid while the secret of the key with which its owner signed in is accepted.
SELECT s.session_id, s.secret_hash, s.key_id,
       coalesce(k.name, s.name) AS name,
       coalesce(k.scopes, s.scopes) AS scopes,
       CASE WHEN s.key_id IS NULL THEN s.platform_id ELSE k.platform_id END AS platform_id,
       k.queues,
       least(s.expires_at, k.expires_at) AS expires_at,
       s.ended_at IS NULL
           AND least(s.expires_at, k.expires_at) > dagapp.clock()
           AND (s.key_id IS NULL
                OR coalesce(k.revoked_at IS NULL
                            AND (s.key_hash = k.secret_hash
                                 OR (s.key_hash = k.previous_hash AND k.previous_until > dagapp.clock())), false))
           AS is_valid
  FROM dagapp.web_sessions AS s
  LEFT JOIN dagapp.api_keys AS k ON k.key_id = s.key_id
 WHERE s.session_id = %(session_id)s;

-- name: start_session
-- Start a session, and record who signed in.
WITH started AS (
    INSERT INTO dagapp.web_sessions (session_id, secret_hash, key_id, key_hash, name, scopes, platform_id, expires_at)
    SELECT %(session_id)s, %(secret_hash)s, %(key_id)s, %(key_hash)s, %(name)s, %(scopes)s::text[], %(platform_id)s,
           least(dagapp.clock() + make_interval(secs => %(lasts_seconds)s::float8), %(until)s::timestamptz)
    RETURNING *
), event AS (
    INSERT INTO dagapp.asset_events (platform_id, action, actor, detail, request_id)
    SELECT platform_id, 'signed_in', name,
           jsonb_build_object('session_id', session_id, 'key_id', key_id, 'expires_at', expires_at), %(request_id)s
      FROM started
)
SELECT session_id
  FROM started;

-- name: end_session
-- End a session: it is refused from now on. No row if it had ended before.
WITH ended AS (
    UPDATE dagapp.web_sessions
       SET ended_at = dagapp.clock()
     WHERE session_id = %(session_id)s AND ended_at IS NULL
    RETURNING *
), event AS (
    INSERT INTO dagapp.asset_events (platform_id, action, actor, detail, request_id)
    SELECT platform_id, 'signed_out', name, jsonb_build_object('session_id', session_id, 'key_id', key_id),
           %(request_id)s
      FROM ended
)
SELECT session_id
  FROM ended;

-- name: forget_sessions
-- Delete some of the sessions that expired more than a day ago. Their events stay.
DELETE FROM dagapp.web_sessions
 WHERE session_id IN (SELECT session_id
                        FROM dagapp.web_sessions
                       WHERE expires_at < dagapp.clock() - interval '1 day'
                       ORDER BY expires_at
                       LIMIT %(limit)s
                         FOR UPDATE SKIP LOCKED);
