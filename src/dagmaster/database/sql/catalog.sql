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

-- name: catalog_try_deployment_lock
-- Take the lock for deploying the catalogue, until the connection ends; false if another process has it.
SELECT pg_try_advisory_lock(hashtext('pgstac.deploy')) AS is_acquired;

-- name: catalog_timeouts
-- Set the time limits of the statements that follow in this transaction. They do not apply to this statement.
SELECT set_config('lock_timeout', %(lock_ms)s::text, true),
       set_config('statement_timeout', %(statement_ms)s::text, true);

-- name: catalog_lock
-- Become the only writer of a collection until the end of the transaction. Without this lock, items were lost when
-- partitions were created and their constraints rebuilt during concurrent writes.
SELECT pg_advisory_xact_lock(hashtextextended('dagmaster.catalog:' || %(collection)s::text, 0));

-- name: catalog_lock_partitions
-- Wait until no transaction writes items, and let none begin until the end of this one. A new partition locks the table
-- of all items; a wait for that lock would also stop searches, so it has to be short.
SELECT pg_advisory_xact_lock(hashtextextended('dagmaster.catalog.partitions', 0));

-- name: catalog_share_partitions
-- Wait until no partition is created, and let none be created until the end of this transaction.
SELECT pg_advisory_xact_lock_shared(hashtextextended('dagmaster.catalog.partitions', 0));

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
SELECT pgstac.upsert_collection(wanted.content)
  FROM wanted
 WHERE NOT EXISTS (SELECT FROM known WHERE known.content = wanted.content);

-- name: catalog_count
-- The number of items of a collection.
SELECT count(*) AS items
  FROM pgstac.items
 WHERE collection = %(collection)s;

-- name: catalog_boxes
-- Bbox and time of each item of a collection.
SELECT coalesce(content -> 'bbox', pgstac.geom_bbox(geometry)) AS bbox,
       datetime,
       end_datetime
  FROM pgstac.items
 WHERE collection = %(collection)s;

-- name: catalog_set_extent
-- Set the extent of a collection, if it differs.
UPDATE pgstac.collections
   SET content = jsonb_set(content, '{extent}', %(extent)s::jsonb)
 WHERE id = %(collection)s AND content -> 'extent' IS DISTINCT FROM %(extent)s::jsonb
RETURNING id;

-- name: catalog_link_versions
-- Write the links between the versions of an item (or of a tile, by its name), and mark all but the newest version as
-- `deprecated`.
WITH known AS MATERIALIZED (
    SELECT id,
           content,
           (content -> 'properties' ->> 'dagmaster:version_ordinal')::int AS ordinal,
           substr(id, length(collection || '-v' || (content -> 'properties' ->> 'dagmaster:version_ordinal')) + 1)
               AS part
      FROM pgstac.items
     WHERE collection = %(collection)s
       AND content -> 'properties' ->> 'dagmaster:version_ordinal' ~ '^[0-9]{1,9}$'
       AND starts_with(
               id, collection || '-v' || (content -> 'properties' ->> 'dagmaster:version_ordinal')
           )
), placed AS (
    SELECT id,
           content,
           ordinal < max(ordinal) OVER () AS is_deprecated,
           lag(id) OVER versions AS predecessor,
           lead(id) OVER versions AS successor,
           last_value(id) OVER versions AS latest
      FROM known
    WINDOW versions AS (
               PARTITION BY part ORDER BY ordinal ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
           )
), described AS (
    SELECT id,
           content || jsonb_build_object(
               'properties', content -> 'properties' || jsonb_build_object('deprecated', is_deprecated),
               'links', coalesce(other.links, '[]') || coalesce(version.links, '[]')
           ) AS content
      FROM placed,
           LATERAL (
               SELECT jsonb_agg(link ORDER BY place) AS links
                 FROM jsonb_array_elements(placed.content -> 'links') WITH ORDINALITY AS link (link, place)
                WHERE link ->> 'rel' NOT IN ('predecessor-version', 'successor-version', 'latest-version')
           ) AS other,
           LATERAL (
               SELECT jsonb_agg(
                          jsonb_build_object(
                              'rel', rel, 'type', 'application/geo+json', 'href', %(items_url)s::text || target
                          )
                          ORDER BY rel
                      ) AS links
                 FROM (
                          VALUES ('predecessor-version', predecessor),
                                 ('successor-version', successor),
                                 ('latest-version', nullif(latest, id))
                      ) AS link (rel, target)
                WHERE target IS NOT NULL
           ) AS version
)
UPDATE pgstac.items
   SET content = described.content
  FROM described
 WHERE items.collection = %(collection)s
   AND items.id = described.id
   AND items.content <> described.content;

