"""The tables and functions by which Postgres does each operation as a whole, under the lock of the key's account."""

TABLES = """
CREATE TABLE IF NOT EXISTS twinspeed_keys (
    id text PRIMARY KEY,
    sha256 bytea NOT NULL UNIQUE,
    settings text NOT NULL,
    created_at bigint NOT NULL,
    revoked_at bigint
);
CREATE TABLE IF NOT EXISTS twinspeed_accounts (
    key_id text PRIMARY KEY,
    in_flight bigint NOT NULL DEFAULT 0,
    reserved bigint NOT NULL DEFAULT 0,
    day bigint NOT NULL DEFAULT 0,
    day_cost bigint NOT NULL DEFAULT 0,
    day_tokens bigint NOT NULL DEFAULT 0,
    day_requests bigint NOT NULL DEFAULT 0,
    month bigint NOT NULL DEFAULT 0,
    month_cost bigint NOT NULL DEFAULT 0,
    month_tokens bigint NOT NULL DEFAULT 0,
    month_requests bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS twinspeed_leases (
    id text PRIMARY KEY,
    key_id text NOT NULL,
    tokens bigint NOT NULL,
    cost bigint NOT NULL,
    second bigint NOT NULL,
    expires double precision NOT NULL
);
CREATE INDEX IF NOT EXISTS twinspeed_leases_expiry ON twinspeed_leases (key_id, expires);
CREATE TABLE IF NOT EXISTS twinspeed_window (
    key_id text NOT NULL,
    second bigint NOT NULL,
    requests bigint NOT NULL,
    tokens bigint NOT NULL,
    PRIMARY KEY (key_id, second)
) WITH (fillfactor = 50);
"""

