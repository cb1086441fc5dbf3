#!lua
-- KEYS from 6 on: the two hashes of each commit's session, in pairs.
-- ARGV: msgpack {commits, now, most bytes of a session or 0, most bytes of all or 0}.
-- Each commit: {scope, generation, epoch, rid, turn for the first hash, turn for the second, tokens, dropped rids, weights}.
-- A list of statuses, one for each. Writes come before deletes, so that nothing is lost should one be refused.
local commits, now, session_limit, total_limit = unpack(cmsgpack.unpack(ARGV[1]))

local function commit(one, turns, data)
  local scope, generation, epoch, rid, turn, packed, tokens, dropped, weights = unpack(one)
  local record = find(scope)
  if not record or record[GENERATION] ~= generation then return 'stale' end
  local stored = redis.call('HGET', data, rid)
  if stored == packed then return 'ok' end
  if record[EPOCH] ~= epoch then return 'stale' end
  local gone, change, replaced = {}, bytes_of(turn), false
  for _, other in ipairs(dropped) do
    local old = turn_of(turns, other)
    if old then
      gone[#gone + 1] = other
      change = change - bytes_of(old)
      replaced = replaced or other == rid
    end
  end
  if stored and not replaced then return 'conflict' end
  if session_limit > 0 and change > 0 and record[BYTES] + change > session_limit then return 'session_full' end
  if total_limit > 0 and change > 0 and total() + change > total_limit then return 'store_full' end
  redis.call('HSET', turns, rid, cmsgpack.pack(turn))
  redis.call('HSET', data, rid, packed)
  for _, other in ipairs(gone) do
    if other ~= rid then
      redis.call('HDEL', turns, other)
      redis.call('HDEL', data, other)
    end
  end
  record[TURNS] = record[TURNS] + 1 - #gone
  record[TOKENS] = tokens
  record[LAST] = now
  record[HEAD] = rid
  record[BYTES] = record[BYTES] + change
  record[WEIGHTS] = weights
  save(scope, record)
  grow(1 - #gone, change)
  return 'ok'
end

local statuses = {}
for index, one in ipairs(commits) do
  statuses[index] = commit(one, KEYS[4 + 2 * index], KEYS[5 + 2 * index])
end
return statuses
