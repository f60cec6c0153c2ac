-- `dagmaster verify-storage`: what the database names is compared with the objects of the zones, in two temporary
-- tables (storage/tables.sql).

-- part: storage_is_published
-- Whether a revision is in the catalogue, as `AssetState.published` says.
a.deleted_at IS NULL
                AND a.clearance_state <> 'uncleared'
                AND v.deleted_at IS NULL
                AND v.unpublished_at IS NULL
                AND (a.exposure = 'all-versions' OR v.version_ordinal = a.latest_approved_version_ordinal)

-- name: storage_documents
-- The files that the STAC documents of revisions name, without revisions that are being purged.
SELECT d.dataset_id, d.version_ordinal, d.revision, d.document_id, file.asset_key, file.content ->> 'href' AS href,
       CASE WHEN file.content ->> 'file:size' ~ '^[0-9]{1,18}$' THEN (file.content ->> 'file:size')::bigint END
           AS size_bytes,
       file.content ->> 'file:checksum' AS checksum,
       coalesce(
           v.approved_revision = d.revision AND
-- use: storage_is_published
           , false) AS is_served
  FROM dagapp.stac_documents AS d
  LEFT JOIN dagapp.geospatial_assets AS a
    ON a.dataset_id = d.dataset_id
  LEFT JOIN dagapp.asset_versions AS v
    ON v.asset_id = a.asset_id AND v.version_ordinal = d.version_ordinal
  LEFT JOIN dagapp.asset_revisions AS r
    ON r.asset_id = a.asset_id AND r.version_ordinal = d.version_ordinal AND r.revision = d.revision
 CROSS JOIN LATERAL jsonb_each(
             CASE jsonb_typeof(d.content -> 'assets') WHEN 'object' THEN d.content -> 'assets' ELSE '{}' END
         ) AS given (asset_key, content)
 CROSS JOIN LATERAL (
           SELECT given.asset_key, given.content
            UNION ALL
           SELECT given.asset_key || '.' || other.key, other.value
             FROM jsonb_each(
                      CASE jsonb_typeof(given.content -> 'alternate')
                          WHEN 'object' THEN given.content -> 'alternate'
                          ELSE '{}'
                      END
                  ) AS other
       ) AS file
 WHERE jsonb_typeof(file.content) = 'object' AND file.content ? 'href' AND r.purge_started_at IS NULL;

-- name: storage_manifests
-- Where the manifests of the complete copies in the external zone are.
SELECT a.dataset_id, r.version_ordinal, r.revision, r.outputs ->> 'external_manifest_path' AS path
  FROM dagapp.asset_revisions AS r
  JOIN dagapp.geospatial_assets AS a USING (asset_id)
 WHERE r.external_copies = 'all'
   AND NOT r.is_external_job_running
   AND r.outputs ? 'external_manifest_path'
 ORDER BY a.dataset_id, r.version_ordinal, r.revision;

-- name: storage_add_sources
-- The sources of revisions. A revision of several files has the size of all of them together.
INSERT INTO storage_references (zone, container, blob, kind, size_bytes, dataset_id, version_ordinal, revision)
SELECT 'bronze', r.source ->> 'container', named.blob, 'source', CASE WHEN r.source ? 'blob' THEN r.source_size END,
       a.dataset_id, r.version_ordinal, r.revision
  FROM dagapp.asset_revisions AS r
  JOIN dagapp.asset_versions AS v USING (asset_id, version_ordinal)
  JOIN dagapp.geospatial_assets AS a USING (asset_id)
 CROSS JOIN LATERAL (
           SELECT r.source ->> 'blob' AS blob
            WHERE r.source ? 'blob'
            UNION ALL
           SELECT jsonb_array_elements_text(
                      CASE jsonb_typeof(r.source -> 'blobs') WHEN 'array' THEN r.source -> 'blobs' ELSE '[]' END
                  )
       ) AS named
 WHERE r.purged_at IS NULL
   AND a.deleted_at IS NULL
   AND v.deleted_at IS NULL
   AND r.source ? 'container'
   AND named.blob IS NOT NULL;

-- name: storage_add_uploads
-- The objects of finished uploads.
INSERT INTO storage_references (zone, container, blob, kind, size_bytes, sha256)
SELECT 'bronze', container, blob, 'upload', size_bytes, sha256
  FROM dagapp.uploads
 WHERE finished_at IS NOT NULL;

