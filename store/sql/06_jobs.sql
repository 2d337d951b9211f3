-- 06_jobs.sql - what the courier asks for: how leases end and go on, what is
-- lost and what is next; and the actions of operators on jobs.
-- latchkey.decide_job has the rules.
--
-- All of it is one transaction of the daemon, READ COMMITTED, on a connection
-- of its own. A lease is fenced by its number: the caller that ends or renews
-- it shows job.attempts as it was at the lease. Rows that another courier has
-- are not leased (SKIP LOCKED). Ends, marks and orders wait for them, for a
-- moment: only other couriers can have them, and these take theirs in the
-- order of ids, and when they lease, wait for no one. But an app may have the
-- operation of a request for long, so that is never waited for.
--
-- A request and its operation change in one step, under the operation's lock;
-- of what the courier does to a request, latchkey.step does the operation's
-- part.
--
-- As in 02_decide.sql, plans must hold while tables grow: rows are found by a
-- LATERAL lookup, locked, and changed by ctid and by nothing else; `+ 0` keeps
-- the planner from the partial indexes where the primary key is meant. One plan
-- for all, because making one takes longer than the work. What the three that
-- are called all the time need for that, the caller's session says
-- (latchkey.courier_settings), because saying it at each call takes an eighth
-- of their time.

-- The settings of a session that calls end_jobs, mark_jobs and lease_jobs; or
-- of the transaction.
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

-- The lock of a request's operation, if no other transaction has it, and the
-- operation.
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
        IF op.state = @STATE_IN_PROGRESS@ THEN
            op.deadline_ms := latchkey.lock_end(op.token, op.deadline_ms);
        END IF;
    END IF;
END
$$;

-- One event of a request's operation, under its lock and its own token: the
-- verdict. settles: its waiters are to be woken.
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
        '', 0, _lock, @FLAG_COURIER@, _op.token, _status, _headers, _body, _reason, '', '',
        _op.ttl_ms, _now, _id);
    verdict := d.verdict;
    settles := d.settles;
END
$$;

-- ---- ends ----------------------------------------------------------------

-- How the lease of a request ends: FENCE_*. settled: the lock_id of an
-- operation that a client may wait for. What the operation does to its request
-- on the way (latchkey.follow) is written over: the rules of the end count.
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
    says_left CONSTANT boolean := (_flags & @END_FLAG_LEFT@) <> 0;
    j latchkey.job;
    l record;
    s record;
    now bigint := latchkey.now_ms();
    code integer;
    becomes smallint;
    tells integer;
