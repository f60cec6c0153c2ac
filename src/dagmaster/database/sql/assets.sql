-- Assets, their versions and revisions: read by the API, and written under a lock on the asset's row.

-- part: asset_columns
a.asset_id, a.dataset_id, a.platform_id, a.platform_refs, a.title, a.clearance_state, a.exposure,
       a.latest_approved_version_ordinal, a.deleted_at, a.created_at, a.updated_at, counted.version_count,
       counted.to_review

-- part: asset_counts
SELECT count(*)::int AS version_count,
                     count(*) FILTER (
                         WHERE v.approval_state = 'pending_review' AND v.processing_state = 'completed'
                     )::int AS to_review
                FROM dagapp.asset_versions AS v
               WHERE v.asset_id = a.asset_id AND v.deleted_at IS NULL

-- name: assets_page
-- Assets, newest first, a page at a time. A caller who may not see all of them (`clearances` is not null) sees those of
-- its own platform, and published ones of other platforms with one of these clearances.
SELECT
-- use: asset_columns
       , state.states, extent.bbox
  FROM dagapp.geospatial_assets AS a
 CROSS JOIN LATERAL (
       SELECT %(clearances)s::text[] IS NULL OR a.platform_id IS NOT DISTINCT FROM %(own_platform)s::text AS is_whole
       ) AS seen
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (
                  WHERE seen.is_whole
                     OR v.approved_revision IS NOT NULL AND v.unpublished_at IS NULL
                        AND (a.exposure = 'all-versions' OR v.version_ordinal = a.latest_approved_version_ordinal)
              )::int AS version_count,
              count(*) FILTER (
                  WHERE seen.is_whole AND v.approval_state = 'pending_review' AND v.processing_state = 'completed'
              )::int AS to_review,
              coalesce(bool_or(v.processing_state IN ('queued', 'processing')), false) AS is_processing,
              (array_agg(v.processing_state ORDER BY v.version_ordinal DESC))[1] = 'failed' AS is_failed,
              (array_agg(v.approval_state ORDER BY v.version_ordinal DESC))[1] = 'rejected' AS is_rejected
         FROM dagapp.asset_versions AS v
        WHERE v.asset_id = a.asset_id AND v.deleted_at IS NULL
       ) AS counted
 CROSS JOIN LATERAL (
       SELECT array_remove(ARRAY[
                  CASE WHEN a.deleted_at IS NOT NULL THEN 'deleted' END,
                  CASE WHEN counted.to_review > 0 AND a.deleted_at IS NULL THEN 'needs_review' END,
                  CASE WHEN seen.is_whole AND counted.is_processing THEN 'processing' END,
                  CASE WHEN seen.is_whole AND counted.is_failed THEN 'failed' END,
                  CASE WHEN seen.is_whole AND counted.is_rejected THEN 'rejected' END,
                  CASE WHEN a.latest_approved_version_ordinal IS NOT NULL AND a.deleted_at IS NULL
                       THEN CASE a.clearance_state WHEN 'uncleared' THEN 'approved' ELSE 'published' END END
              ], NULL) AS states
       ) AS state
  LEFT JOIN LATERAL (
       SELECT d.content #> '{extent,spatial,bbox,0}' AS bbox
         FROM dagapp.asset_versions AS v
         JOIN dagapp.stac_documents AS d
           ON d.dataset_id = a.dataset_id AND d.version_ordinal = v.version_ordinal AND d.document_id = ''
          AND d.revision = CASE WHEN seen.is_whole THEN v.revision ELSE v.approved_revision END
        WHERE v.asset_id = a.asset_id AND v.deleted_at IS NULL
          AND (seen.is_whole
               OR v.approved_revision IS NOT NULL AND v.unpublished_at IS NULL
                  AND v.version_ordinal = a.latest_approved_version_ordinal)
        ORDER BY v.version_ordinal DESC
        LIMIT 1
       ) AS extent
    ON true
 WHERE (%(states)s::text[] IS NULL OR state.states && %(states)s::text[])
   AND (seen.is_whole
        OR a.deleted_at IS NULL
           AND a.latest_approved_version_ordinal IS NOT NULL
           AND a.clearance_state = ANY (%(clearances)s))
   AND (%(after_at)s::timestamptz IS NULL OR (a.created_at, a.asset_id) < (%(after_at)s, %(after_id)s::text))
   AND (%(platform_id)s::text IS NULL OR a.platform_id = %(platform_id)s)
   AND (%(clearance)s::text IS NULL OR a.clearance_state = %(clearance)s)
   AND (%(refs)s::jsonb IS NULL OR a.platform_refs @> %(refs)s::jsonb)
   AND (%(is_deleted)s::boolean IS NULL OR (a.deleted_at IS NOT NULL) = %(is_deleted)s)
   AND (%(to_review)s::boolean IS NULL OR (counted.to_review > 0 AND a.deleted_at IS NULL) = %(to_review)s)
   AND (%(pattern)s::text IS NULL
        OR a.dataset_id ILIKE %(pattern)s
        OR a.asset_id ILIKE %(pattern)s
        OR a.title ILIKE %(pattern)s
        OR a.platform_refs::text ILIKE %(pattern)s)
 ORDER BY a.created_at DESC, a.asset_id DESC
 LIMIT %(limit)s;

