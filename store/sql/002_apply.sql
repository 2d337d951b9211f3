-- 002_apply.sql - how an operation is decided: one at a time, and in batches.
--
-- The rules that make it safe, for every path, the daemon's and the apps':
--
-- 1. Lock first. Whoever decides about a name first takes the transaction's
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
-- a whole for as long as nobody analyses it. So every function that gets at
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

-- The table of lib/machine.c, as one expression: what an event (enum lk_event)
-- does to a record, and what the caller is told. The verdict (enum lk_verdict),
-- plus 16 times the effect (enum lk_effect: 0 none, 1 begin, 4 finish, 5 free,
-- 6 doubt, 7 lock, 8 keep); -2: an event that this store does not know.
--
-- was: the state that the event finds; 0 is absent or expired, and then the
-- booleans may be null. flags: 1 run again what is uncertain, 2 begin nothing.
CREATE OR REPLACE FUNCTION latchkey.decide(event integer, was integer,
    lapsed boolean, omitted boolean, same_fingerprint boolean,
    same_owner boolean, same_token boolean, flags integer)
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
    WHEN event = 0 THEN CASE -- claim
        WHEN was IN (0, 5) THEN
            CASE WHEN (flags & 2) = 0 THEN 16 ELSE 8 END -- NEW, REFUSED
        WHEN NOT same_fingerprint THEN 6 -- MISMATCH
        WHEN was = 1 THEN 4 -- ACCEPTED
        WHEN was = 4 THEN CASE WHEN omitted THEN 2 ELSE 1 END -- .., REPLAY
        -- Its own claim, whose reply was lost: NEW, the same token. An owner
        -- who has given up since asks with NONEW for what it has to release.
        WHEN same_owner AND (was = 2 OR (flags & 2) <> 0) THEN 0
        WHEN was = 2 AND NOT lapsed THEN 3 -- INFLIGHT
        WHEN (flags & 1) <> 0 THEN
            CASE WHEN (flags & 2) = 0 THEN 16 ELSE 8 END
        WHEN was = 2 THEN 5 + 16 * 6 -- UNCERTAIN from now on
        ELSE 5 END
    WHEN event BETWEEN 3 AND 6 THEN CASE -- complete, release, doubt, extend
        WHEN was IN (0, 1, 5) OR NOT same_token THEN 11 -- STALE
        WHEN was = 4 THEN 10 -- KEPT
        WHEN was = 3 AND event = 5 THEN 9 -- the first reason stands
        ELSE 9 + 16 * (event + 1) END -- OK
    WHEN event = 7 THEN -- keep
        CASE WHEN was IN (0, 5) THEN 12 ELSE 9 + 16 * 8 END -- NIL, OK
    WHEN event IN (8, 9) THEN CASE -- resolve as completed, as released
        WHEN was IN (2, 3) THEN 9 + 16 * (event - 4)
        WHEN was = 4 THEN 10
        ELSE 12 END
    WHEN event = 10 THEN -- evict
        CASE WHEN was = 4 THEN 9 + 16 * 5 ELSE 12 END
    ELSE -2 END
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
        VALUES (-pg_catalog.pg_backend_pid(), _tenant, _scope, _key, 2, 0, 0,
            0, 0, 0, 0, '', '')
        ON CONFLICT (tenant, scope, key) DO NOTHING; -- 40001 if one has come
        RAISE EXCEPTION 'there is none' USING ERRCODE = 'LK000';
    EXCEPTION WHEN SQLSTATE 'LK000' THEN
        RETURN NULL; -- and what was inserted is gone with the block
    END;
END
$$;

-- One operation under its lock, and what it takes in rows. _ttl, _lock, _token:
-- 0 is "not given"; the texts are '' then.
CREATE OR REPLACE FUNCTION latchkey.step(
    _at integer, _event smallint, _tenant text, _scope text, _key text,
    _fingerprint text, _owner text, _ttl bigint, _lock bigint, _flags integer,
    _token bigint, _status integer, _headers bytea, _body bytea, _reason text,
    _who text, _why text, _default_ttl bigint, _now bigint, _lock_id bigint)