BEGIN
    outcome := @FENCE_STALE@;
    FOR round IN 1 .. 2 LOOP -- a look, and then under the operation's lock
        SELECT * INTO j FROM latchkey.job k WHERE k.id = _id;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        code := latchkey.decide_job(@END_FIRST@ + _end, j.state,
            latchkey.job_conditions(j, now)
            | CASE WHEN j.attempts = _attempt THEN @JOB_IF_CURRENT@ ELSE 0 END
            | CASE WHEN says_left THEN @JOB_IF_LEFT@ ELSE 0 END);
        IF @JOB_OUTCOME(code)@ <> @JOB_OUTCOME_DONE@ THEN
            RETURN;
        END IF;
        IF round = 1 THEN
            l := latchkey.lock_request(j.number);
            IF NOT l.got THEN
                outcome := @FENCE_AGAIN@;
                RETURN;
            END IF;
            PERFORM FROM latchkey.job k WHERE k.id = _id FOR NO KEY UPDATE;
            now := latchkey.now_ms();
        END IF;
    END LOOP;
    becomes := @JOB_NEXT(code, j.state)@;
    tells := @JOB_TELLS(code)@;
    IF @JOB_DOES(code, UNSEEN)@ THEN
        _reason := 'the gateway says that it is completed, and the store has '
            'not seen it';
    END IF;
    IF @JOB_DOES(code, RETAKE)@ THEN
        s := latchkey.step_request(l.op, l.id, @EVENT_LEASE@, 1, 0, '', '', '',
            now);
        l := latchkey.lock_request(j.number);
    END IF;
    s := latchkey.step_request(l.op, l.id, tells, 0, coalesce(nullif(
        (_flags & (@END_FLAG_DOUBT@ - 1)) / @END_FLAG_STATUS@, 0), 503),
        _headers, _body,
        CASE tells WHEN @EVENT_DOUBT@ THEN _reason ELSE '' END, now);
    IF s.verdict <> @VERDICT_DONE@ THEN
        RETURN;
    END IF;
    outcome := @FENCE_DONE@;
    IF s.settles THEN
        settled := l.id;
    END IF;
    IF @JOB_DOES(code, HISTORY)@ THEN
        INSERT INTO latchkey.attempt (job, number, ended_ms, status, called,
            reason, body)
        VALUES (_id, _attempt, now, _status, says_left AND j.called, _reason,
            substr(_body, 1, 1024))
        ON CONFLICT DO NOTHING;
    END IF;
    UPDATE latchkey.job k SET
        state = becomes,
        sent = j.sent OR @JOB_DOES(code, SENT)@
            OR @JOB_DOES(code, LEFT)@ AND says_left,
        called = j.called AND NOT @JOB_DOES(code, UNCALLED)@,
        forgiven = j.forgiven + (@JOB_DOES(code, FORGIVE)@)::integer,
        due_ms = CASE WHEN @JOB_DOES(code, DUE)@ THEN now + _delay
                      ELSE j.due_ms END,
        ended_ms = CASE WHEN becomes IN (@JOBS_TIMED@) THEN 0 ELSE now END,
        status = CASE WHEN @JOB_DOES(code, RESULT)@ THEN _status
                      ELSE j.status END,
        reason = CASE WHEN @JOB_DOES(code, RESULT)@ THEN _reason
                      ELSE j.reason END,
        answer_headers = CASE WHEN @JOB_DOES(code, RESULT)@ THEN _headers
                              ELSE j.answer_headers END,
        answer_body = CASE WHEN @JOB_DOES(code, RESULT)@ THEN _body
                           ELSE j.answer_body END
    WHERE k.id = _id;
END
$$;

-- _end: enum lk_end, in the order of its events. _flags: END_FLAG_* of
-- store/sql_codes.h. Returns a row only for those that are stale or that
-- another transaction has (FENCE_*), and for those that have settled an
-- operation. What becomes of a job that is not a request depends on its end
-- alone, once the fence
-- holds: so the rules are asked before the row is found.
CREATE OR REPLACE FUNCTION latchkey.end_jobs(_id bigint[], _attempt integer[],
    _end integer[], _delay bigint[], _status integer[], _provider text[],
    _reason text[], _headers bytea[], _body bytea[], _flags integer[])