-- name: asset_by_key
-- One asset, by its id or its dataset id. Its ETag is the id of its newest event.
SELECT
-- use: asset_columns
       , a.cleared_at, a.cleared_by, a.made_public_at, a.made_public_by, a.deleted_by, a.created_by,
       coalesce((SELECT max(e.event_id) FROM dagapp.asset_events AS e WHERE e.asset_id = a.asset_id), 0)::text AS etag
  FROM dagapp.geospatial_assets AS a
 CROSS JOIN LATERAL (
-- use: asset_counts
       ) AS counted
 WHERE a.asset_id = %(key)s OR a.dataset_id = %(key)s;

-- name: asset_versions_of
-- The versions of an asset.
SELECT version_ordinal, version_label, platform_refs, revision, approved_revision, approval_state, processing_state,
       current_job_id, reviewer, reviewed_at, rejection_reason, unpublished_at, deleted_at, created_at, updated_at
  FROM dagapp.asset_versions
 WHERE asset_id = %(asset_id)s
 ORDER BY version_ordinal;

-- name: asset_revisions_of
-- The revisions of an asset, newest first.
SELECT version_ordinal, revision, processing_state, is_partial, reviewed_as, reviewed_at, job_id, workflow_id, source,
       content_hash, same_content_as, submitted_by, error_message, outputs, coalesce(findings, '[]') AS findings,
       export_due_at, withdrawal_due_at, external_copies, external_job_id, is_external_job_running, external_retry_at,
       external_error, exported_at, withdrawn_at,
       (SELECT j.workflow_id FROM dagapp.dag_jobs AS j WHERE j.job_id = external_job_id) AS external_workflow_id,
       created_at, processed_at, purged_at
  FROM dagapp.asset_revisions
 WHERE asset_id = %(asset_id)s
 ORDER BY version_ordinal, revision DESC;

-- name: asset_history
-- The events of an asset, newest first, a page at a time.
SELECT event_id, action, actor, reason, version_ordinal, revision, detail, request_id, created_at
  FROM dagapp.asset_events
 WHERE asset_id = %(asset_id)s
   AND (%(after)s::bigint IS NULL OR event_id < %(after)s)
   AND (%(version_ordinal)s::int IS NULL OR version_ordinal = %(version_ordinal)s)
 ORDER BY event_id DESC
 LIMIT %(limit)s;

-- name: asset_events_since
-- What happened to an asset after an event, oldest first.
SELECT event_id, action, actor, reason, version_ordinal, revision, detail, request_id, created_at
  FROM dagapp.asset_events
 WHERE asset_id = %(asset_id)s AND event_id > %(since)s::bigint
 ORDER BY event_id
 LIMIT %(limit)s;

