-- What map servers read from the catalogue, through the tables and functions of pgSTAC.

-- name: served_dataset
-- A collection, and the ids of its items that are a whole version: `<dataset>-v<ordinal>`. Tiles have longer ids.
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
-- One item, with the fields that it shares with its collection.
SELECT pgstac.get_item(%(item_id)s, %(dataset)s) AS item;

-- name: served_catalogue
-- The version of the catalogue.
SELECT pgstac.get_version() AS version;
