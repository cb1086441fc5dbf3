#!lua
-- ARGV: msgpack {scope, digest, owner, now, lease in s}. {status, state, digest, owner, until, body}
local scope, digest, owner, now_text, lease_text = unpack(cmsgpack.unpack(ARGV[1]))
local now = tonumber(now_text)
sweep(now)
local record = settle(scope, now)
if record and record[DIGEST] ~= digest then return answer('conflict', record) end
if record and not (record[STATE] == 'running' and record[OWNER] == owner) then
  return answer(record[STATE], record, redis.call('HGET', BODIES, scope) or '')
end
record = {'running', digest, owner, seconds(now + tonumber(lease_text)), '0', 0}
keep(scope, record, '')
return answer('claimed', record)