-- name: asset_audit
-- All events, newest first, a page at a time.
SELECT e.event_id, e.action, e.actor, e.reason, e.asset_id, a.dataset_id, e.version_ordinal, e.revision,
       coalesce(e.platform_id, a.platform_id) AS platform_id, e.detail, e.request_id, e.created_at
  FROM dagapp.asset_events AS e
  LEFT JOIN dagapp.geospatial_assets AS a USING (asset_id)
 WHERE (%(after)s::bigint IS NULL OR e.event_id < %(after)s)
   AND (%(platform_id)s::text IS NULL OR coalesce(e.platform_id, a.platform_id) = %(platform_id)s)
   AND (%(actor)s::text IS NULL OR e.actor = %(actor)s)
   AND (%(action)s::text IS NULL OR e.action = %(action)s)
 ORDER BY e.event_id DESC
 LIMIT %(limit)s;

-- name: asset_platforms
-- The platforms; with an id, that one.
SELECT platform_id, display_name, required_refs, optional_refs, version_ref, is_active, b2b_may_approve, created_at,
       updated_at
  FROM dagapp.platforms
 WHERE %(platform_id)s::text IS NULL OR platform_id = %(platform_id)s
 ORDER BY platform_id;

-- name: asset_platform_add
-- Register a platform.
INSERT INTO dagapp.platforms (platform_id, display_name, required_refs, optional_refs, version_ref, b2b_may_approve)
VALUES (%(platform_id)s, %(display_name)s, %(required_refs)s, %(optional_refs)s, %(version_ref)s, %(b2b_may_approve)s)
    ON CONFLICT (platform_id) DO NOTHING
RETURNING platform_id, display_name, required_refs, optional_refs, version_ref, is_active, b2b_may_approve, created_at,
          updated_at;

-- name: asset_platform_set
-- Change the name of a platform, whether it may submit, or whether its keys may approve, if it has not changed since
-- the caller read it. The references that identify its assets cannot be changed.
UPDATE dagapp.platforms
   SET display_name = coalesce(%(display_name)s, display_name),
       is_active = coalesce(%(is_active)s::boolean, is_active),
       b2b_may_approve = coalesce(%(b2b_may_approve)s::boolean, b2b_may_approve),
       updated_at = dagapp.clock()
 WHERE platform_id = %(platform_id)s
   AND (%(seen)s::bigint IS NULL OR (extract(epoch FROM updated_at) * 1000000)::bigint = %(seen)s)
RETURNING platform_id, display_name, required_refs, optional_refs, version_ref, is_active, b2b_may_approve, created_at,
          updated_at;

-- name: asset_submission
-- A request, and the state of the revision that it led to. Another platform may have used the same id before.
SELECT dagapp.shown_request_id(s.request_id) AS request_id, s.platform_id, s.asset_id, s.version_ordinal, s.revision,
       s.outcome, s.same_content_as, s.superseded_job_id, s.request_hash, s.created_at,
       a.dataset_id, v.version_label, greatest(s.created_at, a.updated_at, v.updated_at) AS updated_at, r.job_id,
       r.workflow_id, present.status, present.reason
  FROM dagapp.asset_submissions AS s
  JOIN dagapp.geospatial_assets AS a USING (asset_id)
  JOIN dagapp.asset_versions AS v USING (asset_id, version_ordinal)
  JOIN dagapp.asset_revisions AS r
    ON r.asset_id = s.asset_id AND r.version_ordinal = s.version_ordinal AND r.revision = s.revision
 CROSS JOIN LATERAL dagapp.request_status(a, v, r) AS present
 WHERE s.request_id = ANY (%(request_ids)s::text[]);

-- name: asset_find
-- An asset by its id or its dataset id, without a lock.
SELECT a.asset_id, a.dataset_id, a.platform_id, a.clearance_state, a.exposure, a.deleted_at IS NOT NULL AS is_deleted,
       p.b2b_may_approve
  FROM dagapp.geospatial_assets AS a
  JOIN dagapp.platforms AS p USING (platform_id)
 WHERE a.asset_id = %(key)s OR a.dataset_id = %(key)s;

