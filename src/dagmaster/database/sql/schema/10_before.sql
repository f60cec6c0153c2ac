-- Before the tables: the schema, the clock that every default and comparison uses, and the record of what is deployed.

DO $$
BEGIN
    -- Checked first, because CREATE SCHEMA IF NOT EXISTS needs the right to create even if the schema exists.
    IF to_regnamespace('dagapp') IS NULL THEN
        CREATE SCHEMA dagapp;
    END IF;
END
$$;

-- The server's time. Tests set dagapp.fake_now in their session; nothing else does.
CREATE OR REPLACE FUNCTION dagapp.clock() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT coalesce(nullif(current_setting('dagapp.fake_now', true), '')::timestamptz, clock_timestamp()) $$;

CREATE TABLE IF NOT EXISTS dagapp.schema_info (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    fingerprint text NOT NULL,
    deployed_at timestamptz NOT NULL DEFAULT dagapp.clock(),
    software_version text NOT NULL
);
