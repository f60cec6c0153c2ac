-- Event partitions: one for each month in which jobs were created, by the time at the start of a version 7 UUID, and a
-- default for events without a job and for jobs of other times.

CREATE TABLE IF NOT EXISTS dagapp.dag_job_events_default PARTITION OF dagapp.dag_job_events DEFAULT;

-- The smallest version 7 UUID of a moment: 48 bits of milliseconds, then zeros.
CREATE OR REPLACE FUNCTION dagapp.first_uuid_at(moment timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $$ SELECT rpad(lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0'), 32, '0')::uuid $$;

-- Make the partitions of this month and the coming ones; returns how many were missing. It runs as the owner of the
-- schema, because the role of orchestrators may not create tables. So no name is looked up in schemas of the caller.
CREATE OR REPLACE FUNCTION dagapp.ensure_event_partitions(months_ahead integer DEFAULT 2) RETURNS integer
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this_month timestamptz := date_trunc('month', dagapp.clock(), 'UTC');
    month_start timestamptz;
    lower_id uuid;
    upper_id uuid;
    partition text;
    created_count integer := 0;
BEGIN
    IF months_ahead > 24 THEN
        RAISE EXCEPTION 'at most 24 months ahead, not %', months_ahead USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('dagapp.ensure_event_partitions'));
    FOR ahead IN 0..months_ahead LOOP
        month_start := (this_month AT TIME ZONE 'UTC' + make_interval(months => ahead)) AT TIME ZONE 'UTC';
        partition := 'dag_job_events_' || to_char(month_start AT TIME ZONE 'UTC', 'YYYY_MM');
        CONTINUE WHEN to_regclass('dagapp.' || partition) IS NOT NULL;
        IF ahead = 0 THEN
            -- Events of this month are being written, into the default partition. Writers wait before they choose a
            -- partition: otherwise their rows would stay in the default one, or would be refused by its new bounds.
            LOCK TABLE ONLY dagapp.dag_job_events IN SHARE ROW EXCLUSIVE MODE;
        END IF;
        lower_id := dagapp.first_uuid_at(month_start);
        upper_id := dagapp.first_uuid_at((month_start AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC');
        -- Created separately and attached, because CREATE … PARTITION OF would block all readers and writers of events.
        EXECUTE format('CREATE TABLE dagapp.%I (LIKE dagapp.dag_job_events INCLUDING ALL)', partition);
        -- Events that are older than their partition are in the default one, which would refuse the new bounds. Both
        -- tables have the columns of the partitioned one in its order; a list here would omit those of later releases.
        EXECUTE format(
            'WITH early AS (DELETE FROM dagapp.dag_job_events_default WHERE job_id >= %L AND job_id < %L RETURNING *)
             INSERT INTO dagapp.%I SELECT * FROM early', lower_id, upper_id, partition);
        EXECUTE format('ALTER TABLE dagapp.dag_job_events ATTACH PARTITION dagapp.%I FOR VALUES FROM (%L) TO (%L)',
            partition, lower_id, upper_id);
        created_count := created_count + 1;
    END LOOP;
    RETURN created_count;
END
$$;

REVOKE EXECUTE ON FUNCTION dagapp.ensure_event_partitions FROM PUBLIC;

SELECT dagapp.ensure_event_partitions();
