-- 006_outbox.sql - the tables of the outbox: jobs as the courier needs them,
-- the attempts that failed, and targets that are paused.
--
-- What changes in functions of the files before stands there, in its place:
-- `latchkey migrate` puts them in again. Those whose arguments have changed
-- would remain beside the new ones, so they go here.

DROP FUNCTION IF EXISTS latchkey.decide(integer, integer, boolean, boolean,
    boolean, boolean, boolean, integer);
DROP FUNCTION IF EXISTS latchkey.step(integer, smallint, text, text, text,
    text, text, bigint, bigint, integer, bigint, integer, bytea, bytea, text,
    text, text, bigint, bigint, bigint);
DROP FUNCTION IF EXISTS latchkey.apply(smallint[], text[], text[], text[],
    text[], text[], bigint[], bigint[], integer[], bigint[], integer[],
    bytea[], bytea[], text[], text[], text[], bigint);
DROP FUNCTION IF EXISTS latchkey.enqueue(text, text, text, bigint, text, text,
    text, text, text, bytea);

-- queued: the request of an asynchronous operation is a job that is not
-- finished. Only the courier, its holder or an operator ends it, not the
-- sweeper.
ALTER TABLE latchkey.operation
    ADD COLUMN queued boolean NOT NULL DEFAULT false;

-- A job without a name is the request of its operation; its target is
-- @gateway, and its token that of the lease.
--
-- attempts     leases so far; the number of the last one is what whoever holds
--              it shows
-- forgiven     of these, not counted against the limit
-- called       the present attempt may have left
-- sent         any attempt may have left
-- doubt        one may have happened, and its answer was lost
-- repeatable   a request that may run again
-- due_ms       waiting: not before; leased: the lease ends
-- ended_ms     since when it is what it is; 0: waiting or leased
-- status, provider_id, reason, answer_*: of the last attempt that ended
ALTER TABLE latchkey.job
    ADD COLUMN forgiven       integer NOT NULL DEFAULT 0,
    ADD COLUMN called         boolean NOT NULL DEFAULT false,
    ADD COLUMN sent           boolean NOT NULL DEFAULT false,
    ADD COLUMN doubt          boolean NOT NULL DEFAULT false,
    ADD COLUMN repeatable     boolean NOT NULL DEFAULT false,
    ADD COLUMN ended_ms       bigint  NOT NULL DEFAULT 0,
    ADD COLUMN status         integer NOT NULL DEFAULT 0,
    ADD COLUMN provider_id    text    COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN reason         text    COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN answer_headers bytea   NOT NULL DEFAULT '',
    ADD COLUMN answer_body    bytea   NOT NULL DEFAULT '',
    ALTER COLUMN body SET STORAGE EXTERNAL,
    ALTER COLUMN answer_body SET STORAGE EXTERNAL;

-- Every index costs each lease and each end. Unfinished jobs of an operation
-- are found by job_name; what waits or is on its way by job_due, by everybody
-- who leases; what needs somebody's attention is little, and in job_stuck.
DROP INDEX latchkey.job_unfinished;
DROP INDEX latchkey.job_due;
CREATE INDEX job_due ON latchkey.job (target, state, due_ms)
    WHERE state < 2;
CREATE INDEX job_stuck ON latchkey.job (state, ended_ms)
    WHERE state IN (2, 3);

-- Each job leaves two dead rows on its way.
ALTER TABLE latchkey.job SET (
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    toast.autovacuum_vacuum_scale_factor = 0.05,
    toast.autovacuum_vacuum_cost_delay = 1,
    toast.autovacuum_vacuum_cost_limit = 2000);

-- Attempts that failed, but for the last one, which stands in the job.
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

-- What latchkey.lease_jobs answers: jobs with the names of their operations, and
-- what else there is to say.
CREATE TYPE latchkey.lease AS (
    kind        smallint, -- 0 a lease; 1 an operation has settled, number is
                          -- its lock_id; 2 the last row: attempts have become
                          -- uncertain, come again after due_ms milliseconds
    id          bigint,
    tenant      text,
    scope       text,
    key         text,
    number      bigint,
    generation  bigint,
    token       bigint,  -- a request: of its operation
    run         integer, -- likewise, its attempt
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
    reason      text
);

-- For people: words and timestamps.
CREATE VIEW latchkey.jobs AS
SELECT j.id, j.number, o.tenant, o.scope, o.key,
    CASE WHEN j.name = '' THEN '(request)' ELSE j.name END AS name,
    j.target, j.method, j.path,
    (ARRAY['waiting', 'leased', 'uncertain', 'dead', 'delivered',
           'dropped'])[j.state + 1] AS state,
    j.attempts, j.status, nullif(j.provider_id, '') AS provider_id,
    nullif(j.reason, '') AS reason,
    pg_catalog.to_timestamp(j.created_ms / 1000.0) AS created,
    CASE WHEN j.state < 2
         THEN pg_catalog.to_timestamp(j.due_ms / 1000.0) END AS due,
    CASE WHEN j.ended_ms > 0
         THEN pg_catalog.to_timestamp(j.ended_ms / 1000.0) END AS ended
FROM latchkey.job j
LEFT JOIN latchkey.operation o ON o.number = j.number;

COMMENT ON TABLE latchkey.attempt IS 'attempts of jobs that failed';
COMMENT ON TABLE latchkey.target IS 'targets of jobs that are paused';
COMMENT ON VIEW latchkey.jobs IS 'jobs with words and timestamps';

REVOKE ALL ON latchkey.attempt, latchkey.target, latchkey.jobs FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON latchkey.attempt, latchkey.target
    TO latchkey_daemon;
GRANT SELECT ON latchkey.jobs TO latchkey_daemon;
-- latchkey.check_timeline leaps.
GRANT USAGE, UPDATE ON SEQUENCE latchkey.job_id_seq TO latchkey_daemon;
