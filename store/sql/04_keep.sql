-- 04_keep.sql - the keeper's work: lapsed locks, expired records, failovers.
--
-- Any number of daemons call latchkey.keep now and then; the one that holds
-- the lease sweeps and reaps, in bounded steps, beside the claims and never in
-- their way: what another client is working on is left for the next time.
--
-- `+ 0` leaves the planner only the primary key, and OFFSET 0 only a lookup for
-- each row; no bitmap, because it would collect all that is due to sort it. A
-- plan made for another moment must not read a whole index.

-- Locks the names of these operations as far as no other transaction has them:
-- their numbers. The caller reads the rows again, in a statement of its own.
CREATE OR REPLACE FUNCTION latchkey.lock_free(numbers bigint[], ids bigint[])
RETURNS bigint[]
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(array_agg(u.number), '{}')
    FROM unnest(numbers, ids) AS u(number, id)
    WHERE pg_try_advisory_xact_lock(u.id)
$$;

-- Takes or renews the lease, and then sweeps at most `most` records. lease_ms:
-- the caller that does not call again for so long is replaced; a minute at
-- most, so that a lease that ends later is known to be of a clock that was set
-- back since.
-- swept: the lock_ids of operations that have become uncertain, for those who
-- wait. more: call again soon.
CREATE OR REPLACE FUNCTION latchkey.keep(holder text, lease_ms bigint,
    most integer)
