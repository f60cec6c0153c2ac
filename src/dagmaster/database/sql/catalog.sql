-- The STAC catalogue: pgSTAC's tables and functions in the schema pgstac of the same database.
-- Its functions set their own search path; statements here name the schema.

-- name: catalog_version
-- The version of pgSTAC that is deployed.
SELECT version
  FROM pgstac.migrations
 ORDER BY datetime DESC, version DESC
 LIMIT 1;

-- name: catalog_extensions
-- The extensions that pgSTAC needs and this server does not have.
SELECT needed.name
  FROM unnest(ARRAY['postgis', 'btree_gist', 'unaccent']) AS needed (name)
 WHERE NOT EXISTS (SELECT FROM pg_available_extensions AS available WHERE available.name = needed.name)
 ORDER BY needed.name;

-- name: catalog_lock
-- Become the only writer of a collection until the end of the transaction. When partitions were created and their constraints
-- rebuilt under concurrent writers, items were lost. The lock timeout is long, because other writers load whole batches.
SELECT set_config('lock_timeout', %(lock_ms)s::text, true),
       set_config('statement_timeout', %(statement_ms)s::text, true),
       pg_advisory_xact_lock(hashtextextended('dagmaster.catalog:' || %(collection)s::text, 0));

-- name: catalog_known
-- The stored document of a collection.
SELECT content
  FROM pgstac.collections
 WHERE id = %(collection)s;

-- name: catalog_put_collection
-- Create or replace a collection. If it has items, its extent stays.
WITH known AS (
    SELECT content
      FROM pgstac.collections
     WHERE id = %(collection)s
), wanted AS (
    SELECT %(content)s::jsonb
           || CASE
                  WHEN EXISTS (SELECT FROM pgstac.items WHERE collection = %(collection)s)
                      THEN (SELECT jsonb_build_object('extent', content -> 'extent') FROM known)
                  ELSE '{}'::jsonb
              END AS content
)
SELECT NOT EXISTS (SELECT FROM known) AS is_new,
       pgstac.upsert_collection(wanted.content) AS done
  FROM wanted
 WHERE NOT EXISTS (SELECT FROM known WHERE known.content = wanted.content);

-- name: catalog_entry
-- What the items hold of a version of a dataset: its latest revision, when it was created, the properties of one item, and the
-- times of all items if they differ. If the version has no items yet, the newest other version stands for the dataset.
WITH known AS (
    SELECT id,
           (content -> 'properties' ->> 'dagmaster:version_ordinal')::int AS ordinal,
           (content -> 'properties' ->> 'dagmaster:revision')::int AS revision,
           content -> 'properties' ->> 'created' AS created,
           datetime,
           end_datetime,
           content -> 'properties' AS properties
      FROM pgstac.items
     WHERE collection = %(collection)s
), version AS (
    SELECT max(revision) AS revision,
           min(created) AS created,
           CASE
               WHEN count(DISTINCT (datetime, end_datetime)) > 1
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
      FROM known
     WHERE ordinal = %(ordinal)s
)
SELECT known.id, known.ordinal, known.properties - 'renders' AS properties, version.revision, version.created, version.times
  FROM known, version
 ORDER BY known.ordinal = %(ordinal)s DESC, known.ordinal DESC, known.id
 LIMIT 1;

-- name: catalog_base
-- The fields that the items of a collection share with it, and the number by which items refer to them.
SELECT base_item, base_item_id
  FROM pgstac.current_base_item(%(collection)s)
 WHERE base_item IS NOT NULL;

-- name: catalog_partitions
-- Create the partitions for these times, with their constraints. This is a statement of its own, because no statement can
-- create a partition of the table that it inserts into.
SELECT pgstac.check_partition(%(collection)s, span.begins, span.ends)
  FROM (
           SELECT tstzrange(min(item.begin_at), max(item.begin_at), '[]') AS begins,
                  tstzrange(min(item.end_at), max(item.end_at), '[]') AS ends
             FROM unnest(%(begins)s::timestamptz[], %(ends)s::timestamptz[]) AS item (begin_at, end_at),
                  pgstac.collections
            WHERE collections.id = %(collection)s
            GROUP BY date_trunc(collections.partition_trunc, item.begin_at AT TIME ZONE 'UTC')
            ORDER BY 1
       ) AS span;

-- name: catalog_put_items
-- Insert new items, and replace those that have changed.
WITH given AS MATERIALIZED (
    SELECT item.id, public.ST_GeomFromGeoJSON(item.geometry) AS geometry, item.datetime, item.end_datetime, item.content
      FROM jsonb_to_recordset(%(items)s::jsonb)
           AS item (id text, geometry jsonb, datetime timestamptz, end_datetime timestamptz, content jsonb)
     ORDER BY item.id
), replaced AS (
    UPDATE pgstac.items
       SET geometry = given.geometry,
           datetime = given.datetime,
           end_datetime = given.end_datetime,
           content = given.content
      FROM given
     WHERE items.collection = %(collection)s
       AND items.id = given.id
       AND (items.geometry, items.datetime, items.end_datetime, items.content)
           IS DISTINCT FROM (given.geometry, given.datetime, given.end_datetime, given.content)
)
INSERT INTO pgstac.items (id, collection, geometry, datetime, end_datetime, content)
SELECT given.id, %(collection)s, given.geometry, given.datetime, given.end_datetime, given.content
  FROM given
 WHERE NOT EXISTS (
           SELECT
             FROM pgstac.items
            WHERE items.collection = %(collection)s AND items.id = given.id
       );

-- name: catalog_missing
-- The given ids that the collection does not have.
SELECT wanted.id
  FROM unnest(%(ids)s::text[]) AS wanted (id)
 WHERE NOT EXISTS (
           SELECT
             FROM pgstac.items
            WHERE items.collection = %(collection)s AND items.id = wanted.id
       )
 ORDER BY wanted.id;

-- name: catalog_count
SELECT count(*) AS items
  FROM pgstac.items
 WHERE collection = %(collection)s;

-- name: catalog_get_item
SELECT pgstac.get_item(%(id)s, %(collection)s) AS item;

-- name: catalog_get_collection
SELECT pgstac.get_collection(%(collection)s) AS collection;

-- name: catalog_boxes
-- Bbox and time of each item of a collection.
SELECT coalesce(content -> 'bbox', pgstac.geom_bbox(geometry)) AS bbox,
       datetime,
       end_datetime
  FROM pgstac.items
 WHERE collection = %(collection)s;

-- name: catalog_set_extent
UPDATE pgstac.collections
   SET content = jsonb_set(content, '{extent}', %(extent)s::jsonb)
 WHERE id = %(collection)s AND content -> 'extent' IS DISTINCT FROM %(extent)s::jsonb
RETURNING id;

-- name: catalog_delete_older
-- Remove the items of earlier revisions of a version that the latest revision has not replaced.
DELETE FROM pgstac.items
 WHERE collection = %(collection)s
   AND (content -> 'properties' ->> 'dagmaster:version_ordinal')::int = %(ordinal)s
   AND (content -> 'properties' ->> 'dagmaster:revision')::int < %(revision)s
RETURNING id;