-- name: catalog_is_deployed
-- Whether the database has a catalogue.
SELECT to_regclass('pgstac.collections') IS NOT NULL AS is_deployed;

-- part: editions
unnest(%(ordinals)s::int[], %(revisions)s::int[]) AS wanted (ordinal, revision)
                  JOIN dagapp.stac_documents AS document
                    ON document.dataset_id = %(collection)s
                   AND document.version_ordinal = wanted.ordinal
                   AND document.revision = wanted.revision
                   AND document.document_id <> ''

-- part: times
CROSS JOIN LATERAL (
                           SELECT document.content #>> '{properties,datetime}' AS instant,
                                  document.content #>> '{properties,start_datetime}' AS starts,
                                  document.content #>> '{properties,end_datetime}' AS ends
                       ) AS given
                 CROSS JOIN LATERAL (
                           SELECT CASE WHEN given.ends IS NULL
                                       THEN given.instant
                                       ELSE coalesce(given.starts, given.instant)
                                  END
                                      ::timestamptz AS begin_at,
                                  CASE WHEN given.starts IS NULL
                                       THEN given.instant
                                       ELSE coalesce(given.ends, given.instant)
                                  END
                                      ::timestamptz AS end_at
                       ) AS item

-- name: catalog_documents
-- The collection documents of some editions of a dataset, oldest version first, and the number of their items.
SELECT wanted.ordinal, wanted.revision, collection.content,
       (
           SELECT count(*)
             FROM dagapp.stac_documents AS item
            WHERE item.dataset_id = %(collection)s
              AND item.version_ordinal = wanted.ordinal
              AND item.revision = wanted.revision
              AND item.document_id <> ''
       ) AS items
  FROM unnest(%(ordinals)s::int[], %(revisions)s::int[]) AS wanted (ordinal, revision)
  LEFT JOIN dagapp.stac_documents AS collection
    ON collection.dataset_id = %(collection)s
   AND collection.version_ordinal = wanted.ordinal
   AND collection.revision = wanted.revision
   AND collection.document_id = ''
 ORDER BY wanted.ordinal;

-- name: catalog_edition_items
-- The items of some editions.
SELECT document.content
  FROM
-- use: editions
 ORDER BY document.document_id;

-- name: catalog_publish_partitions
-- Create the partitions for the items of some editions, with their constraints. This is a statement of its own, because
-- no statement can create a partition of the table that it inserts into.
SELECT pgstac.check_partition(%(collection)s, span.begins, span.ends)
  FROM (
           SELECT tstzrange(min(item.begin_at), max(item.begin_at), '[]') AS begins,
                  tstzrange(min(item.end_at), max(item.end_at), '[]') AS ends
             FROM pgstac.collections
            CROSS JOIN
-- use: editions
-- use: times
            WHERE collections.id = %(collection)s
            GROUP BY date_trunc(collections.partition_trunc, item.begin_at AT TIME ZONE 'UTC')
            ORDER BY 1
       ) AS span;

-- name: catalog_publish_items
-- Insert the items of some editions, and replace those with the same ids. As pgSTAC requires, an item is stored without
-- the values that it shares with the base item of its collection, and with the number of that base item. Without a
-- number, pgSTAC uses the first one.
WITH given AS MATERIALIZED (
    SELECT document.document_id AS id,
           public.ST_GeomFromGeoJSON(document.content -> 'geometry') AS geometry,
           item.begin_at AS datetime,
           item.end_at AS end_datetime,
           dagapp.stac_difference(
               document.content - '{id,geometry,collection,type,private,pgstac:base_item}'::text[],
               base.base_item - '{collection,type}'::text[]
           ) || jsonb_strip_nulls(jsonb_build_object('pgstac:base_item', base.base_item_id)) AS content
      FROM pgstac.current_base_item(%(collection)s) AS base
     CROSS JOIN
-- use: editions
-- use: times
     ORDER BY document.document_id
), replaced AS (
    UPDATE pgstac.items
       SET geometry = given.geometry,
           datetime = given.datetime,
           end_datetime = given.end_datetime,
           content = given.content
      FROM given
     WHERE items.collection = %(collection)s
       AND items.id = given.id
)
INSERT INTO pgstac.items (id, collection, geometry, datetime, end_datetime, content)
SELECT given.id, %(collection)s, given.geometry, given.datetime, given.end_datetime, given.content
  FROM given
 WHERE NOT EXISTS (
           SELECT
             FROM pgstac.items
            WHERE items.collection = %(collection)s AND items.id = given.id
       );

