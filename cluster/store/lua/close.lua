#!lua flags=allow-oom
-- KEYS 6, 7: the two hashes of the session's turns. ARGV: msgpack {scope, generation, epoch or false}. 1 or 0
local scope, generation, epoch = unpack(cmsgpack.unpack(ARGV[1]))
local record = find(scope)
if not record or record[GENERATION] ~= generation then return 0 end
if epoch and record[EPOCH] ~= epoch then return 0 end
redis.call('UNLINK', KEYS[6], KEYS[7])
redis.call('HDEL', SESSIONS, scope)
redis.call('ZREM', BY_TENANT, scope)
redis.call('ZREM', BY_OWNER, owner_member(record[OWNER], scope))
redis.call('ZREM', BY_EXPIRY, scope)
grow(0 - record[TURNS], 0 - record[BYTES])
return 1
