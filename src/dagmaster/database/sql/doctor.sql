-- name: doctor_server
-- The version of the server, whether it accepts writes, and the connections in use, of all clients.
SELECT current_setting('server_version') AS version,
       current_setting('server_version_num')::int AS version_number,
       pg_is_in_recovery() AS is_standby,
       current_setting('default_transaction_read_only') = 'on' AS is_read_only,
       pg_backend_pid() AS backend_pid,
       (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections;

-- name: doctor_settings
-- Settings as they are for a session that changes none of them; sizes in bytes, times in seconds.
SELECT name,
       CASE unit
            WHEN '8kB' THEN (setting::numeric * 8192)::text
            WHEN 'ms' THEN trim_scale(setting::numeric / 1000)::text
            ELSE setting
       END AS value
  FROM pg_settings
 WHERE name IN (
       'autovacuum', 'default_transaction_isolation', 'fsync', 'full_page_writes', 'idle_session_timeout', 'jit',
       'max_connections', 'reserved_connections', 'shared_buffers', 'superuser_reserved_connections',
       'synchronous_commit', 'track_counts', 'transaction_timeout');

-- name: doctor_extension
-- An extension that the server offers, and whether it is installed.
SELECT default_version AS available, installed_version AS installed
  FROM pg_available_extensions
 WHERE name = %(name)s;

-- name: doctor_clock
-- The server's time, in seconds.
SELECT extract(epoch FROM clock_timestamp())::float8 AS now;

-- name: doctor_rights
-- The rights that the engine needs and this role lacks.
SELECT 'schema' AS kind, n.nspname AS name, 'USAGE' AS lacking
  FROM pg_namespace n
 WHERE n.nspname = %(schema)s AND NOT has_schema_privilege(n.oid, 'USAGE')
 UNION ALL
SELECT 'table', c.relname, string_agg(p.name, ', ' ORDER BY p.name)
  FROM pg_class c
  JOIN pg_namespace n
    ON n.oid = c.relnamespace
 CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (name)
 WHERE n.nspname = %(schema)s
   AND c.relkind IN ('r', 'p')
   AND NOT c.relispartition
   AND (p.name = 'SELECT' OR c.relname <> 'schema_info')
   AND NOT has_table_privilege(c.oid, p.name)
 GROUP BY c.relname
 UNION ALL
SELECT 'sequence', c.relname, 'USAGE'
  FROM pg_class c
  JOIN pg_namespace n
    ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s
       -- has_sequence_privilege raises an error for other relations, and conditions are evaluated in any order.
   AND CASE c.relkind WHEN 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE') ELSE false END
 UNION ALL
SELECT 'function', f.proname, 'EXECUTE'
  FROM pg_proc f
  JOIN pg_namespace n
    ON n.oid = f.pronamespace
 WHERE n.nspname = %(schema)s AND NOT has_function_privilege(f.oid, 'EXECUTE')
 ORDER BY 1, 2;

-- name: doctor_role
-- This role, and whether it may create the schema.
SELECT rolname AS name, rolsuper AS is_superuser, to_regnamespace(%(schema)s) IS NOT NULL AS has_schema,
       has_database_privilege(current_database(), 'CREATE') AS may_create
  FROM pg_roles
 WHERE rolname = current_user;

-- name: doctor_instances
-- Orchestrators and workers by their last heartbeat, the newest first.
SELECT 'orchestrator' AS role, host, pid, software_version AS version,
       extract(epoch FROM dagapp.clock() - heartbeat_at)::float8 AS silent_seconds,
       ARRAY[]::text[] AS queues, ARRAY[]::text[] AS handlers
  FROM dagapp.orchestrators
 UNION ALL
SELECT 'worker', host, pid, software_version, extract(epoch FROM dagapp.clock() - heartbeat_at)::float8, queues,
       handlers
  FROM dagapp.workers
 ORDER BY silent_seconds
 LIMIT 1000;

-- name: doctor_open_jobs
-- Jobs that have not ended; counted up to a limit.
SELECT count(*)::int AS count
  FROM (SELECT 1
          FROM dagapp.dag_jobs
         WHERE status IN ('pending', 'running')
         LIMIT 10000) AS open;

-- name: doctor_queued
-- Tasks that wait for a worker, by queue and handler; counted up to a limit.
SELECT queue, handler, count(*)::int AS count
  FROM (SELECT queue, handler
          FROM dagapp.dag_tasks
         WHERE status = 'queued'
         LIMIT 10000) AS waiting
 GROUP BY queue, handler
 ORDER BY queue, handler;

-- name: doctor_oldest_transaction
-- The transaction that has been open for the longest time: VACUUM cannot remove rows deleted since. Its query text is
-- not read.
SELECT seconds, who, state
  FROM (SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds,
               'process ' || pid || ' of ' || coalesce(usename, '?')
               || coalesce(' (' || nullif(application_name, '') || ')', '') AS who,
               state
          FROM pg_stat_activity
         WHERE xact_start IS NOT NULL AND backend_type = 'client backend' AND pid <> pg_backend_pid()
         UNION ALL
        SELECT extract(epoch FROM clock_timestamp() - prepared)::float8, 'prepared transaction of ' || owner, 'prepared'
          FROM pg_prepared_xacts) AS open
 ORDER BY seconds DESC
 LIMIT 1;