RETURNS latchkey.decision
LANGUAGE plpgsql
AS $$
DECLARE
    r latchkey.operation := latchkey.read(_tenant, _scope, _key,
        _event = 0 AND (_flags & 2) = 0);
    expired boolean;
    was smallint := 0;
    code integer;
    effect integer;
    fresh bigint;
    keeps bigint;
BEGIN
    expired := r.state IN (4, 5) AND r.deadline_ms <= _now
        AND NOT EXISTS (SELECT FROM latchkey.job j
                        WHERE j.number = r.number AND j.state < 4);
    IF r.number IS NOT NULL AND NOT expired THEN
        was := r.state;
    END IF;
    code := latchkey.decide(_event, was, r.deadline_ms <= _now, r.omitted,
        r.fingerprint = _fingerprint,
        (_flags & 4) <> 0 AND _owner <> '' AND r.owner = _owner,
        r.token = _token, _flags);
    effect := greatest(code, 0) / 16;
    -- Never less time than KEEP has promised.
    keeps := greatest(coalesce(nullif(_ttl, 0), r.ttl_ms), r.keep_ms);

    CASE effect
    WHEN 0 THEN
        NULL;
    WHEN 1 THEN -- begin
        fresh := pg_catalog.nextval('latchkey.token');
        _ttl := coalesce(nullif(_ttl, 0), _default_ttl);
        _lock := coalesce(nullif(_lock, 0), 30000);
        IF r.number IS NULL THEN
            INSERT INTO latchkey.operation (number, tenant, scope, key, state,
                attempt, token, generation, claimed_ms, deadline_ms, ttl_ms,
                fingerprint, owner)
            VALUES (fresh, _tenant, _scope, _key, 2, 1, fresh, fresh, _now,
                _now + _lock, _ttl, _fingerprint, _owner)
            ON CONFLICT (tenant, scope, key) DO NOTHING
            RETURNING * INTO r;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'latchkey: written past its lock'
                    USING ERRCODE = 'serialization_failure';
            END IF;
        ELSE
            IF expired THEN
                DELETE FROM latchkey.answer a WHERE a.token = r.token;
                DELETE FROM latchkey.job j WHERE j.number = r.number;
            END IF;
            -- Past its TTL it is another operation; released, or run again,
            -- it keeps its number and its attempts.
            UPDATE latchkey.operation o SET
                number = CASE WHEN expired THEN fresh ELSE o.number END,
                generation = CASE WHEN expired OR o.evicted THEN fresh
                                  ELSE o.generation END,
                attempt = CASE WHEN expired THEN 1 ELSE o.attempt + 1 END,
                state = 2, token = fresh, omitted = false, evicted = false,
                claimed_ms = _now, deadline_ms = _now + _lock, ttl_ms = _ttl,
                keep_ms = NULL, completed_ms = NULL, status = NULL,
                fingerprint = _fingerprint, owner = _owner, reason = NULL
            WHERE o.number = r.number
            RETURNING * INTO STRICT r;
        END IF;
    WHEN 4 THEN -- finish
        IF _reason = '' THEN
            INSERT INTO latchkey.answer (token, headers, body)
            VALUES (r.token, _headers, _body);
        END IF;
        UPDATE latchkey.operation o SET
            state = 4, omitted = _reason <> '', status = _status,
            completed_ms = _now, deadline_ms = _now + keeps,
            reason = nullif(_reason, '')
        WHERE o.number = r.number
        RETURNING * INTO STRICT r;
    WHEN 5 THEN -- free
        IF was = 4 AND NOT r.omitted THEN
            DELETE FROM latchkey.answer a WHERE a.token = r.token;
        END IF;
        UPDATE latchkey.operation o SET
            state = 5, omitted = false, evicted = _event = 10, status = NULL,
            completed_ms = NULL, deadline_ms = _now + keeps, reason = NULL
        WHERE o.number = r.number
        RETURNING * INTO STRICT r;
    WHEN 6 THEN -- doubt; a lapsed one: since its lock ran out, no reason
        UPDATE latchkey.operation o SET
            state = 3,
            deadline_ms = CASE _event WHEN 0 THEN o.deadline_ms ELSE _now END,
            reason = CASE _event WHEN 0 THEN NULL ELSE _reason END
        WHERE o.number = r.number
        RETURNING * INTO STRICT r;
    WHEN 7 THEN -- lock; a late, shorter wish does not cut it
        UPDATE latchkey.operation o SET
            state = 2, reason = NULL,
            deadline_ms = greatest(_now + _lock,
                CASE WHEN was = 2 THEN o.deadline_ms END)
        WHERE o.number = r.number
        RETURNING * INTO STRICT r;
    WHEN 8 THEN -- keep
        IF was = 4 AND r.deadline_ms < _now + _ttl THEN
            UPDATE latchkey.operation o SET deadline_ms = _now + _ttl
            WHERE o.number = r.number
            RETURNING * INTO STRICT r;
        ELSIF was <> 4 AND coalesce(r.keep_ms, 0) < _ttl THEN
            UPDATE latchkey.operation o SET keep_ms = _ttl
            WHERE o.number = r.number
            RETURNING * INTO STRICT r;
        END IF;
    END CASE;

    IF _event IN (8, 9, 10) AND effect <> 0 THEN
        INSERT INTO latchkey.audit (at_ms, who, why, action, tenant, scope,
            key, token)
        VALUES (_now, _who, _why, (ARRAY['resolve completed',
            'resolve released', 'evict'])[_event - 7], _tenant, _scope, _key,
            r.token);
    END IF;
    IF code < 0 OR effect = 0 AND was = 0 THEN
        RETURN ROW(_at, CASE WHEN code < 0 THEN code ELSE code & 15 END, was,
            0, 0, 0, 0, _now, NULL, 0, false, _lock_id)::latchkey.decision;
    END IF;
    RETURN ROW(_at, code & 15, r.state, r.token, r.attempt, r.number,
        r.deadline_ms, _now, r.reason,
        CASE WHEN r.state = 4 THEN r.completed_ms
             WHEN r.state IN (2, 5) THEN r.claimed_ms
             ELSE r.deadline_ms END,
        was IN (1, 2) AND r.state NOT IN (1, 2),
        _lock_id)::latchkey.decision;
