-- The facts that decide who may read a version of an asset, and the documents of its revisions. Map servers read these
-- for each request, by key.

-- part: publication
-- Without an ordinal, the latest version. `version_ordinal` is null if the asset does not have the version.
-- `processed_revision` is the requested revision if it was processed; if none is requested, the newest one that was
-- processed. `layer_metadata` is the published metadata of the layer `raster`.
SELECT asset.asset_id,
       asset.dataset_id,
       asset.platform_id,
       asset.clearance_state,
       asset.exposure,
       asset.latest_approved_version_ordinal AS latest,
       asset.deleted_at IS NOT NULL AS is_asset_deleted,
       version.version_ordinal,
       version.approved_revision,
       version.unpublished_at IS NOT NULL OR version.deleted_at IS NOT NULL AS is_version_withdrawn,
       version.deleted_at IS NOT NULL AS is_version_deleted,
       processed.revision AS processed_revision,
       layer.metadata AS layer_metadata,
       layer.digest AS layer_digest
  FROM dagapp.geospatial_assets AS asset
  LEFT JOIN dagapp.layer_catalog AS layer
         ON layer.asset_id = asset.asset_id AND layer.layer = 'raster'
  LEFT JOIN dagapp.asset_versions AS version
         ON version.asset_id = asset.asset_id
        AND version.version_ordinal = coalesce(%(ordinal)s::integer, asset.latest_approved_version_ordinal)
  LEFT JOIN LATERAL (
           SELECT revision.revision
             FROM dagapp.asset_revisions AS revision
            WHERE revision.asset_id = version.asset_id
              AND revision.version_ordinal = version.version_ordinal
              AND revision.revision = coalesce(%(revision)s::integer, revision.revision)
              AND revision.processing_state = 'completed'
              AND revision.purged_at IS NULL
            ORDER BY revision.revision DESC
            LIMIT 1
       ) AS processed ON true

-- name: publication_of_asset
-- What decides who may read a version, by the id of the asset.
-- use: publication
 WHERE asset.asset_id = %(name)s;

-- name: publication_of_dataset
-- What decides who may read a version, by the id of the dataset.
-- use: publication
 WHERE asset.dataset_id = %(name)s;

-- name: revision_documents
-- STAC documents of one revision, by their ids. The collection has the empty id.
SELECT document_id, content
  FROM dagapp.stac_documents
 WHERE dataset_id = %(dataset)s
   AND version_ordinal = %(ordinal)s
   AND revision = %(revision)s
   AND document_id = ANY(%(ids)s);

-- name: revision_items
-- A page of the items of one revision, in the order of their ids.
SELECT document_id, content
  FROM dagapp.stac_documents
 WHERE dataset_id = %(dataset)s
   AND version_ordinal = %(ordinal)s
   AND revision = %(revision)s
   AND document_id > %(after)s
 ORDER BY document_id
 LIMIT %(limit)s;

-- name: revision_hrefs
-- The files that the STAC documents of one revision name: COGs, the mosaic, the tiling scheme.
SELECT DISTINCT jsonb_path_query(content, '$.assets.*.href') #>> '{}' AS href
  FROM dagapp.stac_documents
 WHERE dataset_id = %(dataset)s
   AND version_ordinal = %(ordinal)s
   AND revision = %(revision)s;

-- name: signing_key
-- The secret of the key that a signed link names.
SELECT secret
  FROM dagapp.signing_keys
 WHERE key_id = %(key_id)s;

-- name: newest_signing_key
-- The key that signs new links.
SELECT key_id, secret
  FROM dagapp.signing_keys
 ORDER BY created_at DESC, key_id
 LIMIT 1;

-- name: add_first_signing_key
-- Add the first key, unless another process has just added it.
INSERT INTO dagapp.signing_keys (key_id, secret)
VALUES ('1', %(secret)s)
    ON CONFLICT (key_id) DO NOTHING;
