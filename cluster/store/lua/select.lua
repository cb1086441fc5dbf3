#!lua flags=no-writes
-- ARGV: 'tenant', 'owner' or 'expired', from, to, at most how many. Pairs of index member and record, in order.
local kind, from, to, limit = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local members
if kind == 'expired' then
  members = redis.call('ZRANGE', BY_EXPIRY, from, to, 'BYSCORE', 'LIMIT', 0, limit)
else
  local index = kind == 'tenant' and BY_TENANT or BY_OWNER
  members = redis.call('ZRANGE', index, from, to, 'BYLEX', 'LIMIT', 0, limit)
end
local found = {}
for _, member in ipairs(members) do
  local scope = member
  if kind == 'owner' then
    local colon = string.find(member, ':', 1, true)
    scope = string.sub(member, colon + tonumber(string.sub(member, 1, colon - 1)) + 2)
  end
  found[#found + 1] = {member, redis.call('HGET', SESSIONS, scope)}
end
return found
