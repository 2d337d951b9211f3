-- 01_schema.sql - the tables of Latchkey in PostgreSQL, and who may use them.
--
-- PostgreSQL 13 or later, plain SQL, no extension, no superuser. The file is
-- run as a whole in one transaction by `latchkey migrate`, which sets
-- meta.version itself. Everything is in the schema `latchkey`, which owner.sql
-- has made or looked at.
--
-- Two roles, both without a login; give them to the logins of the daemon and
-- of the apps:   GRANT latchkey_daemon TO some_login;
--   latchkey_daemon  reads and writes the tables
--   latchkey_app     calls the functions of 03_app.sql and nothing else
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
                NULL; -- a migration of another database made it in the meantime
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
-- of an operation is its first token, and a reference has room for 48 bits. The
-- sequence leaps after a failover (latchkey.check_timeline).
CREATE SEQUENCE latchkey.token AS bigint
    MINVALUE 1 MAXVALUE 281474976710655 NO CYCLE CACHE 1;

-- The timeline of the server that the tokens are of; -1: not noted yet, 0: it
-- cannot be told. A sequence, because a leap is not undone when a transaction
-- is, so neither must this be: else each further try would leap again.
CREATE SEQUENCE latchkey.timeline AS bigint
    MINVALUE -1 START -1 NO CYCLE CACHE 1;

-- One row for each operation; the hot table, so responses have a table of
-- their own.
--
-- state        enum lk_state; an absent operation has no row
-- deadline_ms  in progress: the lock ends; accepted, uncertain: since when;
--              completed, released: forgotten then
-- generation   as number, but rises when the key is used again after EVICT:
--              what is sent on in its name is then another operation
-- keep_ms      the TTL that KEEP asked for while the operation was open
-- reason       uncertain: why (null: its lock ran out); completed and omitted:
--              why the response was not kept
-- queued       the request of an asynchronous operation is a job that is not
--              finished. Only the courier, its holder or an operator ends it,
--              not the sweeper
--
-- Keys differ most, so the index of names begins with them: comparing equal
-- tenants and scopes first costs an eighth of the time of a claim.
-- (state, deadline_ms) serves the sweeper, the reaper and lists.
CREATE TABLE latchkey.operation (
    number       bigint   NOT NULL,
    tenant       text     COLLATE "C" NOT NULL,
    scope        text     COLLATE "C" NOT NULL,
    key          text     COLLATE "C" NOT NULL,
    state        smallint NOT NULL CHECK (state IN
        (@STATES_UNFINISHED@, @STATES_FINISHED@)),
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
    queued       boolean  NOT NULL DEFAULT false,
    CONSTRAINT operation_pkey PRIMARY KEY (number),
    CONSTRAINT operation_name UNIQUE (key, tenant, scope)
);
CREATE INDEX operation_due ON latchkey.operation (state, deadline_ms);
-- Which operation has that token? Nearly all have their number's; the index
-- holds the others.
CREATE INDEX operation_token ON latchkey.operation (token)
    WHERE token <> number;

-- Every completion leaves a dead row behind, and names are random, so the
-- index grows in all places: vacuum early, in small steps, and without the
-- pauses that would let it fall behind.
ALTER TABLE latchkey.operation SET (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1,
    autovacuum_vacuum_cost_limit = 2000);

-- What a retry gets: only for completed operations whose response was stored. A
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

-- What operators did. No one but the owner may change or delete a row.
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
-- The entries of one operation, without the scope, which may be longer than an
-- index takes; and those of one job.
CREATE INDEX audit_name ON latchkey.audit (tenant, key)
    WHERE tenant IS NOT NULL;
CREATE INDEX audit_token ON latchkey.audit (token);