FUNCTIONS = """
CREATE OR REPLACE FUNCTION twinspeed_book(
    INOUT account twinspeed_accounts, more_cost bigint, more_tokens bigint, more_requests bigint
) LANGUAGE plpgsql AS $$
BEGIN
    account.day_cost := account.day_cost + more_cost;
    account.day_tokens := account.day_tokens + more_tokens;
    account.day_requests := account.day_requests + more_requests;
    account.month_cost := account.month_cost + more_cost;
    account.month_tokens := account.month_tokens + more_tokens;
    account.month_requests := account.month_requests + more_requests;
END $$;

-- A locked account with its new periods begun and its leases that have run out charged, which is yet to be written.
CREATE OR REPLACE FUNCTION twinspeed_current(which text, at double precision)
RETURNS twinspeed_accounts LANGUAGE plpgsql AS $$
DECLARE
    account twinspeed_accounts;
    today bigint;
    this_month bigint;
    ended record;
BEGIN
    SELECT * INTO account FROM twinspeed_accounts WHERE key_id = which;
    today := floor(at / 86400);
    IF today > account.day THEN
        this_month := extract(year FROM to_timestamp(at) AT TIME ZONE 'UTC') * 12
                    + extract(month FROM to_timestamp(at) AT TIME ZONE 'UTC') - 1;
        account.day := today;
        account.day_cost := 0;
        account.day_tokens := 0;
        account.day_requests := 0;
        IF this_month > account.month THEN
            account.month := this_month;
            account.month_cost := 0;
            account.month_tokens := 0;
            account.month_requests := 0;
        END IF;
    END IF;
    FOR ended IN DELETE FROM twinspeed_leases WHERE key_id = which AND expires <= at RETURNING tokens, cost LOOP
        account.in_flight := account.in_flight - 1;
        account.reserved := account.reserved - ended.cost;
        account := twinspeed_book(account, ended.cost, ended.tokens, 1);
    END LOOP;
    RETURN account;
END $$;

-- Locks an account until the transaction ends, and only then reads the clock. `fixed` stands for the clock in tests.
CREATE OR REPLACE FUNCTION twinspeed_lock(which text, fixed double precision)
RETURNS double precision LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM twinspeed_accounts WHERE key_id = which FOR UPDATE;
    RETURN coalesce(fixed, extract(epoch FROM clock_timestamp()));
END $$;

CREATE OR REPLACE FUNCTION twinspeed_write(account twinspeed_accounts) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE twinspeed_accounts SET
        in_flight = account.in_flight, reserved = account.reserved,
        day = account.day, day_cost = account.day_cost,
        day_tokens = account.day_tokens, day_requests = account.day_requests,
        month = account.month, month_cost = account.month_cost,
        month_tokens = account.month_tokens, month_requests = account.month_requests
    WHERE key_id = account.key_id;
    -- An account's lock is held until the commit, and would be for as long as a disk takes.
    PERFORM set_config('synchronous_commit', 'off', true);
END $$;

CREATE OR REPLACE FUNCTION twinspeed_reserve(
    which text, fixed double precision, lease text, ttl double precision, more_tokens bigint, more_cost bigint,
    rpm bigint, tpm bigint, concurrency bigint, day_budget bigint, month_budget bigint,
    OUT refused text, OUT wait_s double precision, OUT at double precision,
    OUT requests bigint, OUT tokens bigint, OUT reset_s double precision
) LANGUAGE plpgsql AS $$
DECLARE
    account twinspeed_accounts;
    now_second bigint;
    oldest bigint;
    too_many bigint;
    too_much bigint;
BEGIN
    at := twinspeed_lock(which, fixed);
    account := twinspeed_current(which, at);
    now_second := floor(at);
    refused := '';
    wait_s := 0;
    requests := 0;
    tokens := 0;
    oldest := now_second;
    IF rpm IS NOT NULL OR tpm IS NOT NULL THEN
        DELETE FROM twinspeed_window AS old WHERE old.key_id = which AND old.second < now_second - 60;
        SELECT coalesce(sum(w.requests), 0), coalesce(sum(w.tokens), 0), coalesce(min(w.second), now_second)
            INTO requests, tokens, oldest FROM twinspeed_window AS w WHERE w.key_id = which;
    END IF;
    reset_s := oldest + 61 - at;
    -- The same reservation, sent again because its answer got lost.
    IF EXISTS (SELECT FROM twinspeed_leases WHERE id = lease) THEN
        RETURN;
    END IF;
    -- The longest wait first. A negative one lasts until the period ends.
    IF account.month_cost + account.reserved + more_cost > month_budget THEN
        refused := 'budget_month_exceeded';
        wait_s := CASE WHEN account.month_cost + more_cost > month_budget THEN -1 ELSE 1 END;
    ELSIF account.day_cost + account.reserved + more_cost > day_budget THEN
        refused := 'budget_day_exceeded';
        wait_s := CASE WHEN account.day_cost + more_cost > day_budget THEN -1 ELSE 1 END;
    ELSIF requests >= rpm THEN
        refused := 'rate_limit_requests';
        too_many := requests - rpm + 1;
        too_much := 0;
    ELSIF tokens + more_tokens > tpm THEN
        refused := 'rate_limit_tokens';
        too_many := 0;
        too_much := tokens + more_tokens - tpm;
    ELSIF account.in_flight >= concurrency THEN
        refused := 'concurrency_limit';
        wait_s := 1;
    END IF;
    IF too_many IS NOT NULL THEN
        SELECT coalesce(min(gone.second) + 61 - at, 60) INTO wait_s FROM (
            SELECT w.second, sum(w.requests) OVER past AS n, sum(w.tokens) OVER past AS t
            FROM twinspeed_window AS w WHERE w.key_id = which WINDOW past AS (ORDER BY w.second)
        ) AS gone WHERE gone.n >= too_many AND gone.t >= too_much;
    END IF;
    IF refused = '' THEN
        account.in_flight := account.in_flight + 1;
        account.reserved := account.reserved + more_cost;
        INSERT INTO twinspeed_leases VALUES (lease, which, more_tokens, more_cost, now_second, at + ttl);
        IF rpm IS NOT NULL OR tpm IS NOT NULL THEN
            INSERT INTO twinspeed_window AS w VALUES (which, now_second, 1, more_tokens)
                ON CONFLICT (key_id, second)
                DO UPDATE SET requests = w.requests + 1, tokens = w.tokens + excluded.tokens;
            requests := requests + 1;
            tokens := tokens + more_tokens;
        END IF;
    END IF;
    PERFORM twinspeed_write(account);
END $$;

CREATE OR REPLACE FUNCTION twinspeed_end(
    which text, fixed double precision, lease text, used_tokens bigint, used_cost bigint, used_requests bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    account twinspeed_accounts;
    held twinspeed_leases;
BEGIN
    account := twinspeed_current(which, twinspeed_lock(which, fixed));
    DELETE FROM twinspeed_leases WHERE id = lease RETURNING * INTO held;
    IF FOUND THEN
        account.in_flight := account.in_flight - 1;
        account.reserved := account.reserved - held.cost;
        account := twinspeed_book(account, used_cost, used_tokens, used_requests);
        UPDATE twinspeed_window SET requests = requests + used_requests - 1, tokens = tokens + used_tokens - held.tokens
            WHERE key_id = which AND second = held.second;
    END IF;
    PERFORM twinspeed_write(account);
END $$;

CREATE OR REPLACE FUNCTION twinspeed_usage(which text, fixed double precision)
RETURNS twinspeed_accounts LANGUAGE plpgsql AS $$
DECLARE
    account twinspeed_accounts;
BEGIN
    account := twinspeed_current(which, twinspeed_lock(which, fixed));
    IF account.key_id IS NOT NULL THEN
        PERFORM twinspeed_write(account);
    END IF;
    RETURN account;
END $$;
"""

# Any number, as long as every router takes the same: two must not create the schema at once.
CREATION_LOCK = 0x7477_696E
