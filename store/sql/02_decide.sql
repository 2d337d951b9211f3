-- 02_decide.sql - how an operation is decided: one at a time, and in batches.
--
-- The rules that make it safe, for every path, the daemon's and the apps':
--
-- 1. Lock first. A caller that decides about a name first takes the
-- transaction's
--    advisory lock on it, and never waits for it: not getting it means that
--    another transaction is at work on the operation. So no claim waits behind
--    an open transaction, and since rows are only written under that lock,
--    writers never wait for each other and cannot deadlock.
-- 2. Read after. A statement's snapshot is older than a lock that the same
--    statement takes, so lock and read are two statements. In READ COMMITTED,
--    each statement of a VOLATILE function has a snapshot of its own. In a
--    REPEATABLE READ or SERIALIZABLE transaction the snapshot may be older
--    than the lock: there the row is locked too, and one that has changed
--    since ends the transaction with 40001, to be run again.
-- 3. One clock, the server's, read after the lock was taken.
--
-- PL/pgSQL keeps plans, and a plan made while a table was small may read it as
-- a whole for as long as no one analyses it. So every function that gets at
-- operations says enable_seqscan = off, and a batch finds its rows by a LATERAL
-- lookup with LIMIT, which leaves the planner nothing but the index of names,
-- and changes them by ctid, which leaves it nothing but that.

-- The name of an operation as a number to lock. A collision only makes a claim
-- look busy while the other transaction is open. The constant keeps away from
-- other users of advisory locks.
CREATE OR REPLACE FUNCTION latchkey.lock_id(tenant text, scope text, key text)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT pg_catalog.hashtextextended($3 COLLATE "C",
        pg_catalog.hashtextextended($2 COLLATE "C",
            pg_catalog.hashtextextended($1 COLLATE "C", 5499535116398314073)))
$$;

CREATE OR REPLACE FUNCTION latchkey.now_ms()
RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$
    SELECT pg_catalog.floor(extract(epoch FROM pg_catalog.clock_timestamp())
                            * 1000)::bigint
$$;

-- Does the transaction see the same rows from its beginning to its end?
CREATE OR REPLACE FUNCTION latchkey.has_old_snapshot()
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.current_setting('transaction_isolation')
        IN ('repeatable read', 'serializable')
$$;

-- A commit can be visible before a synchronous standby has it, for ever: its
-- wait was cut short, by a cancellation or a crash, or its session did not
-- wait. So nothing is acknowledged because of what a row says unless a commit
-- of our own, which comes later in the log, has waited. A transaction waits if
-- it has written something: this message, which no one reads. Without such a
-- standby, or where the session does not wait for it, nothing is written.
CREATE OR REPLACE FUNCTION latchkey.wait_for_standby()
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('synchronous_standby_names') <> ''
        AND current_setting('synchronous_commit') NOT IN ('off', 'local')
        AND current_setting('transaction_read_only') = 'off' THEN
        PERFORM pg_logical_emit_message(true, 'latchkey', '');
    END IF;
END
$$;

-- The rules of lib/machine.c as one expression, generated from their rows: what
-- an event does to an operation, and what the caller gets. The code holds the
-- verdict (enum lk_verdict), the effect (enum lk_effect) and the next state.
--
-- was: the state that the event finds; an expired operation is absent for every
-- event but the reaper's, and then the booleans may be null. flags: those of
-- latchkey.apply that are conditions, and FLAG_DOUBTED.
CREATE OR REPLACE FUNCTION latchkey.decide(event integer, was integer,
    expired boolean, lapsed boolean, omitted boolean, queued boolean,
    same_fingerprint boolean, same_owner boolean, token_current boolean,
    flags integer)
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT @DECIDE@
$$;

-- The rules of lib/job_machine.c, generated in the same way: what an event
-- does to a job (enum lk_job_event, enum lk_job_state; conditions: a set of
-- JOB_IF_*). The code holds the outcome, the next state, the event that the
-- operation of a request gets, and the effects.
CREATE OR REPLACE FUNCTION latchkey.decide_job(event integer, state integer,
    conditions integer)
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT @DECIDE_JOB@
$$;

-- The conditions that a job itself has.
CREATE OR REPLACE FUNCTION latchkey.job_conditions(_job latchkey.job,
    _now bigint)
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN $1.name = '' THEN @JOB_IF_REQUEST@ ELSE 0 END
        | CASE WHEN $1.due_ms <= $2 THEN @JOB_IF_LAPSED@ ELSE 0 END
        | CASE WHEN $1.called THEN @JOB_IF_CALLED@ ELSE 0 END
        | CASE WHEN $1.sent THEN @JOB_IF_SENT@ ELSE 0 END
        | CASE WHEN $1.repeatable THEN @JOB_IF_REPEATABLE@ ELSE 0 END
$$;

-- The record of that name as it is now, or null. The caller holds the lock. An
-- old snapshot may not show it as it is: a row that has changed since is not
-- taken (40001), and whether one has come since only an insertion can tell.
-- _inserts: the caller makes one anyway if there is no record.
CREATE OR REPLACE FUNCTION latchkey.read(_tenant text, _scope text, _key text,
    _inserts boolean)
RETURNS latchkey.operation
LANGUAGE plpgsql
AS $$
DECLARE
    r latchkey.operation;
