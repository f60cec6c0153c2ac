-- Searches in some collections of the catalogue. Names without a schema are pgSTAC's, which may be deployed later.

-- A page of items of the listed collections, as pgstac.search gives it without hydration. pgSTAC would put the list
-- into one condition, and the planner would estimate it for each partition and each element: 240,000 estimates for 490
-- collections, which take longer than the search. So the list is cut into short ones, each with its own part of the
-- query. Partitions of other collections are not read at all.
CREATE OR REPLACE FUNCTION dagapp.search_listed(search jsonb, listed text[]) RETURNS jsonb
LANGUAGE plpgsql
SET search_path TO pgstac, public
AS $$
DECLARE
    page_size integer := search_limit(search);
    each_part integer := greatest(16, ceil(sqrt(cardinality(listed))));
    condition text := coalesce(stac_search_to_where(search - 'collections'), 'TRUE');
    token record;
    is_backwards boolean := false;
    has_next boolean := false;
    has_previous boolean := false;
    parts text;
    features jsonb := '[]';
    keys jsonb := '[]';
    links jsonb := '[]';
BEGIN
    IF search ->> 'token' IS NOT NULL THEN
        SELECT * INTO token FROM get_token_record(search ->> 'token');
        is_backwards := token.prev;
        has_next := is_backwards;
        has_previous := NOT is_backwards;
        condition := concat_ws(
            ' AND ', condition, get_token_filter(search -> 'sortby', token.item, is_backwards, false, listed)
        );
    END IF;
    SELECT string_agg(
               format('SELECT * FROM items WHERE collection = ANY (%L) AND (%s)', part.collections, condition),
               ' UNION ALL ' ORDER BY part.number
           )
      INTO parts
      FROM (
               SELECT (place - 1) / each_part AS number, array_agg(id ORDER BY place) AS collections
                 FROM unnest(listed) WITH ORDINALITY AS given (id, place)
                GROUP BY 1
           ) AS part;
    IF parts IS NOT NULL THEN
        EXECUTE format(
            'SELECT coalesce(jsonb_agg(format_item(ROW(page.*)::items, $1, false)), ''[]''), '
            '       coalesce(jsonb_agg(jsonb_build_array(page.collection, page.id)), ''[]'') '
            '  FROM (SELECT * FROM (%s) AS items ORDER BY %s LIMIT %s) AS page',
            parts, sort_sqlorderby(search, is_backwards, '{collection,id}', listed), page_size + 1
        ) INTO features, keys USING coalesce(search -> 'fields', '{}');
    END IF;
    IF is_backwards THEN
        features := flip_jsonb_array(features);
        keys := flip_jsonb_array(keys);
    END IF;
    -- One item more than the page has shows that there is another page.
    IF jsonb_array_length(keys) > page_size THEN
        has_next := has_next OR NOT is_backwards;
        has_previous := has_previous OR is_backwards;
        features := features - CASE WHEN is_backwards THEN 0 ELSE -1 END;
        keys := keys - CASE WHEN is_backwards THEN 0 ELSE -1 END;
    END IF;
    IF has_next AND keys <> '[]' THEN
        links := links || jsonb_build_object(
            'rel', 'next', 'href', '?token=next:' || page_token(keys -> -1 ->> 0, keys -> -1 ->> 1)
        );
    END IF;
    IF has_previous AND keys <> '[]' THEN
        links := links || jsonb_build_object(
            'rel', 'prev', 'href', '?token=prev:' || page_token(keys -> 0 ->> 0, keys -> 0 ->> 1)
        );
    END IF;
    RETURN jsonb_build_object(
        'type', 'FeatureCollection', 'features', features, 'links', links, 'numberReturned', jsonb_array_length(keys)
    );
END
$$;
