-- 05_import.sql - taking over what another store holds.
--
-- No one need be stopped: each record is decided under the lock of its name.
-- Tokens are never used twice. Where this store has used one for something
-- else, the record gets the next free one, and its holder is told STALE.

-- Tokens go on above this one. A sequence can only be read and then set: the
-- leap is longer than what anybody can take in between.
CREATE OR REPLACE FUNCTION latchkey.raise_token(highest bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF highest <= (SELECT s.last_value FROM latchkey.token s) THEN
        RETURN;
    END IF;
    -- The same lock as check_timeline's, or one would undo the other.
    PERFORM pg_advisory_lock(5499535116398314075);
    BEGIN
        IF highest > (SELECT s.last_value FROM latchkey.token s) THEN
            PERFORM setval('latchkey.token', highest + 1000000);
        END IF;
    EXCEPTION WHEN OTHERS OR query_canceled THEN
        PERFORM pg_advisory_unlock(5499535116398314075);
        RAISE;
    END;
    PERFORM pg_advisory_unlock(5499535116398314075);
END
$$;

-- What follows what, under one token. The caller that completed it has run it,
-- so that wins over a release elsewhere.
CREATE OR REPLACE FUNCTION latchkey.rank(state smallint, evicted boolean)
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE state WHEN @STATE_IN_PROGRESS@ THEN 1
        WHEN @STATE_UNCERTAIN@ THEN 2 WHEN @STATE_COMPLETED@ THEN 4
        WHEN @STATE_RELEASED@ THEN CASE WHEN evicted THEN 5 ELSE 3 END
        ELSE 0 END
$$;

-- Records as rows of latchkey.operation, and the answers of those that are
-- completed and kept. A number of 0 is "any".
CREATE OR REPLACE FUNCTION latchkey.import(
    _tenant text[], _scope text[], _key text[], _state smallint[],
    _token bigint[], _number bigint[], _generation bigint[],
    _attempt integer[], _claimed bigint[], _deadline bigint[], _ttl bigint[],
    _keep bigint[], _completed bigint[], _status integer[], _flags integer[],
    _fingerprint text[], _owner text[], _reason text[], _headers bytea[],
    _body bytea[], _highest bigint, _default_ttl bigint)
RETURNS TABLE (taken bigint, older bigint, renumbered bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    now bigint;
    r latchkey.operation;
    expired boolean;
    omits boolean;
    evicts boolean;
    its_token bigint;
    its_number bigint;
BEGIN
    taken := 0;
    older := 0;
    renumbered := 0;
    PERFORM latchkey.raise_token(greatest(_highest,
        (SELECT max(u.token) FROM unnest(_token) AS u(token))));
    FOR i IN 1 .. cardinality(_tenant) LOOP
        PERFORM pg_advisory_xact_lock(
            latchkey.lock_id(_tenant[i], _scope[i], _key[i]));
        now := latchkey.now_ms();
        omits := (_flags[i] & @IMPORT_OMITTED@) <> 0;
        evicts := (_flags[i] & @IMPORT_EVICTED@) <> 0;
        SELECT * INTO r FROM latchkey.operation o
        WHERE o.tenant = _tenant[i] AND o.scope = _scope[i]
          AND o.key = _key[i];
        expired := r.state IN (@STATES_FINISHED@) AND r.deadline_ms <= now
            AND NOT EXISTS (SELECT FROM latchkey.job j
                            WHERE j.number = r.number
                              AND j.state IN (@JOBS_UNFINISHED@));

        -- The same state with a later end counts too: KEEP and EXTEND are
        -- promises. What the courier runs here is not overwritten.
        IF r.number IS NOT NULL AND NOT expired AND (r.queued OR NOT CASE
            WHEN _token[i] <> r.token THEN _token[i] > r.token
            WHEN latchkey.rank(_state[i], evicts)
                 <> latchkey.rank(r.state, r.evicted)
                THEN latchkey.rank(_state[i], evicts)
                     > latchkey.rank(r.state, r.evicted)
            ELSE _state[i] <> @STATE_UNCERTAIN@ AND _deadline[i] > r.deadline_ms
                 OR _keep[i] > 0 AND r.keep_ms IS NULL
            END)
        THEN
            older := older + 1;
            CONTINUE;
        END IF;

        its_token := _token[i];
        IF EXISTS (SELECT FROM latchkey.operation o WHERE o.number = its_token
                   AND o.token = its_token
                   AND o.number IS DISTINCT FROM r.number)
           OR EXISTS (SELECT FROM latchkey.operation o
                      WHERE o.token = its_token AND o.token <> o.number
                      AND o.number IS DISTINCT FROM r.number)
        THEN
            IF _state[i] = @STATE_RELEASED@ THEN -- it could hide a claim that comes later
                older := older + 1;
                CONTINUE;
            END IF;
            its_token := nextval('latchkey.token');
        END IF;
        its_number := coalesce(nullif(_number[i], 0), its_token);
        IF EXISTS (SELECT FROM latchkey.operation o
                   WHERE o.number = its_number
                   AND o.number IS DISTINCT FROM r.number) THEN
            its_number := its_token;
        END IF;
        IF EXISTS (SELECT FROM latchkey.operation o
                   WHERE o.number = its_number
                   AND o.number IS DISTINCT FROM r.number) THEN
            its_number := nextval('latchkey.token');
        END IF;

        IF r.number IS NOT NULL THEN
            DELETE FROM latchkey.answer a WHERE a.token = r.token;
            DELETE FROM latchkey.operation o WHERE o.number = r.number;
            IF expired THEN
                PERFORM latchkey.forget_jobs(ARRAY[r.number], false);
                PERFORM latchkey.end_uses(ARRAY[latchkey.name_hash(
                    r.tenant, r.scope, r.key)], now);
            ELSE
                UPDATE latchkey.job j SET number = its_number
                WHERE j.number = r.number AND r.number <> its_number;
            END IF;
        END IF;
        INSERT INTO latchkey.operation (number, tenant, scope, key, state,
            omitted, evicted, attempt, token, generation, claimed_ms,
            deadline_ms, ttl_ms, keep_ms, completed_ms, status, fingerprint,
            owner, reason)
        VALUES (its_number, _tenant[i], _scope[i], _key[i], _state[i], omits,
            evicts, _attempt[i], its_token,
            coalesce(nullif(_generation[i], 0), its_token),
            least(_claimed[i], now), _deadline[i],
            coalesce(nullif(_ttl[i], 0), _default_ttl), nullif(_keep[i], 0),
            CASE WHEN _state[i] = @STATE_COMPLETED@ THEN _completed[i] END,
            CASE WHEN _state[i] = @STATE_COMPLETED@ THEN _status[i] END,
            _fingerprint[i], _owner[i], nullif(_reason[i], ''));
        IF _state[i] = @STATE_COMPLETED@ AND NOT omits THEN
            INSERT INTO latchkey.answer (token, headers, body)
            VALUES (its_token, _headers[i], _body[i]);
        END IF;
        taken := taken + 1;
        renumbered := renumbered + (its_number <> _number[i])::integer;
    END LOOP;
    RETURN NEXT;
END
$$;

-- Entries that an earlier pass has brought are there already; two that say the
-- same are two.
CREATE OR REPLACE FUNCTION latchkey.import_audit(_at bigint[], _who text[],
    _why text[], _action text[], _tenant text[], _scope text[], _key text[],
    _token bigint[])
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pg_advisory_xact_lock(5499535116398314077);
    INSERT INTO latchkey.audit (at_ms, who, why, action, tenant, scope, key,
        token)
    SELECT * FROM (
        SELECT u.at, u.who, u.why, u.action, nullif(u.tenant, ''),
            nullif(u.scope, ''), nullif(u.key, ''), nullif(u.token, 0)
        FROM unnest(_at, _who, _why, _action, _tenant, _scope, _key, _token)
            AS u(at, who, why, action, tenant, scope, key, token)
        EXCEPT ALL
        SELECT a.at_ms, a.who, a.why, a.action, a.tenant, a.scope, a.key,
            a.token
        FROM latchkey.audit a
        WHERE a.at_ms BETWEEN (SELECT min(m.at) FROM unnest(_at) AS m(at))
                          AND (SELECT max(m.at) FROM unnest(_at) AS m(at))
    ) AS missing
    ORDER BY 1;
$$;

-- References of another store stay valid, if this one has given out none.
CREATE OR REPLACE FUNCTION latchkey.adopt(secret text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (SELECT s.is_called FROM latchkey.token s)
       OR EXISTS (SELECT FROM latchkey.operation) THEN
        RETURN false;
    END IF;
    UPDATE latchkey.meta m SET value = secret
    WHERE m.name = 'reference_secret';
    RETURN true;
END
$$;
