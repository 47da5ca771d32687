-- Reserves parts of counts for one replica. Idempotent: what is asked for is counted from the beginning.
--
-- KEYS: one for each count, a hash of what each replica holds by the id of its reservation, with
--   `total` (of a daily count: all that was ever held that day) or `full` (of a rate: when its bucket is full, in ms).
-- ARGV: how many replicas live, and their names; then for each key: measure, id, used, granted, needed, wanted, limit,
--   rate (calls per second), and 1 if the reservation is over.
-- Returns for each key: how many this replica holds, how many the others do, in how many ms there will be more.

local DAY = 86400000

local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local members = tonumber(ARGV[1])
local live = {}
for i = 2, members + 1 do
    live[ARGV[i]] = true
end

-- How many one replica may have in all, which has `mine`, where `left` are not reserved.
local function share(mine, left, used, needed, wanted)
    if wanted <= mine then
        return math.max(used, wanted)
    end
    local required = math.max(mine, math.min(needed, mine + math.max(left, 0)))
    local rest = left - (required - mine)
    local advance = math.max(math.min(rest, 1), math.floor(rest / members))
    return math.max(used, required + math.max(0, math.min(wanted - required, advance)))
end

-- What live replicas hold of calls at once; what dead ones held is dropped.
local function held_by_others(key, id)
    local others = 0
    local held = redis.call('HGETALL', key)
    for i = 1, #held, 2 do
        if held[i] ~= id then
            if live[string.match(held[i], '^[^:]*')] then
                others = others + tonumber(held[i + 1])
            else
                redis.call('HDEL', key, held[i])
            end
        end
    end
    return others
end

local answers = {}
for index, key in ipairs(KEYS) do
    local at = members + 2 + (index - 1) * 9
    local measure, id = ARGV[at], ARGV[at + 1]
    local used, granted, needed = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
    local wanted, limit, rate = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6]), tonumber(ARGV[at + 7])
    local fresh, others, wait, ttl = 0, 0, 0, DAY

    if measure == 'at_once' then
        others = held_by_others(key, id)
        fresh = share(0, limit - others, used, needed, wanted)
    else
        -- A part that is missing was lost with the store: it is put back.
        local mine = tonumber(redis.call('HGET', key, id))
        local lost = 0
        if not mine then
            mine, lost = granted, granted
        end
        if measure == 'daily' then
            local total = (tonumber(redis.call('HGET', key, 'total')) or 0) + lost
            fresh = share(mine, limit - total, used, needed, wanted)
            others = total - mine
            redis.call('HSET', key, 'total', others + fresh)
            ttl = 2 * DAY
        else
            local interval = 1000 / rate
            local full = math.max(now, tonumber(redis.call('HGET', key, 'full')) or now)
            local left = math.floor(limit - (full - now) / interval + 1e-6)
            fresh = share(mine, left, used, needed, wanted)
            full = full + (fresh - mine) * interval
            redis.call('HSET', key, 'full', string.format('%.3f', full))
            wait = math.max(0, math.ceil(full - now - (limit - 1) * interval))
            ttl = math.max(DAY, math.ceil(full - now))
        end
    end

    if ARGV[at + 8] == '1' then
        redis.call('HDEL', key, id)
    else
        redis.call('HSET', key, id, fresh)
    end
    redis.call('PEXPIRE', key, string.format('%.0f', ttl))
    answers[index] = {fresh, others, wait}
end
return answers
