-- What the gateway reads. Its role sees the views of dagapp_gateway only.

-- name: gateway_key
-- The key of a request, with the hashes that are accepted now.
SELECT key_id, name, scopes, platform_id, secret_hash, previous_hash, is_expired, is_revoked
  FROM dagapp_gateway.keys
 WHERE key_id = %(key_id)s;

-- name: gateway_request
-- The status of a request; of one platform only, if one is given. Another platform may have used the same id before.
-- The view of an earlier release has no `shown_id`, and no ids that need it: the gateway may be deployed before the
-- schema.
SELECT CASE WHEN starts_with(request_id, '~') THEN to_jsonb(requests) ->> 'shown_id' ELSE request_id END AS request_id,
       platform_id, asset_id, dataset_id, version_ordinal, version_label, revision, outcome, status, reason,
       same_content_as, created_at, updated_at
  FROM dagapp_gateway.requests
 WHERE request_id = ANY (%(request_ids)s::text[])
   AND (%(platform_id)s::text IS NULL OR platform_id = %(platform_id)s)
 ORDER BY created_at, platform_id;

-- name: gateway_requests_of_version
-- The requests that led to a version, newest first.
SELECT CASE WHEN starts_with(request_id, '~') THEN to_jsonb(requests) ->> 'shown_id' ELSE request_id END AS request_id,
       platform_id, asset_id, dataset_id, version_ordinal, version_label, revision, outcome, status, reason,
       same_content_as, created_at, updated_at
  FROM dagapp_gateway.requests
 WHERE asset_id = %(asset_id)s
   AND version_ordinal = %(version_ordinal)s
   AND (%(platform_id)s::text IS NULL OR platform_id = %(platform_id)s)
 ORDER BY created_at DESC, request_id
 LIMIT %(limit)s;

-- name: gateway_assets
-- Assets, newest first, a page at a time.
SELECT asset_id, dataset_id, platform_id, platform_refs, title, clearance_state, exposure,
       latest_approved_version_ordinal, deleted_at, created_at, updated_at
  FROM dagapp_gateway.assets
 WHERE (%(platform_id)s::text IS NULL OR platform_id = %(platform_id)s)
   AND (%(refs)s::jsonb IS NULL OR platform_refs @> %(refs)s)
   AND (%(after_at)s::timestamptz IS NULL OR (created_at, asset_id) < (%(after_at)s, %(after_id)s::text))
 ORDER BY created_at DESC, asset_id DESC
 LIMIT %(limit)s;

-- name: gateway_asset
-- An asset by its id or its dataset id.
SELECT asset_id, dataset_id, platform_id, platform_refs, title, clearance_state, exposure,
       latest_approved_version_ordinal, deleted_at, created_at, updated_at
  FROM dagapp_gateway.assets
 WHERE (asset_id = %(key)s OR dataset_id = %(key)s)
   AND (%(platform_id)s::text IS NULL OR platform_id = %(platform_id)s);

-- name: gateway_versions
-- The versions of an asset.
SELECT version_ordinal, version_label, platform_refs, revision, approved_revision, approval_state, processing_state,
       rejection_reason, reviewed_at, unpublished_at, deleted_at, created_at, updated_at
  FROM dagapp_gateway.versions
 WHERE asset_id = %(asset_id)s
 ORDER BY version_ordinal;

-- name: gateway_layer_metadata
-- The metadata of the layers of an asset.
SELECT asset_id, dataset_id, layer, title, description, keywords, attribution, style, etag, updated_at, is_published,
       is_changed, published_at
  FROM dagapp_gateway.layer_metadata
 WHERE asset_id = %(asset_id)s
 ORDER BY layer;

-- name: gateway_layers
-- Published layers with these clearances, of one platform only, if one is given; a page at a time.
SELECT asset_id, dataset_id, layer, platform_id, title, description, keywords, attribution, style, clearance_state,
       version_ordinal, revision, bbox, starts_at, ends_at, published_at, updated_at
  FROM dagapp_gateway.layers
 WHERE clearance_state = ANY (%(clearances)s::text[])
   AND (%(platform_id)s::text IS NULL OR platform_id = %(platform_id)s)
   AND (dataset_id, layer) > (%(after_dataset)s::text, %(after_layer)s::text)
 ORDER BY dataset_id, layer
 LIMIT %(limit)s;

-- name: gateway_platforms
-- The platforms that submit data.
SELECT platform_id, display_name, required_refs, optional_refs, version_ref, is_active, created_at, updated_at
  FROM dagapp_gateway.platforms
 WHERE %(platform_id)s::text IS NULL OR platform_id = %(platform_id)s
 ORDER BY platform_id;

-- name: gateway_jobs
-- Jobs, newest first, a page at a time.
SELECT job_id, workflow_id, workflow_version, status, priority, correlation_id, submitted_by, asset_id, version_ordinal,
       error_message, resume_count, deadline_at, created_at, updated_at, started_at, completed_at
  FROM dagapp_gateway.jobs
 WHERE (%(job_id)s::uuid IS NULL OR job_id = %(job_id)s)
   AND (%(status)s::text[] IS NULL OR status = ANY (%(status)s))
   AND (%(workflow_id)s::text IS NULL OR workflow_id = %(workflow_id)s)
   AND (%(correlation_id)s::text IS NULL OR correlation_id = %(correlation_id)s)
   AND (%(after)s::uuid IS NULL OR job_id < %(after)s)
 ORDER BY job_id DESC
 LIMIT %(limit)s;

-- name: gateway_nodes
-- The nodes of a job, a page at a time.
SELECT node_id, parent_node_id, fan_out_index, label, status, reason, attempt, retry_count, max_retries, error_message,
       dispatched_at, started_at, completed_at
  FROM dagapp_gateway.nodes
 WHERE job_id = %(job_id)s
   AND (%(after)s::text IS NULL OR node_id > %(after)s)
 ORDER BY node_id
 LIMIT %(limit)s;

-- name: gateway_events
-- The events of a job, oldest first, a page at a time.
SELECT event_id, job_id, sequence, node_id, event_type, event_status, attempt, created_at
  FROM dagapp_gateway.events
 WHERE job_id = %(job_id)s
   AND sequence > %(after)s
 ORDER BY sequence
 LIMIT %(limit)s;

-- name: gateway_recent_events
-- The newest events of all jobs.
SELECT event_id, job_id, sequence, node_id, event_type, event_status, attempt, created_at
  FROM dagapp_gateway.events
 WHERE job_id IS NOT NULL
   AND created_at > now() - interval '1 day'
 ORDER BY event_id DESC
 LIMIT %(limit)s;

-- name: gateway_stats
-- How many jobs have each status.
SELECT status, count(*) AS jobs
  FROM dagapp_gateway.jobs
 GROUP BY status
 ORDER BY status;

-- name: gateway_instances
-- The processes of the platform, and how many seconds ago their last heartbeats were.
SELECT role, instance_id, software_version, started_at, heartbeat_at, silent_seconds
  FROM dagapp_gateway.instances
 ORDER BY role, heartbeat_at DESC
 LIMIT %(limit)s;
