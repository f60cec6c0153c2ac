-- API keys: looked up for each request, changed by administrators. Secrets are stored as hashes only.

-- part: key_columns
key_id, name, scopes, platform_id, queues, expires_at, previous_until, revoked_at, last_used_at, created_at, created_by

-- name: find_key
-- The key of a request, with the hashes that are accepted now.
SELECT key_id, name, scopes, platform_id, queues, secret_hash,
       CASE WHEN previous_until > dagapp.clock() THEN previous_hash END AS previous_hash,
       coalesce(expires_at <= dagapp.clock(), false) AS is_expired,
       revoked_at IS NOT NULL AS is_revoked
  FROM dagapp.api_keys
 WHERE key_id = %(key_id)s;

-- name: keys_page
-- Keys, newest first, a page at a time; revoked keys only if they are requested.
SELECT
-- use: key_columns
  FROM dagapp.api_keys
 WHERE (%(with_revoked)s OR revoked_at IS NULL)
   AND (%(after_at)s::timestamptz IS NULL OR (created_at, key_id) < (%(after_at)s, %(after_id)s::text))
 ORDER BY created_at DESC, key_id DESC
 LIMIT %(limit)s;

-- name: lock_keys
-- Let only one transaction at a time create keys.
SELECT pg_advisory_xact_lock(hashtext('dagapp.api_keys'));

-- name: has_keys
-- Whether any key was ever created.
SELECT EXISTS (SELECT FROM dagapp.api_keys) AS has_keys;

-- name: create_key
-- Create a key, and the event that records who created it. No row if a key has or had the name, because events name
-- keys as actors. `lock_keys` comes first.
WITH created AS (
    INSERT INTO dagapp.api_keys (key_id, name, scopes, platform_id, queues, secret_hash, expires_at, created_by)
    SELECT %(key_id)s, %(name)s, %(scopes)s::text[], %(platform_id)s, %(queues)s::text[], %(secret_hash)s,
           dagapp.clock() + make_interval(secs => %(expires_in_seconds)s::float8), %(actor)s
     WHERE NOT EXISTS (SELECT FROM dagapp.api_keys WHERE name = %(name)s)
    RETURNING *
), event AS (
    INSERT INTO dagapp.asset_events (platform_id, action, actor, reason, detail, request_id)
    SELECT platform_id, 'key_created', %(actor)s, %(reason)s,
           jsonb_build_object('key_id', key_id, 'name', name, 'scopes', scopes, 'queues', queues,
                              'expires_at', expires_at),
           %(request_id)s
      FROM created
)
SELECT
-- use: key_columns
  FROM created;

-- name: rotate_key
-- Set a new secret. The previous one is accepted for a while, older ones no longer.
WITH locked AS (
    SELECT key_id FROM dagapp.api_keys WHERE key_id = %(key_id)s AND revoked_at IS NULL FOR NO KEY UPDATE
), rotated AS (
    UPDATE dagapp.api_keys AS k
       SET secret_hash = %(secret_hash)s,
           previous_hash = CASE WHEN %(overlap_seconds)s::float8 > 0 THEN k.secret_hash END,
           previous_until = CASE WHEN %(overlap_seconds)s::float8 > 0
                                 THEN dagapp.clock() + make_interval(secs => %(overlap_seconds)s::float8) END,
           expires_at = coalesce(dagapp.clock() + make_interval(secs => %(expires_in_seconds)s::float8), k.expires_at)
      FROM locked
     WHERE k.key_id = locked.key_id
    RETURNING k.*
), event AS (
    INSERT INTO dagapp.asset_events (platform_id, action, actor, reason, detail, request_id)
    SELECT platform_id, 'key_rotated', %(actor)s, %(reason)s,
           jsonb_build_object('key_id', key_id, 'name', name, 'previous_until', previous_until,
                              'expires_at', expires_at),
           %(request_id)s
      FROM rotated
)
SELECT
-- use: key_columns
  FROM rotated;

-- name: revoke_key
-- Revoke a key: it is refused from now on, and so is its previous secret.
WITH locked AS (
    SELECT key_id FROM dagapp.api_keys WHERE key_id = %(key_id)s AND revoked_at IS NULL FOR NO KEY UPDATE
), revoked AS (
    UPDATE dagapp.api_keys AS k
       SET revoked_at = dagapp.clock(), revoked_by = %(actor)s, previous_hash = NULL, previous_until = NULL
      FROM locked
     WHERE k.key_id = locked.key_id
    RETURNING k.*
), event AS (
    INSERT INTO dagapp.asset_events (platform_id, action, actor, reason, detail, request_id)
    SELECT platform_id, 'key_revoked', %(actor)s, %(reason)s, jsonb_build_object('key_id', key_id, 'name', name),
           %(request_id)s
      FROM revoked
)
SELECT
-- use: key_columns
  FROM revoked;

-- name: get_key
-- One key, as the API shows it.
SELECT
-- use: key_columns
  FROM dagapp.api_keys
 WHERE key_id = %(key_id)s;

-- name: record_key_uses
-- Record when keys were last used, to the minute. Rows that another process is writing are skipped.
WITH used AS (
    SELECT key_id
      FROM dagapp.api_keys
     WHERE key_id = ANY (%(key_ids)s::text[])
       AND (last_used_at IS NULL OR last_used_at < dagapp.clock() - interval '1 minute')
     ORDER BY key_id
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE dagapp.api_keys AS k
   SET last_used_at = dagapp.clock()
  FROM used
 WHERE k.key_id = used.key_id;
