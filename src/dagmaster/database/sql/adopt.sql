-- Datasets of earlier releases, which had no assets: they become approved versions of the platform `local`.

-- name: catalog_adopt_published
-- Collections that an earlier release published.
SELECT c.id AS dataset_id
  FROM pgstac.collections AS c
 WHERE c.content ? 'dagmaster:version_ordinal'
   AND NOT EXISTS (SELECT FROM dagapp.geospatial_assets AS a WHERE a.dataset_id = c.id)
 ORDER BY c.id;

-- name: catalog_adopt_refused
-- Collections without an asset, which are not served. After the adoption these are the ones that could not be adopted.
SELECT c.id AS collection_id,
       c.content ? 'dagmaster:version_ordinal' AS is_dataset
  FROM pgstac.collections AS c
 WHERE NOT EXISTS (SELECT FROM dagapp.geospatial_assets AS a WHERE a.dataset_id = c.id)
 ORDER BY c.id;

-- name: asset_adopt_processed
-- Datasets whose documents were written by a job that an earlier release created and that has ended since the upgrade:
-- the job is older than the platform `local`, which was created with the tables of assets. Datasets of later
-- jobs that belong to no asset are never published.
SELECT DISTINCT d.dataset_id
  FROM dagapp.stac_documents AS d
 WHERE d.document_id = ''
   AND d.dataset_id !~ '^job-[0-9a-f-]{36}$'
   AND NOT EXISTS (SELECT FROM dagapp.geospatial_assets AS a WHERE a.dataset_id = d.dataset_id)
   AND EXISTS (SELECT
                 FROM dagapp.dag_jobs AS j
                WHERE j.asset_id IS NULL
                  AND j.created_at < (SELECT p.created_at FROM dagapp.platforms AS p WHERE p.platform_id = 'local')
                  AND j.status IN ('completed', 'partial_success')
                  AND j.input_params ->> 'dataset_id' = d.dataset_id)
 ORDER BY d.dataset_id;

