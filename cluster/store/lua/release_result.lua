#!lua flags=allow-oom
-- ARGV: scope, owner. 1 or 0
local record = stored(ARGV[1])
if not record or record[STATE] ~= 'running' or record[OWNER] ~= ARGV[2] then return 0 end
forget(ARGV[1], record)
return 1
