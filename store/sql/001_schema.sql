-- 001_schema.sql - the tables of Latchkey in PostgreSQL, and who may use them.
--
-- PostgreSQL 13 or later, plain SQL, no extension, no superuser. The file is
-- run as a whole in one transaction by `latchkey migrate`, which sets
-- meta.version itself. Everything is in the schema `latchkey`, which owner.sql
-- has made or looked at.
--
-- Two roles, both without a login; give them to the logins of the daemon and
-- of the apps:   GRANT latchkey_daemon TO some_login;
--   latchkey_daemon  reads and writes the tables
--   latchkey_app     calls the functions of 003_app.sql and nothing else
-- The public may do nothing.
--
-- Times are milliseconds since 1970 by the server's clock (names end in _ms);
-- the view latchkey.operations shows them as timestamps.
--
-- Names (tenant, scope, key), fingerprints, owners and reasons are bytes for
-- Latchkey. As text they are escaped: a backslash is `\\`, and a byte that is
-- not part of valid UTF-8 is `\ooo`, three octal digits. Two names are equal
-- if their bytes are: hence COLLATE "C" everywhere.

-- Roles belong to all databases of a server, so they may be there already.
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['latchkey_daemon', 'latchkey_app'] LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles
                              WHERE rolname = wanted);
        BEGIN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', wanted);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN
                NULL; -- a migration of another database made it meanwhile
            WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'the role "%" cannot be created: %', wanted,
                    SQLERRM
                    USING ERRCODE = 'insufficient_privilege',
                    HINT = 'Have an administrator run: CREATE ROLE '
                        'latchkey_daemon NOLOGIN; CREATE ROLE latchkey_app '
                        'NOLOGIN; and then run latchkey migrate again.';
        END;
    END LOOP;
END
$$;

-- What concerns the store as a whole: version, secret, reference_secret. The
-- secrets are 32 hexadecimal digits; a UUID has only 122 random
-- bits, so two of them are hashed.
CREATE TABLE latchkey.meta (
    name  text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO latchkey.meta (name, value)
SELECT word, pg_catalog.left(pg_catalog.encode(pg_catalog.sha256(
    pg_catalog.uuid_send(pg_catalog.gen_random_uuid())
    || pg_catalog.uuid_send(pg_catalog.gen_random_uuid())), 'hex'), 32)
FROM pg_catalog.unnest(ARRAY['secret', 'reference_secret']) AS word;

-- Tokens: one for each claim that begins, never handed out twice. The number
-- of a record is its first token, and a reference has room for 48 bits. The
-- sequence leaps after a fail-over (latchkey.check_timeline).
CREATE SEQUENCE latchkey.token AS bigint
    MINVALUE 1 MAXVALUE 281474976710655 NO CYCLE CACHE 1;

-- The timeline of the server that the tokens are of; -1: not noted yet, 0: it
-- cannot be told. A sequence, because a leap is not undone when a transaction
-- is, so neither must this be: else each further try would leap again.
CREATE SEQUENCE latchkey.timeline AS bigint
    MINVALUE -1 START -1 NO CYCLE CACHE 1;

-- One row for each operation; the hot table, so the answers stand apart.
--
-- state        1 accepted, 2 in progress, 3 uncertain, 4 completed, 5 released
-- deadline_ms  in progress: the lock ends; accepted, uncertain: since when;
--              completed, released: forgotten then
-- generation   as number, but rises when the key is used anew after EVICT:
--              what is sent on in its name is then another operation
-- keep_ms      the TTL that KEEP asked for while the operation was open
-- reason       uncertain: why (null: its lock ran out); completed and omitted:
--              why the answer was not kept
--
-- Keys differ most, so the index of names begins with them: comparing equal
-- tenants and scopes first costs an eighth of the time of a claim.
-- (state, deadline_ms) serves the sweeper (2), the reaper (4, 5) and lists.
CREATE TABLE latchkey.operation (
    number       bigint   NOT NULL,
    tenant       text     COLLATE "C" NOT NULL,
    scope        text     COLLATE "C" NOT NULL,
    key          text     COLLATE "C" NOT NULL,
    state        smallint NOT NULL CHECK (state BETWEEN 1 AND 5),
    omitted      boolean  NOT NULL DEFAULT false,
    evicted      boolean  NOT NULL DEFAULT false,
    attempt      integer  NOT NULL,
    token        bigint   NOT NULL,
    generation   bigint   NOT NULL,
    claimed_ms   bigint   NOT NULL,
    deadline_ms  bigint   NOT NULL,
    ttl_ms       bigint   NOT NULL,
    keep_ms      bigint,
    completed_ms bigint,
    status       integer,
    fingerprint  text     COLLATE "C" NOT NULL,
    owner        text     COLLATE "C" NOT NULL,
    reason       text     COLLATE "C",
    CONSTRAINT operation_pkey PRIMARY KEY (number),
    CONSTRAINT operation_name UNIQUE (key, tenant, scope)
);
CREATE INDEX operation_due ON latchkey.operation (state, deadline_ms);

-- Every completion leaves a dead row behind, and names are random, so the
-- index grows in all places: vacuum early, in small steps, and without the
-- pauses that would let it fall behind.
ALTER TABLE latchkey.operation SET (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1,
    autovacuum_vacuum_cost_limit = 2000);

-- What a retry gets: only for completed operations whose answer was kept. A
-- large body is stored as it is: compressing it would cost each completion
-- more time than all the rest.
CREATE TABLE latchkey.answer (
    token   bigint PRIMARY KEY,
    headers bytea NOT NULL,
    body    bytea NOT NULL
);
ALTER TABLE latchkey.answer ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE latchkey.answer SET (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 1,
    autovacuum_vacuum_cost_limit = 2000,
    toast.autovacuum_vacuum_scale_factor = 0.05,
    toast.autovacuum_vacuum_cost_delay = 1,
    toast.autovacuum_vacuum_cost_limit = 2000);

-- What operators did. Nobody but the owner may change or delete a row.
CREATE TABLE latchkey.audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms  bigint NOT NULL,
    who    text COLLATE "C" NOT NULL,
    why    text COLLATE "C" NOT NULL,
    action text COLLATE "C" NOT NULL,
    tenant text COLLATE "C",
    scope  text COLLATE "C",
    key    text COLLATE "C",
    token  bigint
);