-- name: catalog_adopt_items
-- Store the items of a published collection as documents. URLs of this server, which begin like the collection's link
-- `self`, become paths. Only the newest revision of a version is used.
WITH base AS (
    SELECT c.content,
           (SELECT '"' || left(link ->> 'href', -length('/stac/collections/' || c.id)) || '/'
              FROM jsonb_array_elements(c.content -> 'links') AS link
             WHERE link ->> 'rel' = 'self' AND link ->> 'href' LIKE '%%/stac/collections/' || c.id
             LIMIT 1) AS origin
      FROM pgstac.collections AS c
     WHERE c.id = %(dataset_id)s
), item AS (
    SELECT i.id,
           (i.content #>> '{properties,dagmaster:version_ordinal}')::int AS ordinal,
           (i.content #>> '{properties,dagmaster:revision}')::int AS revision,
           pgstac.get_item(i.id, i.collection)::text AS document
      FROM pgstac.items AS i
     WHERE i.collection = %(dataset_id)s
), newest AS (
    SELECT ordinal, max(revision) AS revision FROM item WHERE ordinal >= 0 AND revision >= 1 GROUP BY ordinal
), labelled AS (
    SELECT item.ordinal, min(item.document::jsonb #>> '{properties,version}') AS label
      FROM item
      JOIN newest USING (ordinal, revision)
     GROUP BY item.ordinal
)
INSERT INTO dagapp.stac_documents AS stored (dataset_id, version_ordinal, revision, document_id, content)
SELECT %(dataset_id)s, newest.ordinal, newest.revision, item.id,
       replace(item.document, coalesce(base.origin, '"/'), '"/')::jsonb
  FROM base
 CROSS JOIN newest
  JOIN item
    ON item.ordinal = newest.ordinal AND item.revision = newest.revision
 UNION ALL
SELECT %(dataset_id)s, newest.ordinal, newest.revision, '',
       replace(base.content::text, coalesce(base.origin, '"/'), '"/')::jsonb || jsonb_build_object(
           'version', coalesce(labelled.label, newest.ordinal::text),
           'dagmaster:version_ordinal', newest.ordinal,
           'dagmaster:revision', newest.revision)
  FROM base
 CROSS JOIN newest
  JOIN labelled
    ON labelled.ordinal = newest.ordinal
    ON CONFLICT (dataset_id, version_ordinal, revision, document_id) DO UPDATE SET content = excluded.content;

-- name: asset_adopt_editions
-- The newest revision of each version of a dataset that has documents, and the label of its items. If they have none,
-- or if another version has the same label, the ordinal is the label.
WITH edition AS (
    SELECT d.version_ordinal AS ordinal, max(d.revision) AS revision
      FROM dagapp.stac_documents AS d
     WHERE d.dataset_id = %(dataset_id)s AND d.document_id = ''
     GROUP BY d.version_ordinal
), labelled AS (
    SELECT edition.ordinal, edition.revision, item.label
      FROM edition
      LEFT JOIN LATERAL (
               SELECT d.content #>> '{properties,version}' AS label
                 FROM dagapp.stac_documents AS d
                WHERE d.dataset_id = %(dataset_id)s
                  AND d.version_ordinal = edition.ordinal
                  AND d.revision = edition.revision
                  AND d.document_id <> ''
                ORDER BY d.document_id
                LIMIT 1
           ) AS item ON length(item.label) BETWEEN 1 AND 200
)
SELECT version.ordinal, version.revision,
       CASE
           WHEN version.label IS NULL OR EXISTS (
               SELECT
                 FROM labelled AS other
                WHERE other.ordinal <> version.ordinal AND version.label IN (other.label, other.ordinal::text)
           ) THEN version.ordinal::text
           ELSE version.label
       END AS label
  FROM labelled AS version
 ORDER BY version.ordinal;

-- name: asset_adopt
-- Create the asset with its versions, unless it exists. Earlier releases served all versions to everyone in the
-- installation.
WITH asset AS (
    INSERT INTO dagapp.geospatial_assets (asset_id, platform_id, platform_refs, dataset_id, title, clearance_state,
                                          cleared_at, cleared_by, exposure, latest_approved_version_ordinal, created_by)
    VALUES (%(asset_id)s, 'local', jsonb_build_object('dataset', %(dataset_id)s::text), %(dataset_id)s,
            (SELECT content ->> 'title'
               FROM dagapp.stac_documents
              WHERE dataset_id = %(dataset_id)s AND document_id = ''
              ORDER BY version_ordinal DESC, revision DESC
              LIMIT 1),
            'ouo', dagapp.clock(), 'dagmaster', 'all-versions',
            (SELECT max(ordinal) FROM unnest(%(ordinals)s::int[]) AS ordinal), 'dagmaster')
        ON CONFLICT DO NOTHING
    RETURNING asset_id
), edition AS (
    SELECT asset.asset_id, given.ordinal, given.revision, given.label
      FROM asset
     CROSS JOIN unnest(%(ordinals)s::int[], %(revisions)s::int[], %(labels)s::text[])
             AS given (ordinal, revision, label)
), version AS (
    INSERT INTO dagapp.asset_versions (asset_id, version_ordinal, version_label, platform_refs, revision,
                                       approval_state, processing_state, approved_revision, reviewer, reviewed_at)
    SELECT asset_id, ordinal, label, jsonb_build_object('dataset', %(dataset_id)s::text, 'version', label),
           revision, 'approved', 'completed', revision, 'dagmaster', dagapp.clock()
      FROM edition
), run AS (
    INSERT INTO dagapp.asset_revisions (asset_id, version_ordinal, revision, parameters, parameters_hash, source,
                                        is_partial, is_unfit, processing_state, outputs, reviewed_as, reviewed_at,
                                        processed_at)
    SELECT asset_id, ordinal, revision, '{}', '', '{}', false, false, 'completed',
           jsonb_build_object('stac_collection_id', %(dataset_id)s::text), 'approved', dagapp.clock(), dagapp.clock()
      FROM edition
)
SELECT asset_id FROM asset;
