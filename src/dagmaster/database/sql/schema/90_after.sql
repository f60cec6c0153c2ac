-- After the tables: the functions that the generated triggers (database/schema/guards.py) call to refuse a change.

-- The row's key as text, for messages: job_id=…, node_id=…
CREATE OR REPLACE FUNCTION dagapp.key_of(record_json jsonb, columns text[]) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT string_agg(name || '=' || coalesce(record_json ->> name, 'null'), ', ') FROM unnest(columns) AS name $$;

CREATE OR REPLACE FUNCTION dagapp.refuse_transition() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    key text := dagapp.key_of(to_jsonb(NEW), TG_ARGV::text[]);
BEGIN
    IF TG_OP = 'INSERT' THEN
        RAISE EXCEPTION '% %: a row may not begin as %', TG_TABLE_NAME, key, NEW.status
            USING ERRCODE = 'DM001', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
    END IF;
    RAISE EXCEPTION '% %: % may not become %', TG_TABLE_NAME, key, OLD.status, NEW.status
        USING ERRCODE = 'DM001', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
END
$$;

CREATE OR REPLACE FUNCTION dagapp.refuse_change() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION '% %: rows of this table never change', TG_TABLE_NAME, dagapp.key_of(to_jsonb(OLD), TG_ARGV::text[])
        USING ERRCODE = 'DM002', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
END
$$;
