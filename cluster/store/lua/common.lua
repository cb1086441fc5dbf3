-- Begins every script that changes sessions. KEYS 1 to 5 are the same in all of them.
--   POOL       hash    schema, vocabulary, generation (last one given), turns and their bytes, result_bytes
--   SESSIONS   hash    scope -> record, msgpack; a scope is "<length of tenant>:<tenant>:<session id>"
--   BY_TENANT  sorted  scopes, in order of bytes
--   BY_OWNER   sorted  "<length of owner>:<owner>:<scope>", in order of bytes
--   BY_EXPIRY  sorted  scopes by the Unix time at which they expire
-- A session's turns are in two hashes of its own: rid -> {number, parent or false, keep, added tokens}, msgpack; and
-- rid -> the turn as its writer packed it, which is never looked into here.
local POOL, SESSIONS, BY_TENANT, BY_OWNER, BY_EXPIRY = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- Fields of a record. Times and limits are text, as their writer put them: they come back bit for bit.
local GENERATION, EPOCH, OWNER, IDLE, TURNS, TOKENS, LAST, HEAD, BYTES, WEIGHTS = 3, 4, 5, 7, 9, 10, 11, 12, 13, 14

local TURN_BYTES, TOKEN_BYTES = 200, 4

local function find(scope)
  local packed = redis.call('HGET', SESSIONS, scope)
  return packed and cmsgpack.unpack(packed)
end

local function owner_member(owner, scope)
  return #owner .. ':' .. owner .. ':' .. scope
end

local function save(scope, record)
  redis.call('HSET', SESSIONS, scope, cmsgpack.pack(record))
  local idle = tonumber(record[IDLE])
  if idle and idle > 0 then
    redis.call('ZADD', BY_EXPIRY, string.format('%.17g', tonumber(record[LAST]) + idle), scope)
  end
end

local function grow(turns, bytes)
  redis.call('HINCRBY', POOL, 'turns', turns)
  redis.call('HINCRBY', POOL, 'bytes', bytes)
end

local function total()
  return tonumber(redis.call('HGET', POOL, 'bytes') or '0')
end

-- Grows beyond the last one, and beyond the clock: a Redis that lost what it held does not give a number out again.
local function new_generation(now_ms)
  local last = tonumber(redis.call('HGET', POOL, 'generation') or '0')
  local generation = math.max(last + 1, now_ms)
  redis.call('HSET', POOL, 'generation', string.format('%.0f', generation))
  return generation
end

local function add(scope, record)
  save(scope, record)
  redis.call('ZADD', BY_TENANT, 0, scope)
  redis.call('ZADD', BY_OWNER, 0, owner_member(record[OWNER], scope))
  grow(record[TURNS], record[BYTES])
end

local function turn_of(turns, rid)
  local packed = redis.call('HGET', turns, rid)
  return packed and cmsgpack.unpack(packed)
end

-- The turns that lead to `rid`, that one first; and how long its context is.
local function chain_of(turns, rid)
  local chain, seen = {}, {}
  while rid and not seen[rid] do
    seen[rid] = true
    local turn = turn_of(turns, rid)
    if not turn then break end
    chain[#chain + 1] = {rid, turn}
    rid = turn[2]
  end
  local length = 0
  for index = #chain, 1, -1 do
    local turn = chain[index][2]
    length = math.min(length, turn[3]) + turn[4]
  end
  return chain, length
end

local function bytes_of(turn)
  return TURN_BYTES + TOKEN_BYTES * turn[4]
end
