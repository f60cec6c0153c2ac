-- The upkeep of assets: data that is no longer needed is purged, reviewers are notified, and old history is deleted.

-- name: asset_purge_begin
-- Mark revisions whose data may be removed: rejected, superseded or deleted long enough ago. From then on they can be
-- neither approved nor run again. Revisions that are served, wait for a review, or have a copy in the external zone are
-- never marked. Revisions that a reviewer or a job changes at this moment are left for the next time.
WITH old AS MATERIALIZED (
    SELECT r.asset_id, r.version_ordinal, r.revision
      FROM dagapp.asset_revisions AS r
      JOIN dagapp.asset_versions AS v USING (asset_id, version_ordinal)
      JOIN dagapp.geospatial_assets AS a USING (asset_id)
      LEFT JOIN dagapp.asset_revisions AS newer
        ON newer.asset_id = r.asset_id AND newer.version_ordinal = r.version_ordinal AND newer.revision = r.revision + 1
     WHERE r.purged_at IS NULL
       AND r.purge_started_at IS NULL
       AND r.processing_state IN ('completed', 'failed')
       AND r.withdrawal_due_at IS NULL
       AND r.external_copies = 'none'
       AND NOT r.is_external_job_running
       AND NOT r.outputs ? 'external_blob_path'
       AND CASE
               WHEN a.deleted_at IS NOT NULL OR v.deleted_at IS NOT NULL
                   THEN least(a.deleted_at, v.deleted_at) < dagapp.clock() - make_interval(secs => %(age)s)
               WHEN r.revision = v.approved_revision THEN false
               WHEN r.revision < v.revision
                   THEN greatest(newer.created_at, r.processed_at,
                                 CASE WHEN r.reviewed_as = 'approved' THEN v.reviewed_at END)
                        < dagapp.clock() - make_interval(secs => %(age)s)
               ELSE r.reviewed_as = 'rejected' AND r.reviewed_at < dagapp.clock() - make_interval(secs => %(age)s)
           END
     ORDER BY r.asset_id, r.version_ordinal, r.revision
     LIMIT %(limit)s
       FOR NO KEY UPDATE OF v, r SKIP LOCKED
)
UPDATE dagapp.asset_revisions AS r
   SET purge_started_at = dagapp.clock()
  FROM old
 WHERE r.asset_id = old.asset_id AND r.version_ordinal = old.version_ordinal AND r.revision = old.revision
RETURNING r.revision;

-- name: asset_purge_pending
-- Revisions whose purge has begun and not ended.
SELECT r.asset_id, a.dataset_id, r.version_ordinal, r.revision
  FROM dagapp.asset_revisions AS r
  JOIN dagapp.geospatial_assets AS a USING (asset_id)
 WHERE r.purged_at IS NULL AND r.purge_started_at IS NOT NULL
 ORDER BY r.purge_started_at, r.asset_id, r.version_ordinal, r.revision
 LIMIT %(limit)s;

-- name: asset_purge_end
-- After the objects of a revision were removed: remove its documents, and record that in the history. If two processes
-- do it, only one records it.
WITH purged AS (
    UPDATE dagapp.asset_revisions
       SET purged_at = dagapp.clock()
     WHERE asset_id = %(asset_id)s
       AND version_ordinal = %(ordinal)s
       AND revision = %(revision)s
       AND purged_at IS NULL
    RETURNING asset_id, version_ordinal, revision
), forgotten AS (
    DELETE FROM dagapp.stac_documents
     USING purged
     WHERE stac_documents.dataset_id = %(dataset_id)s
       AND stac_documents.version_ordinal = purged.version_ordinal
       AND stac_documents.revision = purged.revision
)
INSERT INTO dagapp.asset_events (asset_id, version_ordinal, revision, action, actor, detail)
SELECT asset_id, version_ordinal, revision, 'purged', 'dagmaster', jsonb_build_object('objects', %(objects)s::bigint)
  FROM purged
RETURNING event_id;

