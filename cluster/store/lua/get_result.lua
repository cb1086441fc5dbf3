#!lua flags=no-writes
-- ARGV: scope, now. {state, state, digest, owner, until, body} or {}
local record = at(stored(ARGV[1]), tonumber(ARGV[2]))
if not record then return {} end
return answer(record[STATE], record, record[STATE] == 'done' and redis.call('HGET', BODIES, ARGV[1]) or '')
