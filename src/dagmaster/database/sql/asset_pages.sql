-- What the pages of assets show: the review queue, comparisons of revisions, and the requests of platforms.

-- part: waits_for_review
v.approval_state = 'pending_review' AND v.processing_state = 'completed' AND v.deleted_at IS NULL
   AND a.deleted_at IS NULL

-- name: review_queue
-- Versions that wait for a review, the one that has waited longest first, a page at a time.
SELECT a.asset_id, a.dataset_id, a.title, a.platform_id, v.version_ordinal, v.version_label, v.revision,
       v.updated_at AS waiting_since, r.workflow_id, r.job_id, r.submitted_by,
       coalesce(r.is_partial, false) AS is_partial, r.same_content_as,
       (SELECT d.content #> '{extent,spatial,bbox,0}'
          FROM dagapp.stac_documents AS d
         WHERE d.dataset_id = a.dataset_id AND d.version_ordinal = v.version_ordinal AND d.revision = v.revision
           AND d.document_id = '') AS bbox,
       coalesce((SELECT max(e.event_id) FROM dagapp.asset_events AS e WHERE e.asset_id = a.asset_id), 0)::text AS etag
  FROM dagapp.asset_versions AS v
  JOIN dagapp.geospatial_assets AS a
    ON a.asset_id = v.asset_id
  LEFT JOIN dagapp.asset_revisions AS r
    ON r.asset_id = v.asset_id AND r.version_ordinal = v.version_ordinal AND r.revision = v.revision
 WHERE
-- use: waits_for_review
   AND (%(after_at)s::timestamptz IS NULL
        OR (v.updated_at, v.asset_id, v.version_ordinal)
           > (%(after_at)s, %(after_asset)s::text, %(after_ordinal)s::int))
   AND (%(platform_id)s::text IS NULL OR a.platform_id = %(platform_id)s)
 ORDER BY v.updated_at, v.asset_id, v.version_ordinal
 LIMIT %(limit)s;

-- name: review_count
-- How many versions wait for a review, counted up to a limit.
SELECT count(*)::int AS count
  FROM (SELECT 1
          FROM dagapp.asset_versions AS v
          JOIN dagapp.geospatial_assets AS a
            ON a.asset_id = v.asset_id
         WHERE
-- use: waits_for_review
           AND (%(platform_id)s::text IS NULL OR a.platform_id = %(platform_id)s)
         LIMIT %(limit)s) AS few;

-- name: documents_summary
-- The collection of a revision, its first item, and the number and size of its items.
SELECT (SELECT d.content
          FROM dagapp.stac_documents AS d
         WHERE d.dataset_id = %(dataset_id)s AND d.version_ordinal = %(ordinal)s AND d.revision = %(revision)s
           AND d.document_id = '') AS collection,
       (SELECT d.content
          FROM dagapp.stac_documents AS d
         WHERE d.dataset_id = %(dataset_id)s AND d.version_ordinal = %(ordinal)s AND d.revision = %(revision)s
           AND d.document_id > ''
         ORDER BY d.document_id
         LIMIT 1) AS item,
       items.item_count, items.size_bytes
  FROM (SELECT count(*)::int AS item_count,
               sum(CASE WHEN jsonb_typeof(d.content #> '{assets,data,file:size}') = 'number'
                        THEN (d.content #>> '{assets,data,file:size}')::numeric END)::bigint AS size_bytes
          FROM dagapp.stac_documents AS d
         WHERE d.dataset_id = %(dataset_id)s AND d.version_ordinal = %(ordinal)s AND d.revision = %(revision)s
           AND d.document_id <> '') AS items;

-- name: revision_origin
-- What a revision was made of, and by which job.
SELECT r.version_ordinal, r.revision, r.source, r.source_size, r.content_hash, r.same_content_as, r.workflow_id,
       r.parameters, r.submitted_by, r.job_id, r.created_at, r.processed_at, j.workflow_version, j.definition_hash,
       j.input_params AS inputs
  FROM dagapp.asset_revisions AS r
  LEFT JOIN dagapp.dag_jobs AS j
    ON j.job_id = r.job_id
 WHERE r.asset_id = %(asset_id)s AND r.version_ordinal = %(ordinal)s AND r.revision = %(revision)s;

-- name: asset_requests
-- The requests of platforms for an asset, newest first, a page at a time.
SELECT dagapp.shown_request_id(s.request_id) AS request_id, s.platform_id, s.version_ordinal, s.revision, s.outcome,
       s.submitted_by, s.callback_url, s.created_at, present.status, present.reason
  FROM dagapp.asset_submissions AS s
  JOIN dagapp.geospatial_assets AS a USING (asset_id)
  JOIN dagapp.asset_versions AS v USING (asset_id, version_ordinal)
  JOIN dagapp.asset_revisions AS r
    ON r.asset_id = s.asset_id AND r.version_ordinal = s.version_ordinal AND r.revision = s.revision
 CROSS JOIN LATERAL dagapp.request_status(a, v, r) AS present
 WHERE s.asset_id = %(asset_id)s
   AND (%(ordinal)s::int IS NULL OR s.version_ordinal = %(ordinal)s)
   AND (%(after_at)s::timestamptz IS NULL OR (s.created_at, s.request_id) < (%(after_at)s, %(after_id)s::text))
 ORDER BY s.created_at DESC, s.request_id DESC
 LIMIT %(limit)s;

-- name: callbacks_of_requests
-- The callbacks of some requests, newest first.
-- use: shown_callbacks
 WHERE e.request_id = ANY (%(request_ids)s::text[]) AND e.platform_id = ANY (%(platform_ids)s::text[])
 ORDER BY e.sequence DESC
 LIMIT 1000;
