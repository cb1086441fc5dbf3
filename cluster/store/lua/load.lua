#!lua flags=no-writes
-- KEYS 6: the hash of the session's packed turns. ARGV: scope. {record, turns} or {}
local record = redis.call('HGET', SESSIONS, ARGV[1])
if not record then return {} end
return {record, redis.call('HVALS', KEYS[6])}