RETURNS TABLE (at integer, outcome smallint, settled bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    now CONSTANT bigint := latchkey.now_ms();
    ended bigint[];
    past bigint[]; -- of these, the attempt goes to the history
    request boolean;
BEGIN
    WITH moved AS (
        UPDATE latchkey.job j SET
            state = @JOB_NEXT(u.code, j.state)@,
            sent = j.sent OR @JOB_DOES(u.code, SENT)@
                OR @JOB_DOES(u.code, LEFT)@
                    AND (u.flags & @END_FLAG_LEFT@) <> 0,
            doubt = j.doubt OR @JOB_DOES(u.code, DOUBTS)@
                AND u.flags >= @END_FLAG_DOUBT@,
            called = j.called AND NOT @JOB_DOES(u.code, UNCALLED)@,
            forgiven = j.forgiven + (@JOB_DOES(u.code, FORGIVE)@)::integer,
            due_ms = CASE WHEN @JOB_DOES(u.code, DUE)@ THEN now + u.delay
                          ELSE j.due_ms END,
            ended_ms = CASE WHEN @JOB_DOES(u.code, DUE)@ THEN 0 ELSE now END,
            status = CASE WHEN @JOB_DOES(u.code, RESULT)@ THEN u.status
                          ELSE j.status END,
            reason = CASE WHEN @JOB_DOES(u.code, RESULT)@ THEN u.reason
                          ELSE j.reason END,
            provider_id = CASE WHEN @JOB_DOES(u.code, RESULT)@
                                   AND u.provider <> '' THEN u.provider
                               ELSE j.provider_id END,
            answer_headers = CASE WHEN @JOB_DOES(u.code, RESULT)@ THEN u.headers
                                  ELSE j.answer_headers END,
            answer_body = CASE WHEN @JOB_DOES(u.code, RESULT)@ THEN u.body
                               ELSE j.answer_body END
        FROM (SELECT v.*, latchkey.decide_job(@END_FIRST@ + v.ends,
                  @JOB_LEASED@, @JOB_IF_CURRENT@) AS code
              FROM unnest(_id, _attempt, _end, _delay, _status,
                  _provider, _reason, _headers, _body, _flags)
                  WITH ORDINALITY AS v(id, attempt, ends, delay, status,
                  provider, reason, headers, body, flags, at)
              ORDER BY v.id) AS u
        WHERE j.id = u.id AND j.attempts = u.attempt
          AND j.state + 0 = @JOB_LEASED@ AND j.name <> ''
        RETURNING u.at, @JOB_DOES(u.code, HISTORY)@ AS history
    )
    SELECT coalesce(array_agg(m.at), '{}'),
        array_agg(m.at) FILTER (WHERE m.history)
    INTO ended, past FROM moved m;
    IF past IS NOT NULL THEN
        INSERT INTO latchkey.attempt (job, number, ended_ms, status, called,
            reason, body)
        SELECT _id[e.at], _attempt[e.at], now, _status[e.at],
            (_flags[e.at] & @END_FLAG_LEFT@) <> 0, _reason[e.at],
            substr(_body[e.at], 1, 1024)
        FROM unnest(past) AS e(at)
        ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(ended) = cardinality(_id) THEN
        RETURN;
    END IF;
    FOR at, request IN
        SELECT u.at, j.request
        FROM unnest(_id, _attempt, _end)
            WITH ORDINALITY AS u(id, attempt, ends, at)
        LEFT JOIN LATERAL (
            SELECT k.name = '' AS request FROM latchkey.job k
            WHERE k.id = u.id AND k.attempts = u.attempt
              AND @JOB_OUTCOME(latchkey.decide_job(@END_FIRST@ + u.ends,
                  k.state, @JOB_IF_CURRENT@ | latchkey.job_conditions(k, now)))@
                  = @JOB_OUTCOME_DONE@
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
            outcome := CASE WHEN request IS NULL THEN @FENCE_STALE@
                            ELSE @FENCE_AGAIN@ END;
        END IF;
        IF outcome <> @FENCE_DONE@ OR settled IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;

-- ---- marks ---------------------------------------------------------------

-- Leases that go on. _flags: END_FLAG_LEFT: it is about to be called. Rows as
-- end_jobs has them. A request's operation is extended as well, unless another
-- transaction has it: that one is at work on it, and the next mark will do.
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
            WHERE k.id = u.id AND k.attempts = u.attempt
              AND k.state + 0 = @JOB_LEASED@ AND k.name <> ''
            FOR NO KEY UPDATE) AS j
        UNION ALL
        SELECT u.at::integer, u.id, u.lease, u.flags, j.place, true
        FROM unnest(_id, _attempt, _lease, _flags)
            WITH ORDINALITY AS u(id, attempt, lease, flags, at)
        CROSS JOIN LATERAL (
            SELECT k.ctid AS place FROM latchkey.job k
            WHERE k.id = u.id AND k.attempts = u.attempt
              AND k.state + 0 = @JOB_LEASED@ AND k.name = ''
            FOR NO KEY UPDATE SKIP LOCKED) AS j
    ), moved AS (
        UPDATE latchkey.job j SET
            due_ms = now + m.lease,
            called = j.called OR (m.flags & @END_FLAG_LEFT@) <> 0
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
        s := latchkey.step_request(l.op, l.id, @EVENT_EXTEND@,
            _lease[requests[i]], 0, '', '', '', now);
        IF s.verdict <> @VERDICT_DONE@ THEN
            at := requests[i];
            outcome := @FENCE_STALE@;
            RETURN NEXT;
        END IF;
    END LOOP;
    IF cardinality(marked) = cardinality(_id) THEN
        RETURN;
    END IF;
    FOR at, alive IN
        SELECT u.at, EXISTS (
            SELECT FROM latchkey.job k
            WHERE k.id = u.id AND k.attempts = u.attempt
              AND @JOB_OUTCOME(latchkey.decide_job(@JOB_EVENT_MARK@, k.state,
                  @JOB_IF_CURRENT@))@ = @JOB_OUTCOME_DONE@
            OFFSET 0)
        FROM unnest(_id, _attempt) WITH ORDINALITY AS u(id, attempt, at)
        WHERE (u.at IN (SELECT m.at FROM unnest(marked) AS m(at))) IS NOT TRUE
    LOOP
        outcome := CASE WHEN alive THEN @FENCE_AGAIN@ ELSE @FENCE_STALE@ END;
        RETURN NEXT;
    END LOOP;
END
$$;

-- ---- actions -------------------------------------------------------------

-- _order: enum lk_job_action_kind, in the order of its events; then pause and
-- resume. Audited. outcome: JOB_OUTCOME_*; a key may be forgotten _life
-- milliseconds after it was first sent, of the target in the same place of
-- _keyed.
-- state: as it is now; -1: not of a job.
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
    words CONSTANT text[] := ARRAY['job retry', 'job drop', 'job delivered',
        'job again', 'target pause ', 'target resume '];
    j latchkey.job;
    code integer;
BEGIN
    FOR i IN 1 .. cardinality(_order) LOOP
        at := i;
        outcome := @JOB_OUTCOME_DONE@;
        state := -1;
        IF _order[i] IN (@ACTION_PAUSE@, @ACTION_RESUME@) THEN
            IF _order[i] = @ACTION_PAUSE@ THEN
                INSERT INTO latchkey.target (name, paused_ms, who, why)
                VALUES (_target[i], now, _who[i], _why[i])
                ON CONFLICT (name) DO UPDATE SET who = excluded.who,
                    why = excluded.why;
            ELSE
                DELETE FROM latchkey.target t WHERE t.name = _target[i];
            END IF;
            INSERT INTO latchkey.audit (at_ms, who, why, action)
            VALUES (now, _who[i], _why[i],
                words[_order[i] + 1] || _target[i]);
            RETURN NEXT;
            CONTINUE;
        END IF;

        SELECT * INTO j FROM latchkey.job k WHERE k.id = _id[i]
        FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            outcome := @JOB_OUTCOME_NOT_FOUND@;
            RETURN NEXT;
            CONTINUE;
        END IF;
        code := latchkey.decide_job(@ACTION_FIRST@ + _order[i], j.state,
            latchkey.job_conditions(j, now)
            | CASE WHEN _attempt[i] IN (0, j.attempts) THEN @JOB_IF_CURRENT@
                   ELSE 0 END
            | CASE WHEN coalesce(nullif(j.sent_ms, 0), j.created_ms)
                       + _life[array_position(_keyed, j.target)] <= now
                   THEN @JOB_IF_FORGOTTEN@ ELSE 0 END);
        outcome := @JOB_OUTCOME(code)@;
        state := @JOB_NEXT(code, j.state)@;
        IF outcome <> @JOB_OUTCOME_DONE@ THEN
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF state = @JOB_WAITING@ AND j.state IN (@JOBS_STUCK@) THEN
            -- It goes on, so its last attempt is history.
            INSERT INTO latchkey.attempt (job, number, ended_ms, status,
                called, reason, body)
            VALUES (j.id, j.attempts, j.ended_ms, j.status, j.sent, j.reason,
                substr(j.answer_body, 1, 1024))
            ON CONFLICT DO NOTHING;
        END IF;
        UPDATE latchkey.job k SET state = order_jobs.state,
            ended_ms = CASE WHEN @JOB_DOES(code, DUE)@ THEN 0 ELSE now END,
            due_ms = CASE WHEN @JOB_DOES(code, DUE)@ THEN now ELSE j.due_ms END,
            since_ms = CASE WHEN @JOB_DOES(code, SINCE)@ THEN now
                            ELSE j.since_ms END,
            called = j.called AND NOT @JOB_DOES(code, UNCALLED)@,
            forgiven = CASE WHEN @JOB_DOES(code, FORGIVE_ALL)@ THEN j.attempts
                            WHEN @JOB_DOES(code, FORGIVE)@
                            THEN least(j.forgiven + 1, j.attempts)
                            ELSE j.forgiven END,
            sent = (j.sent OR @JOB_DOES(code, SENT)@)
                AND NOT @JOB_DOES(code, NEVER_SENT)@,
            doubt = j.doubt AND NOT @JOB_DOES(code, NEVER_SENT)@,
            provider_id = CASE WHEN @JOB_DOES(code, RESULT)@
                                   AND _provider[i] <> '' THEN _provider[i]
                               ELSE j.provider_id END,
            status = CASE WHEN @JOB_DOES(code, RESULT)@ AND _status[i] <> 0
                          THEN _status[i] ELSE j.status END
        WHERE k.id = j.id;
        INSERT INTO latchkey.audit (at_ms, who, why, action, tenant, scope,
            key, token)
        SELECT now, _who[i], _why[i], words[_order[i] + 1], o.tenant, o.scope,
            o.key, j.id
        FROM latchkey.operation o WHERE o.number = j.number;
        RETURN NEXT;
    END LOOP;
END
$$;

-- ---- what is lost --------------------------------------------------------

-- A request whose lease has run out. outcome: SETTLE_* of store/sql_codes.h.
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
    code integer;
    becomes smallint;
    why text;
BEGIN
    outcome := @SETTLE_NOT@;
    l := latchkey.lock_request(_number);
    IF NOT l.got AND l.id IS NOT NULL THEN -- without an id it has no operation
        RETURN;
    END IF;
    SELECT * INTO j FROM latchkey.job k
    WHERE k.id = _id AND k.attempts = _attempts AND k.number = _number
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- The gateway may keep it alive, whatever has become of the courier.
    code := latchkey.decide_job(CASE (l.op).state
        WHEN @STATE_ACCEPTED@ THEN @JOB_EVENT_LOST_ACCEPTED@
        WHEN @STATE_IN_PROGRESS@ THEN CASE WHEN (l.op).deadline_ms > _now
            THEN @JOB_EVENT_LOST_RUNNING@ ELSE @JOB_EVENT_LOST@ END
        WHEN @STATE_UNCERTAIN@ THEN @JOB_EVENT_LOST_UNCERTAIN@
        WHEN @STATE_COMPLETED@ THEN @JOB_EVENT_LOST_COMPLETED@
        ELSE @JOB_EVENT_LOST_GONE@ END, j.state,
        latchkey.job_conditions(j, _now));
    becomes := @JOB_NEXT(code, j.state)@;
    IF @JOB_OUTCOME(code)@ <> @JOB_OUTCOME_DONE@ OR j.state <> @JOB_LEASED@ THEN
        RETURN;
    END IF;
    why := CASE becomes WHEN @JOB_UNCERTAIN@
        THEN 'the courier was lost after it had called'
        ELSE 'the courier was lost' END;
    IF @JOB_TELLS(code)@ IS NOT NULL THEN
        s := latchkey.step_request(l.op, l.id, @JOB_TELLS(code)@, 0, 0, '', '',
            CASE becomes WHEN @JOB_UNCERTAIN@ THEN why ELSE '' END, _now);
        IF s.settles THEN
            settled := l.id;
        END IF;
    END IF;
    IF @JOB_DOES(code, HISTORY)@ THEN
        INSERT INTO latchkey.attempt (job, number, ended_ms, status, called,
            reason, body)
        VALUES (_id, _attempts, _now, 0, true, why, '')
        ON CONFLICT DO NOTHING;
    END IF;
    UPDATE latchkey.job k SET
        state = becomes, sent = j.sent OR @JOB_DOES(code, SENT)@,
        called = j.called,
        due_ms = CASE WHEN NOT @JOB_DOES(code, DUE)@ THEN j.due_ms
                      WHEN becomes = @JOB_LEASED@ THEN (l.op).deadline_ms
                      ELSE _now END,
        ended_ms = CASE WHEN becomes IN (@JOBS_TIMED@) THEN 0 ELSE _now END,
        status = CASE WHEN @JOB_DOES(code, RESULT)@ THEN 0 ELSE j.status END,
        reason = CASE WHEN @JOB_DOES(code, RESULT)@ THEN why ELSE j.reason END
    WHERE k.id = _id;
    outcome := CASE becomes WHEN @JOB_LEASED@ THEN @SETTLE_NOT@
                            WHEN @JOB_UNCERTAIN@ THEN @SETTLE_UNCERTAIN@
                            ELSE @SETTLE_DONE@ END;
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
        SELECT e.*, @JOB_NEXT(e.code, @JOB_LEASED@)@ AS next,
            @JOB_NEXT(e.code, @JOB_LEASED@)@ = @JOB_UNCERTAIN@ AS lost
        FROM (
        SELECT d.*, w.target, w.most, latchkey.decide_job(@JOB_EVENT_LOST@,
            @JOB_LEASED@, @JOB_IF_LAPSED@
            | CASE WHEN d.called THEN @JOB_IF_CALLED@ ELSE 0 END
            | CASE WHEN w.honours = 1 THEN @JOB_IF_HONOURS@ ELSE 0 END) AS code
        FROM unnest(_target, _most, _honours) AS w(target, most, honours)
        CROSS JOIN LATERAL (
            SELECT j.ctid AS place, j.id, j.attempts, j.called, j.due_ms
            FROM latchkey.job j
            WHERE j.target = w.target AND j.state = @JOB_LEASED@ AND j.due_ms <= now
            ORDER BY j.due_ms
            LIMIT greatest(w.most, look)
            FOR NO KEY UPDATE SKIP LOCKED) AS d
        WHERE w.target <> '@gateway'
        OFFSET 0) AS e
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
        WHERE @JOB_DOES(d.code, HISTORY)@
        ON CONFLICT DO NOTHING
    ), moved AS (
        UPDATE latchkey.job j SET
            state = d.next, sent = j.sent OR @JOB_DOES(d.code, SENT)@,
            doubt = j.doubt OR @JOB_DOES(d.code, DOUBT)@,
            ended_ms = CASE WHEN d.lost THEN now ELSE 0 END,
            status = CASE WHEN @JOB_DOES(d.code, RESULT)@ THEN 0
                          ELSE j.status END,
            reason = CASE WHEN NOT @JOB_DOES(d.code, RESULT)@ THEN j.reason
                WHEN d.lost THEN 'the courier was lost after it had called'
                ELSE 'the courier was lost' END
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
            WHERE j.target = w.target AND j.state = @JOB_LEASED@ AND j.due_ms <= now
            ORDER BY j.due_ms
            LIMIT look) AS d
        WHERE w.target = '@gateway'
    LOOP
        EXIT WHEN room <= 0;
        s := latchkey.settle_request(lost.id, lost.number, lost.attempts, now);
        room := room - (s.outcome <> @SETTLE_NOT@)::integer;
        lapsed := lapsed + (s.outcome = @SETTLE_UNCERTAIN@)::integer;
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
              WHERE j.target = '@gateway' AND j.state = @JOB_WAITING@
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
        WHERE o.number = ANY (numbers) AND o.queued
          AND @EFFECT(latchkey.decide(@EVENT_LEASE@, o.state, false, false,
              o.omitted, o.queued, false, false, false, 0))@ = @EFFECT_LEASE@
    ), begun AS (
        UPDATE latchkey.operation o SET
            state = @STATE_IN_PROGRESS@, token = nextval('latchkey.token'),
            attempt = o.attempt + 1, deadline_ms = now + _lease, owner = '',
            reason = NULL
        FROM due
        WHERE o.ctid = due.place
        RETURNING o.number, o.tenant, o.scope, o.key, o.token, o.attempt
    ), found AS MATERIALIZED (
        SELECT b.*, d.place, d.id FROM begun b
        CROSS JOIN LATERAL (
            SELECT j.ctid AS place, j.id FROM latchkey.job j
            WHERE j.number = b.number AND j.name = ''
              AND j.state + 0 = @JOB_WAITING@
            LIMIT 1) AS d
    )
    UPDATE latchkey.job j SET state = @JOB_LEASED@, attempts = j.attempts + 1,
        called = false, due_ms = now + _lease, token = f.token,
        sent_ms = CASE WHEN j.sent THEN j.sent_ms ELSE now END
    FROM found f
    WHERE j.ctid = f.place
    RETURNING @LEASE_JOB@::smallint, j.id, f.tenant, f.scope, f.key, j.number,
        j.generation, j.token, f.attempt, j.name, j.target, j.method, j.path, j.headers, j.body,
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
        CROSS JOIN (VALUES (@JOB_WAITING@), (@JOB_LEASED@)) AS s(state)
        CROSS JOIN LATERAL (
            SELECT j.due_ms FROM latchkey.job j
            WHERE j.target = w.target AND j.state = s.state
              AND j.state < @JOB_UNCERTAIN@
            ORDER BY j.due_ms
            LIMIT 1) AS d
        WHERE s.state = @JOB_LEASED@ OR NOT EXISTS (
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
            WHERE j.target = w.target AND j.state = @JOB_LEASED@ AND j.due_ms <= now
            LIMIT 1) AS d)
    THEN
        SELECT s.lapsed, s.settled INTO lapsed, settled
        FROM latchkey.settle_jobs(_target, _most, _honours) AS s;
        last.kind := @LEASE_SETTLED@;
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
        WHERE j.target = w.target AND j.state = @JOB_WAITING@ AND j.due_ms <= now
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
    -- Where keys are honoured it leaves without a mark: it may have been
    -- called, should the target not honour them when the lease is lost.
    RETURN QUERY
    WITH leased AS (
        UPDATE latchkey.job j SET state = @JOB_LEASED@,
            attempts = j.attempts + 1,
            called = @JOB_DOES(latchkey.decide_job(@JOB_EVENT_LEASE@, j.state,
                CASE _honours[array_position(_target, j.target)]
                WHEN 1 THEN @JOB_IF_HONOURS@ ELSE 0 END), CALLED)@,
            due_ms = now + _lease,
            sent_ms = CASE WHEN j.sent THEN j.sent_ms ELSE now END
        WHERE j.ctid = ANY (places)
        RETURNING j.*
    )
    SELECT @LEASE_JOB@::smallint, l.id, o.tenant, o.scope, o.key, l.number, l.generation,
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
    last.kind := @LEASE_END@;
    last.due_ms := CASE WHEN leased + rows < wanted OR wanted = 0
        THEN latchkey.next_job(_target) ELSE 0 END;
    last.attempts := lapsed;
    RETURN NEXT last;
END
$$;
