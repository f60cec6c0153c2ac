-- Layers: what people write about them, the catalogue that portals read, and what the external database must have.
-- Changes are made under a lock on the asset's row.

-- part: layer_metadata_columns
a.asset_id, a.dataset_id, given.layer, m.title, m.description, coalesce(m.keywords, '{}') AS keywords, m.attribution,
       nullif(m.style, '{}') AS style, coalesce(m.change_number, 0)::text AS etag, m.updated_at, m.updated_by,
       c.asset_id IS NOT NULL AS is_published,
       c.asset_id IS NOT NULL AND c.change_number <> coalesce(m.change_number, 0) AS is_changed,
       c.published_at, c.published_by,
       CASE WHEN x.due_at IS NOT NULL THEN 'due' WHEN x.is_wanted THEN 'published' END AS external

-- name: layer_metadata_of
-- The metadata of the layers of an asset, also of those that were never edited.
SELECT
-- use: layer_metadata_columns
  FROM dagapp.geospatial_assets AS a
 CROSS JOIN unnest(%(layers)s::text[]) WITH ORDINALITY AS given (layer, place)
  LEFT JOIN dagapp.layer_metadata AS m
    ON m.asset_id = a.asset_id AND m.layer = given.layer
  LEFT JOIN dagapp.layer_catalog AS c
    ON c.asset_id = a.asset_id AND c.layer = given.layer
  LEFT JOIN dagapp.external_layers AS x
    ON x.asset_id = a.asset_id AND x.layer = given.layer
 WHERE a.asset_id = %(asset_id)s
 ORDER BY given.place;

-- name: layer_metadata_put
-- Write the metadata of a layer.
INSERT INTO dagapp.layer_metadata AS m (asset_id, layer, title, description, keywords, attribution, style, updated_by)
VALUES (%(asset_id)s, %(layer)s, %(title)s, %(description)s, %(keywords)s::text[], %(attribution)s, %(style)s,
        %(actor)s)
    ON CONFLICT (asset_id, layer) DO UPDATE
   SET title = excluded.title,
       description = excluded.description,
       keywords = excluded.keywords,
       attribution = excluded.attribution,
       style = excluded.style,
       change_number = m.change_number + 1,
       updated_at = dagapp.clock(),
       updated_by = excluded.updated_by;

-- part: catalog_layer_columns
l.asset_id, l.dataset_id, l.layer, l.platform_id, l.title, l.description, l.keywords, l.attribution, l.style,
       l.clearance_state, l.version_ordinal, l.revision, l.bbox, l.starts_at, l.ends_at, l.published_at, l.updated_at

-- name: layer_catalog_page
-- Published layers with these clearances, by their names, a page at a time.
SELECT
-- use: catalog_layer_columns
  FROM dagapp.layer_catalog AS l
 WHERE l.clearance_state = ANY (%(clearances)s::text[])
   AND (%(platform_id)s::text IS NULL OR l.platform_id = %(platform_id)s)
   AND (%(keyword)s::text IS NULL OR %(keyword)s = ANY (l.keywords))
   AND (l.dataset_id, l.layer) > (%(after_dataset)s::text, %(after_layer)s::text)
 ORDER BY l.dataset_id, l.layer
 LIMIT %(limit)s;

-- name: layer_catalog_metadata
-- The edited metadata of the published layers of a dataset.
SELECT layer, metadata
  FROM dagapp.layer_catalog
 WHERE dataset_id = %(dataset_id)s
 ORDER BY layer;

-- name: layer_catalog_put
-- Publish a layer of an asset that is published. Time and user of the publication stay if the metadata is unchanged.
-- `catalog_refresh_layers` then fills in the texts of the collection.
INSERT INTO dagapp.layer_catalog AS l
       (asset_id, layer, dataset_id, platform_id, title, clearance_state, version_ordinal, revision, metadata,
        change_number, digest, published_by)
SELECT a.asset_id, %(layer)s, a.dataset_id, a.platform_id, a.dataset_id, a.clearance_state, v.version_ordinal,
       v.approved_revision, %(metadata)s, %(change_number)s, %(digest)s, %(actor)s
  FROM dagapp.geospatial_assets AS a
  JOIN dagapp.asset_versions AS v
    ON v.asset_id = a.asset_id AND v.version_ordinal = a.latest_approved_version_ordinal
 WHERE a.asset_id = %(asset_id)s
   AND a.deleted_at IS NULL
    ON CONFLICT (asset_id, layer) DO UPDATE
   SET metadata = excluded.metadata,
       change_number = excluded.change_number,
       digest = excluded.digest,
       published_at = CASE WHEN l.digest = excluded.digest THEN l.published_at ELSE dagapp.clock() END,
       published_by = CASE WHEN l.digest = excluded.digest THEN l.published_by ELSE excluded.published_by END
RETURNING l.layer;

-- name: layer_catalog_digest
-- The digest of the published metadata of a layer.
SELECT digest, change_number
  FROM dagapp.layer_catalog
 WHERE asset_id = %(asset_id)s AND layer = %(layer)s;