-- name: copies_withdrawn
-- Revisions whose external copies were removed within the last day, but longer than the grace period ago.
SELECT r.asset_id, a.dataset_id, r.version_ordinal, r.revision
  FROM dagapp.asset_revisions AS r
  JOIN dagapp.geospatial_assets AS a USING (asset_id)
 WHERE r.withdrawn_at BETWEEN dagapp.clock() - interval '1 day' AND dagapp.clock() - make_interval(secs => %(grace)s)
   AND r.external_copies = 'none'
   AND NOT r.is_external_job_running
 ORDER BY random()
 LIMIT %(limit)s;

-- name: copies_left
-- Make a withdrawal due again: objects of the revision were found in the external zone although its copies were
-- removed.
WITH revision AS (
    UPDATE dagapp.asset_revisions
       SET withdrawal_due_at = dagapp.clock(), external_copies = 'some'
     WHERE asset_id = %(asset_id)s
       AND version_ordinal = %(ordinal)s
       AND revision = %(revision)s
       AND external_copies = 'none'
       AND export_due_at IS NULL
       AND NOT is_external_job_running
    RETURNING asset_id, version_ordinal, revision
)
INSERT INTO dagapp.asset_events (asset_id, version_ordinal, revision, action, actor, reason)
SELECT asset_id, version_ordinal, revision, 'copies_left', 'dagmaster',
       'objects were found in the external zone after the withdrawal'
  FROM revision
RETURNING event_id;

-- name: asset_reviews_due
-- Revisions that wait for a review and that reviewers were not notified of. One that is not the newest needs no review.
SELECT r.asset_id, a.dataset_id, a.title, a.platform_id, r.version_ordinal, v.version_label, r.revision, r.is_partial,
       r.submitted_by, r.processed_at,
       r.revision = v.revision AND a.deleted_at IS NULL AND v.deleted_at IS NULL AS is_waiting
  FROM dagapp.asset_revisions AS r
  JOIN dagapp.asset_versions AS v USING (asset_id, version_ordinal)
  JOIN dagapp.geospatial_assets AS a USING (asset_id)
 WHERE r.processing_state = 'completed' AND r.reviewed_as IS NULL AND r.review_notified_at IS NULL
 ORDER BY r.processed_at, r.asset_id
 LIMIT %(limit)s;

-- name: asset_reviews_notified
-- Record that reviewers were notified of these revisions.
WITH notified AS (
    SELECT r.asset_id, r.version_ordinal, r.revision
      FROM dagapp.asset_revisions AS r
      JOIN unnest(%(asset_ids)s::text[], %(ordinals)s::int[], %(revisions)s::int[])
             AS given (asset_id, version_ordinal, revision)
     USING (asset_id, version_ordinal, revision)
     WHERE r.processing_state = 'completed'
     ORDER BY r.asset_id, r.version_ordinal, r.revision
       FOR NO KEY UPDATE OF r
)
UPDATE dagapp.asset_revisions AS r
   SET review_notified_at = dagapp.clock()
  FROM notified
 WHERE r.asset_id = notified.asset_id
   AND r.version_ordinal = notified.version_ordinal
   AND r.revision = notified.revision;

-- name: asset_upkeep_lock
-- One process at a time notifies reviewers. The lock belongs to the session, so that it ends with the process.
SELECT pg_try_advisory_lock(hashtext('dagapp.asset_upkeep')) AS is_acquired;

-- name: asset_upkeep_unlock
-- Let another process notify reviewers.
SELECT pg_advisory_unlock(hashtext('dagapp.asset_upkeep'));

-- name: asset_forget_events
-- Delete history that is older than its retention. The newest event of an asset is its ETag, and stays.
WITH old AS MATERIALIZED (
    SELECT e.event_id
      FROM dagapp.asset_events AS e
     WHERE e.created_at < dagapp.clock() - make_interval(secs => %(age)s)
       AND (e.asset_id IS NULL
            OR EXISTS (SELECT
                         FROM dagapp.asset_events AS newer
                        WHERE newer.asset_id = e.asset_id AND newer.event_id > e.event_id))
     ORDER BY e.created_at, e.event_id
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM dagapp.asset_events AS e
 USING old
 WHERE e.event_id = old.event_id
RETURNING e.event_id;
