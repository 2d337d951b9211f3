-- 009_columns.sql - tables that changed since the outbox was added.
--
-- As in 006_outbox.sql, functions whose arguments have changed go here.

DROP FUNCTION IF EXISTS latchkey.add_job(bigint, bigint, bigint, text, text,
    text, text, bytea, bytea, bigint, boolean, bigint);

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
COMMENT ON TABLE latchkey.used_name IS
    'how often names were used by operations that left jobs';
REVOKE ALL ON latchkey.used_name FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON latchkey.used_name
    TO latchkey_daemon;

-- How old a job is, for the courier's limits.
--
-- since_ms  its age counts from here: an operator has ordered it again; 0: since
--           it was made
-- sent_ms   the lease of the first attempt that may have left, since somebody
--           said that none has happened; counts while `sent` or `called`. 0: of
--           an earlier version: since it was made
ALTER TABLE latchkey.job
    ADD COLUMN since_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN sent_ms  bigint NOT NULL DEFAULT 0;
ALTER TYPE latchkey.lease
    ADD ATTRIBUTE since_ms bigint,
    ADD ATTRIBUTE sent_ms bigint;
DROP FUNCTION IF EXISTS latchkey.order_jobs(integer[], bigint[], integer[],
    text[], text[], integer[], text[], text[]);

-- Signs of life: until when EXTEND has prolonged the lock of a claim. Apart from
-- the operation, so that a transaction of an app that began before the last one
-- can still complete it (in REPEATABLE READ a row that has changed since cannot
-- be updated), and so that no index changes with each. The lock ends at the
-- later of the two. A row that is past says nothing any more, and goes.
CREATE TABLE latchkey.extension (
    token    bigint NOT NULL,
    until_ms bigint NOT NULL,
    CONSTRAINT extension_pkey PRIMARY KEY (token)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1);
COMMENT ON TABLE latchkey.extension IS 'locks that were prolonged';
REVOKE ALL ON latchkey.extension FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON latchkey.extension
    TO latchkey_daemon;

CREATE OR REPLACE VIEW latchkey.operations AS
SELECT o.number, o.tenant, o.scope, o.key,
    (ARRAY['accepted', 'in_progress', 'uncertain', 'completed',
           'released'])[o.state] AS state,
    o.token, o.attempt, o.status, o.omitted, o.reason,
    pg_catalog.to_timestamp(o.claimed_ms / 1000.0) AS claimed,
    CASE WHEN o.state = 2
         THEN pg_catalog.to_timestamp(greatest(o.deadline_ms, (
             SELECT e.until_ms FROM latchkey.extension e
             WHERE e.token = o.token)) / 1000.0) END AS locked,
    CASE WHEN o.state IN (1, 3)
         THEN pg_catalog.to_timestamp(o.deadline_ms / 1000.0) END AS since,
    pg_catalog.to_timestamp(o.completed_ms / 1000.0) AS completed,
    CASE WHEN o.state IN (4, 5)
         THEN pg_catalog.to_timestamp(o.deadline_ms / 1000.0) END AS expires
FROM latchkey.operation o
WHERE o.state < 4
   OR o.deadline_ms > extract(epoch FROM pg_catalog.clock_timestamp()) * 1000;

-- The newest end of the jobs of a target that are gone: what ended until then may
-- be forgotten. Rows are only added, so that nobody waits for another one's
-- transaction; the reaper deletes all but the newest.
CREATE TABLE latchkey.forgotten (
    target   text   COLLATE "C" NOT NULL,
    ended_ms bigint NOT NULL
);
CREATE INDEX forgotten_target ON latchkey.forgotten (target, ended_ms);
COMMENT ON TABLE latchkey.forgotten IS
    'until when the jobs of a target may be gone';
REVOKE ALL ON latchkey.forgotten FROM PUBLIC;
GRANT SELECT, INSERT, DELETE ON latchkey.forgotten TO latchkey_daemon;
