-- Begins every script about results of requests without a session.
--   POOL     hash    result_bytes: of all of them
--   RESULTS  hash    "<length of tenant>:<tenant>:<key>" -> {state, digest, owner, until, ttl, bytes}, msgpack
--   BODIES   hash    the same -> result, while there is one
--   BY_TIME  sorted  the same, by the Unix time at which the state ends
--   BY_TENANT  sorted  "<length of tenant>:<tenant>:<that time, of fixed width>:<key>", in order of bytes
--   HOLDERS    sorted  "<length of tenant>:<tenant>:" by the bytes of its results
local POOL, RESULTS, BODIES, BY_TIME, BY_TENANT, HOLDERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local STATE, DIGEST, OWNER, UNTIL, TTL, BYTES = 1, 2, 3, 4, 5, 6
local ENTRY_BYTES, SWEEP = 200, 16

local function seconds(number)
  return string.format('%.17g', number)
end

local function stored(scope)
  local packed = redis.call('HGET', RESULTS, scope)
  return packed and cmsgpack.unpack(packed)
end

-- The tenant's part of a scope, and the key.
local function split(scope)
  local colon = string.find(scope, ':', 1, true)
  local ends = colon + tonumber(string.sub(scope, 1, colon - 1)) + 1
  return string.sub(scope, 1, ends), string.sub(scope, ends + 1)
end

local function tenant_member(scope, record)
  local tenant, key = split(scope)
  return tenant .. string.format('%024.6f', tonumber(record[UNTIL])) .. ':' .. key
end

local function hold(scope, bytes)
  local tenant = split(scope)
  redis.call('HINCRBY', POOL, 'result_bytes', bytes)
  if tonumber(redis.call('ZINCRBY', HOLDERS, bytes, tenant)) <= 0 then redis.call('ZREM', HOLDERS, tenant) end
end

local function forget(scope, record)
  redis.call('HDEL', RESULTS, scope)
  redis.call('HDEL', BODIES, scope)
  redis.call('ZREM', BY_TIME, scope)
  redis.call('ZREM', BY_TENANT, tenant_member(scope, record))
  hold(scope, 0 - record[BYTES])
end

local function keep(scope, record, body)
  local old = stored(scope)
  record[BYTES] = ENTRY_BYTES + #body
  redis.call('HSET', RESULTS, scope, cmsgpack.pack(record))
  redis.call('ZADD', BY_TIME, record[UNTIL], scope)
  if old then redis.call('ZREM', BY_TENANT, tenant_member(scope, old)) end
  redis.call('ZADD', BY_TENANT, 0, tenant_member(scope, record))
  if body ~= '' then
    redis.call('HSET', BODIES, scope, body)
  else
    redis.call('HDEL', BODIES, scope)
  end
  hold(scope, record[BYTES] - (old and old[BYTES] or 0))
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

-- Results that a program without BY_TENANT and HOLDERS has written, or forgotten, are found by their number.
local function reindex()
  if redis.call('ZCARD', BY_TENANT) == redis.call('HLEN', RESULTS) then return end
  redis.call('DEL', BY_TENANT, HOLDERS)
  local scopes = redis.call('HKEYS', RESULTS)
  for _, scope in ipairs(scopes) do
    local record = stored(scope)
    redis.call('ZADD', BY_TENANT, 0, tenant_member(scope, record))
    redis.call('ZINCRBY', HOLDERS, record[BYTES], (split(scope)))
  end
end

-- Of one tenant: what expires first and is no claim.
local function first_of(tenant)
  local above = '[' .. tenant .. '\255'
  for _, member in ipairs(redis.call('ZRANGE', BY_TENANT, '[' .. tenant, above, 'BYLEX', 'LIMIT', 0, 1000)) do
    local scope = tenant .. string.sub(member, #tenant + 26)
    local record = stored(scope)
    if record[STATE] ~= 'running' then return scope, record end
  end
end

local function first_to_go()
  local rank = 0
  while true do
    local tenant = redis.call('ZRANGE', HOLDERS, rank, rank, 'REV')[1]
    if not tenant then return end
    local scope, record = first_of(tenant)
    if scope then return scope, record end
    rank = rank + 1
  end
end

-- Until all together are within the limit: of the tenant that holds most, so that nobody loses what is within an even
-- share, what expires first does so now, is forgotten when it would have expired, or now if that is not enough. Claims
-- stay.
local function make_room(limit)
  if limit <= 0 or tonumber(redis.call('HGET', POOL, 'result_bytes') or '0') <= limit then return end
  reindex()
  while tonumber(redis.call('HGET', POOL, 'result_bytes')) > limit do
    local victim, record = first_to_go()
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