BEGIN
    IF NOT latchkey.has_old_snapshot() THEN
        SELECT * INTO r FROM latchkey.operation o
        WHERE o.tenant = _tenant AND o.scope = _scope AND o.key = _key;
        RETURN r;
    END IF;
    SELECT * INTO r FROM latchkey.operation o
    WHERE o.tenant = _tenant AND o.scope = _scope AND o.key = _key
    FOR NO KEY UPDATE;
    IF r.number IS NOT NULL OR _inserts THEN
        RETURN r;
    END IF;
    BEGIN
        INSERT INTO latchkey.operation (number, tenant, scope, key, state,
            attempt, token, generation, claimed_ms, deadline_ms, ttl_ms,
            fingerprint, owner)
        VALUES (-pg_catalog.pg_backend_pid(), _tenant, _scope, _key,
            @STATE_IN_PROGRESS@, 0, 0, 0, 0, 0, 0, '', '')
        ON CONFLICT (tenant, scope, key) DO NOTHING; -- 40001 if one has come
        RAISE EXCEPTION 'there is none' USING ERRCODE = 'LK000';
    EXCEPTION WHEN SQLSTATE 'LK000' THEN
        RETURN NULL; -- and what was inserted is gone with the block
    END;
END
$$;

-- When the lock of a claim ends: EXTEND notes that apart.
CREATE OR REPLACE FUNCTION latchkey.lock_end(_token bigint, _deadline bigint)
RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN greatest(_deadline, (SELECT e.until_ms FROM latchkey.extension e
                                WHERE e.token = _token));
END
$$;

-- Not before _until. The caller holds the lock of the name. An old snapshot
-- that does not show the last sign of life gets 40001 (_until 0: to find out).
CREATE OR REPLACE FUNCTION latchkey.extend_lock(_token bigint, _until bigint)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO latchkey.extension AS e (token, until_ms)
    VALUES (_token, _until)
    ON CONFLICT ON CONSTRAINT extension_pkey DO UPDATE
    SET until_ms = greatest(e.until_ms, excluded.until_ms);
END
$$;

-- The name of an operation in latchkey.used_name: no two names look alike.
CREATE OR REPLACE FUNCTION latchkey.name_hash(tenant text, scope text,
    key text)
RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT pg_catalog.sha256(pg_catalog.convert_to(
        pg_catalog.octet_length($1) || ':' || $1
        || pg_catalog.octet_length($2) || ':' || $2 || $3, 'UTF8'))
$$;

-- Longer than a service remembers an Idempotency-Key.
CREATE OR REPLACE FUNCTION latchkey.use_until(_now bigint)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT $1 + 90 * 86400000::bigint $$;

-- Which use of its name an operation with jobs is, counted from 1. The caller
-- holds the lock of the name. Jobs of before latchkey.used_name was there have
-- the operation's own generation, and keep it; those of a use before that one
-- are not taken for jobs of this one.
CREATE OR REPLACE FUNCTION latchkey.count_use(_name bytea, _number bigint,
    _use bigint, _now bigint)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    counted bigint;
BEGIN
    SELECT u.generation INTO counted FROM latchkey.used_name u
    WHERE u.name = _name AND u.use = _use;
    IF NOT FOUND THEN
        INSERT INTO latchkey.used_name AS u (name, number, use, generation,
            until_ms)
        VALUES (_name, _number, _use, coalesce((
            SELECT CASE WHEN pg_catalog.bool_or(j.generation = _use) THEN _use
                        ELSE pg_catalog.max(j.generation) + 1 END
            FROM latchkey.job j
            WHERE j.number = _number AND j.name <> ''), 1),
            latchkey.use_until(_now))
        ON CONFLICT ON CONSTRAINT used_name_pkey DO UPDATE SET
            number = excluded.number, use = excluded.use,
            generation = u.generation + 1, until_ms = excluded.until_ms
        RETURNING u.generation INTO counted;
    END IF;
    RETURN counted;
END
$$;

-- These operations end; services may remember their calls from now on for as
-- long as ever.
CREATE OR REPLACE FUNCTION latchkey.end_uses(_names bytea[], _now bigint)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE latchkey.used_name u SET until_ms = latchkey.use_until(_now)
    WHERE u.name = ANY (_names);
END
$$;

-- A job of an operation, whose lock the caller holds. OK: it is added; EXISTS:
-- there is one of that name that makes the same call; CONFLICT: there is one
-- that makes another call. When it is made is not compared.
CREATE OR REPLACE FUNCTION latchkey.add_job(_tenant text, _scope text,
    _key text, _number bigint, _use bigint, _token bigint, _job text,
    _target text, _method text, _path text, _headers bytea, _body bytea,
    _delay bigint, _now bigint)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    counted CONSTANT bigint := latchkey.count_use(
        latchkey.name_hash(_tenant, _scope, _key), _number, _use, _now);
BEGIN
    INSERT INTO latchkey.job (number, generation, token, name, target, method,
        path, headers, body, repeatable, created_ms, due_ms)
    VALUES (_number, counted, _token, _job, _target, _method, _path, _headers,
        _body, false, _now, _now + _delay)
    ON CONFLICT ON CONSTRAINT job_name DO NOTHING;
    IF FOUND THEN
        RETURN @VERDICT_DONE@;
    END IF;
    PERFORM FROM latchkey.job j
    WHERE j.number = _number AND j.generation = counted AND j.name = _job
      AND j.target = _target AND j.method = _method AND j.path = _path
      AND j.headers = _headers AND j.body = _body;
    RETURN CASE WHEN FOUND THEN @VERDICT_EXISTS@ ELSE @VERDICT_CONFLICT@ END;
