-- Assets: the platforms that are shipped, and how the end of a job reaches the revision that it processes.

-- A platform that was changed stays as it is.
INSERT INTO dagapp.platforms (platform_id, display_name, required_refs, optional_refs, version_ref)
VALUES ('ddh', 'Data Distribution Hub', '{dataset_id,resource_id,version_id}', '{}', 'version_id'),
       ('arcgis', 'ArcGIS', '{item_id,layer_index,version}', '{}', 'version'),
       ('geonode', 'GeoNode', '{uuid,version}', '{}', 'version'),
       ('local', 'This installation', '{dataset}', '{version}', 'version'),
       ('legacy', 'Jobs of the earlier API', '{dataset}', '{version}', 'version')
    ON CONFLICT (platform_id) DO NOTHING;

-- The processing state of a revision whose job has this status.
CREATE OR REPLACE FUNCTION dagapp.processing_state_of(job_status text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
SELECT CASE job_status
           WHEN 'pending' THEN 'queued'
           WHEN 'running' THEN 'processing'
           WHEN 'completed' THEN 'completed'
           WHEN 'partial_success' THEN 'completed'
           ELSE 'failed'
       END
$$;

-- Another version of the asset that was made of the same bytes. ETags differ if the bytes have another name, so this is
-- known only when a job has computed the hash of its source.
CREATE OR REPLACE FUNCTION dagapp.version_with_same_content(of_asset text, except_ordinal integer, hash text) RETURNS integer
LANGUAGE sql STABLE
AS $$
SELECT min(other.version_ordinal)
  FROM dagapp.asset_revisions AS other
  JOIN dagapp.asset_versions AS version USING (asset_id, version_ordinal)
 WHERE other.content_hash = hash
   AND other.asset_id = of_asset
   AND other.version_ordinal <> except_ordinal
   AND other.revision = version.revision
   AND version.deleted_at IS NULL
$$;

-- One finding in the form in which a revision keeps it; null if the value is no finding. Handlers may report any value.
CREATE OR REPLACE FUNCTION dagapp.finding_of(reported jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
SELECT jsonb_strip_nulls(jsonb_build_object(
           'code', left(reported ->> 'code', 200),
           'severity', CASE WHEN reported ->> 'severity' IN ('warn', 'error') THEN reported ->> 'severity' ELSE 'info' END,
           'message', left(reported ->> 'message', 2000),
           'hint', left(coalesce(nullif(reported ->> 'hint', ''), nullif(reported ->> 'advice', '')), 2000),
           'fix', left(reported ->> 'fix', 200),
           'stage', left(reported ->> 'stage', 200),
           'count', CASE WHEN reported ->> 'count' ~ '^[1-9][0-9]{0,8}$' THEN (reported ->> 'count')::integer ELSE 1 END,
           'places', (SELECT jsonb_agg(left(place #>> '{}', 300))
                        FROM jsonb_path_query_array(reported, '$.places[0 to 4] ? (@.type() == "string")') AS places,
                             jsonb_array_elements(places) AS place)
       ))
 WHERE reported ->> 'code' <> '' AND reported ->> 'message' <> ''
$$;

-- The findings of a job that has ended, each code once, the most severe first: those of its result, and what made its
-- data unfit. Without a result, those of its nodes.
CREATE OR REPLACE FUNCTION dagapp.findings_of_job(of_job uuid, result jsonb) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
WITH reported AS (
    SELECT 1 AS place, finding, number
      FROM jsonb_path_query_array(result, '$.findings[0 to 99]') AS findings,
           jsonb_array_elements(findings) WITH ORDINALITY AS each (finding, number)
    UNION ALL
    SELECT 2, finding, number
      FROM dagapp.dag_node_states AS node,
           jsonb_path_query_array(node.output, '$.findings[0 to 99]') AS findings,
           jsonb_array_elements(findings) WITH ORDINALITY AS each (finding, number)
     WHERE node.job_id = of_job
       AND node.parent_node_id IS NULL
       AND NOT coalesce(result ? 'findings', false)
    UNION ALL
    SELECT 3, node.error || '{"severity": "error"}', 0
      FROM dagapp.dag_node_states AS node
     WHERE node.job_id = of_job AND node.status = 'failed' AND node.error ->> 'blame' = 'data'
), kept AS (
    SELECT DISTINCT ON (finding ->> 'code') place, number, finding
      FROM (SELECT place, number, dagapp.finding_of(reported.finding) AS finding FROM reported) AS valid
     WHERE finding IS NOT NULL
     ORDER BY finding ->> 'code', place, number
), worst AS (
    SELECT finding, row_number() OVER (ORDER BY array_position('{error,warn,info}'::text[], finding ->> 'severity'), place, number) AS rank
      FROM kept
)
SELECT coalesce(jsonb_agg(finding ORDER BY rank), '[]') FROM worst WHERE rank <= 100
$$;

-- Record that a job started, ended or was resumed. Runs in the transaction that changes the job: it happens exactly
-- once, even if a process dies. Locks: the job (held), then the version, then the revision; reviewers lock the asset,
-- then versions, then revisions, and never a job.
CREATE OR REPLACE FUNCTION dagapp.follow_job() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    state text := dagapp.processing_state_of(NEW.status);
    result jsonb := CASE jsonb_typeof(NEW.result_data) WHEN 'object' THEN NEW.result_data ELSE '{}'::jsonb END;
    place record;
    twin integer;
BEGIN
    UPDATE dagapp.asset_versions
       SET processing_state = state, updated_at = dagapp.clock()
     WHERE asset_id = NEW.asset_id
       AND version_ordinal = NEW.version_ordinal
       AND current_job_id = NEW.job_id;
    UPDATE dagapp.asset_revisions AS revision
       SET processing_state = state,
           is_partial = NEW.status = 'partial_success',
           is_unfit = state = 'failed' AND EXISTS (
               SELECT
                 FROM dagapp.dag_node_states AS node
                WHERE node.job_id = NEW.job_id AND node.status = 'failed' AND node.error ->> 'blame' = 'data'
           ),
           error_message = CASE WHEN state = 'failed' THEN coalesce(NEW.error_message, NEW.status) END,
           content_hash = coalesce(result ->> 'content_hash', revision.content_hash),
           outputs = revision.outputs || jsonb_strip_nulls(jsonb_build_object(
               'blob_path', result -> 'blob_path',
               'table_name', result -> 'table_name',
               'stac_item_id', result -> 'stac_item_id',
               'stac_collection_id', result -> 'stac_collection_id'
           )),
           findings = CASE WHEN state IN ('completed', 'failed') THEN dagapp.findings_of_job(NEW.job_id, result) END,
           processed_at = CASE WHEN state IN ('completed', 'failed') THEN dagapp.clock() END,
           review_notified_at = CASE WHEN state = 'completed' THEN revision.review_notified_at END
     WHERE revision.job_id = NEW.job_id
    RETURNING revision.version_ordinal, revision.revision, revision.content_hash INTO place;
    IF place IS NULL THEN
        RETURN NULL;
    END IF;
    IF NEW.status = 'running' AND OLD.status = 'pending' THEN
        PERFORM dagapp.record_beginning_callbacks(NEW.asset_id);
        RETURN NULL;
    END IF;
    IF state = 'completed' THEN
        twin := dagapp.version_with_same_content(NEW.asset_id, place.version_ordinal, place.content_hash);
    END IF;
    IF twin IS NOT NULL THEN
        UPDATE dagapp.asset_revisions SET same_content_as = twin WHERE job_id = NEW.job_id;
    END IF;
    INSERT INTO dagapp.asset_events (asset_id, version_ordinal, revision, action, actor, reason, detail)
    VALUES (NEW.asset_id, place.version_ordinal, place.revision,
            CASE state WHEN 'completed' THEN 'processed' WHEN 'failed' THEN 'processing_failed' ELSE 'processing_resumed' END,
            'dagmaster',
            CASE WHEN state = 'failed' THEN coalesce(NEW.error_message, NEW.status) END,
            jsonb_build_object('job_id', NEW.job_id, 'job_status', NEW.status)
            || jsonb_strip_nulls(jsonb_build_object('same_content_as', twin)));
    RETURN NULL;
END
$$;

-- Revisions of releases that left the findings in the job: as long as the job exists, they are taken from it. `deploy`
-- runs this file on tables of earlier releases too, which get the column later, by `migrate`.
DO $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM information_schema.columns
         WHERE table_schema = 'dagapp' AND table_name = 'asset_revisions' AND column_name = 'findings'
    ) THEN
        RETURN;
    END IF;
    WITH unknown AS (
        SELECT revision.asset_id, revision.version_ordinal, revision.revision, job.job_id, job.result_data
          FROM dagapp.asset_revisions AS revision
          JOIN dagapp.dag_jobs AS job USING (job_id)
         WHERE revision.findings IS NULL
           AND revision.processing_state IN ('completed', 'failed')
         ORDER BY revision.asset_id, revision.version_ordinal, revision.revision
           FOR UPDATE OF revision SKIP LOCKED
    )
    UPDATE dagapp.asset_revisions AS revision
       SET findings = dagapp.findings_of_job(unknown.job_id, unknown.result_data)
      FROM unknown
     WHERE (revision.asset_id, revision.version_ordinal, revision.revision)
         = (unknown.asset_id, unknown.version_ordinal, unknown.revision);
END
$$;

-- Retention deletes jobs that have ended; a revision whose job was deleted before its end will never be processed.
CREATE OR REPLACE FUNCTION dagapp.forget_job() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE dagapp.asset_versions
       SET processing_state = 'failed', updated_at = dagapp.clock()
     WHERE asset_id = OLD.asset_id
       AND version_ordinal = OLD.version_ordinal
       AND current_job_id = OLD.job_id
       AND processing_state IN ('queued', 'processing');
    WITH failed AS (
        UPDATE dagapp.asset_revisions
           SET processing_state = 'failed', error_message = 'its job was deleted', processed_at = dagapp.clock()
         WHERE job_id = OLD.job_id
           AND processing_state IN ('queued', 'processing')
        RETURNING asset_id, version_ordinal, revision, error_message
    )
    INSERT INTO dagapp.asset_events (asset_id, version_ordinal, revision, action, actor, reason, detail)
    SELECT asset_id, version_ordinal, revision, 'processing_failed', 'dagmaster', error_message,
           jsonb_build_object('job_id', OLD.job_id, 'job_status', OLD.status)
      FROM failed;
    RETURN NULL;
END
$$;

-- A job whose results were reviewed or purged does not run again: what was approved must not change.
CREATE OR REPLACE FUNCTION dagapp.refuse_rerun() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    reviewed record;
BEGIN
    SELECT version_ordinal, revision, coalesce(reviewed_as, 'purged') AS decision
      INTO reviewed
      FROM dagapp.asset_revisions
     WHERE job_id = NEW.job_id AND (reviewed_as IS NOT NULL OR purge_started_at IS NOT NULL)
       FOR SHARE;
    IF reviewed IS NOT NULL THEN
        RAISE EXCEPTION 'version %, revision % was reviewed (%): its job cannot run again',
              reviewed.version_ordinal, reviewed.revision, reviewed.decision
              USING ERRCODE = 'DM005', HINT = 'submit it again: that makes a new revision';
    END IF;
    RETURN NEW;
END
$$;

-- Documents of a revision that was reviewed or purged do not change. The revision is locked before it is read: a
-- reviewer who has not committed yet is waited for.
CREATE OR REPLACE FUNCTION dagapp.refuse_document() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    reviewed text;
BEGIN
    SELECT coalesce(revision.reviewed_as, CASE WHEN revision.purge_started_at IS NOT NULL THEN 'purged' END)
      INTO reviewed
      FROM dagapp.geospatial_assets AS asset
      JOIN dagapp.asset_revisions AS revision USING (asset_id)
     WHERE asset.dataset_id = NEW.dataset_id
       AND revision.version_ordinal = NEW.version_ordinal
       AND revision.revision = NEW.revision
       FOR SHARE OF revision;
    IF reviewed IS NOT NULL THEN
        RAISE EXCEPTION 'version %, revision % of % was reviewed (%): its documents cannot change',
              NEW.version_ordinal, NEW.revision, NEW.dataset_id, reviewed
              USING ERRCODE = 'DM005', HINT = 'submit it again: that makes a new revision';
    END IF;
    RETURN NEW;
END
$$;

-- The difference between a STAC document and a base, in the form in which pgSTAC stores items: equal values are left
-- out, and values that only the base has are marked. pgSTAC's own function needs 6 ms for an item, because it visits
-- every value of the item; this function visits only values that the base also has.
CREATE OR REPLACE FUNCTION dagapp.stac_difference(document jsonb, base jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    absent constant jsonb := '"𒍟※"';
    difference jsonb := document;
    name text;
    shared jsonb;
    own jsonb;
BEGIN
    IF jsonb_typeof(document) = 'array' AND jsonb_typeof(base) = 'array'
       AND jsonb_array_length(document) = jsonb_array_length(base) THEN
        RETURN coalesce(
            (
                SELECT jsonb_agg(dagapp.stac_difference(pair.own, pair.shared) ORDER BY pair.place)
                  FROM ROWS FROM (jsonb_array_elements(document), jsonb_array_elements(base))
                       WITH ORDINALITY AS pair (own, shared, place)
            ),
            '[]'::jsonb
        );
    END IF;
    IF jsonb_typeof(document) IS DISTINCT FROM 'object' OR jsonb_typeof(base) IS DISTINCT FROM 'object' THEN
        RETURN document;
    END IF;
    FOR name, shared IN SELECT key, value FROM jsonb_each(base) LOOP
        own := document -> name;
        CONTINUE WHEN jsonb_typeof(shared) = 'null';
        IF own = shared THEN
            difference := difference - name;
        ELSIF own IS NULL OR jsonb_typeof(own) = 'null' THEN
            difference := difference || jsonb_build_object(name, absent);
        ELSIF jsonb_typeof(own) = jsonb_typeof(shared) AND jsonb_typeof(own) IN ('object', 'array') THEN
            difference := difference || jsonb_build_object(name, dagapp.stac_difference(own, shared));
        END IF;
    END LOOP;
    RETURN difference;
END
$$;
