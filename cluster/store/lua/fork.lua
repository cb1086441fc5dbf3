#!lua
-- KEYS 6 to 9: the two hashes of the source's turns, and the two of the fork's.
-- ARGV: msgpack {scope, session id, source's scope, source's generation, rid or false, owner, now, now in ms,
--   most bytes of a session or 0, most bytes of all or 0}.
-- {'ok', record}, {'exists'}, {'unknown'}, {'turn_unknown'}, {'session_full'} or {'store_full'}
local scope, session_id, source_scope, generation, rid, owner, now, now_ms, session_limit, total_limit =
  unpack(cmsgpack.unpack(ARGV[1]))
local from_turns, from_data, turns, data = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
if redis.call('HEXISTS', SESSIONS, scope) == 1 then return {'exists'} end
local record = find(source_scope)
if not record or record[GENERATION] ~= generation then return {'unknown'} end
local head = rid or record[HEAD]
if not head or redis.call('HEXISTS', from_turns, head) == 0 then return {'turn_unknown'} end

local chain, length = chain_of(from_turns, head)
local bytes = 0
for _, link in ipairs(chain) do bytes = bytes + bytes_of(link[2]) end
if session_limit > 0 and bytes > session_limit then return {'session_full'} end
if total_limit > 0 and total() + bytes > total_limit then return {'store_full'} end
for _, link in ipairs(chain) do
  redis.call('HSET', turns, link[1], redis.call('HGET', from_turns, link[1]))
  redis.call('HSET', data, link[1], redis.call('HGET', from_data, link[1]))
end
record[2] = session_id
record[GENERATION] = new_generation(now_ms)
record[EPOCH] = 1
record[OWNER] = owner
record[TURNS] = #chain
record[TOKENS] = length
record[LAST] = now
record[HEAD] = head
record[BYTES] = bytes
add(scope, record)
return {'ok', cmsgpack.pack(record)}