RETURNS TABLE (keeper boolean, swept bigint[], more boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    longest CONSTANT bigint := 60000;
    now bigint;
    lease latchkey.keeper;
    numbers bigint[];
    ids bigint[];
BEGIN
    keeper := false;
    swept := '{}';
    more := false;
    -- One at a time, also while a lease changes hands; no one waits.
    IF NOT pg_try_advisory_xact_lock(5499535116398314074) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    now := latchkey.now_ms();
    lease_ms := least(lease_ms, longest);
    SELECT * INTO lease FROM latchkey.keeper k WHERE k.name = 'keeper';
    IF lease.holder <> keep.holder
        AND lease.until_ms BETWEEN now + 1 AND now + longest THEN
        RETURN NEXT;
        RETURN;
    END IF;
    keeper := true;
    IF lease.name IS NULL OR lease.holder <> keep.holder
        OR lease.until_ms NOT BETWEEN now + lease_ms / 2 AND now + longest THEN
        INSERT INTO latchkey.keeper AS k (name, holder, until_ms)
        VALUES ('keeper', keep.holder, now + lease_ms)
        ON CONFLICT ON CONSTRAINT keeper_pkey DO UPDATE
        SET holder = excluded.holder, until_ms = excluded.until_ms;
    END IF;

    -- The sweeper: a lock that ran out means a lost holder, and no one knows
    -- how far it came. Of a request the courier knows, and decides.
    SELECT array_agg(d.number), array_agg(d.id) INTO numbers, ids
    FROM (SELECT o.number,
                 latchkey.lock_id(o.tenant, o.scope, o.key) AS id
          FROM latchkey.operation o
          WHERE o.state = @STATE_IN_PROGRESS@ AND o.deadline_ms <= now
            AND NOT o.queued
            AND NOT EXISTS (SELECT FROM latchkey.extension e
                            WHERE e.token = o.token AND e.until_ms > now
                            OFFSET 0)
          ORDER BY o.deadline_ms
          LIMIT most) AS d;
    IF numbers IS NOT NULL THEN
        more := cardinality(numbers) = most;
        numbers := latchkey.lock_free(numbers, ids);
        -- Through a pooler the snapshot may be an old one, which does not show
        -- the last signs of life.
        IF latchkey.has_old_snapshot() THEN
            PERFORM latchkey.extend_lock(o.token, 0)
            FROM latchkey.operation o WHERE o.number = ANY (numbers);
        END IF;
        WITH due AS MATERIALIZED (
            SELECT o.ctid AS place, o.number FROM latchkey.operation o
            WHERE o.number = ANY (numbers)
              AND latchkey.lock_end(o.token, o.deadline_ms) <= now
              AND @EFFECT(latchkey.decide(@EVENT_SWEEP@, o.state, false, true,
                  o.omitted, o.queued, false, false, false, 0))@
                  = @EFFECT_DOUBT@
            FOR NO KEY UPDATE SKIP LOCKED
        ), lapsed AS (
            UPDATE latchkey.operation o SET state = @STATE_UNCERTAIN@,
                deadline_ms = latchkey.lock_end(o.token, o.deadline_ms)
            FROM due
            WHERE o.ctid = due.place AND o.number = due.number
            RETURNING latchkey.lock_id(o.tenant, o.scope, o.key) AS id
        )
        SELECT coalesce(array_agg(l.id), '{}') INTO swept FROM lapsed l;
    END IF;
    -- Signs of life that say nothing any more: few, since they are of claims
    -- that have lived for a while, and of the last minutes.
    WITH past AS MATERIALIZED (
        SELECT e.ctid AS place FROM latchkey.extension e
        WHERE e.until_ms <= now - longest
        LIMIT most
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM latchkey.extension e USING past WHERE e.ctid = past.place;
    RETURN NEXT;
END
$$;

-- The reaper, for the caller that has the lease: what is past its TTL goes, at
-- most `most` records, unless something of it is on its way. It walks through
-- the records that are due, the completed ones and then the released, and
-- looks at a bounded number each time, since any number of them may be kept by
-- jobs: next_state and next_ms are where to go on, (completed, 0) where to
-- begin. more: call again soon. It works in a transaction of its own, so that
-- the sweeper does not fail with it.
CREATE OR REPLACE FUNCTION latchkey.reap(holder text, most integer,
    of_state integer, from_ms bigint)
RETURNS TABLE (reaped integer, more boolean, next_state integer,
    next_ms bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    look CONSTANT integer := greatest(32 * most, 4096);
    now bigint := latchkey.now_ms();
    numbers bigint[];
    ids bigint[];
    tokens bigint[];
    names bytea[]; -- of those that had jobs
    looked integer;
BEGIN
    reaped := 0;
    more := false;
    next_state := of_state;
    next_ms := from_ms;
    IF NOT pg_try_advisory_xact_lock(5499535116398314074)
        OR NOT EXISTS (SELECT FROM latchkey.keeper k
                       WHERE k.name = 'keeper' AND k.holder = reap.holder
                         AND k.until_ms > now) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT array_agg(d.number), array_agg(d.id), max(d.deadline_ms)
    INTO numbers, ids, next_ms
    FROM (SELECT e.number, e.deadline_ms,
                 latchkey.lock_id(e.tenant, e.scope, e.key) AS id
          FROM (SELECT o.* FROM latchkey.operation o
                WHERE o.state = of_state AND o.deadline_ms >= from_ms
                  AND o.deadline_ms <= now
                ORDER BY o.deadline_ms
                LIMIT look) AS e
          WHERE NOT EXISTS (SELECT FROM latchkey.job j
                            WHERE j.number = e.number
                              AND j.state IN (@JOBS_UNFINISHED@)
                            OFFSET 0)
          LIMIT most) AS d;
    IF numbers IS NULL OR cardinality(numbers) < most THEN
        SELECT o.deadline_ms INTO next_ms FROM latchkey.operation o
        WHERE o.state = of_state AND o.deadline_ms >= from_ms
          AND o.deadline_ms <= now
        ORDER BY o.deadline_ms
        OFFSET look - 1 LIMIT 1;
    END IF;
    IF numbers IS NOT NULL THEN
        numbers := latchkey.lock_free(numbers, ids);
        WITH due AS MATERIALIZED (
            SELECT o.ctid AS place, o.number FROM latchkey.operation o
            WHERE o.number = ANY (numbers) AND o.state + 0 IN (@STATES_FINISHED@)
              AND o.deadline_ms + 0 <= now
              AND NOT EXISTS (SELECT FROM latchkey.job j
                              WHERE j.number = o.number
                                AND j.state IN (@JOBS_UNFINISHED@)
                              OFFSET 0)
            FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM latchkey.operation o USING due
            WHERE o.ctid = due.place AND o.number = due.number
            RETURNING o.number, o.token, CASE WHEN EXISTS (
                SELECT FROM latchkey.job j
                WHERE j.number = o.number AND j.name <> '' OFFSET 0)
                THEN latchkey.name_hash(o.tenant, o.scope, o.key) END AS name
        )
        SELECT coalesce(array_agg(g.number), '{}'), array_agg(g.token),
            array_agg(g.name) FILTER (WHERE g.name IS NOT NULL)
        INTO numbers, tokens, names FROM gone g;
        DELETE FROM latchkey.answer a WHERE a.token = ANY (tokens);
        IF names IS NOT NULL THEN
            PERFORM latchkey.end_uses(names, now);
        END IF;
        PERFORM latchkey.forget_jobs(numbers, false);
        DELETE FROM latchkey.forgotten f WHERE f.ended_ms < (
            SELECT max(n.ended_ms) FROM latchkey.forgotten n
            WHERE n.target = f.target);
        reaped := cardinality(numbers);
    END IF;
    IF next_ms IS NULL THEN -- the end
        WITH due AS MATERIALIZED (
            SELECT u.ctid AS place, EXISTS (
                SELECT FROM latchkey.operation o
                WHERE o.number = u.number OFFSET 0) AS lives
            FROM latchkey.used_name u
            WHERE u.until_ms <= now AND of_state = @STATE_RELEASED@
            ORDER BY u.until_ms
            LIMIT most
            FOR UPDATE SKIP LOCKED
        ), kept AS (
            UPDATE latchkey.used_name u SET until_ms = latchkey.use_until(now)
            FROM due WHERE u.ctid = due.place AND due.lives
        ), gone AS (
            DELETE FROM latchkey.used_name u
            USING due WHERE u.ctid = due.place AND NOT due.lives
        )
        SELECT count(*) INTO looked FROM due;
        more := of_state = @STATE_COMPLETED@ OR looked = most;
        next_state := CASE of_state WHEN @STATE_COMPLETED@
            THEN @STATE_RELEASED@ ELSE @STATE_COMPLETED@ END;
        next_ms := 0;
    ELSE
        more := reaped > 0;
        -- All that was looked at is of one moment, and stays.
        next_ms := next_ms + (next_ms = from_ms AND reaped = 0)::integer;
    END IF;
    RETURN NEXT;
END
$$;

-- A standby that was promoted, or a server that was restored, may not know the
-- last tokens that were handed out. Its timeline differs from the one noted
-- here, or the daemon has heard of a higher token: then tokens, and the ids of
-- jobs, leap by 2^32, once. The daemon asks at each connect, and through a
-- pooler in each transaction, and latchkey.claim asks for the apps, before
-- anything is decided. True: it has leapt, whatever becomes of the transaction.
CREATE OR REPLACE FUNCTION latchkey.check_timeline(_highest bigint)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    present bigint;
    noted bigint;
    last bigint;
    leaps boolean;
BEGIN
    BEGIN
        present := ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()),
                                8))::bit(32)::bigint;
    EXCEPTION WHEN feature_not_supported OR insufficient_privilege
              OR undefined_function THEN
        present := 0; -- a server that keeps its log in a way of its own
    END;
    SELECT t.last_value INTO noted FROM latchkey.timeline t;
    SELECT t.last_value INTO last FROM latchkey.token t;
    IF noted = present AND last >= _highest THEN
        RETURN false;
    END IF;
    -- One of several that have seen it leaps. The lock is not the
    -- transaction's, which may be an app's and last.
    PERFORM pg_advisory_lock(5499535116398314075);
    BEGIN
        SELECT t.last_value INTO noted FROM latchkey.timeline t;
        SELECT t.last_value INTO last FROM latchkey.token t;
        leaps := noted NOT IN (-1, present) OR last < _highest;
        IF leaps THEN
            PERFORM setval('latchkey.token', greatest(
                nextval('latchkey.token'), _highest) + 4294967296);
            -- A call of a job that was lost must not end another one.
            PERFORM setval('latchkey.job_id_seq',
                nextval('latchkey.job_id_seq') + 4294967296);
        END IF;
        IF noted <> present THEN
            PERFORM setval('latchkey.timeline', present);
        END IF;
    EXCEPTION WHEN OTHERS OR query_canceled THEN
        PERFORM pg_advisory_unlock(5499535116398314075);
        RAISE;
    END;
    PERFORM pg_advisory_unlock(5499535116398314075);
    RETURN leaps;
END
$$;
