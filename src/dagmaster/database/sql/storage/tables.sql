-- The tables that `dagmaster verify-storage` compares. They are temporary: they are dropped when the connection ends.

-- An object of a zone, as it was listed. Its name says which revision or job it belongs to.
CREATE TEMPORARY TABLE storage_objects (
    zone text NOT NULL,
    container text NOT NULL,
    blob text NOT NULL,
    size_bytes bigint NOT NULL,
    modified_at timestamptz NOT NULL,
    kind text,
    dataset_id text,
    version_ordinal integer,
    revision integer,
    job_id uuid
);

-- A row of the database that names an object.
CREATE TEMPORARY TABLE storage_references (
    zone text NOT NULL,
    container text NOT NULL,
    blob text NOT NULL,
    kind text NOT NULL,
    size_bytes bigint,
    sha256 text,
    dataset_id text,
    version_ordinal integer,
    revision integer,
    document_id text,
    asset_key text,
    is_served boolean NOT NULL DEFAULT false
);
