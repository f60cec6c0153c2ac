-- The tables of the external database. They can be created by hand, if the role that writes to them may not create
-- tables.

CREATE SCHEMA IF NOT EXISTS dagmaster_public;

-- The table that portals read.
CREATE TABLE IF NOT EXISTS dagmaster_public.layer_catalog (
    dataset_id text NOT NULL,
    layer text NOT NULL,
    title text NOT NULL,
    description text,
    keywords text[] NOT NULL DEFAULT '{}',
    attribution text,
    style jsonb NOT NULL DEFAULT '{}',
    version_ordinal integer NOT NULL,
    revision integer NOT NULL,
    bbox jsonb NOT NULL DEFAULT '[]',
    starts_at timestamptz,
    ends_at timestamptz,
    published_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_id, layer)
);

-- The last state of each layer that was written. A writer that was delayed cannot undo what a later one has written.
CREATE TABLE IF NOT EXISTS dagmaster_public.layer_generations (
    dataset_id text NOT NULL,
    layer text NOT NULL,
    generation bigint NOT NULL,
    PRIMARY KEY (dataset_id, layer)
);
