-- What is served of the catalogue. pgSTAC's own tables and functions: it may be another schema than ours, in the same database.

-- name: served_dataset
-- A collection with the ids of its items that are a version as a whole: `<dataset>-v<ordinal>`. Tiles have longer ids.
SELECT collections.content AS collection,
       ARRAY(
           SELECT items.id
             FROM pgstac.items
            WHERE items.collection = collections.id
              AND starts_with(items.id, collections.id || '-v')
              AND substr(items.id, length(collections.id) + 3) ~ '^[0-9]{1,9}$'
       ) AS item_ids
  FROM pgstac.collections
 WHERE collections.id = %(dataset)s;

-- name: served_item
-- One item, with what it shares with its collection.
SELECT pgstac.get_item(%(item_id)s, %(dataset)s) AS item;

-- name: served_catalogue
-- Whether there is a catalogue, and of which version.
SELECT pgstac.get_version() AS version;
