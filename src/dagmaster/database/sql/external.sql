-- The external database: the layers of public data for portals that cannot reach this installation. Its schema is
-- sql/external/schema.sql; pgSTAC is used if it is deployed there.

-- name: external_is_ready
-- Whether the tables exist, whether pgSTAC is deployed, and whether this is the database of an installation.
SELECT to_regclass('dagmaster_public.layer_generations') IS NOT NULL AS has_tables,
       to_regclass('pgstac.collections') IS NOT NULL AS has_catalog,
       to_regclass('dagapp.geospatial_assets') IS NOT NULL AS is_installation;

-- name: external_advance
-- Store the generation of a layer; no row if a newer one was written already. Writers of a layer wait for each other.
INSERT INTO dagmaster_public.layer_generations AS g (dataset_id, layer, generation)
VALUES (%(dataset_id)s, %(layer)s, %(generation)s)
    ON CONFLICT (dataset_id, layer) DO UPDATE
   SET generation = excluded.generation
 WHERE g.generation <= excluded.generation
RETURNING g.xmax = 0 AS is_new;

-- name: external_put_layer
-- Write a layer.
INSERT INTO dagmaster_public.layer_catalog AS l
       (dataset_id, layer, title, description, keywords, attribution, style, version_ordinal, revision, bbox, starts_at,
        ends_at, published_at)
VALUES (%(dataset_id)s, %(layer)s, %(title)s, %(description)s, %(keywords)s::text[], %(attribution)s, %(style)s::jsonb,
        %(version_ordinal)s, %(revision)s, %(bbox)s::jsonb, %(starts_at)s, %(ends_at)s, %(published_at)s)
    ON CONFLICT (dataset_id, layer) DO UPDATE
   SET title = excluded.title,
       description = excluded.description,
       keywords = excluded.keywords,
       attribution = excluded.attribution,
       style = excluded.style,
       version_ordinal = excluded.version_ordinal,
       revision = excluded.revision,
       bbox = excluded.bbox,
       starts_at = excluded.starts_at,
       ends_at = excluded.ends_at,
       published_at = excluded.published_at,
       updated_at = now();

-- name: external_remove_layer
-- Remove a layer.
DELETE FROM dagmaster_public.layer_catalog
 WHERE dataset_id = %(dataset_id)s AND layer = %(layer)s;

-- name: external_has_collection
-- Whether a STAC collection exists.
SELECT EXISTS (SELECT FROM pgstac.collections WHERE id = %(dataset_id)s) AS exists;

-- name: external_put_collection
-- Create or replace a STAC collection.
SELECT pgstac.upsert_collection(%(content)s::jsonb);

-- name: external_put_items
-- Create or replace STAC items of a collection.
SELECT pgstac.upsert_items(%(items)s::jsonb);

-- name: external_remove_items
-- Remove the STAC items of a collection, except these.
DELETE FROM pgstac.items
 WHERE collection = %(dataset_id)s
   AND id <> ALL (%(ids)s::text[]);

-- name: external_remove_collection
-- Remove a STAC collection with its items, if it exists.
SELECT pgstac.delete_collection(id)
  FROM pgstac.collections
 WHERE id = %(dataset_id)s;
