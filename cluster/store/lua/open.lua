#!lua
-- ARGV: this program's schema, vocabulary or '', the oldest schema that it reads and goes on with.
-- {'ok'}, {'schema', found} or {'vocabulary', found, sessions}
local schema = redis.call('HGET', POOL, 'schema')
local known = tonumber(schema or ARGV[1])
if not known or known < tonumber(ARGV[3]) or known > tonumber(ARGV[1]) then return {'schema', schema} end
local found = redis.call('HGET', POOL, 'vocabulary')
local sessions = redis.call('HLEN', SESSIONS)
if ARGV[2] ~= '' and found and found ~= ARGV[2] and sessions > 0 then
  return {'vocabulary', found, sessions}
end
if schema ~= ARGV[1] then redis.call('HSET', POOL, 'schema', ARGV[1]) end
if ARGV[2] ~= '' and found ~= ARGV[2] then redis.call('HSET', POOL, 'vocabulary', ARGV[2]) end
return {'ok'}