-- The outbox: calls to other services that an operation has left. The name is
-- unique within the operation, so that an app that runs again for the same
-- operation adds nothing; a new generation begins again. A job without a name
-- is the request of its operation; its target is @gateway, and its token that
-- of the lease.
--
-- state        enum lk_job_state; an unfinished one keeps its operation
-- attempts     leases so far; the number of the last one is what its holder shows
-- forgiven     of these, not counted against the limit
-- called       the present attempt may have left
-- sent         any attempt may have left
-- doubt        one may have happened, and its response was lost
-- repeatable   a request that may run again
-- due_ms       waiting: not before; leased: the lease ends
-- ended_ms     since when it is what it is; 0: waiting or leased
-- since_ms     its age counts from here: an operator has ordered it again; 0:
--              since it was made
-- sent_ms      the lease of the first attempt that may have left, since an operator
--              said that none has happened; counts while `sent` or `called`; 0:
--              since it was made
-- status, provider_id, reason, answer_*: of the last attempt that ended
CREATE TABLE latchkey.job (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    number         bigint   NOT NULL,
    generation     bigint   NOT NULL,
    token          bigint   NOT NULL,
    name           text     COLLATE "C" NOT NULL,
    target         text     COLLATE "C" NOT NULL,
    method         text     COLLATE "C" NOT NULL,
    path           text     COLLATE "C" NOT NULL,
    headers        bytea    NOT NULL,
    body           bytea    NOT NULL,
    state          smallint NOT NULL DEFAULT @JOB_WAITING@
        CHECK (state BETWEEN @JOB_WAITING@ AND @JOB_DROPPED@),
    attempts       integer  NOT NULL DEFAULT 0,
    created_ms     bigint   NOT NULL,
    due_ms         bigint   NOT NULL,
    forgiven       integer  NOT NULL DEFAULT 0,
    called         boolean  NOT NULL DEFAULT false,
    sent           boolean  NOT NULL DEFAULT false,
    doubt          boolean  NOT NULL DEFAULT false,
    repeatable     boolean  NOT NULL DEFAULT false,
    ended_ms       bigint   NOT NULL DEFAULT 0,
    status         integer  NOT NULL DEFAULT 0,
    provider_id    text     COLLATE "C" NOT NULL DEFAULT '',
    reason         text     COLLATE "C" NOT NULL DEFAULT '',
    answer_headers bytea    NOT NULL DEFAULT '',
    answer_body    bytea    NOT NULL DEFAULT '',
    since_ms       bigint   NOT NULL DEFAULT 0,
    sent_ms        bigint   NOT NULL DEFAULT 0,
    CONSTRAINT job_name UNIQUE (number, generation, name)
);
ALTER TABLE latchkey.job ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE latchkey.job ALTER COLUMN answer_body SET STORAGE EXTERNAL;

-- Every index costs each lease and each end. Unfinished jobs of an operation
-- are found by job_name; what waits or is leased by job_due, by every courier
-- that leases; what needs attention is little, and in job_stuck. A provider's
-- id comes with the end of a job, so neither a lease nor a mark touches
-- job_provider.
CREATE INDEX job_due ON latchkey.job (target, state, due_ms)
    WHERE state < @JOB_UNCERTAIN@;
CREATE INDEX job_stuck ON latchkey.job (state, ended_ms)
    WHERE state IN (@JOBS_STUCK@);
CREATE INDEX job_provider ON latchkey.job (provider_id)
    WHERE provider_id <> '';

-- Each job leaves two dead rows on its way.
ALTER TABLE latchkey.job SET (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    toast.autovacuum_vacuum_scale_factor = 0.05,
    toast.autovacuum_vacuum_cost_delay = 1,
    toast.autovacuum_vacuum_cost_limit = 2000);

-- Attempts that failed, but for the last one, which is in the job.
CREATE TABLE latchkey.attempt (
    job      bigint  NOT NULL,
    number   integer NOT NULL,
    ended_ms bigint  NOT NULL,
    status   integer NOT NULL,
    called   boolean NOT NULL,
    reason   text    COLLATE "C" NOT NULL,
    body     bytea   NOT NULL,
    PRIMARY KEY (job, number)
);

-- Targets that are paused: nothing of theirs is leased.
CREATE TABLE latchkey.target (
    name      text   COLLATE "C" PRIMARY KEY,
    paused_ms bigint NOT NULL,
    who       text   COLLATE "C" NOT NULL,
    why       text   COLLATE "C" NOT NULL
);

-- Which use of a name has left jobs: the generation that the Idempotency-Key of
-- its jobs is made of. It is counted, so that an operation that was lost in a
-- failover, and is run again, makes the same calls under the same keys. A name
-- that is used again after its TTL or after EVICT is another use. The row
-- outlives its operation by 90 days (latchkey.use_until), longer than services
-- remember keys. Only names of operations with jobs have one.
--
-- name      latchkey.name_hash
-- number    of the operation: while that is there, the row stays
-- use       its generation, as the operation has it: a token, which tells the
--           uses apart but cannot be repeated
CREATE TABLE latchkey.used_name (
    name       bytea  NOT NULL,
    number     bigint NOT NULL,
    use        bigint NOT NULL,
    generation bigint NOT NULL,
    until_ms   bigint NOT NULL,
    CONSTRAINT used_name_pkey PRIMARY KEY (name)
);
CREATE INDEX used_name_until ON latchkey.used_name (until_ms);

-- Signs of life: until when EXTEND has prolonged the lock of a claim. Apart
-- from the operation, so that a transaction of an app that began before the
-- last one can still complete it (in REPEATABLE READ a row that has changed
-- since cannot be updated), and so that no index changes with each. The lock
-- ends at the later of the two. A row that is past says nothing any more, and
-- goes.
CREATE TABLE latchkey.extension (
    token    bigint NOT NULL,
    until_ms bigint NOT NULL,
    CONSTRAINT extension_pkey PRIMARY KEY (token)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1);

-- The newest end of the jobs of a target that are gone: what ended until then
-- may be forgotten. Rows are only added, so that no one waits for another
-- one's transaction; the reaper deletes all but the newest.
CREATE TABLE latchkey.forgotten (
    target   text   COLLATE "C" NOT NULL,
    ended_ms bigint NOT NULL
);
CREATE INDEX forgotten_target ON latchkey.forgotten (target, ended_ms);

