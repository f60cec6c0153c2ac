-- What Prometheus reads about the database. The queues are read by other statements.

-- name: metrics_database
-- One row: size, connections, the oldest transaction, dead and live rows of the tables that change most, pending
-- callbacks, active jobs and dead letters. Callbacks and jobs are counted in partial indexes, and dead letters in their
-- table, which is small. The other values are read from the statistics of the server.
SELECT pg_database_size(current_database()) AS size_bytes,
       (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
       current_setting('max_connections')::int AS max_connections,
       (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - a.xact_start)), 0)::float8
          FROM pg_stat_activity a
         WHERE a.xact_start IS NOT NULL AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
       ) AS oldest_transaction_seconds,
       (SELECT jsonb_object_agg(s.relname, jsonb_build_object('live', s.n_live_tup, 'dead', s.n_dead_tup))
          FROM pg_stat_user_tables s
         WHERE s.schemaname = 'dagapp' AND s.relname = ANY (%(tables)s)) AS rows_by_table,
       (SELECT count(*)::int FROM dagapp.callback_events e WHERE e.state = 'pending') AS pending_callbacks,
       (SELECT coalesce(max(extract(epoch FROM dagapp.clock() - e.next_attempt_at)), 0)::float8
          FROM dagapp.callback_events e
         WHERE e.state = 'pending' AND e.next_attempt_at <= dagapp.clock()) AS callback_overdue_seconds,
       (SELECT count(*)::int FROM dagapp.dag_jobs j WHERE j.status IN ('pending', 'running')) AS active_jobs,
       (SELECT count(*)::int FROM dagapp.dag_dead_letters) AS dead_letters;