-- name: asset_lock
-- Lock an asset for changes, until the end of the transaction.
SELECT a.asset_id, a.dataset_id, a.platform_id, a.clearance_state, a.exposure, a.deleted_at IS NOT NULL AS is_deleted,
       p.b2b_may_approve
  FROM dagapp.geospatial_assets AS a
  JOIN dagapp.platforms AS p USING (platform_id)
 WHERE a.asset_id = %(key)s OR a.dataset_id = %(key)s
   FOR UPDATE OF a;

-- name: asset_lock_versions
-- Lock some versions of an asset (null: all), so that the end of their jobs has to wait.
SELECT version_ordinal
  FROM dagapp.asset_versions
 WHERE asset_id = %(asset_id)s
   AND (%(ordinals)s::int[] IS NULL OR version_ordinal = ANY (%(ordinals)s))
 ORDER BY version_ordinal
   FOR UPDATE;

-- name: asset_lock_revisions
-- Lock the revisions of these versions, so that the end of their jobs and late documents have to wait.
SELECT version_ordinal, revision
  FROM dagapp.asset_revisions
 WHERE asset_id = %(asset_id)s
   AND (%(ordinals)s::int[] IS NULL OR version_ordinal = ANY (%(ordinals)s))
 ORDER BY version_ordinal, revision
   FOR UPDATE;

-- name: asset_state
-- The versions of an asset with their newest revisions, as the rules read them.
SELECT v.version_ordinal, v.version_label, v.revision, v.approval_state, v.processing_state, v.approved_revision,
       v.unpublished_at IS NOT NULL AS is_unpublished, v.deleted_at IS NOT NULL AS is_deleted, v.current_job_id,
       r.submitted_by, r.source_etag, r.source_size, r.content_hash, r.parameters_hash,
       r.purge_started_at IS NOT NULL AS is_purged
  FROM dagapp.asset_versions AS v
  LEFT JOIN dagapp.asset_revisions AS r USING (asset_id, version_ordinal, revision)
 WHERE v.asset_id = %(asset_id)s
 ORDER BY v.version_ordinal;

-- name: asset_newest_event
-- The ETag of an asset.
SELECT coalesce(max(event_id), 0) AS event_id
  FROM dagapp.asset_events
 WHERE asset_id = %(asset_id)s;

-- name: asset_insert
-- Create an asset, unless it or its dataset id exists.
INSERT INTO dagapp.geospatial_assets (asset_id, platform_id, platform_refs, dataset_id, title, created_by)
VALUES (%(asset_id)s, %(platform_id)s, %(platform_refs)s, %(dataset_id)s, %(title)s, %(actor)s)
    ON CONFLICT DO NOTHING
RETURNING asset_id;

-- name: asset_write
-- Write the state of an asset. The users and times of earlier changes are kept where the state stays the same.
UPDATE dagapp.geospatial_assets
   SET clearance_state = %(clearance)s,
       cleared_at = CASE WHEN %(clearance)s <> 'uncleared' THEN coalesce(cleared_at, dagapp.clock()) END,
       cleared_by = CASE
                        WHEN %(clearance)s = 'uncleared' THEN NULL
                        WHEN cleared_at IS NULL THEN %(actor)s
                        ELSE cleared_by
                    END,
       made_public_at = CASE WHEN %(clearance)s = 'public' THEN coalesce(made_public_at, dagapp.clock()) END,
       made_public_by = CASE
                            WHEN %(clearance)s <> 'public' THEN NULL
                            WHEN made_public_at IS NULL THEN %(actor)s
                            ELSE made_public_by
                        END,
       exposure = %(exposure)s,
       latest_approved_version_ordinal = %(latest)s::int,
       deleted_at = CASE WHEN %(is_deleted)s THEN coalesce(deleted_at, dagapp.clock()) END,
       deleted_by = CASE WHEN %(is_deleted)s THEN coalesce(deleted_by, %(actor)s) END,
       title = coalesce(%(title)s, title),
       updated_at = dagapp.clock()
 WHERE asset_id = %(asset_id)s;