END
$$;

-- The operations are forgotten, and their jobs with them. _requests: only
-- those without a name.
CREATE OR REPLACE FUNCTION latchkey.forget_jobs(_numbers bigint[],
    _requests boolean)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    gone bigint[];
BEGIN
    WITH deleted AS (
        DELETE FROM latchkey.job j
        WHERE j.number = ANY (_numbers) AND (j.name = '' OR NOT _requests)
        RETURNING j.id, j.attempts, j.target, j.ended_ms, j.name
    ), noted AS (
        INSERT INTO latchkey.forgotten (target, ended_ms)
        SELECT d.target, pg_catalog.max(d.ended_ms) FROM deleted d
        WHERE d.name <> '' GROUP BY d.target
    )
    SELECT pg_catalog.array_agg(d.id) INTO gone FROM deleted d
    WHERE d.attempts > 0;
    IF gone IS NOT NULL THEN
        DELETE FROM latchkey.attempt a WHERE a.job = ANY (gone);
    END IF;
END
$$;

-- What an event has made of an operation is made of its request in the same
-- step. _event: enum lk_job_event; _due: when it is due, if the rules say so.
CREATE OR REPLACE FUNCTION latchkey.follow(_number bigint, _event integer,
    _flags integer, _status integer, _reason text, _due bigint, _now bigint)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    tells CONSTANT integer :=
        CASE WHEN (_flags & @FLAG_UNSENT@) <> 0 THEN @JOB_IF_UNSENT@ ELSE 0 END
        | CASE WHEN (_flags & @FLAG_COURIER@) <> 0 THEN @JOB_IF_BY_COURIER@
               ELSE 0 END;
    j latchkey.job;
    code integer;
    next smallint;
BEGIN
    -- A request that stays as it is, is not locked: a gateway that extends its
    -- operation again and again neither waits for the courier nor holds it up.
    SELECT * INTO j FROM latchkey.job k
    WHERE k.number = _number AND k.name = ''
      AND k.state + 0 IN (@JOBS_UNFINISHED@)
      AND latchkey.decide_job(_event, k.state,
          latchkey.job_conditions(k, _now) | tells) <> @JOB_OUTCOME_DONE@
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN -- neither another state nor an effect
        RETURN;
    END IF;
    code := latchkey.decide_job(_event, j.state,
        latchkey.job_conditions(j, _now) | tells);
    next := @JOB_NEXT(code, j.state)@;
    UPDATE latchkey.job k SET state = next,
        ended_ms = CASE WHEN next IN (@JOBS_TIMED@) THEN 0 ELSE _now END,
        called = (k.called OR @JOB_DOES(code, CALLED)@)
            AND NOT @JOB_DOES(code, UNCALLED)@,
        sent = k.sent OR @JOB_DOES(code, SENT)@,
        due_ms = CASE WHEN @JOB_DOES(code, DUE)@ THEN _due ELSE k.due_ms END,
        status = CASE WHEN NOT @JOB_DOES(code, RESULT)@ THEN k.status
                      WHEN next = @JOB_DELIVERED@ THEN _status ELSE 0 END,
        reason = CASE WHEN NOT @JOB_DOES(code, RESULT)@ THEN k.reason
                      WHEN next = @JOB_DELIVERED@ THEN ''
                      WHEN next = @JOB_UNCERTAIN@ THEN _reason
                      WHEN _event = @JOB_EVENT_OP_BEGIN@ THEN 'claimed again'
                      WHEN _event = @JOB_EVENT_OP_RESOLVE@ THEN 'resolved'
                      ELSE 'released' END
    WHERE k.id = j.id;
END
$$;

-- One operation under its lock, and what it takes in rows. _ttl, _lock, _token:
-- 0 is "not given"; the texts are '' then. _job and what follows: of an accept,
-- whose headers and body are the request's, and of an enqueue. _flags: as those
-- of latchkey.apply; 32 by the courier, 64 the app has not heard of it.
CREATE OR REPLACE FUNCTION latchkey.step(
    _at integer, _event smallint, _tenant text, _scope text, _key text,
    _fingerprint text, _owner text, _ttl bigint, _lock bigint, _flags integer,
    _token bigint, _status integer, _headers bytea, _body bytea, _reason text,
    _who text, _why text, _default_ttl bigint, _now bigint, _lock_id bigint,
    _job text DEFAULT NULL, _target text DEFAULT NULL,
    _method text DEFAULT NULL, _path text DEFAULT NULL,
    _delay bigint DEFAULT 0)
RETURNS latchkey.decision
LANGUAGE plpgsql
AS $$
DECLARE
    r latchkey.operation := latchkey.read(_tenant, _scope, _key,
        _event IN (@EVENT_CLAIM@, @EVENT_ACCEPT@)
            AND (_flags & @FLAG_NO_NEW@) = 0);
    expired boolean;
    was_queued boolean := coalesce(r.queued, false);
    was smallint := @STATE_ABSENT@;
    code integer;
    effect integer;
    next smallint;
    fresh bigint;
    keeps bigint;
    ends bigint; -- when its lock ends, if it has one
    follows integer; -- what its request gets
