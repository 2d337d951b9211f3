-- 07_grants.sql - who may do what. The last file: it speaks of all that is
-- there.
--
-- The public may do nothing. The daemon reads and writes the tables and calls
-- every function but those for apps; it deletes no audit entry. Apps call the
-- functions that run with the rights of their owner (03_app.sql), and nothing
-- else: SECURITY DEFINER is what makes a function one for apps.

REVOKE ALL ON SCHEMA latchkey FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA latchkey FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA latchkey FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA latchkey FROM PUBLIC;
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

GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA latchkey TO latchkey_daemon;
DO $$
DECLARE
    for_apps pg_catalog.regprocedure;
BEGIN
    FOR for_apps IN
        SELECT p.oid FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = 'latchkey'::pg_catalog.regnamespace
          AND p.prosecdef
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM '
            'latchkey_daemon; GRANT EXECUTE ON FUNCTION %1$s TO latchkey_app',
            for_apps);
    END LOOP;
END
$$;
