-- Callbacks are recorded in the transaction in which the status changes, so that each is recorded exactly once, even if
-- a process dies. Triggers call these functions (database/schema/guards.py).

-- The status of a request as partners see it, and the reason if there is one: from the rows of its asset, its version
-- and its revision. Polling and callbacks both use it.
CREATE OR REPLACE FUNCTION dagapp.request_status(
    asset dagapp.geospatial_assets, version dagapp.asset_versions, revision dagapp.asset_revisions
) RETURNS TABLE (status text, reason text)
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
SELECT outcome.status,
       CASE
           WHEN outcome.is_deleted THEN 'deleted'
           -- Without the name of the node: partners do not know the nodes of a job.
           WHEN outcome.status IN ('failed', 'invalid') THEN regexp_replace(revision.error_message, '^node ''[^'']*'' failed: ', '')
           WHEN outcome.status = 'rejected' THEN version.rejection_reason
           WHEN outcome.status <> 'unpublished' OR version.unpublished_at IS NOT NULL AND revision.reviewed_as = 'approved' THEN NULL
           WHEN revision.reviewed_as = 'approved' THEN 'superseded by revision ' || version.approved_revision
           ELSE 'superseded by revision ' || version.revision
       END
  FROM (
           SELECT asset.deleted_at IS NOT NULL OR version.deleted_at IS NOT NULL AS is_deleted,
                  CASE
                      WHEN asset.deleted_at IS NOT NULL OR version.deleted_at IS NOT NULL THEN 'unpublished'
                      WHEN revision.processing_state = 'queued' THEN 'received'
                      WHEN revision.processing_state = 'processing' THEN 'processing'
                      WHEN revision.processing_state = 'failed' AND revision.is_unfit THEN 'invalid'
                      WHEN revision.processing_state = 'failed' THEN 'failed'
                      WHEN revision.reviewed_as = 'rejected' THEN 'rejected'
                      WHEN revision.reviewed_as = 'approved' THEN
                          CASE
                              WHEN version.unpublished_at IS NOT NULL THEN 'unpublished'
                              WHEN version.approved_revision IS DISTINCT FROM revision.revision THEN 'unpublished'
                              WHEN asset.clearance_state <> 'public' THEN 'approved'
                              WHEN asset.exposure = 'all-versions' THEN 'published'
                              WHEN asset.latest_approved_version_ordinal = version.version_ordinal THEN 'published'
                              ELSE 'approved'
                          END
                      WHEN revision.revision < version.revision THEN 'unpublished'
                      WHEN revision.is_partial THEN 'partial'
                      ELSE 'awaiting_review'
                  END AS status
       ) AS outcome
$$;

-- The id of a request as its platform knows it. It differs from the stored id if another platform had used the id
-- before.
CREATE OR REPLACE FUNCTION dagapp.shown_request_id(stored text) RETURNS text
LANGUAGE sql STABLE
AS $$
SELECT CASE
           WHEN starts_with(stored, '~') THEN (SELECT request_id FROM dagapp.request_aliases WHERE stored_id = stored)
           ELSE stored
       END
$$;

-- Where the callback of a status goes: to the URL of the submission when processing has ended, or, if it has a
-- subscriber, to the URL for this kind of status. Null if it is not sent.
CREATE OR REPLACE FUNCTION dagapp.callback_url_for(of_kind text, of_subject text, url text, status text) RETURNS text
LANGUAGE sql STABLE
AS $$
SELECT CASE
           WHEN status IN ('received', 'pending') THEN NULL
           WHEN status IN ('processing', 'running') THEN subscriber.in_progress_uri
           WHEN subscriber.subject IS NULL THEN url
           WHEN status IN ('failed', 'invalid', 'cancelled', 'rejected', 'unpublished') THEN subscriber.failed_uri
           ELSE url
       END
  FROM (VALUES (of_kind, of_subject)) AS of (kind, subject)
  LEFT JOIN dagapp.callback_subscribers AS subscriber
    ON subscriber.kind = of.kind AND subscriber.subject = of.subject
$$;

