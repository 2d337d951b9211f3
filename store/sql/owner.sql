-- owner.sql - whose schema is it? Run before each step, in its transaction.
--
-- A role that owns the schema `latchkey`, or a thing in it, or may create one
-- there, can have his own code run by the role that migrates, and by the
-- daemon. So nothing in the schema is even read before this holds: the schema
-- and all that is in it belong to the current role, and no other may create
-- anything there. Then no other can change that before COMMIT. A schema that
-- is not there is made
-- here: if another role makes it at the same moment, this step is tried again,
-- and finds it.

SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
DECLARE
    mine pg_catalog.pg_roles;
    space pg_catalog.pg_namespace;
    other record;
BEGIN
    SELECT * INTO STRICT mine FROM pg_catalog.pg_roles
    WHERE rolname = current_user;
    IF mine.rolsuper THEN
        RAISE WARNING 'functions of the schema "latchkey" that apps call will '
            'run with the rights of %, a superuser', current_user
            USING HINT = 'Better give it an owner of its own: CREATE ROLE '
                'latchkey_owner LOGIN; CREATE SCHEMA latchkey AUTHORIZATION '
                'latchkey_owner; and run latchkey migrate as that role.';
    END IF;

    SELECT * INTO space FROM pg_catalog.pg_namespace
    WHERE nspname = 'latchkey';
    IF NOT FOUND THEN
        BEGIN
            CREATE SCHEMA latchkey;
        EXCEPTION
            WHEN duplicate_schema OR unique_violation THEN
                RAISE EXCEPTION 'another role has just made the schema '
                    '"latchkey"' USING ERRCODE = 'lock_not_available';
            WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'the schema "latchkey" cannot be created: %',
                    SQLERRM
                    USING ERRCODE = 'insufficient_privilege',
                    HINT = pg_catalog.format('Have an administrator run: '
                        'CREATE SCHEMA latchkey AUTHORIZATION %I; and then run '
                        'latchkey migrate again.', current_user);
        END;
        RETURN;
    END IF;

    IF space.nspowner <> mine.oid THEN
        RAISE EXCEPTION 'the schema "latchkey" belongs to the role %, not to '
            '%, and its owner can replace what is in it',
            pg_catalog.pg_get_userbyid(space.nspowner), current_user
            USING ERRCODE = 'insufficient_privilege',
            HINT = 'If that role made it with latchkey migrate, run this as '
                'that role; else use a database that has no such schema.';
    END IF;

    SELECT CASE grantee WHEN 0 THEN 'PUBLIC'
               ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(grantee))
           END AS name INTO other
    FROM pg_catalog.aclexplode(space.nspacl)
    WHERE privilege_type = 'CREATE' AND grantee <> mine.oid
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the role % may create objects in the schema '
            '"latchkey", and could put its own code there', other.name
            USING ERRCODE = 'insufficient_privilege',
            HINT = pg_catalog.format('Run: REVOKE CREATE ON SCHEMA latchkey '
                'FROM %s;', other.name);
    END IF;

    SELECT pg_catalog.pg_describe_object(class, id, 0) AS name, owner
    INTO other
    FROM (SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass AS class, oid AS id,
              proowner AS owner, pronamespace AS place
          FROM pg_catalog.pg_proc
          UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, oid,
              relowner, relnamespace FROM pg_catalog.pg_class
          UNION ALL SELECT 'pg_catalog.pg_type'::pg_catalog.regclass, oid,
              typowner, typnamespace FROM pg_catalog.pg_type
          UNION ALL SELECT 'pg_catalog.pg_operator'::pg_catalog.regclass, oid,
              oprowner, oprnamespace FROM pg_catalog.pg_operator) AS thing
    WHERE place = space.oid
    -- Without a table "meta" nothing in it is Latchkey's.
    AND (owner <> mine.oid
         OR NOT EXISTS (SELECT FROM pg_catalog.pg_class
                        WHERE relnamespace = space.oid AND relname = 'meta'
                        AND relkind = 'r'))
    ORDER BY owner = mine.oid, class::pg_catalog.oid DESC, id
    LIMIT 1;
    IF FOUND AND other.owner <> mine.oid THEN
        RAISE EXCEPTION 'the % belongs to the role %, not to %, and could be '
            'replaced', other.name,
            pg_catalog.pg_get_userbyid(other.owner), current_user
            USING ERRCODE = 'insufficient_privilege',
            HINT = 'Have an administrator drop it, or look at it and give it '
                'to the owner of the schema.';
    ELSIF FOUND THEN
        RAISE EXCEPTION 'the schema "latchkey" is not Latchkey''s: the % is '
            'in it, but no table "meta"', other.name
            USING ERRCODE = 'invalid_schema_name',
            HINT = 'Use another database, or have that schema renamed.';
    END IF;
END
$$;
