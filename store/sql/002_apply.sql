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
-- operations says enable_seqscan = off, and a batch finds its rows by LATERAL
-- lookups with LIMIT, which leave the planner nothing but the index of names.

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

-- One operation under its lock: the table of lib/machine.c, and what it takes
-- in rows. _ttl, _lock, _token: 0 is "not given"; the texts are '' then.
CREATE OR REPLACE FUNCTION latchkey.step(
    _at integer, _event smallint, _tenant text, _scope text, _key text,
    _fingerprint text, _owner text, _ttl bigint, _lock bigint, _flags integer,
    _token bigint, _status integer, _headers bytea, _body bytea, _reason text,
    _who text, _why text, _default_ttl bigint, _now bigint, _lock_id bigint)
RETURNS latchkey.decision
LANGUAGE plpgsql
AS $$
DECLARE
    -- enum lk_verdict
    new CONSTANT smallint := 0;       replay CONSTANT smallint := 1;
    omitted CONSTANT smallint := 2;   inflight CONSTANT smallint := 3;
    accepted CONSTANT smallint := 4;  uncertain CONSTANT smallint := 5;
    mismatch CONSTANT smallint := 6;  refused CONSTANT smallint := 8;
    done CONSTANT smallint := 9;      kept CONSTANT smallint := 10;
    stale CONSTANT smallint := 11;    nil CONSTANT smallint := 12;

    r latchkey.operation := latchkey.read(_tenant, _scope, _key,
        _event = 0 AND (_flags & 2) = 0);
    was smallint := 0; -- its state; absent and expired: 0
    expired boolean;
    fresh bigint;
    keeps bigint;
    same_owner boolean;
    verdict smallint;
    effect text := 'none';
