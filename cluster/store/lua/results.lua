-- Begins every script about results of requests without a session.
--   POOL     hash    result_bytes: of all of them
--   RESULTS  hash    "<length of tenant>:<tenant>:<key>" -> {state, digest, owner, until, ttl, bytes}, msgpack
--   BODIES   hash    the same -> result, while there is one
--   BY_TIME  sorted  the same, by the Unix time at which the state ends
local POOL, RESULTS, BODIES, BY_TIME = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local STATE, DIGEST, OWNER, UNTIL, TTL, BYTES = 1, 2, 3, 4, 5, 6
local ENTRY_BYTES, SWEEP = 200, 16

local function seconds(number)
  return string.format('%.17g', number)
end

local function stored(scope)
  local packed = redis.call('HGET', RESULTS, scope)
  return packed and cmsgpack.unpack(packed)
end

local function forget(scope, record)
  redis.call('HDEL', RESULTS, scope)
  redis.call('HDEL', BODIES, scope)
  redis.call('ZREM', BY_TIME, scope)
  redis.call('HINCRBY', POOL, 'result_bytes', 0 - record[BYTES])
end

local function keep(scope, record, body)
  local old = stored(scope)
  record[BYTES] = ENTRY_BYTES + #body
  redis.call('HSET', RESULTS, scope, cmsgpack.pack(record))
  redis.call('ZADD', BY_TIME, record[UNTIL], scope)
  if body ~= '' then
    redis.call('HSET', BODIES, scope, body)
  else
    redis.call('HDEL', BODIES, scope)
  end
  redis.call('HINCRBY', POOL, 'result_bytes', record[BYTES] - (old and old[BYTES] or 0))
end

-- The record as it is at `now`: a result that expired is 'expired' for as long again; what lapsed is nothing.
local function at(record, now)
  if not record or now < tonumber(record[UNTIL]) then return record end
  if record[STATE] ~= 'done' then return nil end
  local forgotten_at = tonumber(record[UNTIL]) + tonumber(record[TTL])
  if now >= forgotten_at then return nil end
  return {'expired', record[DIGEST], record[OWNER], seconds(forgotten_at), record[TTL], record[BYTES]}
end

local function settle(scope, now)
  local record = stored(scope)
  local current = at(record, now)
  if record and not current then
    forget(scope, record)
  elseif record and current[STATE] ~= record[STATE] then
    keep(scope, current, '')
  end
  return current
end

local function sweep(now)
  local due = redis.call('ZRANGE', BY_TIME, '-inf', seconds(now), 'BYSCORE', 'LIMIT', 0, SWEEP)
  for _, scope in ipairs(due) do settle(scope, now) end
end

-- Until all together are within the limit: what expires first does so now, is forgotten when it would have expired, or
-- now if that is not enough. Claims stay.
local function make_room(limit)
  while limit > 0 and tonumber(redis.call('HGET', POOL, 'result_bytes') or '0') > limit do
    local victim, record
    for _, scope in ipairs(redis.call('ZRANGE', BY_TIME, '-inf', '+inf', 'BYSCORE', 'LIMIT', 0, 1000)) do
      record = stored(scope)
      if record[STATE] ~= 'running' then
        victim = scope
        break
      end
    end
    if not victim then return end
    if record[STATE] == 'done' then
      record[STATE] = 'expired'
      keep(victim, record, '')
    else
      forget(victim, record)
    end
  end
end

local function answer(status, record, body)
  return {status, record[STATE], record[DIGEST], record[OWNER], record[UNTIL], body or ''}
end
