-- Uploads to the bronze zone: begun, continued, finished, removed. The bytes are in the storage.

-- part: upload_columns
upload_id, platform_id, container, blob, size_bytes, sha256, etag, created_by, created_at, updated_at, expires_at,
       finished_at

-- name: upload_lock_caller
-- Uploads of one caller are begun one after another, so that they can be counted.
SELECT pg_advisory_xact_lock(hashtextextended('dagapp.uploads ' || %(created_by)s::text, 0));

-- name: upload_count_open
-- How many uploads a caller has not finished.
SELECT count(*) AS uploads
  FROM dagapp.uploads
 WHERE created_by = %(created_by)s AND finished_at IS NULL;

-- name: upload_begin
-- Insert an upload; no row if another unfinished one has the name.
INSERT INTO dagapp.uploads (upload_id, platform_id, container, blob, size_bytes, sha256, created_by, expires_at)
VALUES (%(upload_id)s, %(platform_id)s, %(container)s, %(blob)s, %(size_bytes)s, %(sha256)s, %(created_by)s,
        dagapp.clock() + make_interval(secs => %(expires_in_seconds)s::float8))
    ON CONFLICT (container, blob) WHERE finished_at IS NULL DO NOTHING
RETURNING
-- use: upload_columns
;

-- name: upload_get
-- One upload.
SELECT
-- use: upload_columns
  FROM dagapp.uploads
 WHERE upload_id = %(upload_id)s;

-- name: uploads_of_blob
-- The uploads of a blob: the unfinished one, then the last finished one.
SELECT
-- use: upload_columns
  FROM dagapp.uploads
 WHERE container = %(container)s AND blob = %(blob)s
 ORDER BY finished_at DESC NULLS FIRST
 LIMIT 2;

-- name: uploads_page
-- Uploads, newest first, a page at a time.
SELECT
-- use: upload_columns
  FROM dagapp.uploads
 WHERE (%(platform_id)s::text IS NULL OR platform_id = %(platform_id)s)
   AND (%(is_finished)s::boolean IS NULL OR (finished_at IS NOT NULL) = %(is_finished)s)
   AND (%(after_at)s::timestamptz IS NULL OR (created_at, upload_id) < (%(after_at)s, %(after_id)s::uuid))
 ORDER BY created_at DESC, upload_id DESC
 LIMIT %(limit)s;

-- name: upload_continue
-- Record that bytes have arrived: the upload expires later.
UPDATE dagapp.uploads
   SET updated_at = dagapp.clock(),
       expires_at = dagapp.clock() + make_interval(secs => %(expires_in_seconds)s::float8)
 WHERE upload_id = %(upload_id)s AND finished_at IS NULL
RETURNING
-- use: upload_columns
;

-- name: upload_finish
-- Record that the object is in the bronze zone, and who uploaded it.
WITH finished AS (
    UPDATE dagapp.uploads
       SET sha256 = %(sha256)s, etag = %(etag)s, expires_at = NULL,
           updated_at = dagapp.clock(), finished_at = dagapp.clock()
     WHERE upload_id = %(upload_id)s AND finished_at IS NULL
    RETURNING *
), event AS (
    INSERT INTO dagapp.asset_events (platform_id, action, actor, detail)
    SELECT platform_id, 'upload_finished', created_by,
           jsonb_build_object('upload_id', upload_id, 'container', container, 'blob', blob,
                              'size_bytes', size_bytes, 'sha256', sha256)
      FROM finished
)
SELECT
-- use: upload_columns
  FROM finished;

-- name: upload_remove
-- Forget an upload that is not finished; with `is_expired`, only if its time is over.
DELETE FROM dagapp.uploads
 WHERE upload_id = %(upload_id)s AND finished_at IS NULL
   AND (NOT %(is_expired)s::boolean OR expires_at <= dagapp.clock())
RETURNING upload_id;

-- name: uploads_expired
-- Uploads that are not finished and whose time is over.
SELECT upload_id
  FROM dagapp.uploads
 WHERE finished_at IS NULL AND expires_at <= dagapp.clock()
 ORDER BY expires_at
 LIMIT %(limit)s;

-- name: uploads_open_among
-- Which of these uploads are not finished.
SELECT upload_id
  FROM dagapp.uploads
 WHERE upload_id = ANY (%(upload_ids)s::uuid[]) AND finished_at IS NULL;