END
$$;

-- A batch, for the daemon. All arrays are equally long and without nulls; _ttl
-- and _lock are 0 where nothing was given, the texts and bytes are empty then.
-- _flags: 1 run again what is uncertain, 2 begin nothing, 4 there is an owner.
-- The caller's transaction is READ COMMITTED.
--
-- Operations on one name are decided in the order of the arrays, one by one.
-- But nearly all names occur once, and nearly all of these are claims of new
-- names, claims that change nothing, and what holders of a token do: that is
-- one statement for all of them. The rest goes through latchkey.step.
CREATE OR REPLACE FUNCTION latchkey.apply(
    _event smallint[], _tenant text[], _scope text[], _key text[],
    _fingerprint text[], _owner text[], _ttl bigint[], _lock bigint[],
    _flags integer[], _token bigint[], _status integer[], _headers bytea[],
    _body bytea[], _reason text[], _who text[], _why text[],
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
    expected bigint;
    changed bigint;
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
    END IF;

    WITH op AS MATERIALIZED (
        SELECT d.*, d.code >> 4 AS effect,
            CASE WHEN d.code = 16 THEN nextval('latchkey.token') END AS fresh,
            CASE WHEN d.code < 16 THEN d.state -- else by effect, 1 to 7
                 ELSE (ARRAY[2, NULL, NULL, 4, 5, 3, 2])[d.code >> 4] END
                 AS next,
            CASE d.code >> 4
                WHEN 1 THEN now + d.lock
                WHEN 4 THEN now + greatest(d.ttl, d.keep_ms)
                WHEN 5 THEN now + greatest(d.ttl, d.keep_ms)
                WHEN 6 THEN now
                WHEN 7 THEN greatest(now + d.lock, CASE WHEN d.state = 2
                                     THEN d.deadline_ms END)
                ELSE d.deadline_ms END AS until
        FROM (
            SELECT u.at::integer, u.id, u.event, u.tenant, u.scope,
                u.key, u.fingerprint, u.owner, u.status, u.reason,
                coalesce(nullif(u.ttl, 0), r.ttl_ms, _default_ttl) AS ttl,
                CASE WHEN u.lock = 0 AND u.event = 0 THEN 30000
                     ELSE u.lock END AS lock,
                r.place, r.state, r.number, r.token, r.attempt, r.claimed_ms,
                r.completed_ms, r.deadline_ms, r.keep_ms,
                r.reason AS known_reason,
                -- Another transaction has its lock. A claim may be told what is
                -- committed if that changes nothing: it was so when this
                -- statement began. Anything else has to come again.
                CASE WHEN u.got THEN v.code
                     WHEN u.event = 0 AND r.state < 5 AND v.code < 16
                     THEN v.code
                     ELSE -1 END AS code
            FROM unnest(_event, _tenant, _scope, _key, _fingerprint, _owner,
                _ttl, _lock, _flags, _token, _status, _reason, id, got, alone)
                WITH ORDINALITY AS u(event, tenant, scope, key, fingerprint,
                owner, ttl, lock, flags, token, status, reason, id, got, alone,
                at)
            LEFT JOIN LATERAL (
                SELECT o.ctid AS place, o.* FROM latchkey.operation o
                WHERE o.tenant = u.tenant AND o.scope = u.scope
                  AND o.key = u.key
                LIMIT 1) AS r ON true
            CROSS JOIN LATERAL (SELECT
                -- Expired, but perhaps not its jobs.
                CASE WHEN r.state >= 4 AND r.deadline_ms <= now THEN NULL
                ELSE latchkey.decide(u.event, coalesce(r.state, 0::smallint),
                    r.deadline_ms <= now, r.omitted,
                    r.fingerprint = u.fingerprint,
                    (u.flags & 4) <> 0 AND u.owner <> '' AND r.owner = u.owner,
                    r.token = u.token, u.flags) END AS code
                OFFSET 0) AS v
            WHERE u.alone OR NOT u.got
            OFFSET 0) AS d
        WHERE d.code BETWEEN -1 AND 15
           OR d.code = 16 AND d.number IS NULL
           OR d.code > 16 AND d.event BETWEEN 3 AND 6
    ), claimed AS (
        INSERT INTO latchkey.operation (number, tenant, scope, key, state,
            attempt, token, generation, claimed_ms, deadline_ms, ttl_ms,
            fingerprint, owner)
        SELECT p.fresh, p.tenant, p.scope, p.key, 2, 1, p.fresh, p.fresh, now,
            p.until, p.ttl, p.fingerprint, p.owner
        FROM op p
        WHERE p.effect = 1
    ), moved AS (
        UPDATE latchkey.operation o SET
            state = p.next, deadline_ms = p.until,
            omitted = p.event = 3 AND p.reason <> '',
            status = CASE p.event WHEN 3 THEN p.status END,
            completed_ms = CASE p.event WHEN 3 THEN now END,
            reason = CASE p.event WHEN 3 THEN nullif(p.reason, '')
                                  WHEN 5 THEN p.reason END
        FROM (SELECT q.place, q.token, q.event, q.next, q.until, q.status,
                  q.reason
              FROM op q
              WHERE q.effect > 1
              OFFSET 0) AS p -- few columns: each row is copied as a whole
        WHERE o.ctid = p.place AND o.token = p.token
        RETURNING 1
    ), kept AS (
        INSERT INTO latchkey.answer (token, headers, body)
        SELECT p.token, _headers[p.at], _body[p.at]
        FROM op p
        WHERE p.effect = 4 AND p.reason = ''
    )
    SELECT array_agg(ROW(p.at,
            CASE WHEN p.code < 0 THEN p.code ELSE p.code & 15 END,
            coalesce(p.next, 0),
            coalesce(p.fresh, p.token, 0), coalesce(p.attempt,
            CASE WHEN p.effect = 1 THEN 1 ELSE 0 END),
            coalesce(p.number, p.fresh, 0),
            coalesce(p.until, 0), now,
            CASE WHEN p.effect = 0 THEN p.known_reason
                 WHEN p.event = 3 THEN nullif(p.reason, '')
                 WHEN p.event = 5 THEN p.reason END,
            CASE WHEN p.next = 4 THEN coalesce(p.completed_ms, now)
                 WHEN p.next IN (2, 5) THEN coalesce(p.claimed_ms, now)
                 ELSE coalesce(p.until, 0) END,
            p.effect > 1 AND p.state = 2 AND p.next <> 2,
            p.id)::latchkey.decision),
        count(*) FILTER (WHERE p.effect > 1),
        (SELECT count(*) FROM moved)
    INTO decided, expected, changed
    FROM op p;
    IF changed <> expected THEN
        RAISE EXCEPTION 'latchkey: % of % operations were written past their '
            'locks', expected - changed, expected
            USING ERRCODE = 'serialization_failure';
    END IF;

    RETURN QUERY SELECT * FROM unnest(decided);
    IF coalesce(cardinality(decided), 0) = total THEN
        RETURN;
    END IF;
    FOR i IN
        SELECT u.at FROM generate_series(1, total) AS u(at)
        -- IS NOT TRUE: a hashed list, not a join that may be planned badly
        WHERE (u.at IN (SELECT d.at FROM unnest(decided) d)) IS NOT TRUE
        ORDER BY u.at
    LOOP
        RETURN NEXT latchkey.step(i, _event[i], _tenant[i], _scope[i], _key[i],
            _fingerprint[i], _owner[i], _ttl[i], _lock[i], _flags[i],
            _token[i], _status[i], _headers[i], _body[i], _reason[i], _who[i],
            _why[i], _default_ttl, now, id[i]);
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION
    latchkey.lock_id(text, text, text), latchkey.now_ms(),
    latchkey.has_old_snapshot(),
    latchkey.decide(integer, integer, boolean, boolean, boolean, boolean,
        boolean, integer),
    latchkey.read(text, text, text, boolean),
    latchkey.step(integer, smallint, text, text, text, text, text, bigint,
        bigint, integer, bigint, integer, bytea, bytea, text, text, text,
        bigint, bigint, bigint),
    latchkey.apply(smallint[], text[], text[], text[], text[], text[],
        bigint[], bigint[], integer[], bigint[], integer[], bytea[], bytea[],
        text[], text[], text[], bigint)
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    latchkey.lock_id(text, text, text), latchkey.now_ms(),
    latchkey.has_old_snapshot(),
    latchkey.decide(integer, integer, boolean, boolean, boolean, boolean,
        boolean, integer),
    latchkey.read(text, text, text, boolean),
    latchkey.step(integer, smallint, text, text, text, text, text, bigint,
        bigint, integer, bigint, integer, bytea, bytea, text, text, text,
        bigint, bigint, bigint),
    latchkey.apply(smallint[], text[], text[], text[], text[], text[],
        bigint[], bigint[], integer[], bigint[], integer[], bytea[], bytea[],
        text[], text[], text[], bigint)
    TO latchkey_daemon;