BEGIN
    expired := r.state IN (@STATES_FINISHED@) AND r.deadline_ms <= _now
        AND NOT EXISTS (SELECT FROM latchkey.job j
                        WHERE j.number = r.number
                          AND j.state IN (@JOBS_UNFINISHED@));
    IF r.number IS NOT NULL AND NOT expired THEN
        was := r.state;
    END IF;
    IF was = @STATE_IN_PROGRESS@ THEN
        r.deadline_ms := latchkey.lock_end(r.token, r.deadline_ms);
        IF r.deadline_ms <= _now AND _event IN (@EVENT_CLAIM@, @EVENT_ACCEPT@,
                @EVENT_LEASE@, @EVENT_EXTEND@, @EVENT_RESOLVE_COMPLETED@,
                @EVENT_RESOLVE_RELEASED@)
            AND latchkey.has_old_snapshot() THEN
            PERFORM latchkey.extend_lock(r.token, 0);
        END IF;
    END IF;
    ends := r.deadline_ms;
    code := CASE
        WHEN _event IN (@EVENT_SWEEP@, @EVENT_REAP@) -- the keeper's own
            THEN @VERDICT_UNKNOWN_EVENT@
        ELSE latchkey.decide(_event, was, false, r.deadline_ms <= _now,
            r.omitted, was_queued, r.fingerprint = _fingerprint,
            (_flags & @FLAG_OWNER@) <> 0 AND _owner <> '' AND r.owner = _owner,
            r.token = _token, _flags
            | CASE WHEN r.reason IS NULL THEN 0 ELSE @FLAG_DOUBTED@ END) END;
    effect := @EFFECT(greatest(code, 0))@;
    next := @NEXT(greatest(code, 0), was)@;
    -- Never less time than KEEP has promised.
    keeps := greatest(coalesce(nullif(_ttl, 0), r.ttl_ms), r.keep_ms);

    CASE effect
    WHEN @EFFECT_NONE@ THEN
        NULL;
    WHEN @EFFECT_BEGIN@, @EFFECT_ACCEPT@ THEN
        fresh := pg_catalog.nextval('latchkey.token');
        _ttl := coalesce(nullif(_ttl, 0), _default_ttl);
        IF effect = @EFFECT_BEGIN@ THEN
            _lock := coalesce(nullif(_lock, 0), 30000);
        ELSE
            _lock := 0; -- since now
            _owner := '';
        END IF;
        IF r.number IS NULL THEN
            INSERT INTO latchkey.operation (number, tenant, scope, key, state,
                attempt, token, generation, claimed_ms, deadline_ms, ttl_ms,
                fingerprint, owner, queued)
            VALUES (fresh, _tenant, _scope, _key, next,
                (effect = @EFFECT_BEGIN@)::integer, fresh, fresh, _now,
                _now + _lock, _ttl, _fingerprint, _owner,
                effect = @EFFECT_ACCEPT@)
            ON CONFLICT (tenant, scope, key) DO NOTHING
            RETURNING * INTO r;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'latchkey: written past its lock'
                    USING ERRCODE = 'serialization_failure';
            END IF;
        ELSE
            IF expired THEN
                DELETE FROM latchkey.answer a WHERE a.token = r.token;
                PERFORM latchkey.forget_jobs(ARRAY[r.number], false);
                PERFORM latchkey.end_uses(ARRAY[latchkey.name_hash(_tenant,
                    _scope, _key)], _now);
            ELSIF effect = @EFFECT_ACCEPT@ THEN
                PERFORM latchkey.forget_jobs(ARRAY[r.number], true);
            END IF;
            -- Past its TTL it is another operation; released, or run again,
            -- it keeps its number, its attempts and what KEEP has promised.
            UPDATE latchkey.operation o SET
                number = CASE WHEN expired THEN fresh ELSE o.number END,
                generation = CASE WHEN expired OR o.evicted THEN fresh
                                  ELSE o.generation END,
                attempt = CASE WHEN expired THEN 0 ELSE o.attempt END
                    + (effect = @EFFECT_BEGIN@)::integer,
                state = next, token = fresh, omitted = false,
                evicted = false, claimed_ms = _now, deadline_ms = _now + _lock,
                ttl_ms = _ttl, keep_ms = CASE WHEN NOT expired AND NOT o.evicted
                                              THEN o.keep_ms END,
                completed_ms = NULL,
                status = NULL, fingerprint = _fingerprint, owner = _owner,
                reason = NULL, queued = effect = @EFFECT_ACCEPT@
            WHERE o.number = r.number
            RETURNING * INTO STRICT r;
        END IF;
        IF effect = @EFFECT_ACCEPT@ THEN
            INSERT INTO latchkey.job (number, generation, token, name, target,
                method, path, headers, body, repeatable, created_ms, due_ms)
            VALUES (r.number, r.generation, r.token, _job, _target, _method,
                _path, _headers, _body, (_flags & @FLAG_REPEATABLE@) <> 0, _now,
                _now + _delay)
            ON CONFLICT ON CONSTRAINT job_name DO NOTHING;
        END IF;
    WHEN @EFFECT_LEASE@ THEN
        UPDATE latchkey.operation o SET
            state = next, token = pg_catalog.nextval('latchkey.token'),
            attempt = o.attempt + 1, deadline_ms = _now + _lock, owner = '',
            reason = NULL
        WHERE o.number = r.number
        RETURNING * INTO STRICT r;
    WHEN @EFFECT_FINISH@ THEN
        IF _reason = '' THEN
            INSERT INTO latchkey.answer (token, headers, body)
            VALUES (r.token, _headers, _body);
        END IF;
        UPDATE latchkey.operation o SET
            state = next, omitted = _reason <> '', status = _status,
            completed_ms = _now, deadline_ms = _now + keeps,
            reason = nullif(_reason, ''), queued = false
        WHERE o.number = r.number
        RETURNING * INTO STRICT r;
    WHEN @EFFECT_FREE@ THEN
        IF was = @STATE_COMPLETED@ AND NOT r.omitted THEN
            DELETE FROM latchkey.answer a WHERE a.token = r.token;
        END IF;
        UPDATE latchkey.operation o SET
            state = next, omitted = false, evicted = _event = @EVENT_EVICT@,
            status = NULL, completed_ms = NULL, deadline_ms = _now + keeps, reason = NULL,
            queued = false
        WHERE o.number = r.number
        RETURNING * INTO STRICT r;
    WHEN @EFFECT_DOUBT@ THEN -- a lapsed one: since its lock ran out, no reason
        UPDATE latchkey.operation o SET
            state = next,
            deadline_ms = CASE WHEN _event = @EVENT_DOUBT@ THEN _now
                               ELSE ends END,
            reason = CASE WHEN _event = @EVENT_DOUBT@ THEN _reason END
        WHERE o.number = r.number
        RETURNING * INTO STRICT r;
    WHEN @EFFECT_LOCK@ THEN -- a late, shorter one does not cut it
        IF _event = @EVENT_CLAIM@ THEN
            _lock := coalesce(nullif(_lock, 0), 30000);
        END IF;
        IF was = @STATE_IN_PROGRESS@ THEN
            r.deadline_ms := greatest(_now + _lock, r.deadline_ms);
            PERFORM latchkey.extend_lock(r.token, r.deadline_ms);
        ELSE
            UPDATE latchkey.operation o SET
                state = next, reason = NULL, deadline_ms = _now + _lock
            WHERE o.number = r.number
            RETURNING * INTO STRICT r;
        END IF;
    WHEN @EFFECT_KEEP@ THEN
        IF was = @STATE_COMPLETED@ AND r.deadline_ms < _now + _ttl THEN
            UPDATE latchkey.operation o SET deadline_ms = _now + _ttl
            WHERE o.number = r.number
            RETURNING * INTO STRICT r;
        ELSIF was <> @STATE_COMPLETED@ AND coalesce(r.keep_ms, 0) < _ttl THEN
            UPDATE latchkey.operation o SET keep_ms = _ttl
            WHERE o.number = r.number
            RETURNING * INTO STRICT r;
            r.deadline_ms := ends;
        END IF;
    WHEN @EFFECT_ENQUEUE@ THEN
        code := latchkey.add_job(_tenant, _scope, _key, r.number,
            r.generation, r.token, _job, _target, _method, _path, _headers,
            _body, _delay, _now);
    WHEN @EFFECT_RETURN@ THEN -- accepted since it was
        UPDATE latchkey.operation o SET
            state = next, deadline_ms = o.claimed_ms, reason = NULL
        WHERE o.number = r.number
        RETURNING * INTO STRICT r;
    END CASE;

    IF was_queued AND effect <> @EFFECT_NONE@ THEN
        follows := CASE effect
            WHEN @EFFECT_BEGIN@ THEN @JOB_EVENT_OP_BEGIN@
            WHEN @EFFECT_FINISH@ THEN CASE _event
                WHEN @EVENT_COMPLETE@ THEN @JOB_EVENT_OP_COMPLETE@
                ELSE @JOB_EVENT_OP_RESOLVE@ END
            WHEN @EFFECT_FREE@ THEN @JOB_EVENT_OP_FREE@
            WHEN @EFFECT_DOUBT@ THEN @JOB_EVENT_OP_DOUBT@
            WHEN @EFFECT_LOCK@ THEN @JOB_EVENT_OP_LOCK@
            WHEN @EFFECT_RETURN@ THEN @JOB_EVENT_OP_RETURN@ END;
        IF follows IS NOT NULL THEN
            PERFORM latchkey.follow(r.number, follows, _flags, r.status,
                _reason, CASE effect WHEN @EFFECT_LOCK@ THEN r.deadline_ms
                                     ELSE _now END, _now);
        END IF;
    END IF;

    -- keep: only if an operator asks for it.
    IF (_event IN (@EVENT_RESOLVE_COMPLETED@, @EVENT_RESOLVE_RELEASED@,
                   @EVENT_EVICT@)
        OR _event = @EVENT_KEEP@ AND _who <> '') AND effect <> @EFFECT_NONE@ THEN
        INSERT INTO latchkey.audit (at_ms, who, why, action, tenant, scope,
            key, token)
        VALUES (_now, _who, _why, CASE _event
            WHEN @EVENT_KEEP@ THEN 'keep'
            WHEN @EVENT_RESOLVE_COMPLETED@ THEN 'resolve completed'
            WHEN @EVENT_RESOLVE_RELEASED@ THEN 'resolve released'
            ELSE 'evict' END
            || CASE WHEN (_flags & @FLAG_RUNNING@) <> 0 THEN ' (running)'
                    ELSE '' END,
            _tenant, _scope, _key, r.token);
    END IF;
    IF code < 0 OR effect = @EFFECT_NONE@ AND was = @STATE_ABSENT@ THEN
        RETURN ROW(_at, CASE WHEN code < 0 THEN code ELSE @VERDICT(code)@ END, was,
            0, 0, 0, 0, _now, NULL, 0, false, _lock_id)::latchkey.decision;
    END IF;
    RETURN ROW(_at, @VERDICT(code)@, r.state, r.token, r.attempt, r.number,
        r.deadline_ms, _now, r.reason,
        CASE r.state WHEN @STATE_COMPLETED@ THEN r.completed_ms
                     WHEN @STATE_UNCERTAIN@ THEN r.deadline_ms
                     ELSE r.claimed_ms END,
        was IN (@STATE_ACCEPTED@, @STATE_IN_PROGRESS@)
            AND r.state NOT IN (@STATE_ACCEPTED@, @STATE_IN_PROGRESS@),
        _lock_id)::latchkey.decision;