-- name: asset_version_write
-- Write what a decision changes in a version.
UPDATE dagapp.asset_versions
   SET approval_state = %(approval)s,
       approved_revision = %(approved_revision)s::int,
       reviewer = CASE WHEN %(is_reviewed)s THEN %(actor)s ELSE reviewer END,
       reviewed_at = CASE WHEN %(is_reviewed)s THEN dagapp.clock() ELSE reviewed_at END,
       rejection_reason = CASE
                              WHEN %(approval)s <> 'rejected' THEN NULL
                              WHEN %(is_reviewed)s THEN %(reason)s
                              ELSE rejection_reason
                          END,
       unpublished_at = CASE WHEN %(is_unpublished)s THEN coalesce(unpublished_at, dagapp.clock()) END,
       unpublished_by = CASE WHEN %(is_unpublished)s THEN coalesce(unpublished_by, %(actor)s) END,
       deleted_at = CASE WHEN %(is_deleted)s THEN coalesce(deleted_at, dagapp.clock()) END,
       deleted_by = CASE WHEN %(is_deleted)s THEN coalesce(deleted_by, %(actor)s) END,
       updated_at = dagapp.clock()
 WHERE asset_id = %(asset_id)s AND version_ordinal = %(ordinal)s;

-- name: asset_version_submit
-- Write a new version, or a new revision of one: it is queued and waits for its review.
INSERT INTO dagapp.asset_versions AS v
       (asset_id, version_ordinal, version_label, platform_refs, revision, current_job_id)
VALUES (%(asset_id)s, %(ordinal)s, %(label)s, %(platform_refs)s, %(revision)s, %(job_id)s)
    ON CONFLICT (asset_id, version_ordinal) DO UPDATE
   SET revision = excluded.revision,
       platform_refs = excluded.platform_refs,
       approval_state = 'pending_review',
       processing_state = 'queued',
       current_job_id = excluded.current_job_id,
       reviewer = NULL,
       reviewed_at = NULL,
       rejection_reason = NULL,
       updated_at = dagapp.clock();

-- name: asset_revision_insert
-- Insert a revision with what was submitted for it.
INSERT INTO dagapp.asset_revisions
       (asset_id, version_ordinal, revision, job_id, workflow_id, parameters, parameters_hash, source, source_etag,
        source_size, submitted_by)
VALUES (%(asset_id)s, %(ordinal)s, %(revision)s, %(job_id)s, %(workflow_id)s, %(parameters)s, %(parameters_hash)s,
        %(source)s, %(source_etag)s, %(source_size)s, %(actor)s);

-- name: asset_revision_review
-- Record the decision on a revision. Its documents cannot change from now on.
UPDATE dagapp.asset_revisions
   SET reviewed_as = %(reviewed_as)s,
       reviewed_at = dagapp.clock()
 WHERE asset_id = %(asset_id)s AND version_ordinal = %(ordinal)s AND revision = %(revision)s;

-- name: asset_export_due
-- Record that a revision must be copied to the external zone.
UPDATE dagapp.asset_revisions
   SET export_due_at = coalesce(export_due_at, dagapp.clock()),
       withdrawal_due_at = NULL,
       external_error = NULL,
       external_retry_at = NULL,
       external_failures = 0
 WHERE asset_id = %(asset_id)s AND version_ordinal = %(ordinal)s AND revision = %(revision)s;

-- name: asset_withdrawal_due
-- Record that the external copy of a revision must be removed.
UPDATE dagapp.asset_revisions
   SET export_due_at = NULL,
       withdrawal_due_at = coalesce(withdrawal_due_at, dagapp.clock()),
       external_error = NULL,
       external_retry_at = NULL,
       external_failures = 0
 WHERE asset_id = %(asset_id)s AND version_ordinal = %(ordinal)s AND revision = %(revision)s;

