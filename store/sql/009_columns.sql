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