END
$$;

-- A batch, for the daemon. All arrays are equally long and without nulls; _ttl
-- and _lock are 0 where nothing was given, the texts and bytes are empty then.
-- _flags: FLAG_* of store/sql_codes.h. _job to _delay are empty arrays if the
-- batch neither accepts nor enqueues; the headers and bodies of such operations
-- are the job's. The caller's transaction is READ COMMITTED.
--
-- Operations on one name are decided in the order of the arrays, one by one.
-- But nearly all names occur once, and nearly all of these are new names,
-- claims that change nothing, and what holders of a token do: that is one
-- statement for all of them. The rest goes through latchkey.step.
CREATE OR REPLACE FUNCTION latchkey.apply(
    _event smallint[], _tenant text[], _scope text[], _key text[],
    _fingerprint text[], _owner text[], _ttl bigint[], _lock bigint[],
    _flags integer[], _token bigint[], _status integer[], _headers bytea[],
    _body bytea[], _reason text[], _who text[], _why text[], _job text[],
    _target text[], _method text[], _path text[], _delay bigint[],
    _default_ttl bigint)
RETURNS SETOF latchkey.decision
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    total CONSTANT integer := cardinality(_event);
    now bigint;
    id bigint[];
    got boolean[];   -- its lock is ours
    alone boolean[]; -- no other operation of the batch has its name
    decided latchkey.decision[];
    one latchkey.decision;
    expected bigint;
    changed bigint;
    rests boolean; -- what is acknowledged was perhaps committed by others
    i integer;
