-- The STAC documents of revisions. `document_id` is the id of an item, or empty for the collection.

-- name: documents_writer
-- The job that processes a revision, if an asset has the dataset, and whether the revision may still change. A job that
-- was created before the tables of assets is one of an earlier release.
SELECT asset.asset_id IS NOT NULL AS has_asset,
       run.job_id,
       run.reviewed_as,
       EXISTS (
           SELECT
             FROM dagapp.dag_jobs AS job
             JOIN dagapp.platforms AS platform
               ON platform.platform_id = 'local'
            WHERE job.job_id = %(job_id)s
              AND job.created_at < platform.created_at
       ) AS is_job_of_earlier_release
  FROM (VALUES (%(dataset_id)s::text)) AS given (dataset_id)
  LEFT JOIN dagapp.geospatial_assets AS asset
    ON asset.dataset_id = given.dataset_id
  LEFT JOIN dagapp.asset_revisions AS run
    ON run.asset_id = asset.asset_id
   AND run.version_ordinal = %(ordinal)s
   AND run.revision = %(revision)s;

-- name: documents_put
-- Insert documents of a revision, and replace those that have changed. In the order of their ids: several jobs may
-- write the same ones.
INSERT INTO dagapp.stac_documents AS stored (dataset_id, version_ordinal, revision, document_id, content)
SELECT %(dataset_id)s, %(ordinal)s, %(revision)s, given.document_id, given.content
  FROM jsonb_to_recordset(%(documents)s::jsonb) AS given (document_id text, content jsonb)
 ORDER BY given.document_id COLLATE "C"
    ON CONFLICT (dataset_id, version_ordinal, revision, document_id)
    DO UPDATE SET content = excluded.content
 WHERE stored.content IS DISTINCT FROM excluded.content;

-- name: documents_missing
-- The given ids for which a revision has no document.
SELECT wanted.id
  FROM unnest(%(ids)s::text[]) AS wanted (id)
 WHERE NOT EXISTS (
           SELECT
             FROM dagapp.stac_documents AS stored
            WHERE stored.dataset_id = %(dataset_id)s
              AND stored.version_ordinal = %(ordinal)s
              AND stored.revision = %(revision)s
              AND stored.document_id = wanted.id
       )
 ORDER BY wanted.id;

-- name: documents_remove_others
-- Remove the items of a revision that are not among the given ones.
DELETE FROM dagapp.stac_documents AS stored
 WHERE stored.dataset_id = %(dataset_id)s
   AND stored.version_ordinal = %(ordinal)s
   AND stored.revision = %(revision)s
   AND stored.document_id <> ''
   AND NOT EXISTS (SELECT FROM unnest(%(ids)s::text[]) AS wanted (id) WHERE wanted.id = stored.document_id)
RETURNING stored.document_id;

-- name: documents_boxes
-- Bbox and time of each item of a revision.
SELECT stored.content -> 'bbox' AS bbox,
       coalesce(times.start_at, times.at)::timestamptz AS datetime,
       coalesce(times.end_at, times.at)::timestamptz AS end_datetime
  FROM dagapp.stac_documents AS stored
 CROSS JOIN LATERAL (
           SELECT stored.content #>> '{properties,start_datetime}' AS start_at,
                  stored.content #>> '{properties,end_datetime}' AS end_at,
                  stored.content #>> '{properties,datetime}' AS at
       ) AS times
 WHERE stored.dataset_id = %(dataset_id)s
   AND stored.version_ordinal = %(ordinal)s
   AND stored.revision = %(revision)s
   AND stored.document_id <> '';

-- name: documents_set_extent
-- Set the extent of the collection of a revision, if it differs.
UPDATE dagapp.stac_documents
   SET content = jsonb_set(content, '{extent}', %(extent)s::jsonb)
 WHERE dataset_id = %(dataset_id)s
   AND version_ordinal = %(ordinal)s
   AND revision = %(revision)s
   AND document_id = ''
   AND content -> 'extent' IS DISTINCT FROM %(extent)s::jsonb;

-- name: documents_earlier
-- The first item of an earlier revision of an asset: of the newest completed revision of this version, else of the
-- newest other version. Three columns describe this version only: `created` is when the first of its items was created,
-- `times` has the times of its items if they differ, and `newest` is its newest completed revision.
WITH completed AS MATERIALIZED (
    SELECT asset.dataset_id, run.version_ordinal, run.revision
      FROM dagapp.geospatial_assets AS asset
      JOIN dagapp.asset_revisions AS run USING (asset_id)
     WHERE asset.dataset_id = %(dataset_id)s
       AND run.processing_state = 'completed'
       AND (run.version_ordinal, run.revision) <> (%(ordinal)s, %(revision)s)
       AND EXISTS (
               SELECT
                 FROM dagapp.stac_documents AS stored
                WHERE stored.dataset_id = asset.dataset_id
                  AND stored.version_ordinal = run.version_ordinal
                  AND stored.revision = run.revision
           )
), chosen AS (
    SELECT dataset_id, version_ordinal, revision
      FROM completed
     ORDER BY version_ordinal = %(ordinal)s DESC, version_ordinal DESC, revision DESC
     LIMIT 1
), item AS MATERIALIZED (
    SELECT stored.document_id AS id,
           stored.version_ordinal AS ordinal,
           stored.content -> 'properties' AS properties
      FROM dagapp.stac_documents AS stored
      JOIN chosen USING (dataset_id, version_ordinal, revision)
     WHERE stored.document_id <> ''
), version AS (
    SELECT min(properties ->> 'created') AS created,
           CASE
               WHEN count(DISTINCT jsonb_build_array(
                        properties -> 'datetime', properties -> 'start_datetime', properties -> 'end_datetime'
                    )) > 1
                   THEN jsonb_object_agg(
                       id,
                       jsonb_build_object(
                           'datetime', properties -> 'datetime',
                           'start_datetime', properties -> 'start_datetime',
                           'end_datetime', properties -> 'end_datetime',
                           'dagmaster:datetime_basis', properties -> 'dagmaster:datetime_basis'
                       )
                   )
           END AS times
      FROM item
     WHERE ordinal = %(ordinal)s
)
SELECT item.id,
       item.ordinal,
       item.properties - 'renders' AS properties,
       (SELECT max(revision) FROM completed WHERE version_ordinal = %(ordinal)s) AS newest,
       version.created,
       version.times
  FROM item, version
 ORDER BY item.id
 LIMIT 1;