-- name: catalog_withdraw_items
-- Remove the items of a collection that do not belong to these editions.
DELETE FROM pgstac.items
 WHERE collection = %(collection)s
   AND id NOT IN (
                SELECT document.document_id
                  FROM
-- use: editions
       );

-- name: catalog_empty_collection
-- Reduce a collection without published items to its id. Dropping it would block all searches.
UPDATE pgstac.collections
   SET content = jsonb_build_object(
           'id', id,
           'type', 'Collection',
           'stac_version', '1.1.0',
           'description', 'Not published',
           'license', 'other',
           'links', '[]'::jsonb,
           'extent', jsonb_build_object(
               'spatial', jsonb_build_object('bbox', '[[-180, -90, 180, 90]]'::jsonb),
               'temporal', jsonb_build_object('interval', '[[null, null]]'::jsonb)
           )
       )
 WHERE id = %(collection)s;

-- name: catalog_refresh_layers
-- Copy the texts of a collection to its published layers, where nothing was edited, and set their latest version.
UPDATE dagapp.layer_catalog AS l
   SET title = coalesce(l.metadata ->> 'title', c.content ->> 'title', l.dataset_id),
       description = coalesce(l.metadata ->> 'description', c.content ->> 'description'),
       keywords = ARRAY(
           SELECT jsonb_array_elements_text(
                      coalesce(l.metadata -> 'keywords', nullif(c.content -> 'keywords', 'null'), '[]')
                  )
       ),
       attribution = coalesce(
           l.metadata ->> 'attribution',
           (
               SELECT string_agg(provider ->> 'name', ', ')
                 FROM jsonb_array_elements(coalesce(nullif(c.content -> 'providers', 'null'), '[]')) AS provider
                WHERE provider -> 'roles' ?| ARRAY['producer', 'licensor']
           )
       ),
       style = coalesce(nullif(c.content #> '{renders,default}', 'null'), '{}'),
       clearance_state = a.clearance_state,
       version_ordinal = v.version_ordinal,
       revision = v.approved_revision,
       bbox = coalesce(c.content #> '{extent,spatial,bbox,0}', '[]'),
       starts_at = (c.content #>> '{extent,temporal,interval,0,0}')::timestamptz,
       ends_at = (c.content #>> '{extent,temporal,interval,0,1}')::timestamptz,
       updated_at = dagapp.clock()
  FROM pgstac.collections AS c
  JOIN dagapp.geospatial_assets AS a
    ON a.dataset_id = c.id
  JOIN dagapp.asset_versions AS v
    ON v.asset_id = a.asset_id AND v.version_ordinal = a.latest_approved_version_ordinal
 WHERE c.id = %(collection)s
   AND l.asset_id = a.asset_id;

-- name: catalog_left_collections
-- Collections of deleted assets that have no data any more; with an id, that one.
SELECT a.dataset_id
  FROM dagapp.geospatial_assets AS a
  JOIN pgstac.collections AS c
    ON c.id = a.dataset_id
 WHERE a.deleted_at IS NOT NULL
   AND (%(collection)s::text IS NULL OR a.dataset_id = %(collection)s)
   AND NOT EXISTS (SELECT FROM dagapp.asset_revisions AS r WHERE r.asset_id = a.asset_id AND r.purged_at IS NULL)
 ORDER BY a.dataset_id
 LIMIT %(limit)s;

-- name: catalog_remove_collection
-- Remove a collection with its partitions. They are dropped, so searches wait until the end of the transaction.
SELECT pgstac.delete_collection(%(collection)s);

-- name: catalog_open_collection
-- Create a collection without published items, unless it exists.
INSERT INTO pgstac.collections (content)
SELECT %(content)s::jsonb
 WHERE NOT EXISTS (SELECT FROM pgstac.collections WHERE id = %(collection)s)
    ON CONFLICT (id) DO NOTHING
RETURNING id;