-- name: storage_add_inputs
-- Objects that the inputs of jobs name. They may be removed after the job has ended, and are not reported as missing.
INSERT INTO storage_references (zone, container, blob, kind)
SELECT DISTINCT 'bronze', coalesce(j.input_params ->> 'container_name', %(container)s::text), named.blob, 'input'
  FROM dagapp.dag_jobs AS j
 CROSS JOIN LATERAL (
           SELECT j.input_params ->> 'blob_name' AS blob
            UNION ALL
           SELECT jsonb_array_elements_text(
                      CASE jsonb_typeof(j.input_params -> 'blob_names')
                          WHEN 'array' THEN j.input_params -> 'blob_names'
                          ELSE '[]'
                      END
                  )
       ) AS named
 WHERE named.blob IS NOT NULL;

-- name: storage_elsewhere
-- Named objects in containers that were not listed: they are looked up one by one.
SELECT DISTINCT f.zone, f.container, f.blob
  FROM storage_references AS f
 WHERE f.kind <> 'input'
   AND NOT EXISTS (
           SELECT
             FROM unnest(%(zones)s::text[], %(containers)s::text[]) AS listed (zone, container)
            WHERE listed.zone = f.zone AND listed.container = f.container
       );

-- name: storage_damaged
-- Named objects that do not exist, or that have another size; those that are served first. `total` and `total_served`
-- count all of them.
SELECT CASE WHEN o.blob IS NULL THEN 'missing' ELSE 'wrong-size' END AS code, f.zone, f.container, f.blob, f.kind,
       f.dataset_id, f.version_ordinal, f.revision, f.document_id, f.asset_key, f.is_served,
       f.size_bytes AS expected_bytes, o.size_bytes, o.modified_at, count(*) OVER () AS total,
       count(*) FILTER (WHERE f.is_served) OVER () AS total_served
  FROM storage_references AS f
  LEFT JOIN storage_objects AS o
    ON o.zone = f.zone AND o.container = f.container AND o.blob = f.blob
 WHERE f.kind <> 'input'
   AND (o.blob IS NULL OR o.size_bytes <> f.size_bytes)
   AND (o.blob IS NULL) = %(is_missing)s
 ORDER BY f.is_served DESC, f.zone, f.container, f.blob COLLATE "C", f.kind
 LIMIT %(limit)s;

-- name: storage_unreferenced
-- Objects that are older than an age and that nothing names, the largest first, with the reason. An object of a
-- revision or a job that exists is listed only if the documents of the revision are complete and do not name it. A
-- manifest that is missing or damaged names nothing: then no copies are listed.
WITH unnamed AS (
    SELECT o.*
      FROM storage_objects AS o
     WHERE o.modified_at < dagapp.clock() - make_interval(secs => %(age)s)
       AND NOT EXISTS (
               SELECT
                 FROM storage_references AS f
                WHERE f.zone = o.zone AND f.container = o.container AND f.blob = o.blob
           )
), manifests AS (
    SELECT DISTINCT dataset_id, version_ordinal, revision, true AS is_readable
      FROM storage_references
     WHERE kind = 'copy' AND asset_key IS NULL
), explained AS (
    SELECT o.zone, o.container, o.blob, o.size_bytes, o.modified_at, o.dataset_id, o.version_ordinal, o.revision,
           CASE
               WHEN o.zone = 'bronze' THEN 'no submission, upload or job names it'
               WHEN o.job_id IS NOT NULL THEN CASE WHEN j.job_id IS NULL THEN 'its job does not exist' END
               WHEN o.dataset_id IS NULL THEN 'its name does not follow the naming scheme of the platform'
               WHEN a.asset_id IS NULL THEN 'its dataset does not exist'
               WHEN r.revision IS NULL THEN 'its revision does not exist'
               WHEN r.purged_at IS NOT NULL THEN 'its revision was purged'
               WHEN o.zone = 'external'
                   THEN CASE r.external_copies
                            WHEN 'none'
                                THEN CASE WHEN NOT r.is_external_job_running
                                          THEN 'the copies of its revision were removed'
                                     END
                            WHEN 'all'
                                THEN CASE WHEN m.is_readable THEN 'the manifest of its revision does not name it' END
                        END
               WHEN r.processing_state = 'completed' AND o.kind IN ('cogs', 'mosaics', 'tiling_schemes')
                   THEN 'the documents of its revision do not name it'
           END AS reason
      FROM unnamed AS o
      LEFT JOIN dagapp.dag_jobs AS j
        ON j.job_id = o.job_id
      LEFT JOIN dagapp.geospatial_assets AS a
        ON a.dataset_id = o.dataset_id
      LEFT JOIN dagapp.asset_revisions AS r
        ON r.asset_id = a.asset_id AND r.version_ordinal = o.version_ordinal AND r.revision = o.revision
      LEFT JOIN manifests AS m
        ON o.zone = 'external'
       AND m.dataset_id = o.dataset_id
       AND m.version_ordinal = o.version_ordinal
       AND m.revision = o.revision
)
SELECT zone, container, blob, size_bytes, modified_at, dataset_id, version_ordinal, revision, reason,
       count(*) OVER () AS total, (sum(size_bytes) OVER ())::bigint AS total_bytes
  FROM explained
 WHERE reason IS NOT NULL
 ORDER BY size_bytes DESC, zone, container, blob COLLATE "C"
 LIMIT %(limit)s;

