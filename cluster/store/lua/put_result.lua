#!lua
-- ARGV: msgpack {scope, digest, owner, now, ttl in s, most bytes of one or 0, most bytes of all or 0, replace}, body.
-- 'stored', 'stale' or 'too_large'
local scope, digest, owner, now_text, ttl_text, one_limit, all_limit, replace = unpack(cmsgpack.unpack(ARGV[1]))
local body, now, ttl = ARGV[2], tonumber(now_text), tonumber(ttl_text)
sweep(now)
local record = not replace and settle(scope, now)
if record and (record[DIGEST] ~= digest or record[OWNER] ~= owner) then return 'stale' end
if record and record[STATE] == 'done' then return 'stored' end
if record and record[STATE] == 'expired' then return 'stale' end
local too_large = (one_limit > 0 and #body > one_limit) or (all_limit > 0 and #body + ENTRY_BYTES > all_limit)
if too_large and replace then return 'too_large' end
if too_large then
  keep(scope, {'expired', digest, owner, seconds(now + ttl), ttl_text, 0}, '')
  return 'too_large'
end
keep(scope, {'done', digest, owner, seconds(now + ttl), ttl_text, 0}, body)
make_room(all_limit)
return 'stored'