-- name: asset_revision_job
-- The job of a revision.
SELECT job_id, workflow_id
  FROM dagapp.asset_revisions
 WHERE asset_id = %(asset_id)s AND version_ordinal = %(ordinal)s AND revision = %(revision)s;

-- name: asset_jobs_in_progress
-- The jobs of an asset that are not needed any more: their revision was superseded, or its version was deleted.
SELECT r.job_id
  FROM dagapp.asset_revisions AS r
  JOIN dagapp.asset_versions AS v USING (asset_id, version_ordinal)
 WHERE r.asset_id = %(asset_id)s
   AND r.processing_state IN ('queued', 'processing')
   AND r.job_id IS NOT NULL
   AND (r.revision < v.revision OR v.deleted_at IS NOT NULL)
 ORDER BY r.job_id;

-- name: asset_submission_insert
-- Record a request with its result, its subscriber and the id that the platform knows, unless its id is taken.
WITH inserted AS (
    INSERT INTO dagapp.asset_submissions
           (request_id, platform_id, asset_id, version_ordinal, revision, outcome, same_content_as, superseded_job_id,
            request_hash, submitted_by, callback_url)
    VALUES (%(request_id)s, %(platform_id)s, %(asset_id)s, %(ordinal)s, %(revision)s, %(outcome)s,
            %(same_content_as)s::int, %(superseded_job_id)s::uuid, %(request_hash)s, %(actor)s, %(callback_url)s)
        ON CONFLICT (request_id) DO NOTHING
    RETURNING request_id
), subscribed AS (
    INSERT INTO dagapp.callback_subscribers (kind, subject, in_progress_uri, failed_uri)
    SELECT 'request', request_id, %(subscriber)s::jsonb ->> 'inProgressUri', %(subscriber)s::jsonb ->> 'failedUri'
      FROM inserted
     WHERE %(subscriber)s::jsonb IS NOT NULL
), named AS (
    INSERT INTO dagapp.request_aliases (stored_id, request_id)
    SELECT request_id, %(given_id)s
      FROM inserted
     WHERE request_id <> %(given_id)s
)
SELECT request_id
  FROM inserted;

-- name: asset_event_insert
-- Record who did what, and why.
INSERT INTO dagapp.asset_events
       (asset_id, version_ordinal, revision, platform_id, action, actor, reason, detail, request_id)
VALUES (%(asset_id)s, %(ordinal)s::int, %(revision)s::int, %(platform_id)s, %(action)s, %(actor)s, %(reason)s,
        %(detail)s, %(request_id)s)
RETURNING event_id;

-- name: asset_past_runs
-- The last completed runs of a workflow: the size of their source, how long they took, and what they wrote.
SELECT run.source_size,
       run.seconds,
       written.items::int AS items,
       written.size_bytes::bigint AS size_bytes
  FROM (
           SELECT r.version_ordinal, r.revision, a.dataset_id, r.source_size,
                  extract(epoch FROM j.completed_at - j.started_at)::float8 AS seconds
             FROM dagapp.asset_revisions AS r
             JOIN dagapp.geospatial_assets AS a USING (asset_id)
             JOIN dagapp.dag_jobs AS j
               ON j.job_id = r.job_id
            WHERE r.workflow_id = %(workflow_id)s
              AND r.processing_state = 'completed'
              AND r.purged_at IS NULL
              AND r.source_size > 0
              AND j.status = 'completed'
              AND j.resume_count = 0
            ORDER BY r.processed_at DESC
            LIMIT %(limit)s
       ) AS run
 CROSS JOIN LATERAL (
           SELECT count(*) AS items,
                  sum((d.content #>> '{assets,data,file:size}')::bigint) AS size_bytes
             FROM dagapp.stac_documents AS d
            WHERE d.dataset_id = run.dataset_id
              AND d.version_ordinal = run.version_ordinal
              AND d.revision = run.revision
              AND d.document_id <> ''
       ) AS written;
