-- 007_work.sql - what the courier asks for: how leases end and go on, and what
-- operators want of jobs. 008_lease.sql has what is lost and what is next.
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
        IF op.state = 2 THEN
            op.deadline_ms := latchkey.lock_end(op.token, op.deadline_ms);
        END IF;
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
        '', 0, _lock, 32, _op.token, _status, _headers, _body, _reason, '', '',
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
    gone boolean := (_flags & 1) <> 0;
    -- Where the gateway has put it back already, and it has not been leased
    -- since, the courier still says how long it waits, or that it is given up.
    held CONSTANT smallint[] := CASE WHEN _end IN (1, 4) THEN '{0,1}'
                                     ELSE '{1}' END;
    j latchkey.job;
    l record;
    s record;
    now bigint;
    becomes smallint;
BEGIN
    SELECT * INTO j FROM latchkey.job k WHERE k.id = _id;
    IF j.id IS NULL OR j.attempts <> _attempt OR NOT j.state = ANY (held) THEN
        outcome := 1;
        RETURN;
    END IF;
    l := latchkey.lock_request(j.number);
    IF NOT l.got THEN
        outcome := 2;
        RETURN;
    END IF;
    SELECT * INTO j FROM latchkey.job k
    WHERE k.id = _id AND k.attempts = _attempt AND k.state = ANY (held)
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := 1;
        RETURN;
    END IF;
    outcome := 0;
    now := latchkey.now_ms();
    IF NOT j.called THEN
        -- The gateway never took it, though it may have been sent there.
        gone := false;
        _end := CASE _end WHEN 3 THEN 1 ELSE _end END;
    END IF;
    IF _end = 4 AND j.state = 0 THEN -- taken once more, to be ended
        s := latchkey.step_request(l.op, l.id, 2, 1, 0, '', '', '', now);
        l := latchkey.lock_request(j.number);
    END IF;
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

-- _end: enum lk_end. _flags: 1 the call may have left; 65536 nobody knows whether
-- it has happened (not of a request); plus twice the status of the answer that a
-- request which is given up is completed with. Returns a row only for those that
-- are stale (1) or that another transaction has (2), and for those who have
-- settled an operation (0).
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
            doubt = j.doubt OR u.flags >= 65536,
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
            WHERE k.id = u.id AND k.attempts = u.attempt
              AND (k.state + 0 = 1 OR k.state + 0 = 0 AND k.name = '')
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
    _forgiven integer, _doubt boolean)
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
        since_ms = _now, called = false, forgiven = _forgiven, doubt = _doubt
    WHERE j.id = _job.id;
END
$$;

-- _order: enum lk_order. Audited. outcome: 0 done, 1 there is none, 2 it is not
-- in such a state or at another attempt, 3 a request, 4 it was sent, and its key
-- may be forgotten: _life milliseconds after it was first sent, of the target in
-- the same place of _keyed. state: as it is now; -1: not of a job.
CREATE OR REPLACE FUNCTION latchkey.order_jobs(_order integer[], _id bigint[],
    _attempt integer[], _target text[], _provider text[], _status integer[],
    _who text[], _why text[], _keyed text[], _life bigint[])
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
                    WHEN 0 THEN '{0,3}' WHEN 3 THEN '{2,3}'
                    -- A lost lease that nobody settles can be ended.
                    ELSE CASE WHEN j.due_ms <= now THEN '{0,1,2,3}'
                              ELSE '{0,2,3}' END
                    END::smallint[]) THEN 2
            -- A request moves with its operation; but when it is due concerns
            -- itself alone.
            WHEN j.name = '' AND _order[i] <> 0 THEN 3
            WHEN _order[i] = 0 AND j.sent
                AND coalesce(nullif(j.sent_ms, 0), j.created_ms)
                    + _life[array_position(_keyed, j.target)] <= now THEN 4
            ELSE 0 END;
        IF outcome > 0 THEN
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF _order[i] = 0 THEN
            PERFORM latchkey.put_back(j, now, j.attempts, j.doubt);
            state := 0;
        ELSIF _order[i] = 3 THEN
            -- What has not happened does not count.
            PERFORM latchkey.put_back(j, now,
                least(j.forgiven + 1, j.attempts), false);
            UPDATE latchkey.job k SET sent = false WHERE k.id = j.id;
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
    latchkey.put_back(latchkey.job, bigint, integer, boolean),
    latchkey.order_jobs(integer[], bigint[], integer[], text[], text[],
        integer[], text[], text[], text[], bigint[])
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
    latchkey.put_back(latchkey.job, bigint, integer, boolean),
    latchkey.order_jobs(integer[], bigint[], integer[], text[], text[],
        integer[], text[], text[], text[], bigint[])
    TO latchkey_daemon;
