"""The Lua scripts by which Redis does each operation as a whole.

KEYS: a key's account (hash), its leases (sorted set by expiry), and its window (hash). ARGV[1]: a time that stands for
the server's clock, or nothing. The account holds `lease:ID` = "tokens cost second" for each lease, `in_flight`,
`reserved`, and per `day` and `month` its number and what was settled in it. The window holds the totals `requests` and
`tokens`, the same for each second (`r…`, `t…`), and the `first` and `last` of those.
Amounts of money go into Redis as the strings they came as, so that 64 bits count.
"""

_COMMON = """
local account, leases, window = KEYS[1], KEYS[2], KEYS[3]
local at = tonumber(ARGV[1])
if not at then
    local time = redis.call('TIME')
    at = time[1] + time[2] / 1000000
end

-- Days since the epoch to year * 12 + month, counted from 0.
-- Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
local function month_of(day)
    local z = day + 719468
    local era = math.floor(z / 146097)
    local doe = z - era * 146097
    local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
    local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
    local mp = math.floor((5 * doy + 2) / 153)
    return (yoe + era * 400) * 12 + mp + 2
end

local function turn()
    local day = math.floor(at / 86400)
    local known = redis.call('HMGET', account, 'day', 'month')
    if (tonumber(known[1]) or 0) >= day then return end
    redis.call('HSET', account, 'day', day, 'day_cost', 0, 'day_tokens', 0, 'day_requests', 0)
    local month = month_of(day)
    if (tonumber(known[2]) or 0) < month then
        redis.call('HSET', account, 'month', month, 'month_cost', 0, 'month_tokens', 0, 'month_requests', 0)
    end
end

-- Ends a lease. Without `cost` it is charged in full.
local function finish(id, tokens, cost, requests)
    local lease = redis.call('HGET', account, 'lease:' .. id)
    if not lease then return end
    redis.call('HDEL', account, 'lease:' .. id)
    redis.call('ZREM', leases, id)
    local held_tokens, held_cost, second = string.match(lease, '^(%d+) (%d+) (%d+)$')
    redis.call('HINCRBY', account, 'in_flight', -1)
    -- Redis takes no `-0`.
    if held_cost ~= '0' then redis.call('HINCRBY', account, 'reserved', '-' .. held_cost) end
    if not cost then tokens, cost, requests = held_tokens, held_cost, 1 end
    if redis.call('HEXISTS', window, 'r' .. second) == 1 then
        local more, gone = string.format('%.0f', tokens - held_tokens), requests - 1
        redis.call('HINCRBY', window, 't' .. second, more)
        redis.call('HINCRBY', window, 'tokens', more)
        redis.call('HINCRBY', window, 'r' .. second, gone)
        redis.call('HINCRBY', window, 'requests', gone)
    end
    for _, period in ipairs({'day', 'month'}) do
        redis.call('HINCRBY', account, period .. '_cost', cost)
        redis.call('HINCRBY', account, period .. '_tokens', tokens)
        redis.call('HINCRBY', account, period .. '_requests', requests)
    end
end

local function expire()
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', string.format('%.6f', at))) do
        finish(id)
    end
end

turn()
expire()
"""

