-- 007_work.sql - what the courier asks for: how leases end and go on, what
-- operators want of jobs, what is lost, and what is leased next.
--
-- All of it is one transaction of the daemon, READ COMMITTED, on a connection
-- of its own. A lease is fenced by its number: whoever ends or renews it shows
-- job.attempts as it was at the lease. Rows that somebody has are not leased
-- (SKIP LOCKED). Ends, marks and orders wait for them, for a moment: only other
-- couriers can have them, and these take theirs in the order of ids, and when
-- they lease, wait for nobody. But an app may have the operation of a request
-- for long, so that is never waited for.
--
-- A request and its operation change in one step, under the operation's lock;
-- of what the courier does to a request, latchkey.step does the operation's
-- part.
--
-- As in 002_apply.sql, plans must hold while tables grow: rows are found by a
-- LATERAL lookup, locked, and changed by ctid and by nothing else; `+ 0` keeps
-- the planner from the partial indexes where the primary key is meant. One plan
-- for all, because making one takes longer than the work. What the three that
-- are called all the time need for that, the caller's session says
-- (latchkey.courier_settings), because saying it at each call takes an eighth
-- of their time.

-- The settings of a session that calls end_jobs, mark_jobs and lease_jobs; or of
-- the transaction.
CREATE OR REPLACE FUNCTION latchkey.courier_settings(transaction boolean)
RETURNS void
LANGUAGE sql VOLATILE
AS $$
    SELECT pg_catalog.set_config(s.name, s.value, transaction)
    FROM (VALUES ('search_path', 'pg_catalog, pg_temp'),
        ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'),
        ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'),
        ('plan_cache_mode', 'force_generic_plan')) AS s(name, value)
$$;

-- The lock of a request's operation, if nobody has it, and the operation.
CREATE OR REPLACE FUNCTION latchkey.lock_request(_number bigint,
    OUT got boolean, OUT id bigint, OUT op latchkey.operation)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    SELECT latchkey.lock_id(o.tenant, o.scope, o.key) INTO id
    FROM latchkey.operation o WHERE o.number = _number;
    got := coalesce(pg_try_advisory_xact_lock(id), false);
    IF got THEN
        SELECT * INTO op FROM latchkey.operation o WHERE o.number = _number;
    END IF;
END
$$;

