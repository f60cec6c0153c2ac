-- What a fan_in makes of its children. The same rules as jobs/fan.aggregate, which the conformance suite compares it with.

-- Every number in a JSON value, however deep, added up.
CREATE OR REPLACE FUNCTION dagapp.sum_of(value jsonb) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(sum(n::numeric), 0) FROM jsonb_path_query(value, 'strict $.** ? (@.type() == "number")') AS n $$;

CREATE OR REPLACE FUNCTION dagapp.gather(of_job uuid, fan_out text, aggregation text) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
WITH children AS (
    SELECT i.index, c.node_id, c.status = 'completed' AS completed, c.error_message, coalesce(c.output, 'null'::jsonb) AS output
      FROM generate_series(0, (SELECT p.total - 1
                                 FROM dagapp.dag_node_states p
                                WHERE p.job_id = of_job AND p.node_id = fan_out)) AS i (index)
     CROSS JOIN LATERAL (
           -- LIMIT keeps this a look-up by the whole key: joined freely, a job's rows would be read once for each child.
           SELECT n.node_id, n.status, n.error_message, n.output
             FROM dagapp.dag_node_states n
            WHERE n.job_id = of_job AND n.node_id = fan_out || '__' || i.index::text
            LIMIT 1) AS c
), good AS (
    SELECT index, output FROM children WHERE completed
), combined AS (
    SELECT CASE aggregation
           WHEN 'collect' THEN (
               SELECT jsonb_build_object('results', coalesce(jsonb_agg(output ORDER BY index), '[]'), 'count', count(*))
                 FROM good)
           WHEN 'concat' THEN (
               SELECT jsonb_build_object('results', coalesce(jsonb_agg(item ORDER BY index, place), '[]'), 'count', count(item))
                 FROM good
                CROSS JOIN LATERAL jsonb_array_elements(
                      CASE jsonb_typeof(output) WHEN 'array' THEN output ELSE jsonb_build_array(output) END)
                      WITH ORDINALITY AS part (item, place))
           WHEN 'sum' THEN (
               SELECT jsonb_build_object('total', coalesce(sum(dagapp.sum_of(output)), 0), 'count', count(*))
                 FROM good)
           WHEN 'first' THEN (
               SELECT jsonb_build_object('result', (array_agg(output ORDER BY index))[1], 'count', count(*))
                 FROM good)
           WHEN 'last' THEN (
               SELECT jsonb_build_object('result', (array_agg(output ORDER BY index DESC))[1], 'count', count(*))
                 FROM good)
           END AS result
), failures AS (
    SELECT jsonb_agg(jsonb_build_object('index', index, 'node_id', node_id, 'error_message', error_message) ORDER BY index)
           AS listed
      FROM children
     WHERE NOT completed
)
SELECT CASE WHEN f.listed IS NULL THEN c.result ELSE c.result || jsonb_build_object('failed', f.listed) END
  FROM combined c, failures f
$$;