-- name: layer_catalog_remove
-- Withdraw a layer.
DELETE FROM dagapp.layer_catalog
 WHERE asset_id = %(asset_id)s AND layer = %(layer)s
RETURNING layer;

-- name: layer_catalog_withdraw
-- Withdraw the layers of an asset that is not published any more.
DELETE FROM dagapp.layer_catalog AS l
 USING dagapp.geospatial_assets AS a
 WHERE l.asset_id = %(asset_id)s
   AND a.asset_id = l.asset_id
   AND (a.deleted_at IS NOT NULL OR a.clearance_state = 'uncleared' OR a.latest_approved_version_ordinal IS NULL);

-- name: layer_catalog_clear
-- Set the clearance of published layers to that of their asset.
UPDATE dagapp.layer_catalog AS l
   SET clearance_state = a.clearance_state,
       updated_at = dagapp.clock()
  FROM dagapp.geospatial_assets AS a
 WHERE l.asset_id = %(asset_id)s
   AND a.asset_id = l.asset_id
   AND l.clearance_state <> a.clearance_state;

-- name: layer_external_make_due
-- After a change of an asset, make its layers in the external database due again. Layers of an asset that is not public
-- are removed there.
WITH held AS MATERIALIZED (
    SELECT asset_id, layer
      FROM dagapp.external_layers
     WHERE asset_id = %(asset_id)s
       AND (is_wanted OR due_at IS NOT NULL)
     ORDER BY layer
       FOR NO KEY UPDATE
)
UPDATE dagapp.external_layers AS x
   SET is_wanted = x.is_wanted AND c.asset_id IS NOT NULL,
       generation = x.generation + 1,
       due_at = dagapp.clock(),
       attempts = 0,
       error_message = NULL,
       updated_at = dagapp.clock()
  FROM held
  LEFT JOIN dagapp.layer_catalog AS c
    ON c.asset_id = held.asset_id AND c.layer = held.layer AND c.clearance_state = 'public'
 WHERE x.asset_id = held.asset_id AND x.layer = held.layer;

-- name: layer_external_want
-- Request that a layer is published to the external database. It is due until that is done.
INSERT INTO dagapp.external_layers AS x (asset_id, layer, dataset_id, is_wanted, due_at, requested_by)
SELECT a.asset_id, %(layer)s, a.dataset_id, true, dagapp.clock(), %(actor)s
  FROM dagapp.geospatial_assets AS a
 WHERE a.asset_id = %(asset_id)s
    ON CONFLICT (asset_id, layer) DO UPDATE
   SET is_wanted = true,
       generation = x.generation + 1,
       due_at = dagapp.clock(),
       attempts = 0,
       error_message = NULL,
       requested_by = excluded.requested_by,
       updated_at = dagapp.clock();

-- name: layer_external_withdraw
-- Request that a layer is removed from the external database.
UPDATE dagapp.external_layers
   SET is_wanted = false,
       generation = generation + 1,
       due_at = dagapp.clock(),
       attempts = 0,
       error_message = NULL,
       requested_by = %(actor)s,
       updated_at = dagapp.clock()
 WHERE asset_id = %(asset_id)s
   AND layer = %(layer)s
   AND is_wanted
RETURNING layer;

-- name: layer_external_due
-- Layers that the external database does not hold as it should; of one asset, if one is given. After failures the pause
-- doubles, up to an hour.
SELECT asset_id, layer, dataset_id, generation
  FROM dagapp.external_layers
 WHERE due_at IS NOT NULL
   AND (%(asset_id)s::text IS NULL OR asset_id = %(asset_id)s)
   AND (%(asset_id)s::text IS NOT NULL
        OR attempts = 0
        OR updated_at < dagapp.clock() - least(interval '1 hour', interval '5 seconds' * 2 ^ least(attempts, 12)))
 ORDER BY due_at, asset_id, layer
 LIMIT %(limit)s;

-- name: layer_external_content
-- What the external database must have of a layer: no row if it is not published or not public.
SELECT
-- use: catalog_layer_columns
  FROM dagapp.layer_catalog AS l
  JOIN dagapp.external_layers AS x USING (asset_id, layer)
 WHERE l.asset_id = %(asset_id)s
   AND l.layer = %(layer)s
   AND l.clearance_state = 'public'
   AND x.is_wanted
   AND x.generation = %(generation)s;

-- name: layer_external_done
-- Record that the external database has a layer as it should be, unless the layer has changed meanwhile.
UPDATE dagapp.external_layers
   SET due_at = NULL,
       attempts = 0,
       error_message = NULL,
       published_at = CASE WHEN is_wanted THEN dagapp.clock() END,
       updated_at = dagapp.clock()
 WHERE asset_id = %(asset_id)s
   AND layer = %(layer)s
   AND generation = %(generation)s
RETURNING layer;

-- name: layer_external_failed
-- Record that the external database could not be changed; it is tried again.
UPDATE dagapp.external_layers
   SET attempts = attempts + 1,
       error_message = %(error)s,
       updated_at = dagapp.clock()
 WHERE asset_id = %(asset_id)s
   AND layer = %(layer)s
   AND generation = %(generation)s
   AND due_at IS NOT NULL;
