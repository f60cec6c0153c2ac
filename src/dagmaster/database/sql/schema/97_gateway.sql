-- What the gateway may read: views in a schema of their own. Its role (database/schema/gateway_role.py) may select from
-- them, and do nothing else. The views contain no inputs, outputs, payloads or secrets; of keys, they contain the
-- hashes that verify them.

CREATE SCHEMA IF NOT EXISTS dagapp_gateway;

-- A view needs all its columns when it is created. A schema of an earlier version lacks some until it is migrated; then
-- this runs again.
DO $views$
BEGIN
    CREATE OR REPLACE VIEW dagapp_gateway.keys AS
    SELECT key_id, name, scopes, platform_id, secret_hash,
           CASE WHEN previous_until > dagapp.clock() THEN previous_hash END AS previous_hash,
           coalesce(expires_at <= dagapp.clock(), false) AS is_expired,
           revoked_at IS NOT NULL AS is_revoked
      FROM dagapp.api_keys;

    CREATE OR REPLACE VIEW dagapp_gateway.platforms AS
    SELECT platform_id, display_name, required_refs, optional_refs, version_ref, is_active, created_at, updated_at
      FROM dagapp.platforms;

    -- The status of requests as partners see it.
    CREATE OR REPLACE VIEW dagapp_gateway.requests AS
    SELECT s.request_id, s.platform_id, s.asset_id, a.dataset_id, s.version_ordinal, v.version_label, s.revision, s.outcome,
           present.status, present.reason, coalesce(s.same_content_as, r.same_content_as) AS same_content_as, s.created_at,
           greatest(s.created_at, a.updated_at, v.updated_at) AS updated_at,
           CASE
               WHEN starts_with(s.request_id, '~')
                   THEN (SELECT alias.request_id FROM dagapp.request_aliases AS alias WHERE alias.stored_id = s.request_id)
               ELSE s.request_id
           END AS shown_id
      FROM dagapp.asset_submissions AS s
      JOIN dagapp.geospatial_assets AS a USING (asset_id)
      JOIN dagapp.asset_versions AS v USING (asset_id, version_ordinal)
      JOIN dagapp.asset_revisions AS r
        ON r.asset_id = s.asset_id AND r.version_ordinal = s.version_ordinal AND r.revision = s.revision
     CROSS JOIN LATERAL dagapp.request_status(a, v, r) AS present;

    CREATE OR REPLACE VIEW dagapp_gateway.assets AS
    SELECT asset_id, dataset_id, platform_id, platform_refs, title, clearance_state, exposure, latest_approved_version_ordinal,
           deleted_at, created_at, updated_at
      FROM dagapp.geospatial_assets;

    CREATE OR REPLACE VIEW dagapp_gateway.versions AS
    SELECT asset_id, version_ordinal, version_label, platform_refs, revision, approved_revision, approval_state, processing_state,
           rejection_reason, reviewed_at, unpublished_at, deleted_at, created_at, updated_at
      FROM dagapp.asset_versions;

    -- The metadata of layers, without the names of its authors. The layers are those of assets/layers.py.
    CREATE OR REPLACE VIEW dagapp_gateway.layer_metadata AS
    SELECT a.asset_id, a.dataset_id, a.platform_id, given.layer, m.title, m.description, coalesce(m.keywords, '{}') AS keywords,
           m.attribution, nullif(m.style, '{}') AS style, coalesce(m.change_number, 0)::text AS etag, m.updated_at,
           c.asset_id IS NOT NULL AS is_published,
           c.asset_id IS NOT NULL AND c.change_number <> coalesce(m.change_number, 0) AS is_changed, c.published_at
      FROM dagapp.geospatial_assets AS a
     CROSS JOIN unnest(ARRAY['raster']) AS given (layer)
      LEFT JOIN dagapp.layer_metadata AS m
        ON m.asset_id = a.asset_id AND m.layer = given.layer
      LEFT JOIN dagapp.layer_catalog AS c
        ON c.asset_id = a.asset_id AND c.layer = given.layer;

    CREATE OR REPLACE VIEW dagapp_gateway.layers AS
    SELECT asset_id, dataset_id, layer, platform_id, title, description, keywords, attribution, style, clearance_state,
           version_ordinal, revision, bbox, starts_at, ends_at, published_at, updated_at
      FROM dagapp.layer_catalog;

    CREATE OR REPLACE VIEW dagapp_gateway.jobs AS
    SELECT job_id, workflow_id, workflow_version, status, priority, correlation_id, submitted_by, asset_id, version_ordinal,
           error_message, resume_count, last_sequence, deadline_at, created_at, updated_at, started_at, completed_at
      FROM dagapp.dag_jobs;

    CREATE OR REPLACE VIEW dagapp_gateway.nodes AS
    SELECT job_id, node_id, parent_node_id, fan_out_index, label, status, reason, attempt, retry_count, max_retries, error_message,
           dispatched_at, started_at, completed_at
      FROM dagapp.dag_node_states;

    CREATE OR REPLACE VIEW dagapp_gateway.events AS
    SELECT event_id, job_id, sequence, node_id, event_type, event_status, attempt, created_at
      FROM dagapp.dag_job_events;

    CREATE OR REPLACE VIEW dagapp_gateway.instances AS
    SELECT 'orchestrator' AS role, owner_id AS instance_id, software_version, started_at, heartbeat_at,
           extract(epoch FROM dagapp.clock() - heartbeat_at)::float8 AS silent_seconds
      FROM dagapp.orchestrators
     UNION ALL
    SELECT 'worker', worker_id, software_version, started_at, heartbeat_at,
           extract(epoch FROM dagapp.clock() - heartbeat_at)::float8
      FROM dagapp.workers;

    -- How much work each queue has, for autoscaling: tasks that may start now, and tasks that run.
    CREATE OR REPLACE VIEW dagapp_gateway.queues AS
    SELECT queue,
           count(*) FILTER (WHERE status = 'queued' AND available_at <= dagapp.clock()) AS waiting,
           count(*) FILTER (WHERE status = 'running') AS running,
           coalesce(extract(epoch FROM dagapp.clock() - min(available_at) FILTER (WHERE status = 'queued')), 0)::float8
               AS oldest_seconds
      FROM dagapp.dag_tasks
     WHERE status IN ('queued', 'running')
     GROUP BY queue;
EXCEPTION
    WHEN undefined_column OR undefined_table THEN
        RAISE NOTICE 'the views of the gateway need a migration: %', sqlerrm;
END
$views$;