-- One event of a request's operation, under its lock and its own token: the
-- verdict. settles: whoever waits for it is to be told.
CREATE OR REPLACE FUNCTION latchkey.step_request(_op latchkey.operation,
    _id bigint, _event integer, _lock bigint, _status integer, _headers bytea,
    _body bytea, _reason text, _now bigint, OUT verdict smallint,
    OUT settles boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    d latchkey.decision;
BEGIN
    d := latchkey.step(1, _event::smallint, _op.tenant, _op.scope, _op.key, '',
        '', 0, _lock, 0, _op.token, _status, _headers, _body, _reason, '', '',
        _op.ttl_ms, _now, _id);
    verdict := d.verdict;
    settles := d.settles;
END
$$;

-- ---- ends ----------------------------------------------------------------

-- How the lease of a request ends. 0 done, 1 stale, 2 another transaction has
-- it. settled: the lock_id of an operation that somebody may wait for.
CREATE OR REPLACE FUNCTION latchkey.end_request(_id bigint, _attempt integer,
    _end integer, _delay bigint, _status integer, _reason text,
    _headers bytea, _body bytea, _flags integer, OUT outcome smallint,
    OUT settled bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    gone CONSTANT boolean := (_flags & 1) <> 0;
    j latchkey.job;
    l record;
    s record;
    now bigint;
    becomes smallint;
BEGIN
    SELECT * INTO j FROM latchkey.job k WHERE k.id = _id;
    IF j.id IS NULL OR j.attempts <> _attempt OR j.state <> 1 THEN
        outcome := 1;
        RETURN;
    END IF;
    l := latchkey.lock_request(j.number);
    IF NOT l.got THEN
        outcome := 2;
        RETURN;
    END IF;
    SELECT * INTO j FROM latchkey.job k
    WHERE k.id = _id AND k.attempts = _attempt AND k.state + 0 = 1
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := 1;
        RETURN;
    END IF;
    outcome := 0;
    now := latchkey.now_ms();
    IF _end = 0 AND (l.op).state <> 4 THEN
        _end := 3;
        _reason := 'the gateway says that it is completed, and the store has '
            'not seen it';
    ELSIF _end = 4 AND (j.sent OR gone) THEN
        _end := 3;
    END IF;
    becomes := (ARRAY[4, 0, 0, 2, 5])[_end + 1];
    IF _end > 0 THEN
        s := latchkey.step_request(l.op, l.id,
            (ARRAY[14, 14, 5, 3])[_end], 0,
            coalesce(nullif(_flags >> 1, 0), 503), _headers, _body,
            CASE _end WHEN 3 THEN _reason ELSE '' END, now);
        IF s.verdict <> 9 THEN
            outcome := 1;
            RETURN;
        END IF;
        IF s.settles THEN
            settled := l.id;
        END IF;
    END IF;
    IF _end = 1 THEN
        INSERT INTO latchkey.attempt (job, number, ended_ms, status, called,
            reason, body)
        VALUES (_id, _attempt, now, _status, gone, _reason,
            substr(_body, 1, 1024))
        ON CONFLICT DO NOTHING;
    END IF;
    UPDATE latchkey.job k SET
        state = becomes, sent = k.sent OR gone,
        called = k.called AND becomes <> 0,
        forgiven = k.forgiven + (_end = 2)::integer,
        due_ms = CASE becomes WHEN 0 THEN now + _delay ELSE k.due_ms END,
        ended_ms = CASE becomes WHEN 0 THEN 0 ELSE now END,
        status = CASE _end WHEN 2 THEN k.status ELSE _status END,
        reason = CASE _end WHEN 2 THEN k.reason ELSE _reason END,
        answer_headers = CASE _end WHEN 2 THEN k.answer_headers
                                   ELSE _headers END,
        answer_body = CASE _end WHEN 2 THEN k.answer_body ELSE _body END
    WHERE k.id = _id;
END
$$;

-- _end: enum lk_end. _flags: 1 the call may have left; plus twice the status of
-- the answer that a request which is given up is completed with. Returns a row
-- only for those that are stale (1) or that another transaction has (2), and
-- for those who have settled an operation (0).
CREATE OR REPLACE FUNCTION latchkey.end_jobs(_id bigint[], _attempt integer[],
    _end integer[], _delay bigint[], _status integer[], _provider text[],
    _reason text[], _headers bytea[], _body bytea[], _flags integer[])
RETURNS TABLE (at integer, outcome smallint, settled bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    now CONSTANT bigint := latchkey.now_ms();
    ended bigint[];
    request boolean;
BEGIN
    WITH moved AS (
        UPDATE latchkey.job j SET
            state = (ARRAY[4, 0, 0, 2, 3])[u.ends + 1],
            sent = j.sent OR (u.flags & 1) <> 0 OR u.ends = 0,
            called = j.called AND u.ends NOT IN (1, 2),
            forgiven = j.forgiven + (u.ends = 2)::integer,
            due_ms = CASE WHEN u.ends IN (1, 2) THEN now + u.delay
                          ELSE j.due_ms END,
            ended_ms = CASE WHEN u.ends IN (1, 2) THEN 0 ELSE now END,
            status = CASE u.ends WHEN 2 THEN j.status ELSE u.status END,
            reason = CASE u.ends WHEN 2 THEN j.reason ELSE u.reason END,
            provider_id = CASE WHEN u.ends = 2 OR u.provider = ''
                               THEN j.provider_id ELSE u.provider END,
            answer_headers = CASE u.ends WHEN 2 THEN j.answer_headers
                                         ELSE u.headers END,
            answer_body = CASE u.ends WHEN 2 THEN j.answer_body
                                      ELSE u.body END
        FROM (SELECT * FROM unnest(_id, _attempt, _end, _delay, _status,
                  _provider, _reason, _headers, _body, _flags)
                  WITH ORDINALITY AS v(id, attempt, ends, delay, status,
                  provider, reason, headers, body, flags, at)
              ORDER BY v.id) AS u
        WHERE j.id = u.id AND j.attempts = u.attempt AND j.state + 0 = 1
          AND j.name <> ''
        RETURNING u.at
    )
    SELECT coalesce(array_agg(m.at), '{}') INTO ended FROM moved m;
    IF 1 = ANY (_end) THEN
        INSERT INTO latchkey.attempt (job, number, ended_ms, status, called,
            reason, body)
        SELECT _id[e.at], _attempt[e.at], now, _status[e.at],
            (_flags[e.at] & 1) <> 0, _reason[e.at],
            substr(_body[e.at], 1, 1024)
        FROM unnest(ended) AS e(at)
        WHERE _end[e.at] = 1
        ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(ended) = cardinality(_id) THEN
        RETURN;
    END IF;
    FOR at, request IN
        SELECT u.at, j.request
        FROM unnest(_id, _attempt) WITH ORDINALITY AS u(id, attempt, at)
        LEFT JOIN LATERAL (
            SELECT k.name = '' AS request FROM latchkey.job k
            WHERE k.id = u.id AND k.attempts = u.attempt AND k.state + 0 = 1
            LIMIT 1) AS j ON true
        WHERE (u.at IN (SELECT e.at FROM unnest(ended) AS e(at))) IS NOT TRUE
    LOOP
        settled := NULL;
        IF request THEN
            SELECT e.outcome, e.settled INTO outcome, settled
            FROM latchkey.end_request(_id[at], _attempt[at], _end[at],
                _delay[at], _status[at], _reason[at], _headers[at], _body[at],
                _flags[at]) AS e;
        ELSE -- it is as it should be, and yet we did not get it
            outcome := CASE WHEN request IS NULL THEN 1 ELSE 2 END;
        END IF;
        IF outcome > 0 OR settled IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;

-- ---- marks ---------------------------------------------------------------

-- Leases that go on. _flags: 1 it is about to be called. Rows as end_jobs has
-- them. A request's operation is extended as well, unless another transaction
-- has it: that one is at work on it, and the next mark will do.
CREATE OR REPLACE FUNCTION latchkey.mark_jobs(_id bigint[],
    _attempt integer[], _lease bigint[], _flags integer[])
RETURNS TABLE (at integer, outcome smallint, settled bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    now CONSTANT bigint := latchkey.now_ms();
    marked integer[];
    requests integer[];
    numbers bigint[];
    l record;
    s record;
    alive boolean;
BEGIN
    WITH mine AS MATERIALIZED (
        SELECT u.at::integer, u.id, u.lease, u.flags, j.place, false AS request
        FROM (SELECT * FROM unnest(_id, _attempt, _lease, _flags)
                  WITH ORDINALITY AS v(id, attempt, lease, flags, at)
              ORDER BY v.id) AS u
        CROSS JOIN LATERAL (
            SELECT k.ctid AS place FROM latchkey.job k
            WHERE k.id = u.id AND k.attempts = u.attempt AND k.state + 0 = 1
              AND k.name <> ''
            FOR NO KEY UPDATE) AS j
        UNION ALL
        SELECT u.at::integer, u.id, u.lease, u.flags, j.place, true
        FROM unnest(_id, _attempt, _lease, _flags)
            WITH ORDINALITY AS u(id, attempt, lease, flags, at)
        CROSS JOIN LATERAL (
            SELECT k.ctid AS place FROM latchkey.job k
            WHERE k.id = u.id AND k.attempts = u.attempt AND k.state + 0 = 1
              AND k.name = ''
            FOR NO KEY UPDATE SKIP LOCKED) AS j
    ), moved AS (
        UPDATE latchkey.job j SET
            due_ms = now + m.lease,
            called = j.called OR (m.flags & 1) <> 0
        FROM mine m
        WHERE j.ctid = m.place
        RETURNING m.at, m.request, j.number
    )
    SELECT coalesce(array_agg(m.at), '{}'),
        array_agg(m.at) FILTER (WHERE m.request),
        array_agg(m.number) FILTER (WHERE m.request)
    INTO marked, requests, numbers
    FROM moved m;

    FOR i IN 1 .. coalesce(cardinality(requests), 0) LOOP
        l := latchkey.lock_request(numbers[i]);
        CONTINUE WHEN NOT l.got;
        s := latchkey.step_request(l.op, l.id, 6, _lease[requests[i]], 0, '',
            '', '', now);
        IF s.verdict <> 9 THEN
            at := requests[i];
            outcome := 1;
            RETURN NEXT;
        END IF;
    END LOOP;
    IF cardinality(marked) = cardinality(_id) THEN
        RETURN;
    END IF;
    FOR at, alive IN
        SELECT u.at, EXISTS (
            SELECT FROM latchkey.job k
            WHERE k.id = u.id AND k.attempts = u.attempt AND k.state + 0 = 1
            OFFSET 0)
        FROM unnest(_id, _attempt) WITH ORDINALITY AS u(id, attempt, at)
        WHERE (u.at IN (SELECT m.at FROM unnest(marked) AS m(at))) IS NOT TRUE
    LOOP
        outcome := CASE WHEN alive THEN 2 ELSE 1 END;
        RETURN NEXT;
    END LOOP;
END
$$;

-- ---- orders --------------------------------------------------------------

-- What becomes of the last attempt when a job is put back: history.
CREATE OR REPLACE FUNCTION latchkey.put_back(_job latchkey.job, _now bigint,
    _forgiven integer)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF _job.state IN (2, 3) THEN
        INSERT INTO latchkey.attempt (job, number, ended_ms, status, called,
            reason, body)
        VALUES (_job.id, _job.attempts, _job.ended_ms, _job.status,
            _job.sent, _job.reason, substr(_job.answer_body, 1, 1024))
        ON CONFLICT DO NOTHING;
    END IF;
    UPDATE latchkey.job j SET state = 0, due_ms = _now, ended_ms = 0,
        called = false, forgiven = _forgiven
    WHERE j.id = _job.id;
END
$$;

-- _order: enum lk_order. Audited. outcome: 0 done, 1 there is none, 2 it is not
-- in such a state or at another attempt, 3 a request. state: as it is now; -1:
-- not of a job.
CREATE OR REPLACE FUNCTION latchkey.order_jobs(_order integer[], _id bigint[],
    _attempt integer[], _target text[], _provider text[], _status integer[],
    _who text[], _why text[])
RETURNS TABLE (at integer, outcome smallint, state smallint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    now CONSTANT bigint := latchkey.now_ms();
    j latchkey.job;
BEGIN
    FOR i IN 1 .. cardinality(_order) LOOP
        at := i;
        outcome := 0;
        state := -1;
        IF _order[i] IN (4, 5) THEN
            IF _order[i] = 4 THEN
                INSERT INTO latchkey.target (name, paused_ms, who, why)
                VALUES (_target[i], now, _who[i], _why[i])
                ON CONFLICT (name) DO UPDATE SET who = excluded.who,
                    why = excluded.why;
            ELSE
                DELETE FROM latchkey.target t WHERE t.name = _target[i];
            END IF;
            INSERT INTO latchkey.audit (at_ms, who, why, action)
            VALUES (now, _who[i], _why[i], (ARRAY['target pause ',
                'target resume '])[_order[i] - 3] || _target[i]);
            RETURN NEXT;
            CONTINUE;
        END IF;

        SELECT * INTO j FROM latchkey.job k WHERE k.id = _id[i]
        FOR NO KEY UPDATE;
        state := coalesce(j.state, -1);
        outcome := CASE
            WHEN j.id IS NULL THEN 1
            WHEN _attempt[i] NOT IN (0, j.attempts)
                OR NOT j.state = ANY (CASE _order[i]
                    WHEN 0 THEN '{0,3}' WHEN 3 THEN '{2}'
                    -- A lost lease that nobody settles can be ended.
                    ELSE CASE WHEN j.due_ms <= now THEN '{0,1,2,3}'
                              ELSE '{0,2,3}' END
                    END::smallint[]) THEN 2
            -- A request moves with its operation; but when it is due concerns
            -- itself alone.
            WHEN j.name = '' AND _order[i] <> 0 THEN 3
            ELSE 0 END;
        IF outcome > 0 THEN
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF _order[i] = 0 THEN
            PERFORM latchkey.put_back(j, now, j.attempts);
            state := 0;
        ELSIF _order[i] = 3 THEN
            -- What has not happened does not count.
            PERFORM latchkey.put_back(j, now,
                least(j.forgiven + 1, j.attempts));
            state := 0;
        ELSE
            state := CASE _order[i] WHEN 1 THEN 5 ELSE 4 END;
            UPDATE latchkey.job k SET state = order_jobs.state, ended_ms = now,
                sent = k.sent OR _order[i] = 2,
                provider_id = CASE WHEN _provider[i] = '' THEN k.provider_id
                                   ELSE _provider[i] END,
                status = CASE WHEN _status[i] = 0 THEN k.status
                              ELSE _status[i] END
            WHERE k.id = j.id;
        END IF;
        INSERT INTO latchkey.audit (at_ms, who, why, action, tenant, scope,
            key, token)
        SELECT now, _who[i], _why[i], (ARRAY['job retry', 'job drop',
            'job delivered', 'job again'])[_order[i] + 1], o.tenant, o.scope,
            o.key, j.id
        FROM latchkey.operation o WHERE o.number = j.number;
        RETURN NEXT;
    END LOOP;
END
$$;

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
            sent = j.sent OR d.gone,
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
        FROM unnest(_target, _most) AS w(target, most)
        CROSS JOIN LATERAL (
            SELECT j.id, j.number, j.attempts FROM latchkey.job j
            WHERE j.target = w.target AND j.state = 1 AND j.due_ms <= now
            ORDER BY j.due_ms
            LIMIT least(w.most, look)) AS d
        WHERE w.target = '@gateway'
    LOOP
        s := latchkey.settle_request(lost.id, lost.number, lost.attempts, now);
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
    numbers bigint[];
    ids bigint[];
BEGIN
    SELECT array_agg(f.number), array_agg(f.id) INTO numbers, ids
    FROM (SELECT d.number, latchkey.lock_id(o.tenant, o.scope, o.key) AS id,
              sum(d.size) OVER (ORDER BY d.due_ms, d.id) - d.size AS before
          FROM (SELECT j.id, j.number, j.due_ms,
                    octet_length(j.headers) + octet_length(j.body) AS size
                FROM latchkey.job j
                WHERE j.target = '@gateway' AND j.state = 0
                  AND j.due_ms <= now
                ORDER BY j.due_ms
                LIMIT _most
                FOR NO KEY UPDATE SKIP LOCKED) AS d
          CROSS JOIN LATERAL (
              SELECT p.tenant, p.scope, p.key FROM latchkey.operation p
              WHERE p.number = d.number
              LIMIT 1) AS o) AS f
    WHERE f.before < _bytes;
    IF numbers IS NULL THEN
        RETURN;
    END IF;
    numbers := latchkey.lock_free(numbers, ids);
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
        called = false, due_ms = now + _lease, token = f.token
    FROM found f
    WHERE j.ctid = f.place
    RETURNING 0::smallint, j.id, f.tenant, f.scope, f.key, j.number, j.generation, j.token,
        f.attempt, j.name, j.target, j.method, j.path, j.headers, j.body,
        j.attempts, j.forgiven, j.sent, j.repeatable, j.created_ms, j.due_ms,
        now, j.status, j.provider_id, j.reason;
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
            due_ms = now + _lease
        WHERE j.ctid = ANY (places)
        RETURNING j.*
    )
    SELECT 0::smallint, l.id, o.tenant, o.scope, o.key, l.number, l.generation,
        0::bigint, 0, l.name, l.target, l.method, l.path, l.headers, l.body,
        l.attempts, l.forgiven, l.sent, l.repeatable, l.created_ms, l.due_ms,
        now, l.status, l.provider_id, l.reason
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
    latchkey.courier_settings(boolean),
    latchkey.lock_request(bigint),
    latchkey.step_request(latchkey.operation, bigint, integer, bigint, integer,
        bytea, bytea, text, bigint),
    latchkey.end_request(bigint, integer, integer, bigint, integer, text,
        bytea, bytea, integer),
    latchkey.end_jobs(bigint[], integer[], integer[], bigint[], integer[],
        text[], text[], bytea[], bytea[], integer[]),
    latchkey.mark_jobs(bigint[], integer[], bigint[], integer[]),
    latchkey.put_back(latchkey.job, bigint, integer),
    latchkey.order_jobs(integer[], bigint[], integer[], text[], text[],
        integer[], text[], text[]),
    latchkey.settle_request(bigint, bigint, integer, bigint),
    latchkey.settle_jobs(text[], integer[], integer[]),
    latchkey.lease_requests(integer, bigint, bigint),
    latchkey.lease_jobs(text[], integer[], integer[], bigint, bigint),
    latchkey.next_job(text[])
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    latchkey.courier_settings(boolean),
    latchkey.lock_request(bigint),
    latchkey.step_request(latchkey.operation, bigint, integer, bigint, integer,
        bytea, bytea, text, bigint),
    latchkey.end_request(bigint, integer, integer, bigint, integer, text,
        bytea, bytea, integer),
    latchkey.end_jobs(bigint[], integer[], integer[], bigint[], integer[],
        text[], text[], bytea[], bytea[], integer[]),
    latchkey.mark_jobs(bigint[], integer[], bigint[], integer[]),
    latchkey.put_back(latchkey.job, bigint, integer),
    latchkey.order_jobs(integer[], bigint[], integer[], text[], text[],
        integer[], text[], text[]),
    latchkey.settle_request(bigint, bigint, integer, bigint),
    latchkey.settle_jobs(text[], integer[], integer[]),
    latchkey.lease_requests(integer, bigint, bigint),
    latchkey.lease_jobs(text[], integer[], integer[], bigint, bigint),
    latchkey.next_job(text[])
    TO latchkey_daemon;
