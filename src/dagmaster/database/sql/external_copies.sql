-- Copies of revisions in the external zone: which are due, the jobs that make and remove them, and what these jobs
-- read.

-- name: copies_due
-- Revisions whose external copies are to be made or removed, and that have no job for it yet. An export that has failed
-- waits for an operator; a withdrawal that has failed is tried again. If a withdrawal is due while an export still
-- runs, the revision is returned too: the export has to be cancelled first.
SELECT r.asset_id, r.version_ordinal, r.revision
  FROM dagapp.asset_revisions AS r
  LEFT JOIN dagapp.dag_jobs AS j
    ON j.job_id = r.external_job_id
 WHERE r.export_due_at IS NOT NULL AND r.external_error IS NULL AND NOT r.is_external_job_running
    OR r.withdrawal_due_at IS NOT NULL
       AND CASE
               WHEN r.is_external_job_running THEN j.workflow_id <> 'unpublish' AND j.cancel_requested_at IS NULL
               ELSE r.external_retry_at IS NULL OR r.external_retry_at <= dagapp.clock()
           END
 ORDER BY coalesce(r.withdrawal_due_at, r.export_due_at), r.asset_id, r.version_ordinal, r.revision
 LIMIT %(limit)s;

-- name: copies_lock
-- Lock one revision, unless another process has locked it.
SELECT r.asset_id, a.dataset_id, r.version_ordinal, r.revision, r.outputs ->> 'blob_path' AS blob_path,
       r.external_copies, r.export_due_at, r.withdrawal_due_at, r.withdrawn_at, r.external_failures, r.external_error,
       r.external_job_id, r.is_external_job_running, j.workflow_id AS external_workflow_id,
       r.external_retry_at IS NULL OR r.external_retry_at <= dagapp.clock() AS may_retry
  FROM dagapp.asset_revisions AS r
  JOIN dagapp.geospatial_assets AS a
    ON a.asset_id = r.asset_id
  LEFT JOIN dagapp.dag_jobs AS j
    ON j.job_id = r.external_job_id
 WHERE r.asset_id = %(asset_id)s AND r.version_ordinal = %(ordinal)s AND r.revision = %(revision)s
   FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: copies_start
-- Record the job that makes or removes the external copies of a revision. It is created in the same transaction.
UPDATE dagapp.asset_revisions
   SET external_job_id = %(job_id)s,
       is_external_job_running = true,
       external_copies = 'some',
       external_due_at = coalesce(withdrawal_due_at, export_due_at),
       external_error = NULL,
       external_retry_at = NULL
 WHERE asset_id = %(asset_id)s AND version_ordinal = %(ordinal)s AND revision = %(revision)s;

-- name: copies_settle
-- Record that nothing is due any more: the copies are already as they should be.
UPDATE dagapp.asset_revisions
   SET export_due_at = NULL,
       withdrawal_due_at = NULL,
       external_error = NULL,
       external_retry_at = NULL,
       external_failures = 0
 WHERE asset_id = %(asset_id)s AND version_ordinal = %(ordinal)s AND revision = %(revision)s;

-- name: copies_repeat
-- Make an export due again because an operator asks for it, as if it was decided now.
UPDATE dagapp.asset_revisions
   SET export_due_at = dagapp.clock(),
       external_copies = CASE external_copies WHEN 'all' THEN 'some' ELSE external_copies END,
       external_error = NULL,
       external_retry_at = NULL,
       external_failures = 0
 WHERE asset_id = %(asset_id)s
   AND version_ordinal = %(ordinal)s
   AND revision = %(revision)s
   AND withdrawal_due_at IS NULL
   AND NOT is_external_job_running
RETURNING revision;

-- name: copies_target
-- A revision of a version (without a number: the approved one, else the newest), and whether it is approved and public.
SELECT a.asset_id, a.dataset_id, v.version_ordinal, r.revision, r.outputs ->> 'blob_path' AS blob_path,
       a.clearance_state, v.approved_revision, v.unpublished_at IS NOT NULL AS is_unpublished,
       a.deleted_at IS NOT NULL OR v.deleted_at IS NOT NULL AS is_deleted,
       r.purge_started_at IS NOT NULL AS is_purged,
       CASE WHEN r.is_external_job_running THEN r.external_job_id END AS job_id
  FROM dagapp.geospatial_assets AS a
  JOIN dagapp.asset_versions AS v
    ON v.asset_id = a.asset_id
  JOIN dagapp.asset_revisions AS r
    ON r.asset_id = v.asset_id
   AND r.version_ordinal = v.version_ordinal
   AND r.revision = coalesce(%(revision)s::integer, v.approved_revision, v.revision)
 WHERE (a.asset_id = %(asset)s OR a.dataset_id = %(asset)s)
   AND v.version_ordinal = %(ordinal)s;

