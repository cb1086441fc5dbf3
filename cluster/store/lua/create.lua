#!lua
-- ARGV: msgpack {scope, record without a generation, now in ms}. {'ok', record} or {'exists'}
local scope, record, now_ms = unpack(cmsgpack.unpack(ARGV[1]))
if redis.call('HEXISTS', SESSIONS, scope) == 1 then return {'exists'} end
record[GENERATION] = new_generation(now_ms)
add(scope, record)
return {'ok', cmsgpack.pack(record)}