-- The outbox: calls to other services that an operation has left. The name is
-- unique within the operation, so that whoever runs again for the same
-- operation adds nothing; a new generation begins anew.
--
-- state  0 waiting, 1 on its way, 2 uncertain, 3 dead, 4 delivered, 5 dropped.
-- Up to 3 it is unfinished, and its operation is not forgotten.
CREATE TABLE latchkey.job (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    number     bigint   NOT NULL,
    generation bigint   NOT NULL,
    token      bigint   NOT NULL,
    name       text     COLLATE "C" NOT NULL,
    target     text     COLLATE "C" NOT NULL,
    method     text     COLLATE "C" NOT NULL,
    path       text     COLLATE "C" NOT NULL,
    headers    bytea    NOT NULL,
    body       bytea    NOT NULL,
    state      smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 5),
    attempts   integer  NOT NULL DEFAULT 0,
    created_ms bigint   NOT NULL,
    due_ms     bigint   NOT NULL,
    CONSTRAINT job_name UNIQUE (number, generation, name)
);
CREATE INDEX job_due ON latchkey.job (due_ms) WHERE state = 0;
CREATE INDEX job_unfinished ON latchkey.job (number) WHERE state < 4;
ALTER TABLE latchkey.job SET (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1,
    autovacuum_vacuum_cost_limit = 2000);

-- Who sweeps and reaps: whoever holds the lease, until it runs out.
CREATE TABLE latchkey.keeper (
    name     text COLLATE "C" PRIMARY KEY,
    holder   text COLLATE "C" NOT NULL,
    until_ms bigint NOT NULL
);

-- One row of latchkey.apply: what was decided about operation `at`.
CREATE TYPE latchkey.decision AS (
    at          integer,  -- its place in the arrays, from 1
    verdict     smallint, -- enum lk_verdict; -1: try again, another
                          -- transaction has it; -2: no such event; -3: its
                          -- job of that name makes another call
    state       smallint, -- enum lk_state, after the step; 0: absent
    token       bigint,
    attempt     integer,
    number      bigint,   -- 0: not known yet, its claim is not committed
    deadline_ms bigint,
    now_ms      bigint,
    reason      text,     -- of UNCERTAIN and OMITTED
    changed_ms  bigint,   -- completed, in doubt or claimed since
    settles     boolean,  -- whoever waits for it is to be told
    lock_id     bigint
);

