-- 008_lease.sql - what the courier takes next: leases that were lost are
-- settled, and jobs are leased. The rules stand in 007_work.sql.

-- ---- what is lost --------------------------------------------------------

-- A request whose lease has run out: 0 it waits again, or is over; 1 it has
-- become uncertain; 2 another transaction has it, or its holder lives.
CREATE OR REPLACE FUNCTION latchkey.settle_request(_id bigint, _number bigint,
    _attempts integer, _now bigint, OUT outcome smallint, OUT settled bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    j latchkey.job;
    l record;
    s record;
    lost boolean;
BEGIN
    outcome := 2;
    l := latchkey.lock_request(_number);
    IF NOT l.got THEN
        RETURN;
    END IF;
    SELECT * INTO j FROM latchkey.job k
    WHERE k.id = _id AND k.attempts = _attempts AND k.state + 0 = 1
      AND k.due_ms + 0 <= _now
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    ELSIF (l.op).state = 2 AND (l.op).deadline_ms > _now THEN
        -- The gateway keeps it alive, whatever has become of the courier.
        UPDATE latchkey.job k SET due_ms = (l.op).deadline_ms
        WHERE k.id = _id;
        RETURN;
    ELSIF (l.op).state IN (4, 5) THEN
        UPDATE latchkey.job k SET ended_ms = _now,
            state = CASE (l.op).state WHEN 4 THEN 4 ELSE 5 END
        WHERE k.id = _id;
        outcome := 0;
        RETURN;
    END IF;
    lost := j.called AND NOT j.repeatable;
    IF (l.op).state <> 1 THEN
        s := latchkey.step_request(l.op, l.id, CASE WHEN lost THEN 5 ELSE 14 END,
            0, 0, '', '', CASE WHEN lost THEN
            'the courier was lost after it had called' ELSE '' END, _now);
        IF s.settles THEN
            settled := l.id;
        END IF;
    END IF;
    IF j.called AND NOT lost THEN
        INSERT INTO latchkey.attempt (job, number, ended_ms, status, called,
            reason, body)
        VALUES (_id, _attempts, _now, 0, true, 'the courier was lost', '')
        ON CONFLICT DO NOTHING;
    END IF;
    UPDATE latchkey.job k SET
        state = CASE WHEN lost THEN 2 ELSE 0 END, sent = k.sent OR k.called,
        ended_ms = CASE WHEN lost THEN _now ELSE 0 END,
        status = CASE WHEN k.called THEN 0 ELSE k.status END,
        reason = CASE WHEN lost THEN 'the courier was lost after it had called'
                      WHEN k.called THEN 'the courier was lost'
                      ELSE k.reason END
    WHERE k.id = _id;
    outcome := lost::integer;
END
$$;

-- Leases that ran out. What was called, and must not be called again, becomes
-- uncertain, whether there is room or not. The rest, at most `_most` for each
-- target, waits again, and is leased next. _honours: 1 the target honours
-- Idempotency-Key. lapsed: so many have become uncertain.
CREATE OR REPLACE FUNCTION latchkey.settle_jobs(_target text[],
    _most integer[], _honours integer[])
RETURNS TABLE (lapsed integer, settled bigint[])
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    now CONSTANT bigint := latchkey.now_ms();
    look CONSTANT integer := 256;
    room bigint := coalesce(_most[array_position(_target, '@gateway')], 0);
    lost record;
    s record;
BEGIN
    WITH found AS MATERIALIZED (
        SELECT d.*, w.target, w.most, d.called AND w.honours = 0 AS lost,
            d.called OR w.honours = 1 AS gone
        FROM unnest(_target, _most, _honours) AS w(target, most, honours)
        CROSS JOIN LATERAL (
            SELECT j.ctid AS place, j.id, j.attempts, j.called, j.due_ms
            FROM latchkey.job j
            WHERE j.target = w.target AND j.state = 1 AND j.due_ms <= now
            ORDER BY j.due_ms
            LIMIT greatest(w.most, look)
            FOR NO KEY UPDATE SKIP LOCKED) AS d
        WHERE w.target <> '@gateway'
    ), due AS MATERIALIZED (
        SELECT e.* FROM (
            SELECT f.*, row_number() OVER (PARTITION BY f.target, f.lost
                                           ORDER BY f.due_ms) AS place_in_line
            FROM found f) AS e
        WHERE e.lost OR e.place_in_line <= e.most
    ), history AS (
        INSERT INTO latchkey.attempt (job, number, ended_ms, status, called,
            reason, body)
        SELECT d.id, d.attempts, now, 0, true, 'the courier was lost', ''
        FROM due d
        WHERE d.gone AND NOT d.lost
        ON CONFLICT DO NOTHING
    ), moved AS (
        UPDATE latchkey.job j SET
            state = CASE WHEN d.lost THEN 2 ELSE 0 END,
            sent = j.sent OR d.gone, doubt = j.doubt OR d.gone,
            ended_ms = CASE WHEN d.lost THEN now ELSE 0 END,
            status = CASE WHEN d.gone THEN 0 ELSE j.status END,
            reason = CASE
                WHEN d.lost THEN 'the courier was lost after it had called'
                WHEN d.gone THEN 'the courier was lost' ELSE j.reason END
        FROM due d
        WHERE j.ctid = d.place
        RETURNING d.lost
    )
    SELECT count(*) FILTER (WHERE m.lost) INTO lapsed FROM moved m;

    FOR lost IN
        SELECT d.*
        FROM unnest(_target) AS w(target)
        CROSS JOIN LATERAL (
            SELECT j.id, j.number, j.attempts FROM latchkey.job j
            WHERE j.target = w.target AND j.state = 1 AND j.due_ms <= now
            ORDER BY j.due_ms
            LIMIT look) AS d
        WHERE w.target = '@gateway'
    LOOP
        EXIT WHEN room <= 0;
        s := latchkey.settle_request(lost.id, lost.number, lost.attempts, now);
        room := room - (s.outcome <> 2)::integer;
        lapsed := lapsed + (s.outcome = 1)::integer;
        IF s.settled IS NOT NULL THEN
            settled := settled || s.settled;
        END IF;
    END LOOP;
    RETURN NEXT;
END
$$;

-- ---- leases --------------------------------------------------------------

-- Accepted requests: operation and job in one step.
CREATE OR REPLACE FUNCTION latchkey.lease_requests(_most integer,
    _lease bigint, _bytes bigint)
RETURNS SETOF latchkey.lease
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    now CONSTANT bigint := latchkey.now_ms();
    look CONSTANT integer := 256;
    numbers bigint[] := '{}';
    total bigint := 0;
    next record;
BEGIN
    -- What others have, perhaps for long, does not keep the rest waiting.
    FOR next IN
        SELECT d.number, d.size,
            latchkey.lock_id(o.tenant, o.scope, o.key) AS id
        FROM (SELECT j.number,
                  octet_length(j.headers) + octet_length(j.body) AS size
              FROM latchkey.job j
              WHERE j.target = '@gateway' AND j.state = 0
                AND j.due_ms <= now
              ORDER BY j.due_ms
              LIMIT _most + look
              FOR NO KEY UPDATE SKIP LOCKED) AS d
        CROSS JOIN LATERAL (
            SELECT p.tenant, p.scope, p.key FROM latchkey.operation p
            WHERE p.number = d.number
            LIMIT 1) AS o
    LOOP
        EXIT WHEN cardinality(numbers) >= _most OR total >= _bytes;
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(next.id);
        numbers := numbers || next.number;
        total := total + next.size;
    END LOOP;
    IF numbers = '{}' THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH due AS MATERIALIZED (
        SELECT o.ctid AS place, o.number FROM latchkey.operation o
        WHERE o.number = ANY (numbers) AND o.state + 0 = 1 AND o.queued
    ), begun AS (
        UPDATE latchkey.operation o SET
            state = 2, token = nextval('latchkey.token'),
            attempt = o.attempt + 1, deadline_ms = now + _lease, owner = '',
            reason = NULL
        FROM due
        WHERE o.ctid = due.place
        RETURNING o.number, o.tenant, o.scope, o.key, o.token, o.attempt
    ), found AS MATERIALIZED (
        SELECT b.*, d.place, d.id FROM begun b
        CROSS JOIN LATERAL (
            SELECT j.ctid AS place, j.id FROM latchkey.job j
            WHERE j.number = b.number AND j.name = '' AND j.state + 0 = 0
            LIMIT 1) AS d
    )
    UPDATE latchkey.job j SET state = 1, attempts = j.attempts + 1,
        called = false, due_ms = now + _lease, token = f.token,
        sent_ms = CASE WHEN j.sent THEN j.sent_ms ELSE now END
    FROM found f
    WHERE j.ctid = f.place
    RETURNING 0::smallint, j.id, f.tenant, f.scope, f.key, j.number, j.generation, j.token,
        f.attempt, j.name, j.target, j.method, j.path, j.headers, j.body,
        j.attempts, j.forgiven, j.sent, j.doubt, j.repeatable, j.created_ms,
        j.due_ms, now, j.status, j.provider_id, j.reason, j.since_ms,
        j.sent_ms;
END
$$;

-- Milliseconds until a job of these targets is due, or a lease of theirs may be
-- lost; null: there is none.
CREATE OR REPLACE FUNCTION latchkey.next_job(_target text[])
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN (
        SELECT min(greatest(d.due_ms - latchkey.now_ms(), 0)) -- null if none
        FROM unnest(_target) AS w(target)
        CROSS JOIN (VALUES (0), (1)) AS s(state)
        CROSS JOIN LATERAL (
            SELECT j.due_ms FROM latchkey.job j
            WHERE j.target = w.target AND j.state = s.state AND j.state < 2
            ORDER BY j.due_ms
            LIMIT 1) AS d
        WHERE s.state = 1 OR NOT EXISTS (
            SELECT FROM latchkey.target t WHERE t.name = w.target OFFSET 0));
END
$$;

-- Settles what is lost, and leases at most `_most` jobs of each target, the
-- longest due first, none of one that is paused; and not many more bytes than
-- `_bytes` altogether. The last row says how many became uncertain, and when to
-- come again.
CREATE OR REPLACE FUNCTION latchkey.lease_jobs(_target text[],
    _most integer[], _honours integer[], _lease bigint, _bytes bigint)
RETURNS SETOF latchkey.lease
LANGUAGE plpgsql
AS $$
DECLARE
    gateway CONSTANT integer := array_position(_target, '@gateway');
    now bigint := latchkey.now_ms();
    lapsed integer := 0;
    settled bigint[];
    places tid[];
    sizes integer[];
    total bigint;
    last latchkey.lease;
    leased bigint := 0;
    rows bigint := 0;
    wanted bigint := 0;
    most integer;
BEGIN
    FOREACH most IN ARRAY _most LOOP
        wanted := wanted + most;
    END LOOP;
    IF EXISTS (
        SELECT FROM unnest(_target) AS w(target)
        CROSS JOIN LATERAL (
            SELECT FROM latchkey.job j
            WHERE j.target = w.target AND j.state = 1 AND j.due_ms <= now
            LIMIT 1) AS d)
    THEN
        SELECT s.lapsed, s.settled INTO lapsed, settled
        FROM latchkey.settle_jobs(_target, _most, _honours) AS s;
        last.kind := 1;
        FOR i IN 1 .. coalesce(cardinality(settled), 0) LOOP
            last.number := settled[i];
            RETURN NEXT last;
        END LOOP;
    END IF;
    IF gateway IS NOT NULL THEN
        IF NOT EXISTS (SELECT FROM latchkey.target t
                       WHERE t.name = '@gateway') THEN
            RETURN QUERY SELECT * FROM latchkey.lease_requests(_most[gateway],
                _lease, _bytes);
            GET DIAGNOSTICS leased = ROW_COUNT;
        END IF;
        now := latchkey.now_ms();
    END IF;
    SELECT array_agg(d.place), array_agg(d.size), sum(d.size)
    INTO places, sizes, total
    FROM unnest(_target, _most) AS w(target, most)
    CROSS JOIN LATERAL (
        SELECT j.ctid AS place,
            octet_length(j.headers) + octet_length(j.body) AS size
        FROM latchkey.job j
        WHERE j.target = w.target AND j.state = 0 AND j.due_ms <= now
        ORDER BY j.due_ms
        LIMIT w.most
        FOR NO KEY UPDATE SKIP LOCKED) AS d
    WHERE w.target <> '@gateway' AND NOT EXISTS (
        SELECT FROM latchkey.target t WHERE t.name = w.target OFFSET 0);
    IF total > _bytes THEN
        total := 0;
        FOR i IN 1 .. cardinality(places) LOOP
            EXIT WHEN total >= _bytes;
            total := total + sizes[i];
            rows := i;
        END LOOP;
        places := places[:rows];
    END IF;
    -- Where keys are honoured it leaves without a mark: it may have been called,
    -- should the target not honour them when the lease is lost.
    RETURN QUERY
    WITH leased AS (
        UPDATE latchkey.job j SET state = 1, attempts = j.attempts + 1,
            called = _honours[array_position(_target, j.target)] = 1,
            due_ms = now + _lease,
            sent_ms = CASE WHEN j.sent THEN j.sent_ms ELSE now END
        WHERE j.ctid = ANY (places)
        RETURNING j.*
    )
    SELECT 0::smallint, l.id, o.tenant, o.scope, o.key, l.number, l.generation,
        0::bigint, 0, l.name, l.target, l.method, l.path, l.headers, l.body,
        l.attempts, l.forgiven, l.sent, l.doubt, l.repeatable, l.created_ms,
        l.due_ms, now, l.status, l.provider_id, l.reason, l.since_ms, l.sent_ms
    FROM leased l
    LEFT JOIN LATERAL (
        SELECT p.tenant, p.scope, p.key FROM latchkey.operation p
        WHERE p.number = l.number
        LIMIT 1) AS o ON true;
    GET DIAGNOSTICS rows = ROW_COUNT;

    -- As many as there was room for: there is more, or nearly so.
    last.kind := 2;
    last.due_ms := CASE WHEN leased + rows < wanted OR wanted = 0
        THEN latchkey.next_job(_target) ELSE 0 END;
    last.attempts := lapsed;
    RETURN NEXT last;
END
$$;

REVOKE ALL ON FUNCTION
    latchkey.settle_request(bigint, bigint, integer, bigint),
    latchkey.settle_jobs(text[], integer[], integer[]),
    latchkey.lease_requests(integer, bigint, bigint),
    latchkey.lease_jobs(text[], integer[], integer[], bigint, bigint),
    latchkey.next_job(text[])
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    latchkey.settle_request(bigint, bigint, integer, bigint),
    latchkey.settle_jobs(text[], integer[], integer[]),
    latchkey.lease_requests(integer, bigint, bigint),
    latchkey.lease_jobs(text[], integer[], integer[], bigint, bigint),
    latchkey.next_job(text[])
    TO latchkey_daemon;