BEGIN
    IF latchkey.has_old_snapshot() THEN
        RAISE EXCEPTION 'latchkey.apply runs in READ COMMITTED transactions'
            USING ERRCODE = 'invalid_transaction_state',
            HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED';
    END IF;
    SELECT array_agg(l.id), array_agg(pg_try_advisory_xact_lock(l.id))
    INTO id, got
    FROM (SELECT latchkey.lock_id(u.tenant, u.scope, u.key) AS id
          FROM unnest(_tenant, _scope, _key) AS u(tenant, scope, key)
          OFFSET 0) AS l; -- the number is worked out once
    now := latchkey.now_ms();
    IF (SELECT count(DISTINCT u.id) FROM unnest(id) AS u(id)) = total THEN
        alone := array_fill(true, ARRAY[total]);
    ELSE
        alone := ARRAY(
            SELECT count(*) OVER (PARTITION BY u.id) = 1
            FROM unnest(id) WITH ORDINALITY AS u(id, at)
            ORDER BY u.at);
        -- All operations on a name or none: its holder may have ended between
        -- two of them, and those behind one that comes again come again.
        got := ARRAY(
            SELECT bool_and(u.got) OVER (PARTITION BY u.id)
            FROM unnest(id, got) WITH ORDINALITY AS u(id, got, at)
            ORDER BY u.at);
    END IF;

    WITH op AS MATERIALIZED (
        SELECT d.*, @EFFECT(d.code)@ AS effect,
            CASE WHEN @EFFECT(d.code)@ IN (@EFFECT_BEGIN@, @EFFECT_ACCEPT@)
                 THEN nextval('latchkey.token') END AS fresh,
            CASE WHEN @EFFECT(d.code)@ = @EFFECT_ENQUEUE@ THEN latchkey.add_job(d.tenant, d.scope,
                d.key, d.number, d.generation, d.token, _job[d.at],
                _target[d.at], _method[d.at], _path[d.at], _headers[d.at],
                _body[d.at], _delay[d.at], now) END AS added,
            @NEXT(greatest(d.code, 0), d.state)@ AS next,
            CASE @EFFECT(d.code)@
                WHEN @EFFECT_BEGIN@ THEN now + d.lock
                WHEN @EFFECT_ACCEPT@ THEN now
                WHEN @EFFECT_FINISH@ THEN now + greatest(d.ttl, d.keep_ms)
                WHEN @EFFECT_FREE@ THEN now + greatest(d.ttl, d.keep_ms)
                WHEN @EFFECT_DOUBT@ THEN now
                WHEN @EFFECT_LOCK@ THEN greatest(now + d.lock, CASE
                    WHEN d.state = @STATE_IN_PROGRESS@ THEN d.deadline_ms END)
                ELSE d.deadline_ms END AS until
        FROM (
            SELECT u.at::integer, u.id, u.event, u.tenant, u.scope,
                u.key, u.fingerprint, u.owner, u.status, u.reason,
                coalesce(nullif(u.ttl, 0), r.ttl_ms, _default_ttl) AS ttl,
                CASE WHEN u.lock = 0 AND u.event = @EVENT_CLAIM@ THEN 30000
                     ELSE u.lock END AS lock,
                u.flags, r.place, r.state, r.queued, r.number, r.generation,
                r.token, r.attempt, r.claimed_ms, r.completed_ms,
                r.ends_ms AS deadline_ms, r.keep_ms,
                r.reason AS known_reason,
                -- Another transaction has its lock. A claim may be told what is
                -- committed if that changes nothing: it was so when this
                -- statement began. Anything else has to come again; so has a
                -- claim that may have been committed before: that other
                -- transaction may be its own, and about to make it NEW.
                CASE WHEN u.got THEN v.code
                     WHEN u.event IN (@EVENT_CLAIM@, @EVENT_ACCEPT@)
                         AND r.state <> @STATE_RELEASED@
                         AND @EFFECT(v.code)@ = @EFFECT_NONE@
                         AND (u.flags & @FLAG_AGAIN@) = 0
                     THEN v.code
                     ELSE @VERDICT_AGAIN@ END AS code
            FROM unnest(_event, _tenant, _scope, _key, _fingerprint, _owner,
                _ttl, _lock, _flags, _token, _status, _reason, id, got, alone)
                WITH ORDINALITY AS u(event, tenant, scope, key, fingerprint,
                owner, ttl, lock, flags, token, status, reason, id, got, alone,
                at)
            LEFT JOIN LATERAL (
                SELECT o.ctid AS place, o.*,
                    -- a holder that ends its operation need not know
                    CASE WHEN o.state = @STATE_IN_PROGRESS@
                              AND (u.event NOT IN (@EVENT_COMPLETE@,
                                      @EVENT_RELEASE@, @EVENT_DOUBT@)
                                   OR o.token <> u.token)
                         THEN greatest(o.deadline_ms, (
                             SELECT e.until_ms FROM latchkey.extension e
                             WHERE e.token = o.token))
                         ELSE o.deadline_ms END AS ends_ms
                FROM latchkey.operation o
                WHERE o.tenant = u.tenant AND o.scope = u.scope
                  AND o.key = u.key
                LIMIT 1) AS r ON true
            CROSS JOIN LATERAL (SELECT
                -- Expired, but perhaps not its jobs.
                CASE WHEN r.state IN (@STATES_FINISHED@)
                          AND r.deadline_ms <= now THEN NULL
                WHEN u.event IN (@EVENT_SWEEP@, @EVENT_REAP@)
                    THEN @VERDICT_UNKNOWN_EVENT@
                ELSE latchkey.decide(u.event,
                    coalesce(r.state, @STATE_ABSENT@::smallint), false,
                    r.ends_ms <= now, r.omitted, r.queued,
                    r.fingerprint = u.fingerprint,
                    (u.flags & @FLAG_OWNER@) <> 0 AND u.owner <> ''
                        AND r.owner = u.owner,
                    r.token = u.token, u.flags | CASE
                    WHEN r.reason IS NULL THEN 0 ELSE @FLAG_DOUBTED@ END) END
                    AS code
                OFFSET 0) AS v
            WHERE u.alone OR NOT u.got
            OFFSET 0) AS d
        WHERE d.code = @VERDICT_AGAIN@
           OR d.code >= 0 AND (@EFFECT(d.code)@ = @EFFECT_NONE@
           OR @EFFECT(d.code)@ IN (@EFFECT_BEGIN@, @EFFECT_ACCEPT@)
               AND d.number IS NULL
           OR d.event IN (@EVENT_COMPLETE@, @EVENT_RELEASE@, @EVENT_DOUBT@,
                          @EVENT_EXTEND@) AND NOT d.queued
           OR d.event = @EVENT_ENQUEUE@)
    ), claimed AS (
        INSERT INTO latchkey.operation (number, tenant, scope, key, state,
            attempt, token, generation, claimed_ms, deadline_ms, ttl_ms,
            fingerprint, owner, queued)
        SELECT p.fresh, p.tenant, p.scope, p.key, p.next,
            (p.effect = @EFFECT_BEGIN@)::integer, p.fresh, p.fresh, now, p.until,
            p.ttl, p.fingerprint,
            CASE p.effect WHEN @EFFECT_BEGIN@ THEN p.owner ELSE '' END,
            p.effect = @EFFECT_ACCEPT@
        FROM op p
        WHERE p.effect IN (@EFFECT_BEGIN@, @EFFECT_ACCEPT@)
    ), request AS (
        INSERT INTO latchkey.job (number, generation, token, name, target,
            method, path, headers, body, repeatable, created_ms, due_ms)
        SELECT p.fresh, p.fresh, p.fresh, _job[p.at], _target[p.at],
            _method[p.at], _path[p.at], _headers[p.at], _body[p.at],
            (p.flags & @FLAG_REPEATABLE@) <> 0, now, now + _delay[p.at]
        FROM op p
        WHERE p.effect = @EFFECT_ACCEPT@
    ), moved AS (
        UPDATE latchkey.operation o SET
            state = p.next, deadline_ms = p.until,
            omitted = p.event = @EVENT_COMPLETE@ AND p.reason <> '',
            status = CASE p.event WHEN @EVENT_COMPLETE@ THEN p.status END,
            completed_ms = CASE p.event WHEN @EVENT_COMPLETE@ THEN now END,
            reason = CASE p.event
                WHEN @EVENT_COMPLETE@ THEN nullif(p.reason, '')
                WHEN @EVENT_DOUBT@ THEN p.reason END
        FROM (SELECT q.place, q.token, q.event, q.next, q.until, q.status,
                  q.reason
              FROM op q
              WHERE q.effect IN (@EFFECT_FINISH@, @EFFECT_FREE@, @EFFECT_DOUBT@)
                 OR q.effect = @EFFECT_LOCK@ AND q.state = @STATE_UNCERTAIN@
              OFFSET 0) AS p -- few columns: each row is copied as a whole
        WHERE o.ctid = p.place AND o.token = p.token
        RETURNING 1
    ), alive AS (
        INSERT INTO latchkey.extension AS e (token, until_ms)
        SELECT p.token, p.until FROM op p
        WHERE p.effect = @EFFECT_LOCK@ AND p.state = @STATE_IN_PROGRESS@
        ON CONFLICT ON CONSTRAINT extension_pkey DO UPDATE
        SET until_ms = greatest(e.until_ms, excluded.until_ms)
    ), kept AS (
        INSERT INTO latchkey.answer (token, headers, body)
        SELECT p.token, _headers[p.at], _body[p.at]
        FROM op p
        WHERE p.effect = @EFFECT_FINISH@ AND p.reason = ''
    )
    SELECT array_agg(ROW(p.at,
            CASE WHEN p.code < 0 THEN p.code
                 WHEN p.effect = @EFFECT_ENQUEUE@ THEN p.added
                 ELSE @VERDICT(p.code)@ END,
            coalesce(p.next, 0),
            coalesce(p.fresh, p.token, 0), coalesce(p.attempt,
            (p.effect = @EFFECT_BEGIN@)::integer),
            coalesce(p.number, p.fresh, 0),
            coalesce(p.until, 0), now,
            CASE WHEN p.effect = @EFFECT_NONE@ THEN p.known_reason
                 WHEN p.event = @EVENT_COMPLETE@ THEN nullif(p.reason, '')
                 WHEN p.event = @EVENT_DOUBT@ THEN p.reason END,
            CASE WHEN p.next = @STATE_COMPLETED@ THEN coalesce(p.completed_ms, now)
                 WHEN p.next = @STATE_UNCERTAIN@ THEN p.until
                 WHEN p.next > @STATE_ABSENT@ THEN coalesce(p.claimed_ms, now)
                 ELSE 0 END,
            p.number IS NOT NULL AND p.state = @STATE_IN_PROGRESS@
                AND p.next <> @STATE_IN_PROGRESS@,
            p.id)::latchkey.decision),
        count(*) FILTER (WHERE
            p.effect IN (@EFFECT_FINISH@, @EFFECT_FREE@, @EFFECT_DOUBT@)
            OR p.effect = @EFFECT_LOCK@ AND p.state = @STATE_UNCERTAIN@),
        (SELECT count(*) FROM moved),
        bool_or(p.effect = @EFFECT_NONE@ AND p.code IN (@VERDICT_NEW@,
                @VERDICT_REPLAY@, @VERDICT_OMITTED@, @VERDICT_ACCEPTED@,
                @VERDICT_DONE@, @VERDICT_KEPT@)
            OR p.effect = @EFFECT_ENQUEUE@)
    INTO decided, expected, changed, rests
    FROM op p;
    IF changed <> expected THEN
        RAISE EXCEPTION 'latchkey: % of % operations were written past their '
            'locks', expected - changed, expected
            USING ERRCODE = 'serialization_failure';
    END IF;

    RETURN QUERY SELECT * FROM unnest(decided);
    IF coalesce(cardinality(decided), 0) < total THEN
        FOR i IN
            SELECT u.at FROM generate_series(1, total) AS u(at)
            -- IS NOT TRUE: a hashed list, not a join that may be planned badly
            WHERE (u.at IN (SELECT d.at FROM unnest(decided) d)) IS NOT TRUE
            ORDER BY u.at
        LOOP
            one := latchkey.step(i, _event[i], _tenant[i], _scope[i], _key[i],
                _fingerprint[i], _owner[i], _ttl[i], _lock[i], _flags[i],
                _token[i], _status[i], _headers[i], _body[i], _reason[i],
                _who[i], _why[i], _default_ttl, now, id[i], _job[i],
                _target[i], _method[i], _path[i], _delay[i]);
            rests := coalesce(rests, false)
                OR one.verdict IN (@VERDICT_NEW@, @VERDICT_REPLAY@,
                    @VERDICT_OMITTED@, @VERDICT_ACCEPTED@, @VERDICT_DONE@,
                    @VERDICT_KEPT@, @VERDICT_EXISTS@);
            RETURN NEXT one;
        END LOOP;
    END IF;
    IF rests THEN
        PERFORM latchkey.wait_for_standby();
    END IF;
END
$$;