-- What latchkey.claim answers.
CREATE TYPE latchkey.verdict AS (
    verdict     text,        -- NEW, REPLAY, OMITTED, INFLIGHT, ACCEPTED,
                             -- UNCERTAIN or MISMATCH
    token       bigint,      -- NEW: show it to complete, release, ...
    attempt     integer,     -- NEW: 1 for the first
    status      integer,     -- REPLAY, OMITTED
    headers     bytea,       -- REPLAY
    body        bytea,       -- REPLAY
    retry_after interval,    -- INFLIGHT
    since       timestamptz, -- REPLAY, OMITTED, UNCERTAIN, ACCEPTED
    expires     timestamptz, -- NEW: the lock; REPLAY, OMITTED: the answer
    reason      text         -- OMITTED, UNCERTAIN
);

-- What latchkey.lookup answers.
CREATE TYPE latchkey.record AS (
    state     text,
    token     bigint,
    attempt   integer,
    claimed   timestamptz,
    locked    timestamptz, -- in_progress: until then
    since     timestamptz, -- uncertain, accepted
    completed timestamptz,
    expires   timestamptz, -- completed, released
    status    integer,
    headers   bytea,
    body      bytea,
    omitted   boolean,
    reason    text
);

-- For people: words and timestamps. What is past its time is not shown.
CREATE VIEW latchkey.operations AS
SELECT o.number, o.tenant, o.scope, o.key,
    (ARRAY['accepted', 'in_progress', 'uncertain', 'completed',
           'released'])[o.state] AS state,
    o.token, o.attempt, o.status, o.omitted, o.reason,
    pg_catalog.to_timestamp(o.claimed_ms / 1000.0) AS claimed,
    CASE WHEN o.state = 2
         THEN pg_catalog.to_timestamp(o.deadline_ms / 1000.0) END AS locked,
    CASE WHEN o.state IN (1, 3)
         THEN pg_catalog.to_timestamp(o.deadline_ms / 1000.0) END AS since,
    pg_catalog.to_timestamp(o.completed_ms / 1000.0) AS completed,
    CASE WHEN o.state IN (4, 5)
         THEN pg_catalog.to_timestamp(o.deadline_ms / 1000.0) END AS expires
FROM latchkey.operation o
WHERE o.state < 4
   OR o.deadline_ms > extract(epoch FROM pg_catalog.clock_timestamp()) * 1000;

COMMENT ON SCHEMA latchkey IS
    'Latchkey: which operations run, have run, and what they answered';
COMMENT ON TABLE latchkey.operation IS
    'one row for each operation; changed by the functions of this schema only';
COMMENT ON TABLE latchkey.answer IS 'what retries of completed operations get';
COMMENT ON TABLE latchkey.audit IS 'what operators did, and why';
COMMENT ON TABLE latchkey.job IS 'outbox: calls to other services';
COMMENT ON TABLE latchkey.keeper IS 'who sweeps and reaps at present';
COMMENT ON TABLE latchkey.meta IS 'version and secrets of this store';
COMMENT ON VIEW latchkey.operations IS 'operations with words and timestamps';
COMMENT ON SEQUENCE latchkey.token IS 'never set it back';
COMMENT ON SEQUENCE latchkey.timeline IS 'of the server that gave the tokens';

REVOKE ALL ON SCHEMA latchkey FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA latchkey FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA latchkey FROM PUBLIC;
GRANT USAGE ON SCHEMA latchkey TO latchkey_daemon, latchkey_app;
GRANT SELECT, INSERT, UPDATE, DELETE
    ON latchkey.operation, latchkey.answer, latchkey.job, latchkey.keeper
    TO latchkey_daemon;
GRANT SELECT, INSERT ON latchkey.audit TO latchkey_daemon;
GRANT SELECT, INSERT, UPDATE ON latchkey.meta TO latchkey_daemon;
GRANT SELECT ON latchkey.operations TO latchkey_daemon;
GRANT SELECT, USAGE, UPDATE ON SEQUENCE latchkey.token, latchkey.timeline
    TO latchkey_daemon;