-- name: copies_job_lock
-- A running job of one of these workflows. Its end waits for this transaction.
SELECT job_id
  FROM dagapp.dag_jobs
 WHERE job_id = %(job_id)s AND status = 'running' AND workflow_id = ANY (%(workflow_ids)s)
   FOR SHARE;

-- name: copies_claim
-- Record that a job which a person submitted or resumed makes or removes the external copies of a revision, if no other
-- job does, and if the state of the asset still requires it.
UPDATE dagapp.asset_revisions AS r
   SET external_job_id = %(job_id)s,
       is_external_job_running = true,
       external_copies = 'some',
       export_due_at = CASE WHEN %(is_export)s THEN coalesce(r.export_due_at, dagapp.clock()) END,
       withdrawal_due_at = CASE WHEN NOT %(is_export)s THEN coalesce(r.withdrawal_due_at, dagapp.clock()) END,
       external_due_at = coalesce(CASE WHEN %(is_export)s THEN r.export_due_at ELSE r.withdrawal_due_at END,
                                  dagapp.clock()),
       external_error = NULL,
       external_retry_at = NULL
  FROM dagapp.geospatial_assets AS a
  JOIN dagapp.asset_versions AS v
    ON v.asset_id = a.asset_id
 WHERE r.asset_id = %(asset_id)s AND r.version_ordinal = %(ordinal)s AND r.revision = %(revision)s
   AND a.asset_id = r.asset_id
   AND v.version_ordinal = r.version_ordinal
   AND (r.external_job_id = %(job_id)s OR NOT r.is_external_job_running)
   AND r.purge_started_at IS NULL
   AND %(is_export)s = (a.clearance_state = 'public'
                        AND a.deleted_at IS NULL
                        AND v.deleted_at IS NULL
                        AND v.unpublished_at IS NULL
                        AND v.approved_revision IS NOT DISTINCT FROM r.revision)
RETURNING r.revision;

-- name: copies_is_current
-- Whether a job still makes the external copies of a revision, or still removes them.
SELECT EXISTS (
           SELECT
             FROM dagapp.asset_revisions
            WHERE asset_id = %(asset_id)s
              AND version_ordinal = %(ordinal)s
              AND revision = %(revision)s
              AND external_job_id = %(job_id)s
              AND is_external_job_running
              AND (NOT %(is_export)s OR export_due_at IS NOT NULL)
       ) AS is_current;

-- name: copies_require_again
-- Make an export due again: a task of a job that had already ended removed copies after the revision was exported.
UPDATE dagapp.asset_revisions
   SET export_due_at = dagapp.clock(),
       external_copies = 'some',
       exported_at = NULL
 WHERE asset_id = %(asset_id)s
   AND version_ordinal = %(ordinal)s
   AND revision = %(revision)s
   AND external_copies = 'all'
   AND withdrawal_due_at IS NULL;

-- name: copies_batches
-- The last document of each batch of documents of a revision. The first document of all is the collection.
SELECT max(document_id) AS last_id, count(*)::int AS documents
  FROM (
           SELECT document_id, (row_number() OVER (ORDER BY document_id) - 1) / %(size)s::int AS batch
             FROM dagapp.stac_documents
            WHERE dataset_id = %(dataset_id)s AND version_ordinal = %(ordinal)s AND revision = %(revision)s
       ) AS numbered
 GROUP BY batch
 ORDER BY batch;

-- name: copies_documents
-- The documents of one batch.
SELECT document_id, content
  FROM dagapp.stac_documents
 WHERE dataset_id = %(dataset_id)s
   AND version_ordinal = %(ordinal)s
   AND revision = %(revision)s
   AND (%(after)s::text IS NULL OR document_id > %(after)s)
   AND document_id <= %(last_id)s
 ORDER BY document_id;

-- name: copies_collection
-- The collection of a revision.
SELECT content
  FROM dagapp.stac_documents
 WHERE dataset_id = %(dataset_id)s
   AND version_ordinal = %(ordinal)s
   AND revision = %(revision)s
   AND document_id = '';
