-- The fast path for nearly every call: one group, each limit with its own state, all allowed. It computes the same
-- numbers as the kernels, inline, because making functions and tables is the largest cost of a call: this takes half the
-- time. Every other call (a denial, a clock that stepped back, a foreign value, another mode) writes nothing here and
-- falls through to the general path: the kernels and the group law below, which are not even made before that.

local RECORD = 88
local MOST_TOTAL = 4503599627370496 -- 2^52: beyond it the sums of a sliding log start again
local FOR_EVER = 86400000 -- with an injected clock, real time must not expire a state

local mode, now, first = 'spend', nil, 1
if #ARGV > 1 then mode, now, first = ARGV[1], tonumber(ARGV[2]), 3 end
local injected = now ~= nil
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

if mode == 'spend' and #ARGV == first then
  local text = ARGV[first]
  local n, rows, values, spans = 0, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0} -- growing a table takes time
  local entries, over -- of sliding logs: the entry to add, and the number of expired entries (-1: a new log)
  for from = 1, #text, RECORD do
    local place, algorithm, count, period, burst, cost, patience = unpack('<ddddddd', text, from)
    local key, left, reset_after, delay, given, rest_part = KEYS[n + 1], -1, 0, 0, 0, 0
    if place ~= n + 1 or cost > burst then break end

    if algorithm == TOKEN_BUCKET or algorithm == GCRA or algorithm == LEAKY_BUCKET then -- tat, part, last, since, given
      local value = call('GET', key)
      local ahead, part, since, early = 0, 0, now, 0
      if value then
        if #value ~= 40 then break end
        local tat, rest, last, begun, back = unpack('<ddddd', value)
        if now < last or rest >= count then break end
        if tat >= now then ahead, part, since, given = tat - now, rest, begun, back else since = max(begun, now) end
        local room, room_part = muldiv(burst - cost, period, count)
        early = ahead - room
        if part < room_part then early = early - 1 end
        if algorithm == LEAKY_BUCKET then delay = ahead end
      end
      if early > 0 or delay > 0 and (patience ~= NEVER or #text > RECORD) then break end
      local step, step_part = muldiv(cost, period, count)
      ahead, part = ahead + step, part + step_part
      if part >= count then ahead, part = ahead + 1, part - count end
      local q, r = muldiv(count, ahead, period)
      left = min(max(burst - q - ceil((r + part - count + 1) / period), 0), burst)
      reset_after, rest_part = part > 0 and ahead + 1 or ahead, part
      values[n + 1], spans[n + 1] = pack('<ddddd', now + ahead, part, now, since, given), ahead + 1

    elseif algorithm == FIXED_WINDOW then -- finish, used, since
      local value = call('GET', key)
      local finish, used, since = now - now % period + period, cost, now
      if value then
        if #value ~= 24 then break end
        local ends, before, begun = unpack('<ddd', value)
        if ends > finish then break end
        if ends == finish then used, since = before + cost, begun end
      end
      given = since
      left, reset_after = count - used, finish - now
      values[n + 1], spans[n + 1] = pack('<ddd', finish, used, since), reset_after

    elseif algorithm == SLIDING_COUNTER then -- expires, current, previous
      local value = call('GET', key)
      local rest, current, previous, share = period, 0, 0, 0
      if value then
        if #value ~= 24 then break end
        local expires, newer, older = unpack('<ddd', value)
        rest = expires - period - now
        if rest > period then break end
        if rest > 0 then
          current, previous = newer, older
        elseif rest > -period then
          rest, previous = rest + period, newer
        else
          rest = period
        end
        local q, r = muldiv(previous, rest, period)
        share = r > 0 and q + 1 or q
      end
      left, reset_after = count - current - cost - share, rest + period
      values[n + 1], spans[n + 1] = pack('<ddd', now + reset_after, current + cost, previous), reset_after

    elseif algorithm == SLIDING_LOG then -- a list, its head is expires, used, total, uneven
      local head = call('LINDEX', key, 0)
      local used, gone, last, total, uneven = cost, 0, 0, cost, 0
      if head then
        if #head ~= 32 then break end
        local expires, before, sum, till = unpack('<dddd', head)
        used, last, total, uneven = before + cost, expires - period, sum + cost, till
        if last >= now or total > MOST_TOTAL then break end
        repeat
          local entry = call('LINDEX', key, gone + 1)
          if not entry then break end
          local instant, spent = unpack('<dd', entry) -- the sum follows, but is not needed
          if instant > now - period then break end
          used, gone = used - spent, gone + 1
        until gone == 8
        if gone == 8 then break end -- the kernel reads many entries faster
      end
      left, reset_after = count - used, period
      entries, over = entries or {}, over or {}
      values[n + 1], spans[n + 1] = pack('<dddd', now + period, used, total, uneven), period
      entries[n + 1], over[n + 1] = pack('<ddd', now, cost, total), head and gone or -1
    end

    if left < 0 then break end
    n = n + 1
    rows[n] = {now, 1, left, 0, reset_after, delay, given, rest_part}
  end

  if n * RECORD == #text then
    for i = 1, n do
      local key, gone = KEYS[i], over and over[i]
      local ttl = injected and FOR_EVER or max(ceil(spans[i] / 1000), 1)
      if not gone then
        call('SET', key, values[i], 'PX', ttl)
      else
        if gone < 0 then
          call('RPUSH', key, values[i], entries[i])
        elseif gone > 0 then
          call('LTRIM', key, gone + 1, -1)
          call('LPUSH', key, values[i])
          call('RPUSH', key, entries[i])
        else
          call('LSET', key, 0, values[i])
          call('RPUSH', key, entries[i])
        end
        call('PEXPIRE', key, ttl)
      end
    end
    if n == 1 then return rows[1] end
    rows[n + 1] = nil -- the reply ends at the first nil
    return rows
  end
end
