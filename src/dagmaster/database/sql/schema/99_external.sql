-- Copies in the external zone: the end of the job that makes or removes them is recorded in their revision. Triggers
-- call these functions (database/schema/guards.py).

-- Record the end of a job of external_export, adf_export or unpublish. Runs in the transaction that ends the job: it
-- happens exactly once, even if a process dies. A decision that was made while the job ran stays due, and the next job
-- carries it out. Locks: the job (held), then the revision; decisions on an asset lock revisions and never a job.
CREATE OR REPLACE FUNCTION dagapp.follow_external_job() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    is_export boolean := NEW.workflow_id <> 'unpublish';
    is_done boolean := NEW.status = 'completed';
    result jsonb := CASE jsonb_typeof(NEW.result_data) WHEN 'object' THEN NEW.result_data ELSE '{}'::jsonb END;
    failure text;
    target record;
BEGIN
    SELECT r.asset_id, r.version_ordinal, r.revision, r.external_failures,
           CASE WHEN is_export THEN r.export_due_at ELSE r.withdrawal_due_at END = r.external_due_at AS is_wanted
      INTO target
      FROM dagapp.asset_revisions AS r
     WHERE r.external_job_id = NEW.job_id AND r.is_external_job_running
       FOR NO KEY UPDATE;
    IF target IS NULL THEN
        RETURN NULL;
    END IF;
    IF NOT is_done THEN
        -- The error of a batch, which is a child, says more than the error of its fan_out.
        SELECT node.error_message
          INTO failure
          FROM dagapp.dag_node_states AS node
         WHERE node.job_id = NEW.job_id AND node.status = 'failed' AND node.parent_node_id IS NOT NULL
         ORDER BY node.node_id
         LIMIT 1;
        failure := coalesce(failure, NEW.error_message, NEW.status);
    END IF;
    UPDATE dagapp.asset_revisions AS r
       SET is_external_job_running = false,
           external_copies = CASE WHEN NOT is_done THEN r.external_copies WHEN is_export THEN 'all' ELSE 'none' END,
           export_due_at = CASE WHEN NOT (is_done AND is_export) THEN r.export_due_at END,
           withdrawal_due_at = CASE WHEN is_export OR NOT is_done THEN r.withdrawal_due_at END,
           exported_at = CASE
                             WHEN NOT is_done THEN r.exported_at
                             WHEN is_export THEN dagapp.clock()
                         END,
           withdrawn_at = CASE
                              WHEN NOT is_done THEN r.withdrawn_at
                              WHEN NOT is_export THEN dagapp.clock()
                          END,
           external_error = CASE WHEN target.is_wanted THEN failure END,
           external_failures = CASE WHEN is_done THEN 0 WHEN target.is_wanted THEN r.external_failures + 1 ELSE r.external_failures END,
           external_retry_at = CASE
                                   WHEN NOT is_done AND NOT is_export AND target.is_wanted
                                       THEN dagapp.clock() + make_interval(secs => least(3600, 15 * 2 ^ least(r.external_failures, 10)))
                               END,
           outputs = CASE
                         WHEN NOT is_done THEN r.outputs
                         WHEN is_export THEN r.outputs || jsonb_strip_nulls(jsonb_build_object(
                             'external_blob_path', result -> 'external_blob_path',
                             'external_stac_path', result -> 'external_stac_path',
                             'external_manifest_path', result -> 'external_manifest_path',
                             'adf_run_id', result -> 'adf_run_id'
                         ))
                         ELSE r.outputs - ARRAY['external_blob_path', 'external_stac_path', 'external_manifest_path', 'adf_run_id']
                     END
     WHERE r.asset_id = target.asset_id AND r.version_ordinal = target.version_ordinal AND r.revision = target.revision;
    -- A failed withdrawal is retried until it succeeds; the history records only the first failure.
    IF is_done OR target.is_wanted AND (is_export OR target.external_failures = 0) THEN
        INSERT INTO dagapp.asset_events (asset_id, version_ordinal, revision, action, actor, reason, detail)
        VALUES (target.asset_id, target.version_ordinal, target.revision,
                CASE
                    WHEN is_done AND is_export THEN 'exported'
                    WHEN is_done THEN 'withdrawn'
                    WHEN is_export THEN 'export_failed'
                    ELSE 'withdrawal_failed'
                END,
                'dagmaster', failure,
                jsonb_strip_nulls(jsonb_build_object(
                    'job_id', NEW.job_id,
                    'objects', result -> 'object_count',
                    'size_bytes', result -> 'size_bytes',
                    'external_blob_path', result -> 'external_blob_path',
                    'adf_run_id', result -> 'adf_run_id'
                )));
    END IF;
    RETURN NULL;
END
$$;

-- A job that was deleted before its end does nothing any more.
CREATE OR REPLACE FUNCTION dagapp.forget_external_job() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE dagapp.asset_revisions
       SET is_external_job_running = false, external_error = 'its job was deleted'
     WHERE external_job_id = OLD.job_id AND is_external_job_running;
    RETURN NULL;
END
$$;