-- name: storage_to_read
-- Named objects of the right size whose content can be compared with a hash; those that are served first.
SELECT DISTINCT ON (f.is_served, f.zone, f.container, f.blob, f.sha256)
       f.zone, f.container, f.blob, f.kind, f.dataset_id, f.version_ordinal, f.revision, f.document_id, f.asset_key,
       f.is_served, f.sha256, o.size_bytes
  FROM storage_references AS f
  JOIN storage_objects AS o
    ON o.zone = f.zone AND o.container = f.container AND o.blob = f.blob
 WHERE f.sha256 IS NOT NULL
   AND (f.size_bytes IS NULL OR f.size_bytes = o.size_bytes)
 ORDER BY f.is_served DESC, f.zone, f.container, f.blob, f.sha256;

-- name: storage_catalog
-- Where the catalogue differs from the documents of the published revisions: revisions without documents, items that
-- are missing, items that belong to no published revision, and items that name other files.
WITH published AS MATERIALIZED (
    SELECT a.dataset_id, v.version_ordinal, v.approved_revision AS revision
      FROM dagapp.geospatial_assets AS a
      JOIN dagapp.asset_versions AS v USING (asset_id)
     WHERE v.approved_revision IS NOT NULL AND
-- use: storage_is_published
), wanted AS (
    SELECT d.dataset_id, d.version_ordinal, d.revision, d.document_id, d.content -> 'assets' AS assets
      FROM published
      JOIN dagapp.stac_documents AS d USING (dataset_id, version_ordinal, revision)
     WHERE d.document_id <> ''
), listed AS (
    SELECT i.collection, i.id, i.content -> 'assets' AS assets
      FROM pgstac.items AS i
     WHERE EXISTS (SELECT FROM dagapp.geospatial_assets AS a WHERE a.dataset_id = i.collection)
), differences AS (
    SELECT p.dataset_id, p.version_ordinal, p.revision, ''::text AS document_id,
           'the revision has no documents' AS reason
      FROM published AS p
     WHERE NOT EXISTS (
               SELECT
                 FROM dagapp.stac_documents AS d
                WHERE d.dataset_id = p.dataset_id
                  AND d.version_ordinal = p.version_ordinal
                  AND d.revision = p.revision
                  AND d.document_id <> ''
           )
     UNION ALL
    SELECT coalesce(w.dataset_id, l.collection), w.version_ordinal, w.revision, coalesce(w.document_id, l.id),
           CASE
               WHEN l.id IS NULL THEN 'the catalogue does not have the item'
               WHEN w.document_id IS NULL THEN 'the item belongs to no published revision'
               ELSE 'the item in the catalogue names other files'
           END
      FROM wanted AS w
      FULL JOIN listed AS l
        ON l.collection = w.dataset_id AND l.id = w.document_id
     WHERE l.id IS NULL
        OR w.document_id IS NULL
        OR (SELECT jsonb_object_agg(key, value -> 'href') FROM jsonb_each(w.assets))
           IS DISTINCT FROM (SELECT jsonb_object_agg(key, value -> 'href') FROM jsonb_each(l.assets))
)
SELECT dataset_id, version_ordinal, revision, document_id, reason, count(*) OVER () AS total
  FROM differences
 ORDER BY dataset_id, document_id COLLATE "C"
 LIMIT %(limit)s;

-- name: storage_open_uploads
-- All uploads that are not finished although their time is over.
SELECT upload_id, container, blob, size_bytes, expires_at
  FROM dagapp.uploads
 WHERE finished_at IS NULL AND expires_at < dagapp.clock() - make_interval(secs => %(age)s)
 ORDER BY expires_at;