BEGIN
    expired := r.state IN (4, 5) AND r.deadline_ms <= _now
        AND NOT EXISTS (SELECT FROM latchkey.job j
                        WHERE j.number = r.number AND j.state < 4);
    IF r.number IS NOT NULL AND NOT expired THEN
        was := r.state;
    END IF;

    -- What is decided ...
    CASE
    WHEN _event = 0 THEN -- claim
        same_owner := (_flags & 4) <> 0 AND _owner <> '' AND _owner = r.owner;
        CASE
        WHEN was IN (0, 5) THEN
            verdict := new;
            effect := 'begin';
        WHEN r.fingerprint <> _fingerprint THEN
            verdict := mismatch;
        WHEN was = 1 THEN
            verdict := accepted;
        WHEN was = 4 THEN
            verdict := CASE WHEN r.omitted THEN omitted ELSE replay END;
        WHEN same_owner AND (was = 2 OR (_flags & 2) <> 0) THEN
            verdict := new; -- its own claim, whose reply was lost
        WHEN was = 2 AND r.deadline_ms > _now THEN
            verdict := inflight;
        WHEN (_flags & 1) <> 0 THEN
            verdict := new;
            effect := 'begin';
        ELSE
            verdict := uncertain;
            effect := CASE WHEN was = 2 THEN 'lapse' ELSE 'none' END;
        END CASE;
        IF effect = 'begin' AND (_flags & 2) <> 0 THEN
            verdict := refused;
            effect := 'none';
        END IF;
    WHEN _event BETWEEN 3 AND 6 THEN -- complete, release, doubt, extend
        CASE
        WHEN was NOT IN (2, 3, 4) OR r.token <> _token THEN
            verdict := stale;
        WHEN was = 4 THEN
            verdict := kept;
        ELSE
            verdict := done;
            effect := (ARRAY['finish', 'free', 'doubt', 'lock'])[_event - 2];
            IF was = 3 AND effect = 'doubt' THEN
                effect := 'none'; -- the first reason stands
            END IF;
        END CASE;
    WHEN _event = 7 THEN -- keep
        verdict := CASE WHEN was IN (0, 5) THEN nil ELSE done END;
        effect := CASE WHEN was IN (0, 5) THEN 'none' ELSE 'keep' END;
    WHEN _event IN (8, 9) THEN -- resolve
        CASE
        WHEN was = 4 THEN
            verdict := kept;
        WHEN was IN (2, 3) THEN
            verdict := done;
            effect := CASE WHEN _event = 8 THEN 'finish' ELSE 'free' END;
        ELSE
            verdict := nil;
        END CASE;
    WHEN _event = 10 THEN -- evict
        verdict := CASE WHEN was = 4 THEN done ELSE nil END;
        effect := CASE WHEN was = 4 THEN 'free' ELSE 'none' END;
    ELSE
        RETURN ROW(_at, -2, was, 0, 0, 0, 0, _now, NULL, 0, false,
                   _lock_id)::latchkey.decision;
    END CASE;

    -- ... and what it takes. Never less time than KEEP has promised.
    keeps := greatest(coalesce(nullif(_ttl, 0), r.ttl_ms), r.keep_ms);
    CASE effect
    WHEN 'none' THEN
        NULL;
    WHEN 'begin' THEN
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
                RAISE EXCEPTION 'the operation was written past its lock'
                    USING ERRCODE = 'serialization_failure',
                    HINT = 'Run the transaction again.';
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
    WHEN 'finish' THEN
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
    WHEN 'free' THEN
        IF was = 4 AND NOT r.omitted THEN
            DELETE FROM latchkey.answer a WHERE a.token = r.token;
        END IF;
        UPDATE latchkey.operation o SET
            state = 5, omitted = false, evicted = _event = 10, status = NULL,
            completed_ms = NULL, deadline_ms = _now + keeps, reason = NULL
        WHERE o.number = r.number
        RETURNING * INTO STRICT r;
    WHEN 'doubt' THEN
        UPDATE latchkey.operation o SET
            state = 3, deadline_ms = _now, reason = _reason
        WHERE o.number = r.number
        RETURNING * INTO STRICT r;
    WHEN 'lapse' THEN -- since its lock ran out, without a reason
        UPDATE latchkey.operation o SET state = 3
        WHERE o.number = r.number
        RETURNING * INTO STRICT r;
    WHEN 'lock' THEN -- a late, shorter wish does not cut it
        UPDATE latchkey.operation o SET
            state = 2, reason = NULL,
            deadline_ms = CASE WHEN was = 2
                THEN greatest(o.deadline_ms, _now + _lock)
                ELSE _now + _lock END
        WHERE o.number = r.number
        RETURNING * INTO STRICT r;
    WHEN 'keep' THEN
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

    IF _event IN (8, 9, 10) AND effect <> 'none' THEN
        INSERT INTO latchkey.audit (at_ms, who, why, action, tenant, scope,
            key, token)
        VALUES (_now, _who, _why, (ARRAY['resolve completed',
            'resolve released', 'evict'])[_event - 7], _tenant, _scope, _key,
            r.token);
    END IF;
    IF effect = 'none' AND was = 0 THEN
        RETURN ROW(_at, verdict, 0, 0, 0, 0, 0, _now, NULL, 0, false,
                   _lock_id)::latchkey.decision;
    END IF;
    RETURN ROW(_at, verdict, r.state, r.token, r.attempt, r.number,
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
-- flags: 1 run again what is uncertain, 2 begin nothing, 4 there is an owner.
--
-- Operations on one name are decided in the order of the arrays. Where a name
-- occurs once, as nearly all do, claims of new names are one INSERT,
-- completions one UPDATE, and claims that change nothing one SELECT; whatever
-- is left goes through latchkey.step. The caller's transaction is READ
-- COMMITTED.
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
    count CONSTANT integer := cardinality(_event);
    now bigint;
    id bigint[];
    got boolean[];   -- its lock is ours
    alone boolean[]; -- so, and no other operation of the batch has its name
    decided latchkey.decision[];
    more latchkey.decision[];
    i integer;
BEGIN
    SELECT array_agg(l.id),
           array_agg(pg_try_advisory_xact_lock(l.id))
    INTO id, got
    FROM (SELECT latchkey.lock_id(u.tenant, u.scope, u.key) AS id
          FROM unnest(_tenant, _scope, _key)
               AS u(tenant, scope, key)
          OFFSET 0) AS l; -- the number is worked out once
    now := latchkey.now_ms();
    alone := got;
    IF (SELECT count(DISTINCT u.id) FROM unnest(id)
        AS u(id)) < count THEN
        alone := ARRAY(
            SELECT u.got AND count(*) OVER (PARTITION BY u.id) = 1
            FROM unnest(id, got) WITH ORDINALITY AS u(id, got, at)
            ORDER BY u.at);
    END IF;

    -- Claims of names that are not there.
    IF 0 = ANY (_event) THEN
        WITH asked AS MATERIALIZED (
            SELECT nextval('latchkey.token') AS number, u.*
            FROM unnest(_event, _tenant, _scope, _key, _fingerprint,
                _owner, _ttl, _lock, _flags, id, alone)
                WITH ORDINALITY AS u(event, tenant, scope, key, fingerprint,
                owner, ttl, lock, flags, id, alone, at)
            WHERE u.event = 0 AND u.alone AND (u.flags & 2) = 0
        ), fresh AS (
            INSERT INTO latchkey.operation AS o (number, tenant, scope, key,
                state, attempt, token, generation, claimed_ms, deadline_ms,
                ttl_ms, fingerprint, owner)
            SELECT a.number, a.tenant, a.scope, a.key, 2, 1, a.number,
                a.number, now, now + CASE a.lock WHEN 0 THEN 30000
                ELSE a.lock END, CASE a.ttl WHEN 0 THEN _default_ttl
                ELSE a.ttl END, a.fingerprint, a.owner
            FROM asked a
            ON CONFLICT (tenant, scope, key) DO NOTHING
            RETURNING o.number
        )
        SELECT array_agg(ROW(a.at, 0, 2, a.number, 1, a.number,
            now + CASE a.lock WHEN 0 THEN 30000 ELSE a.lock END, now, NULL,
            now, false, a.id)::latchkey.decision)
        INTO decided
        FROM asked a
        -- IS TRUE: a hashed list, not a join that may be planned badly
        WHERE (a.number IN (SELECT f.number FROM fresh f)) IS TRUE;
        IF cardinality(decided) = count THEN
            RETURN QUERY SELECT * FROM unnest(decided);
            RETURN;
        END IF;
    END IF;

    -- Completions by who holds the current token.
    IF 3 = ANY (_event) THEN
        WITH found AS MATERIALIZED (
            SELECT u.at, u.id, u.ttl, u.status, u.reason, r.*
            FROM unnest(_event, _tenant, _scope, _key, _ttl, _token,
                _status, _reason, id, alone)
                WITH ORDINALITY AS u(event, tenant, scope, key, ttl, token,
                status, reason, id, alone, at)
            CROSS JOIN LATERAL (
                SELECT o.ctid AS place, o.token, o.state
                FROM latchkey.operation o
                WHERE o.tenant = u.tenant AND o.scope = u.scope
                  AND o.key = u.key
                LIMIT 1) AS r
            WHERE u.event = 3 AND u.alone AND r.token = u.token
              AND r.state IN (2, 3)
        ), done AS (
            UPDATE latchkey.operation o SET
                state = 4, omitted = f.reason <> '', status = f.status,
                completed_ms = now, reason = nullif(f.reason, ''),
                deadline_ms = now + greatest(coalesce(nullif(f.ttl, 0),
                    o.ttl_ms), o.keep_ms)
            FROM found f
            WHERE o.ctid = f.place AND o.token = f.token
            RETURNING f.at, f.id, f.state AS was, o.token, o.attempt, o.number,
                o.deadline_ms, o.omitted, o.reason
        ), kept AS (
            INSERT INTO latchkey.answer (token, headers, body)
            SELECT d.token, _headers[d.at], _body[d.at]
            FROM done d
            WHERE NOT d.omitted
        )
        SELECT array_agg(ROW(d.at, 9, 4, d.token, d.attempt,
            d.number, d.deadline_ms, now, d.reason, now, d.was = 2,
            d.id)::latchkey.decision)
        INTO more
        FROM done d;
        decided := decided || more;
    END IF;

    -- Claims that change nothing: retries, most of all.
    IF 0 = ANY (_event) AND coalesce(cardinality(decided), 0) < count
    THEN
        SELECT array_agg(ROW(u.at, v.verdict,
            coalesce(r.state, 0), coalesce(r.token, 0),
            coalesce(r.attempt, 0), coalesce(r.number, 0),
            coalesce(r.deadline_ms, 0), now, r.reason,
            CASE r.state WHEN 4 THEN r.completed_ms WHEN 2 THEN r.claimed_ms
                         ELSE coalesce(r.deadline_ms, 0) END,
            false, u.id)::latchkey.decision)
        INTO more
        FROM unnest(_event, _tenant, _scope, _key, _fingerprint,
            _owner, _flags, id, got, alone)
            WITH ORDINALITY AS u(event, tenant, scope, key, fingerprint, owner,
            flags, id, got, alone, at)
        LEFT JOIN LATERAL (
            SELECT o.* FROM latchkey.operation o
            WHERE o.tenant = u.tenant AND o.scope = u.scope AND o.key = u.key
            LIMIT 1) AS r ON true
        CROSS JOIN LATERAL (SELECT CASE
            -- Not our lock, and perhaps somebody is beginning it just now.
            -- What is committed may be told without the lock if it changes
            -- nothing: it was so when this statement began.
            WHEN NOT u.got AND (r.state IS NULL OR r.state = 5
                 OR r.state = 4 AND r.deadline_ms <= now) THEN NULL
            WHEN r.state IS NULL AND (u.flags & 2) <> 0 THEN 8
            WHEN r.state IS NULL OR r.state = 5
                 OR r.state = 4 AND r.deadline_ms <= now THEN NULL
            WHEN r.fingerprint <> u.fingerprint THEN 6
            WHEN r.state = 4 AND r.omitted THEN 2
            WHEN r.state = 4 THEN 1
            WHEN r.state = 1 THEN 4
            WHEN (u.flags & 4) <> 0 AND u.owner <> '' AND r.owner = u.owner
                 AND (r.state = 2 OR (u.flags & 2) <> 0) THEN 0
            WHEN r.state = 2 AND r.deadline_ms > now THEN 3
            WHEN r.state = 3 AND (u.flags & 1) = 0 THEN 5
            END AS verdict OFFSET 0) AS v
        WHERE u.event = 0 AND (u.alone OR NOT u.got) AND v.verdict IS NOT NULL
          AND NOT (u.at IN (SELECT d.at FROM unnest(decided) d))
              IS TRUE;
        decided := decided || more;
    END IF;

    RETURN QUERY SELECT * FROM unnest(decided);
    IF coalesce(cardinality(decided), 0) = count THEN
        RETURN;
    END IF;
    FOR i IN
        SELECT u.at FROM generate_series(1, count) AS u(at)
        WHERE (u.at IN (SELECT d.at FROM unnest(decided) d))
            IS NOT TRUE
        ORDER BY u.at
    LOOP
        IF NOT got[i] THEN
            RETURN NEXT ROW(i, -1, 0, 0, 0, 0, 0, now, NULL, 0, false,
                            id[i])::latchkey.decision;
        ELSE
            RETURN NEXT latchkey.step(i, _event[i], _tenant[i], _scope[i],
                _key[i], _fingerprint[i], _owner[i], _ttl[i], _lock[i],
                _flags[i], _token[i], _status[i], _headers[i], _body[i],
                _reason[i], _who[i], _why[i], _default_ttl, now, id[i]);
        END IF;
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION
    latchkey.lock_id(text, text, text), latchkey.now_ms(),
    latchkey.has_old_snapshot(), latchkey.read(text, text, text, boolean),
    latchkey.step(integer, smallint, text, text, text, text, text, bigint,
        bigint, integer, bigint, integer, bytea, bytea, text, text, text,
        bigint, bigint, bigint),
    latchkey.apply(smallint[], text[], text[], text[], text[], text[],
        bigint[], bigint[], integer[], bigint[], integer[], bytea[], bytea[],
        text[], text[], text[], bigint)
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    latchkey.lock_id(text, text, text), latchkey.now_ms(),
    latchkey.has_old_snapshot(), latchkey.read(text, text, text, boolean),
    latchkey.step(integer, smallint, text, text, text, text, text, bigint,
        bigint, integer, bigint, integer, bytea, bytea, text, text, text,
        bigint, bigint, bigint),
    latchkey.apply(smallint[], text[], text[], text[], text[], text[],
        bigint[], bigint[], integer[], bigint[], integer[], bytea[], bytea[],
        text[], text[], text[], bigint)
    TO latchkey_daemon;
