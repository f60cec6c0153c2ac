-- What map servers read from the catalogue, through the tables and functions of pgSTAC.

-- name: served_collections
-- The collections of published assets with these clearances, and whether the catalogue has other collections.
WITH visible AS MATERIALIZED (
    SELECT dataset_id
      FROM dagapp.geospatial_assets
     WHERE latest_approved_version_ordinal IS NOT NULL
       AND deleted_at IS NULL
       AND clearance_state = ANY(%(clearances)s)
)
SELECT coalesce((SELECT array_agg(dataset_id ORDER BY dataset_id) FROM visible), '{}') AS ids,
       EXISTS (
           SELECT
             FROM pgstac.collections
            WHERE NOT EXISTS (SELECT FROM visible WHERE visible.dataset_id = collections.id)
       ) AS has_others;

-- name: served_catalogue
-- The version of the catalogue. Fails if it or the tables of assets do not exist.
SELECT pgstac.get_version() AS version,
       EXISTS (SELECT FROM dagapp.geospatial_assets) AS has_assets;
