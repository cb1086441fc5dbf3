#!lua flags=allow-oom
-- ARGV: msgpack {scope, owner, expected epoch}. {'ok', record as it is now} or {'unknown'}
local scope, owner, expected = unpack(cmsgpack.unpack(ARGV[1]))
local record = find(scope)
if not record then return {'unknown'} end
if record[EPOCH] == expected then
  redis.call('ZREM', BY_OWNER, owner_member(record[OWNER], scope))
  record[OWNER] = owner
  record[EPOCH] = expected + 1
  save(scope, record)
  redis.call('ZADD', BY_OWNER, 0, owner_member(owner, scope))
end
return {'ok', cmsgpack.pack(record)}
