#!lua flags=allow-oom
-- KEYS 6, 7: the two hashes of the session's turns. ARGV: msgpack {scope, generation, epoch, rid, now}.
-- {'ok'}, {'stale'} or {'turn_unknown'}
local turns, data = KEYS[6], KEYS[7]
local scope, generation, epoch, rid, now = unpack(cmsgpack.unpack(ARGV[1]))
local record = find(scope)
if not record or record[GENERATION] ~= generation or record[EPOCH] ~= epoch then return {'stale'} end
if redis.call('HEXISTS', turns, rid) == 0 then return {'turn_unknown'} end

local children, all = {}, redis.call('HGETALL', turns)
local turn_by_rid = {}
for index = 1, #all, 2 do
  local turn = cmsgpack.unpack(all[index + 1])
  turn_by_rid[all[index]] = turn
  if turn[2] then
    children[turn[2]] = children[turn[2]] or {}
    table.insert(children[turn[2]], all[index])
  end
end
local below, freed, reached = {rid}, 0, {[rid] = true}
local at = 1
while at <= #below do
  for _, child in ipairs(children[below[at]] or {}) do
    if not reached[child] then
      reached[child] = true
      below[#below + 1] = child
      freed = freed + bytes_of(turn_by_rid[child])
    end
  end
  at = at + 1
end
for index = 2, #below do
  redis.call('HDEL', turns, below[index])
  redis.call('HDEL', data, below[index])
end
local _, length = chain_of(turns, rid)
record[TURNS] = redis.call('HLEN', turns)
record[TOKENS] = length
record[LAST] = now
record[HEAD] = rid
record[BYTES] = record[BYTES] - freed
save(scope, record)
grow(1 - #below, 0 - freed)
return {'ok'}
