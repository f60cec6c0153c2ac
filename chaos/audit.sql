-- Triggers record who claimed, who wrote and what was accepted, in tables of their own. They have no unique
-- constraints, so that violations are recorded too. The name of a session is its process and the number of its start.
CREATE SCHEMA chaos;

CREATE TABLE chaos.claims (
    job_id uuid, epoch bigint, owner_id uuid,
    process text DEFAULT current_setting('application_name'), at timestamptz DEFAULT clock_timestamp());
CREATE TABLE chaos.events (
    job_id uuid, sequence bigint, epoch bigint,
    process text DEFAULT current_setting('application_name'), at timestamptz DEFAULT clock_timestamp());
CREATE TABLE chaos.starts (
    job_id uuid, node_id text, attempt int, worker_id uuid,
    process text DEFAULT current_setting('application_name'), at timestamptz DEFAULT clock_timestamp());
CREATE TABLE chaos.results (
    job_id uuid, node_id text, attempt int, worker_id uuid, accepted boolean, status text, effect text,
    process text DEFAULT current_setting('application_name'), at timestamptz DEFAULT clock_timestamp());
CREATE TABLE chaos.disk_full (since timestamptz);
CREATE INDEX ON chaos.claims (job_id, epoch);
CREATE INDEX ON chaos.events (at);
CREATE INDEX ON chaos.starts (at);
CREATE INDEX ON chaos.starts (job_id, node_id, attempt);

CREATE FUNCTION chaos.note_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.claims (job_id, epoch, owner_id) VALUES (NEW.job_id, NEW.epoch, NEW.owner_id);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note_claim AFTER UPDATE ON dagapp.dag_jobs FOR EACH ROW
   WHEN (NEW.claim_token IS DISTINCT FROM OLD.claim_token AND NEW.claim_token IS NOT NULL)
EXECUTE FUNCTION chaos.note_claim();

CREATE FUNCTION chaos.note_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.events (job_id, sequence, epoch) SELECT job_id, sequence, epoch FROM written WHERE job_id IS NOT NULL;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note_events AFTER INSERT ON dagapp.dag_job_events
REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION chaos.note_events();

CREATE FUNCTION chaos.note_start() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.starts (job_id, node_id, attempt, worker_id) VALUES (NEW.job_id, NEW.node_id, NEW.attempt, NEW.worker_id);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note_start AFTER UPDATE ON dagapp.dag_tasks FOR EACH ROW
   WHEN (NEW.status = 'running' AND OLD.status IS DISTINCT FROM 'running')
EXECUTE FUNCTION chaos.note_start();

CREATE FUNCTION chaos.note_result() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.results (job_id, node_id, attempt, worker_id, accepted, status, effect)
    VALUES (NEW.job_id, NEW.node_id, NEW.attempt, NEW.worker_id, NEW.accepted, NEW.status, NEW.output ->> 'effect');
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note_result AFTER INSERT ON dagapp.dag_task_results FOR EACH ROW EXECUTE FUNCTION chaos.note_result();

-- Simulates a full disk as long as the table has a row.
CREATE FUNCTION chaos.may_be_full() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM chaos.disk_full) THEN
        RAISE disk_full USING MESSAGE = 'could not extend file: No space left on device';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_may_be_full BEFORE INSERT ON dagapp.dag_task_results
FOR EACH STATEMENT EXECUTE FUNCTION chaos.may_be_full();
CREATE TRIGGER chaos_may_be_full BEFORE INSERT ON dagapp.dag_job_events
FOR EACH STATEMENT EXECUTE FUNCTION chaos.may_be_full();