-- Who sweeps and reaps: the caller that holds the lease, until it runs out.
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
    settles     boolean,  -- those who wait for it are woken
    lock_id     bigint
);

-- What latchkey.claim returns.
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
    expires     timestamptz, -- NEW: the lock; REPLAY, OMITTED: the response
    reason      text         -- OMITTED, UNCERTAIN
);

-- What latchkey.lookup returns.
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

-- What latchkey.lease_jobs returns: jobs with the names of their operations,
-- and what else there is to say.
CREATE TYPE latchkey.lease AS (
    kind        smallint, -- LEASE_*: a lease; an operation has settled, number
                          -- is its lock_id; the last row: attempts have become
                          -- uncertain, come again after due_ms milliseconds
    id          bigint,
    tenant      text,
    scope       text,
    key         text,
    number      bigint,
    generation  bigint,
    token       bigint,  -- a request: of its operation
    run         integer, -- also of a request: its attempt
    name        text,
    target      text,
    method      text,
    path        text,
    headers     bytea,
    body        bytea,
    attempts    integer,
    forgiven    integer,
    sent        boolean,
    doubt       boolean,
    repeatable  boolean,
    created_ms  bigint,
    due_ms      bigint,
    now_ms      bigint,
    status      integer,
    provider_id text,
    reason      text,
    since_ms    bigint,
    sent_ms     bigint
);

-- For people: words and timestamps. What is past its time is not shown.
CREATE VIEW latchkey.operations AS
SELECT o.number, o.tenant, o.scope, o.key,
    (@STATE_WORDS@)[o.state] AS state,
    o.token, o.attempt, o.status, o.omitted, o.reason,
    pg_catalog.to_timestamp(o.claimed_ms / 1000.0) AS claimed,
    CASE WHEN o.state = @STATE_IN_PROGRESS@
         THEN pg_catalog.to_timestamp(greatest(o.deadline_ms, (
             SELECT e.until_ms FROM latchkey.extension e
             WHERE e.token = o.token)) / 1000.0) END AS locked,
    CASE WHEN o.state IN (@STATE_ACCEPTED@, @STATE_UNCERTAIN@)
         THEN pg_catalog.to_timestamp(o.deadline_ms / 1000.0) END AS since,
    pg_catalog.to_timestamp(o.completed_ms / 1000.0) AS completed,
    CASE WHEN o.state IN (@STATES_FINISHED@)
         THEN pg_catalog.to_timestamp(o.deadline_ms / 1000.0) END AS expires
FROM latchkey.operation o
WHERE o.state IN (@STATES_UNFINISHED@)
   OR o.deadline_ms > extract(epoch FROM pg_catalog.clock_timestamp()) * 1000;

CREATE VIEW latchkey.jobs AS
SELECT j.id, j.number, o.tenant, o.scope, o.key,
    CASE WHEN j.name = '' THEN '(request)' ELSE j.name END AS name,
    j.target, j.method, j.path,
    (@JOB_STATE_WORDS@)[j.state + 1] AS state,
    j.attempts, j.status, nullif(j.provider_id, '') AS provider_id,
    nullif(j.reason, '') AS reason,
    pg_catalog.to_timestamp(j.created_ms / 1000.0) AS created,
    CASE WHEN j.state IN (@JOBS_TIMED@)
         THEN pg_catalog.to_timestamp(j.due_ms / 1000.0) END AS due,
    CASE WHEN j.ended_ms > 0
         THEN pg_catalog.to_timestamp(j.ended_ms / 1000.0) END AS ended
FROM latchkey.job j
LEFT JOIN latchkey.operation o ON o.number = j.number;

COMMENT ON SCHEMA latchkey IS
    'Latchkey: operations that run or have run, and their responses';
COMMENT ON TABLE latchkey.operation IS
    'one row for each operation; changed by the functions of this schema only';
COMMENT ON TABLE latchkey.answer IS 'what retries of completed operations get';
COMMENT ON TABLE latchkey.audit IS 'what operators did, and why';
COMMENT ON TABLE latchkey.job IS 'outbox: calls to other services';
COMMENT ON TABLE latchkey.attempt IS 'attempts of jobs that failed';
COMMENT ON TABLE latchkey.target IS 'targets of jobs that are paused';
COMMENT ON TABLE latchkey.used_name IS
    'how often names were used by operations that left jobs';
COMMENT ON TABLE latchkey.extension IS 'locks that were prolonged';
COMMENT ON TABLE latchkey.forgotten IS
    'until when the jobs of a target may be gone';
COMMENT ON TABLE latchkey.keeper IS 'who sweeps and reaps at present';
COMMENT ON TABLE latchkey.meta IS 'version and secrets of this store';
COMMENT ON VIEW latchkey.operations IS 'operations with words and timestamps';
COMMENT ON VIEW latchkey.jobs IS 'jobs with words and timestamps';
COMMENT ON SEQUENCE latchkey.token IS 'never set it back';
COMMENT ON SEQUENCE latchkey.timeline IS 'of the server that gave the tokens';
