-- What retention does to whole tables: short, and only after everyone who could be in between has finished.

-- Definitions that no job uses. Whoever submits inserts into this table before it creates its job, and so holds it until then:
-- we come between no definition and its first job.
CREATE OR REPLACE FUNCTION dagapp.forget_definitions(before timestamptz) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    gone bigint;
BEGIN
    IF NOT EXISTS (SELECT 1
                     FROM dagapp.dag_workflow_definitions d
                    WHERE d.created_at < before
                      AND NOT EXISTS (SELECT 1 FROM dagapp.dag_jobs j WHERE j.definition_hash = d.definition_hash)) THEN
        RETURN 0;
    END IF;
    LOCK TABLE dagapp.dag_workflow_definitions IN SHARE ROW EXCLUSIVE MODE;
    DELETE FROM dagapp.dag_workflow_definitions d
     WHERE d.created_at < before
       AND NOT EXISTS (SELECT 1 FROM dagapp.dag_jobs j WHERE j.definition_hash = d.definition_hash);
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;

-- The oldest partition of events whose month is over and that has no job left, if there is one. Returns its name.
CREATE OR REPLACE FUNCTION dagapp.drop_event_partition(before timestamptz) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    month record;
BEGIN
    FOR month IN
        SELECT c.relname AS name,
               dagapp.first_uuid_at(m.begins) AS lower_id,
               dagapp.first_uuid_at((m.begins AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC') AS upper_id
          FROM pg_inherits i
          JOIN pg_class c
            ON c.oid = i.inhrelid
         CROSS JOIN LATERAL regexp_match(c.relname, '^dag_job_events_(\d{4})_(\d{2})$') AS n (part)
         CROSS JOIN LATERAL make_timestamptz(n.part[1]::int, n.part[2]::int, 1, 0, 0, 0, 'UTC') AS m (begins)
         WHERE i.inhparent = 'dagapp.dag_job_events'::regclass
           AND (m.begins AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC' <= before
         ORDER BY c.relname
    LOOP
        CONTINUE WHEN EXISTS (SELECT 1 FROM dagapp.dag_jobs j WHERE j.job_id >= month.lower_id AND j.job_id < month.upper_id);
        -- Whoever creates a job writes its first events in the same statement: it is either visible now, or waits for us.
        LOCK TABLE ONLY dagapp.dag_job_events IN ACCESS EXCLUSIVE MODE;
        IF EXISTS (SELECT 1 FROM dagapp.dag_jobs j WHERE j.job_id >= month.lower_id AND j.job_id < month.upper_id) THEN
            RETURN NULL;
        END IF;
        EXECUTE format('DROP TABLE dagapp.%I', month.name);
        RETURN month.name;
    END LOOP;
    RETURN NULL;
END
$$;
