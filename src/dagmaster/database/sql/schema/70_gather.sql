-- The output of a fan_in, from the outputs of its children. The conformance suite compares it with jobs/fan.aggregate.

-- The sum of all numbers in a JSON value, at any depth.
CREATE OR REPLACE FUNCTION dagapp.sum_of(value jsonb) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(sum(n::numeric), 0) FROM jsonb_path_query(value, 'strict $.** ? (@.type() == "number")') AS n $$;

-- Whether every number in a JSON value is an integer of 64 bits.
CREATE OR REPLACE FUNCTION dagapp.is_whole(value jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
SELECT coalesce(bool_and(scale(n::numeric) = 0 AND n::numeric BETWEEN -9223372036854775808 AND 18446744073709551615), true)
  FROM jsonb_path_query(value, 'strict $.** ? (@.type() == "number")') AS n
$$;

-- The sum; an error if JSON readers cannot represent it. They can represent integers of 64 bits, and numbers that are
-- rounded to a finite 64-bit float.
CREATE OR REPLACE FUNCTION dagapp.checked_sum(of_job uuid, fan_out text, total numeric, is_whole boolean) RETURNS numeric
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF is_whole AND total NOT BETWEEN -9223372036854775808 AND 18446744073709551615 THEN
        RAISE EXCEPTION 'the sum of the integers does not fit into 64 bits'
              USING ERRCODE = 'DM004', DETAIL = of_job::text || ' ' || fan_out;
    -- From this number on, 2^1024 - 2^970, the nearest float is infinite.
    ELSIF abs(total) >= 179769313486231580793728971405303415079934132710037826936173778980444968292764750946649017977587207096330286416692887910946555547851940402630657488671505820681908902000708383676273854845817711531764475730270069855571366959622842914819860834936475292719074168444365510704342711559699508093042880177904174497792 THEN
        RAISE EXCEPTION 'the sum is larger than the largest 64-bit float'
              USING ERRCODE = 'DM004', DETAIL = of_job::text || ' ' || fan_out;
    END IF;
    RETURN total;
END
$$;

CREATE OR REPLACE FUNCTION dagapp.gather(of_job uuid, fan_out text, aggregation text) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
WITH children AS (
    SELECT i.index, c.node_id, c.status = 'completed' AS completed, c.error_message, coalesce(c.output, 'null'::jsonb) AS output
      FROM generate_series(0, (SELECT p.total - 1
                                 FROM dagapp.dag_node_states p
                                WHERE p.job_id = of_job AND p.node_id = fan_out)) AS i (index)
     CROSS JOIN LATERAL (
           -- LIMIT keeps this a look-up by the whole key: joined freely, a job's rows would be read once for each
           -- child.
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
               SELECT jsonb_build_object('total', dagapp.checked_sum(of_job, fan_out, coalesce(sum(dagapp.sum_of(output)), 0),
                                                                     coalesce(bool_and(dagapp.is_whole(output)), true)),
                                         'count', count(*))
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

-- The size of the output if some outputs of children are payloads, which are not read here; NULL if none of them is.
CREATE OR REPLACE FUNCTION dagapp.referred_bytes(of_job uuid, fan_out text, aggregation text) RETURNS bigint
LANGUAGE sql STABLE
AS $$
WITH children AS MATERIALIZED (
    SELECT i.index, c.node_id, c.status = 'completed' AS completed, c.error_message, c.output, c.output_ref
      FROM generate_series(0, (SELECT p.total - 1
                                 FROM dagapp.dag_node_states p
                                WHERE p.job_id = of_job AND p.node_id = fan_out)) AS i (index)
     CROSS JOIN LATERAL (
           SELECT n.node_id, n.status, n.error_message, n.output, n.output_ref
             FROM dagapp.dag_node_states n
            WHERE n.job_id = of_job AND n.node_id = fan_out || '__' || i.index::text
            LIMIT 1) AS c
), good AS MATERIALIZED (
    SELECT index, output, output_ref,
           row_number() OVER (ORDER BY index) AS place, row_number() OVER (ORDER BY index DESC) AS place_from_end
      FROM children
     WHERE completed
), used AS MATERIALIZED (
    SELECT output, output_ref
      FROM good
     WHERE aggregation NOT IN ('first', 'last')
        OR aggregation = 'first' AND place = 1
        OR aggregation = 'last' AND place_from_end = 1
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM used WHERE output_ref IS NOT NULL)
            THEN (SELECT sum(coalesce((output_ref ->> 'bytes')::bigint, octet_length(output::text), 4) + 2) FROM used)
                 + coalesce((SELECT sum(octet_length(jsonb_build_object('index', index, 'node_id', node_id,
                                                                        'error_message', error_message)::text) + 2)
                               FROM children
                              WHERE NOT completed), 0)
                 + octet_length('{"count": , "failed": [], "results": []}')
                 + length((SELECT count(*) FROM good)::text) END
$$;