RESERVE = (
    _COMMON
    + """
local id, ttl, tokens, cost = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local rpm, tpm, concurrency = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local day_budget, month_budget = tonumber(ARGV[9]), tonumber(ARGV[10])
local WINDOW = 60
local second = math.floor(at)
local oldest = second - WINDOW

-- In one string, because each part of a reply costs the client as much.
local function answer(refused, wait, requests, used, first)
    return string.format('%s %.6f %.6f %.0f %.0f %.6f', refused, wait, at, requests, used, first + WINDOW + 1 - at)
end

-- Drops the seconds that are wholly older than the window.
local first, last, requests, used = second, second, 0, 0
if rpm or tpm then
    local state = redis.call('HMGET', window, 'first', 'last', 'requests', 'tokens')
    if state[1] and tonumber(state[2]) < oldest then
        redis.call('DEL', window)
    elseif state[1] then
        first, last = tonumber(state[1]), math.max(second, tonumber(state[2]))
        requests, used = tonumber(state[3]), tonumber(state[4])
        while first < oldest or (first < second and redis.call('HEXISTS', window, 'r' .. first) == 0) do
            local gone = redis.call('HMGET', window, 'r' .. first, 't' .. first)
            if gone[1] then
                redis.call('HDEL', window, 'r' .. first, 't' .. first)
                requests, used = requests - gone[1], used - gone[2]
            end
            first = first + 1
        end
        first = math.min(first, second)
        redis.call('HSET', window, 'first', first, 'requests', requests, 'tokens', string.format('%.0f', used))
    end
end

-- The same reservation, sent again because its answer got lost.
if redis.call('HEXISTS', account, 'lease:' .. id) == 1 then return answer('-', 0, requests, used, first) end

-- Seconds until so many requests and tokens have left the window; its length if that never happens.
local function wait_for(more_requests, more_tokens)
    for past = first, second do
        local left = redis.call('HMGET', window, 'r' .. past, 't' .. past)
        if left[1] then
            more_requests, more_tokens = more_requests - left[1], more_tokens - left[2]
            if more_requests <= 0 and more_tokens <= 0 then
                return past + WINDOW + 1 - at
            end
        end
    end
    return WINDOW
end

-- The longest wait first. A negative one lasts until the period ends.
local state = redis.call('HMGET', account, 'in_flight', 'reserved', 'day_cost', 'month_cost')
local in_flight, reserved = tonumber(state[1] or 0), tonumber(state[2] or 0)
for _, budget in ipairs({
    {'budget_month_exceeded', month_budget, tonumber(state[4])},
    {'budget_day_exceeded', day_budget, tonumber(state[3])},
}) do
    local code, limit, spent = unpack(budget, 1, 3)
    if limit and spent + reserved + cost > limit then
        return answer(code, spent + cost > limit and -1 or 1, requests, used, first)
    end
end
if rpm and requests >= rpm then
    return answer('rate_limit_requests', wait_for(requests - rpm + 1, 0), requests, used, first)
end
if tpm and used + tokens > tpm then
    return answer('rate_limit_tokens', wait_for(0, used + tokens - tpm), requests, used, first)
end
if concurrency and in_flight >= concurrency then
    return answer('concurrency_limit', 1, requests, used, first)
end

redis.call('HINCRBY', account, 'in_flight', 1)
redis.call('HINCRBY', account, 'reserved', ARGV[5])
redis.call('HSET', account, 'lease:' .. id, ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. second)
redis.call('ZADD', leases, string.format('%.6f', at + ttl), id)
if rpm or tpm then
    requests, used = requests + 1, used + tokens
    redis.call('HINCRBY', window, 'r' .. second, 1)
    redis.call('HINCRBY', window, 't' .. second, ARGV[4])
    redis.call('HSET', window, 'first', first, 'last', last,
        'requests', requests, 'tokens', string.format('%.0f', used))
    redis.call('EXPIRE', window, 2 * WINDOW)
end
return answer('-', 0, requests, used, first)
"""
)

END = _COMMON + "finish(ARGV[2], ARGV[3], ARGV[4], ARGV[5])"

USAGE = (
    _COMMON
    + """
local found = redis.call('HMGET', account, 'day_cost', 'day_tokens', 'day_requests',
    'month_cost', 'month_tokens', 'month_requests', 'in_flight', 'reserved')
for i = 1, 8 do found[i] = found[i] or '0' end
return found
"""
)

# KEYS: the ids of the keys in use (hash, by SHA-256), and all keys (hash, by id). ARGV, to find one: SHA-256.
FIND = """
local id = redis.call('HGET', KEYS[1], ARGV[1])
return id and {id, redis.call('HGET', KEYS[2], id)}
"""
LIST = """
local found = {}
for i, id in ipairs(redis.call('HVALS', KEYS[1])) do found[i] = {id, redis.call('HGET', KEYS[2], id)} end
return found
"""