-- Record callbacks of the requests of an asset whose status has changed, with the event that changed it. The row of a
-- request has its last status, so an event that changes nothing for a request causes no callback. If a version is
-- approved and published at once, there is a callback for each of the two statuses.
CREATE OR REPLACE FUNCTION dagapp.record_callbacks(about_asset text, by_event bigint) RETURNS void
LANGUAGE sql
AS $$
WITH changed AS (
    UPDATE dagapp.asset_submissions AS submission
       SET notified_status = present.status
      FROM (
               SELECT s.request_id, s.notified_status AS earlier_status, now.status
                 FROM dagapp.asset_submissions AS s
                 JOIN dagapp.geospatial_assets AS a
                   ON a.asset_id = s.asset_id
                 JOIN dagapp.asset_versions AS v
                   ON v.asset_id = s.asset_id AND v.version_ordinal = s.version_ordinal
                 JOIN dagapp.asset_revisions AS r
                   ON r.asset_id = s.asset_id AND r.version_ordinal = s.version_ordinal AND r.revision = s.revision
                CROSS JOIN LATERAL dagapp.request_status(a, v, r) AS now
                WHERE s.asset_id = about_asset AND s.callback_url IS NOT NULL
           ) AS present
     WHERE submission.request_id = present.request_id
       AND submission.notified_status IS DISTINCT FROM present.status
    RETURNING submission.request_id, submission.platform_id, submission.callback_url, present.status, present.earlier_status
)
INSERT INTO dagapp.callback_events (request_id, platform_id, status, url, asset_event_id)
SELECT dagapp.shown_request_id(changed.request_id), changed.platform_id, sent.status, target.url, by_event
  FROM changed
 CROSS JOIN LATERAL unnest(
           CASE
               WHEN changed.status = 'published' AND changed.earlier_status IN ('awaiting_review', 'partial')
                   THEN ARRAY['approved', 'published']
               ELSE ARRAY[changed.status]
           END) WITH ORDINALITY AS sent (status, place)
 CROSS JOIN LATERAL (
           SELECT dagapp.callback_url_for('request', changed.request_id, changed.callback_url, sent.status) AS url
       ) AS target
 WHERE target.url IS NOT NULL
 ORDER BY changed.request_id, sent.place
    ON CONFLICT DO NOTHING;
$$;

-- Record callbacks when processing has begun, which is no event of the asset: only if a subscriber has a URL for this
-- status.
CREATE OR REPLACE FUNCTION dagapp.record_beginning_callbacks(about_asset text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF EXISTS (
        SELECT
          FROM dagapp.asset_submissions AS submission
          JOIN dagapp.callback_subscribers AS subscriber
            ON subscriber.kind = 'request' AND subscriber.subject = submission.request_id
         WHERE submission.asset_id = about_asset AND subscriber.in_progress_uri IS NOT NULL
    ) THEN
        PERFORM dagapp.record_callbacks(
            about_asset, (SELECT coalesce(max(event_id), 0) FROM dagapp.asset_events WHERE asset_id = about_asset)
        );
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION dagapp.record_event_callbacks() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM dagapp.record_callbacks(NEW.asset_id, NEW.event_id);
    RETURN NULL;
END
$$;

-- A request for a revision that exists gets a callback at once: the revision may never change again.
CREATE OR REPLACE FUNCTION dagapp.record_request_callbacks() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM dagapp.record_callbacks(
        NEW.asset_id, (SELECT coalesce(max(event_id), 0) FROM dagapp.asset_events WHERE asset_id = NEW.asset_id)
    );
    RETURN NULL;
END
$$;

-- Record a callback for the beginning or the end of a job that belongs to no asset. Such a job has no platform; the
-- secret of this installation signs its callback.
CREATE OR REPLACE FUNCTION dagapp.record_job_callback() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO dagapp.callback_events (request_id, platform_id, status, url, job_id, resume_count)
    SELECT coalesce(NEW.correlation_id, NEW.job_id::text), 'local', NEW.status, target.url, NEW.job_id, NEW.resume_count
      FROM (SELECT dagapp.callback_url_for('job', NEW.job_id::text, NEW.callback_url, NEW.status) AS url) AS target
     WHERE target.url IS NOT NULL
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
