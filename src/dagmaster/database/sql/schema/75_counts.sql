-- A decision is written completely or not at all: each row that it changes must exist.
CREATE OR REPLACE FUNCTION dagapp.demand_counts(written bigint[], wanted bigint[]) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF written IS DISTINCT FROM wanted THEN
        RAISE EXCEPTION 'wrote % (nodes, children, tasks, events, jobs) instead of %', written, wanted
            USING ERRCODE = 'DM003';
    END IF;
END
$$;
