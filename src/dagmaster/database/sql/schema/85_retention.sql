-- The functions of retention that lock whole tables. Each is short, and waits until the transactions that it could
-- affect have ended.

-- Delete definitions that no job uses. A submission inserts into this table before it creates its job, and holds a lock
-- on the table until it commits, so no definition is deleted before its first job is visible.
CREATE OR REPLACE FUNCTION dagapp.forget_definitions(before timestamptz) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    deleted_count bigint;
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
    GET DIAGNOSTICS deleted_count = ROW_COUNT;
    RETURN deleted_count;
END
$$;

-- Drop the oldest partition of events whose month is over and that has no job left. Returns its name; NULL if there is
-- none. It runs as the owner of the schema, because the role of orchestrators may not drop tables.
CREATE OR REPLACE FUNCTION dagapp.drop_event_partition(before timestamptz) RETURNS text
LANGUAGE plpgsql STRICT
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
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
           AND (m.begins AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC' <= least(before, dagapp.clock())
         ORDER BY c.relname
    LOOP
        CONTINUE WHEN EXISTS (SELECT 1 FROM dagapp.dag_jobs j WHERE j.job_id >= month.lower_id AND j.job_id < month.upper_id);
        -- A job is created in one statement with its first events: it is either visible now, or waits for this lock.
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

REVOKE EXECUTE ON FUNCTION dagapp.drop_event_partition FROM PUBLIC;

-- Orchestrators call both functions, so every role that may insert events may execute them. The owner always may.
DO $$
DECLARE
    platform regrole;
BEGIN
    FOR platform IN
        SELECT DISTINCT a.grantee::regrole
          FROM pg_class c
         CROSS JOIN LATERAL aclexplode(c.relacl) AS a
         WHERE c.oid = 'dagapp.dag_job_events'::regclass
           AND a.privilege_type = 'INSERT'
           AND a.grantee NOT IN (0, c.relowner)
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION dagapp.ensure_event_partitions, dagapp.drop_event_partition TO %s', platform);
    END LOOP;
END
$$;
