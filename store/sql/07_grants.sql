-- 07_grants.sql - who may do what. The last file: it speaks of all that is
-- there.
--
-- The public may do nothing. The daemon reads and writes the tables, but deletes
-- no audit entry, and calls every function that runs with its own rights, so that
-- none of them lets it do more. Apps call nine functions, which run with the
-- rights of their owner (SECURITY DEFINER, 03_app.sql), and nothing else.

REVOKE ALL ON SCHEMA latchkey FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA latchkey FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA latchkey FROM PUBLIC;
GRANT USAGE ON SCHEMA latchkey TO latchkey_daemon, latchkey_app;

GRANT SELECT, INSERT, UPDATE, DELETE
    ON latchkey.operation, latchkey.answer, latchkey.job, latchkey.keeper,
       latchkey.attempt, latchkey.target, latchkey.used_name, latchkey.extension
    TO latchkey_daemon;
GRANT SELECT, INSERT ON latchkey.audit TO latchkey_daemon;
GRANT SELECT, INSERT, UPDATE ON latchkey.meta TO latchkey_daemon;
GRANT SELECT, INSERT, DELETE ON latchkey.forgotten TO latchkey_daemon;
GRANT SELECT ON latchkey.operations, latchkey.jobs TO latchkey_daemon;
GRANT SELECT, USAGE, UPDATE ON SEQUENCE latchkey.token, latchkey.timeline
    TO latchkey_daemon;
-- latchkey.check_timeline leaps.
GRANT USAGE, UPDATE ON SEQUENCE latchkey.job_id_seq TO latchkey_daemon;

-- A function that runs with the rights of its owner and has no name in this list
-- is callable by no one else, until it is added on purpose.
DO $$
DECLARE
    for_apps CONSTANT text[] := '{claim, complete, release, doubt, extend, keep,
        fence, enqueue, lookup}';
    -- Parts of these: they are called with the rights of the owner alone.
    internal CONSTANT text[] := '{take_text, take_key, take_ms, take_token,
        take_headers, path_fault, method_fault, headers_fault, target_fault,
        refuse, as_time, be_durable, hold, raise_stale, by_token, own}';
    routine record;
BEGIN
    FOR routine IN
        SELECT p.oid::pg_catalog.regprocedure AS name,
            CASE WHEN p.prosecdef AND p.proname = ANY (for_apps)
                 THEN 'latchkey_app'
                 WHEN NOT p.prosecdef AND p.proname <> ALL (internal)
                 THEN 'latchkey_daemon' END AS caller
        FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = 'latchkey'::pg_catalog.regnamespace
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC, '
            'latchkey_daemon, latchkey_app', routine.name);
        IF routine.caller IS NOT NULL THEN
            EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO %I',
                routine.name, routine.caller);
        END IF;
    END LOOP;
END
$$;
