-- The words of jobs, for searches. They are in a table of their own, because an index on dag_jobs would get a new entry
-- with each version of the row: a job is inserted once and updated with each step. The triggers are in
-- database/schema/guards.py.

-- A text in lower case, with spaces instead of punctuation.
CREATE OR REPLACE FUNCTION dagapp.plain_text(content text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
SELECT translate(lower(left(content, 20000)), E'{}[]()<>"''`:;,.!?_-/\\|@#$%&*+=~^\n\r\t', repeat(' ', 37))
$$;

-- The jobs in which all words of a text occur, each as the beginning of a word. NULL if it has no words. The text
-- must be parsed like the jobs: the parser takes some parts of an id for numbers, such as 1e5 in 1e5abc.
CREATE OR REPLACE FUNCTION dagapp.word_query(content text) RETURNS tsquery
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
SELECT string_agg(quote_literal(word) || ':*', ' & ')::tsquery
  FROM unnest(tsvector_to_array(to_tsvector('simple', dagapp.plain_text(content)))) AS word
$$;

-- The parser of PostgreSQL finds the words: it is much faster than functions on arrays. It leaves out words of more
-- than 2 kB.
CREATE OR REPLACE FUNCTION dagapp.make_searchable() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO dagapp.dag_job_search AS s (job_id, document)
    VALUES (NEW.job_id, strip(to_tsvector('simple', dagapp.plain_text(concat_ws(
        ' ', NEW.job_id, NEW.workflow_id, NEW.correlation_id, NEW.submitted_by, NEW.idempotency_key, NEW.asset_id,
        left(NEW.error_message, 2000), NEW.input_params)))))
        ON CONFLICT (job_id) DO UPDATE SET document = excluded.document;
    RETURN NULL;
END
$$;

-- When the table is new: the newest jobs of earlier releases.
INSERT INTO dagapp.dag_job_search (job_id, document)
SELECT j.job_id, strip(to_tsvector('simple', dagapp.plain_text(concat_ws(
           ' ', j.job_id, j.workflow_id, j.correlation_id, j.submitted_by, j.idempotency_key, j.asset_id,
           left(j.error_message, 2000), j.input_params))))
  FROM (SELECT * FROM dagapp.dag_jobs ORDER BY job_id DESC LIMIT 50000) AS j
 WHERE NOT EXISTS (SELECT FROM dagapp.dag_job_search)
    ON CONFLICT DO NOTHING;
