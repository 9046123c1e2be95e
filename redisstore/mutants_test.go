package redisstore

import (
	"context"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// mutant is a small mistake in the Lua: its name says what the script then gets wrong.
type mutant struct{ name, old, new string }

// A parity test that misses one of the mutants would miss the like in a real change.
var mutants = []mutant{
	{"take: all limits charged although one denies", "      charge = 0\n", ""},
	{"take: the last limit alone decides", "      local room = 1\n", "      local room = 1\n      has_room = true\n"},
	{"take: cost below what fits", "if needed > fits then", "if needed >= fits then"},
	{"take: the cost of another zone", "= zone.mode, zone.cost, zone.slots", "= zone.mode, zones[1].cost, zone.slots"},
	{"take: nary grants by its first limit", "for n = c + 1, c + zone.checks do charge", "for n = c + 1, c + 1 do charge"},
	{"take: nary wants everything", "needed = min(cost, 1)", "needed = cost"},
	{"take: force wants something", "mode >= 3 then needed = 0", "mode >= 3 then needed = 1"},
	{"take: force charges what does not fit", "l.algorithm.is_binary_only or mode == 3 and not l.algorithm.is_calendar)", "l.algorithm.is_binary_only)"},
	{"take: force charges although another zone denies", "if mode >= 3 and passes and not peeks then", "if mode >= 3 and not peeks then"},
	{"take: uniform's denials are free", "not passes and mode ~= 2 or ban", "not passes or ban"},
	{"take: uniform forgets what was charged just now", "_, retry = l.algorithm.decide(l, key, now, cost)", ""},
	{"take: shadows deny", "(has_room or shadow == 1)", "has_room"},
	{"take: shadows are charged what they have no room for", "allowed and (zone.has_room or not zone.shadow)", "allowed"},
	{"take: shadows go by their first limit", "room, has_room = 0, false", "room, has_room = 0, shadow == 1 and c > 1 and has_room"},
	{"take: shadows are charged although another zone denies", "allowed and (zone.has_room or not zone.shadow)", "(allowed or zone.shadow) and (zone.has_room or not zone.shadow)"},
	{"take: a shadow's denials are its neighbours' too", "allowed and (zone.has_room or not zone.shadow)", "allowed and (zone.has_room or not zone.shadow)\n    allowed = passes"},
	{"take: a shadow is charged although no slot is free", "zone.slots, zone.slots_key, has_room = slots, key, has_room and zone.slots_free", "zone.slots, zone.slots_key, has_room = slots, key, has_room and (zone.slots_free or shadow == 1)"},
	{"take: a shadow takes a slot although its limits deny", "slots_take(slots, zone, passes,", "slots_take(slots, zone, passes or allowed and zone.shadow and zone.slots_free,"},
	{"take: a shadow goes by its first limit and the slots", "zone.slots, zone.slots_key, has_room = slots, key, has_room and zone.slots_free", "zone.slots, zone.slots_key, has_room = slots, key, (has_room or shadow == 1) and zone.slots_free"},
	{"take: the slot just taken isn't in flight", "count_before, slots.others + slots.count)", "count_before, slots.others + count_before)"},
	{"take: a ban counts that no slot is free", "now, limits_deny, outcome == peek)", "now, limits_deny or slots and not zone.slots_free, outcome == peek)"},
	{"bucket: debt without bound", "used = min(used + charge * unit, max_used)", "used = used + charge * unit"},
	{"fixed_window: a charged denial does not restart the window", "used = max(now, start), max(count, events) - charge, 0, events - charge", "used = start, max(count, events) - charge, 0, events - charge"},
	{"fixed_window: a charged denial moves the window back", "used = max(now, start), max(count, events) - charge", "used = now, max(count, events) - charge"},
	{"fixed_window: counts past events at the clock", "charge = max(events - used, 0)", "charge = charge"},
	{"sliding_window: denials count without bound", "    most = 2 * events\n", ""},
	{"sliding_log: keeps more than its newest events", "expired, live, beyond = expired + excess, live - excess, beyond - excess", "beyond = beyond - excess"},
	{"prelude: state loses digits", "pack_numbers('<I7I7I7I7', a, b, c, d)", "pack_numbers('<I7I7I7I7', a - a % 10, b, c, d)"},
	{"prelude: no expiry", "pending[k], 'NX', 'PX', pending_ttl[k])", "pending[k], 'NX')"},
	{"bucket: clock steps back", "if elapsed > 0 then", "if elapsed ~= 0 then"},
	{"bucket: rounds the ticks up", "(elapsed - elapsed % tick) / tick", "ceil(elapsed / tick)"},
	{"bucket: retry rounds down", "retry = ceil((cost * unit - free) / rate)", "retry = floor((cost * unit - free) / rate)"},
	{"bucket: retry forgets the step back", " * tick + eff - now\n", " * tick\n"},
	{"bucket: cost of burst denied for ever", "if cost > burst then\n    retry = forever\n  elseif cost > fits then\n    retry = ceil((cost", "if cost >= burst then\n    retry = forever\n  elseif cost > fits then\n    retry = ceil((cost"},
	{"bucket: a reply has the use before the charge", "return charge, used, eff\n", "return charge, before, eff\n"},
	{"fixed_window: the last instant belongs to the old window", "now - start >= window", "now - start > window"},
	{"fixed_window: windows never start at the clock", "if align_clock then", "if false then"},
	{"fixed_window: retry from the start", " * window - (now - start)\n", " * window\n"},
	{"bucket: a tick gives back one part", "/ tick * rate --", "/ tick --"},
	{"leaky_bucket: the grid moves with every request", "used - refilled, now - elapsed % tick", "used - refilled, now"},
	{"leaky_bucket: the grid of an empty bucket stays", "used, eff = 0, now\n", "used, eff = 0, now - elapsed % tick\n"},
	{"sliding_window: forgets the window before", "start, prev, cur = start + window, cur, 0\n  end\n  return", "start, prev, cur = start + window, 0, 0\n  end\n  return"},
	{"sliding_window: keeps what is two windows old", "now - start >= 2 * window", "now - start > 2 * window"},
	{"sliding_window: clock steps back", "floor(max(now - start, 0) / unit)", "floor((now - start) / unit)"},
	{"sliding_window: the border belongs to the old window", "elseif now - start >= window then", "elseif now - start > window then"},
	{"sliding_window: the window before does not weigh less", "prev * (width - elapsed)", "prev * width"},
	{"sliding_window: rounds the way in up", "floor(max(now - start, 0) / unit)", "ceil(max(now - start, 0) / unit)"},
	{"sliding_window: never waits for the next window", "if cur + cost > events then\n    start, prev, cur = start + window, cur, 0\n  end", ""},
	{"sliding_window: waits past the next window", "start + min(elapsed * unit, window)", "start + elapsed * unit"},
	{"sliding_window: reset one window early", "return start + 2 * window\n", "return start + window\n"},
	{"sliding_log: an event of exactly one window still counts", "eff - window + shift)", "eff - window + shift - 1)"},
	{"sliding_log: halving is off", "unpack_numbers('<d', entry, pos * size + offset) <= edge", "unpack_numbers('<d', entry, pos * size + offset) < edge"},
	{"sliding_log: expired buckets count as events", "return sliding_log_check(first - l.first, l.length), entries", "return entries, entries"},
	{"sliding_log: clock steps back", "local eff = max(now, newest - grid + 1)", "local eff = now"},
	{"sliding_log: min_interval is only told, not kept", "    fits = 0\n    if cost > 0", "    if cost > 0"},
	{"sliding_log: min_interval denies peeks", "    if cost > 0 then\n      retry = max(retry, interval_wait)\n    end", "    retry = max(retry, interval_wait)"},
	{"sliding_log: min_interval hides the window", "retry = max(retry, interval_wait)", "retry = interval_wait"},
	{"sliding_log: more although it is too early", "max(more, interval_wait), max(reset", "more, max(reset"},
	{"sliding_log: forgets the last request too early", "max(more, interval_wait), max(reset, interval_wait)", "max(more, interval_wait), reset"},
	{"sliding_log: retry by the wrong event", "expired + live + cost - events - 1", "expired + live + cost - events"},
	{"sliding_log: keeps what is dead", "now, drop, entry, count, shift, stamp", "now, 0, entry, count, shift, stamp"},
	{"sliding_log: pushes at most 1000", "for done = 0, count - 1, 1000 do\n    local n = min(count - done, 1000)\n    sliding_log_set", "for done = 0, min(count - 1, 0), 1000 do\n    local n = min(count - done, 1000)\n    sliding_log_set"},
	{"sliding_log: a stamp loses digits", "pack_numbers('<d', stamp), charge", "pack_numbers('<d', stamp - stamp % 100), charge"},
	{"sliding_log: no expiry", "if not same then\n    redis.call('PEXPIRE'", "if false then\n    redis.call('PEXPIRE'"},
	{"sliding_log: an early bucket end is an early request", "interval > 0 and interval_wait > 0 and", "interval_wait > 0 and"},
	{"sliding_log: buckets end early", "ceil((eff + shift) / grid) * grid", "floor((eff + shift) / grid) * grid"},
	{"sliding_log: events die by the end of a bucket", "newest - grid + 1)", "newest)"},
	{"sliding_log: a bucket of each event", "elseif live == 0 or l.newest ~= stamp then", "elseif true then"},
	{"sliding_log: numbers begin anew", "pack_numbers('<ddd', stamp, after - charge, after)", "pack_numbers('<ddd', stamp, 0, after)"},
	{"sliding_log: a part of a bucket is kept", "local first, after = l.first + expired,", "local first, after = l.first,"},
	{"sliding_log: the bucket of the event before", "sliding_log_count(l, k, 2, number)", "sliding_log_count(l, k, 2, number - 1)"},
	{"sliding_log: gives back the oldest", "local low, from, _, before = sliding_log_expired(l, k, receipt_stamp - 1)", "local low, from, _, before = 0, 0, nil, nil"},
	{"sliding_log: gives back more than there is", "n = min(n, high - low)", "n = high - low"},
	{"sliding_log: gives back by moving nothing", "sliding_log_move(l, k, 0, from, n)", "sliding_log_move(l, k, 0, from, 0)"},
	{"sliding_log: later buckets keep their numbers", "if i > 1 then number = number - n end", ""},
	{"sliding_log: an empty bucket stays", "for i = all and 2 or 1, entries - from do", "for i = 1, entries - from do"},
	{"take: charges 1 µs too far in advance", "if wait > max_wait then", "if wait > max_wait + 1 then"},
	{"take: has to come back for room, not for a place", "if wait < forever then wait = wait - max_wait end", ""},
	{"take: a reply has the charge that was asked for", "room, retry, charged, balance_a", "room, retry, charge, balance_a"},
	{"take: requests that cost nothing save the step back", "(peeks or cost == 0) and peek or passes", "peeks and peek or passes"},
	{"take: peeks save the step back", "(peeks or cost == 0) and peek or passes", "cost == 0 and peek or passes"},
	{"take: peeks are charged", "    if peeks or not passes and mode ~= 2", "    if not passes and mode ~= 2"},
	{"take: peeks are charged in force", "if mode >= 3 and passes and not peeks then", "if mode >= 3 and passes then"},
	{"take: all peeks are shadows", "zone.peeks, shadow = shadow > 1, shadow % 2", "zone.peeks, shadow = shadow > 1, min(shadow, 1)"},
	{"token_bucket: initial is full", "return withheld * unit, now, 1", "return 0, now, 1"},
	{"token_bucket: a denied first request is forgotten", "or dirty == 1 and outcome ~= peek then\n    used = bucket_save", "then\n    used = bucket_save"},
	{"bucket: debt in advance is bounded, too", "if outcome == denied then\n    local max_used", "if true then\n    local max_used"},
	{"bucket: gives back what was refilled", "min(refundable, n * unit, used)", "min(n * unit, used)"},
	{"bucket: gives back all", "min(refundable, n * unit, used)", "min(refundable, used)"},
	{"bucket: those behind don't count", "owed == 0 and used > full and used > refundable", "false"},
	{"fixed_window: those behind don't count", "if queued > 0 and used > refundable then", "if false then"},
	{"smooth: those behind don't count", "if next_free > eff and (next_free > expected_next_free or next_free == expected_next_free and used ~= refundable) then", "if false then"},
	{"fixed_window: later windows take nothing", "max(queued - windows * events, 0)", "0"},
	{"calendar: a reply has the count before the charge", "return charge, period_end, before, count", "return charge, period_end, before, count - charge"},
	{"calendar: the receipt of a peek has the highest count", "return 0, period_end, count, count", "return 0, period_end, before, count"},
	{"fixed_window: gives back to another window", " and start == rolled_start then", " then"},
	{"fixed_window: a denial undoes what was charged in advance", "if align_clock or used > events then", "if align_clock then"},
	{"sliding_window: gives back to the current window only", "elseif receipt_start == start - window and prev > 0 then", "elseif false then"},
	{"sliding_window: gives back to any window", "if receipt_start == start and cur > 0 then", "if cur > 0 then"},
	{"smooth: this request pays", "if next_free > eff then\n    fits = 0", "if next_free > eff + cost then\n    fits = 0"},
	{"smooth: nothing is saved up", "next_free = next_free + ceil((charge * window - spent) / events)", "next_free = next_free + ceil(charge * window / events)"},
	{"smooth: saves up during debt", "if now > next_free then\n    used = max(used - min(now - next_free,", "if now > next_free then\n    used = max(used - min(now,"},
	{"smooth: the wait rounds down", "next_free + ceil((charge * window - spent) / events)", "next_free + floor((charge * window - spent) / events)"},
	{"smooth: charges without bound", "  charge = min(charge, max_charge)\n", ""},
	{"smooth: never warm", "local idle_spent = min(ceil(min(charge, events_to_warm) * idle_num / idle_den), idle)", "local idle_spent = 0"},
	{"smooth: warms up too far", "idle_num / idle_den), idle)", "idle_num / idle_den), warm_up)"},
	{"smooth: cold costs the same", "local extra = ceil(", "local extra = 0 * ceil("},
	{"smooth: cools down", "if warm_up == 0 then\n    left =", "if true then\n    left ="},
	{"smooth: less is given back", "min(ceil(refunded / events), next_free - eff)", "min(floor(refunded / events), next_free - eff)"},
	{"smooth: more is used when given back", "max(refunded - earlier * events, 0)", "(refunded - earlier * events)"},
	{"smooth: initial is full", "withheld * window, now, now, 1", "0, now, now, 1"},
	{"take: the last override alone counts", "unchanged = unchanged and text == expected", "unchanged = text == expected"},
	{"take: overrides don't count", "    if not unchanged then\n      return", "    if false then\n      return"},
	{"take: the first budget is an override", "stored[budget_of[k]] or ''", "stored[k + 1] or ''"},
	{"take: the limit of another operation", "if check.limit_pos ~= limit_pos then", "if check.limit_pos < 0 then"},
	{"take: an override of nothing", "stored[budget_of[k]] or ''", "stored[budget_of[k]] or '='"},
	{"ban: a window that has passed still counts", "if now - start >= window then\n    start, denials", "if now - start > window then\n    start, denials"},
	{"ban: the window begins with the last denial", "if ban.denials == 0 then\n      ban.start = now", "if true then\n      ban.start = now"},
	{"ban: bans are forgotten 1 µs late", "now >= ends + max_duration", "now > ends + max_duration"},
	{"ban: stands 1 µs too long", "by_operator, level, ends > now", "by_operator, level, ends >= now"},
	{"ban: what costs nothing passes", "has_room and not ban.stands", "has_room and (not ban.stands or cost == 0)"},
	{"ban: one denial too many", "ban.denials >= after", "ban.denials > after"},
	{"ban: doubles without bound", "duration = min(2 * duration, max_duration)", "duration = 2 * duration"},
	{"ban: denials before a ban count after it", "ban.start, ban.denials, ban.by_operator = now, 0, 0", "ban.start, ban.by_operator = now, 0"},
	{"ban: state says less than reset-after", "keep_until = max(keep_until, ends + max_duration)", "keep_until = max(keep_until, ends)"},
	{"ban: denials are forgotten at once", "keep_until = start + window\n  end\n  if packed", "keep_until = start\n  end\n  if packed"},
	{"ban: one that stands doesn't say until when", "local ends_after = max(ban.ends - now, 0)", "local ends_after = began * max(ban.ends - now, 0)"},
	{"take: requests are held until a ban ends", "has_room and not ban.stands", "has_room and (not ban.stands or ban.ends - now <= max_wait)"},
	{"take: what a ban denies is charged", "mode ~= 2 or ban and ban.stands then", "mode ~= 2 then"},
	{"take: denials during a ban count", "local counts, began = limits_deny and not ban.stands, 0", "local counts, began = limits_deny, 0"},
	{"take: a ban counts what other zones deny", "now, limits_deny, outcome == peek)", "now, not allowed, outcome == peek)"},
	{"take: a ban counts what its first limit denies", "limits_deny = limits_deny or room == 0", "limits_deny = limits_deny or c == 1 and room == 0"},
	{"take: the denial that brings a ban doesn't say so", "      began = 1\n", ""},
	{"prelude: a step back of a second and 1 µs holds", "step_back = 1000000", "step_back = 1000001"},
	{"prelude: a step back of a second doesn't hold", "step_back = 1000000", "step_back = 999999"},
	{"prelude: a receipt 1 s ahead gives nothing back", "if charged_at - now <= step_back or l.algorithm.is_log then", "if charged_at - now < step_back or l.algorithm.is_log then"},
	{"prelude: a log's receipts are those of a clock", "if charged_at - now <= step_back or l.algorithm.is_log then", "if charged_at - now <= step_back then"},
	{"bucket: stays behind a clock that stepped back", "    last_tick, dirty = now, 1", ""},
	{"bucket: a denied request doesn't save the step back", "    last_tick, dirty = now, 1", "    last_tick = now"},
	{"bucket: a peek saves the step back", "dirty == 1 and outcome ~= peek then\n    used = bucket_save", "dirty == 1 then\n    used = bucket_save"},
	{"fixed_window: stays behind a clock that stepped back", "    start, dirty = new_start, 1", ""},
	{"fixed_window: a step back moves windows off the clock", "    start, dirty = new_start, 1", "    start, dirty = now, 1"},
	{"fixed_window: a denied request doesn't save the step back", "    start, dirty = new_start, 1", "    start = new_start"},
	{"fixed_window: a peek saves the step back", "dirty == 1 and outcome ~= peek then\n    save(l, k, start, count", "dirty == 1 then\n    save(l, k, start, count"},
	{"sliding_window: stays behind a clock that stepped back", "    start, dirty = now - now % window, 1", ""},
	{"sliding_window: a step back moves windows off the clock", "    start, dirty = now - now % window, 1", "    start, dirty = now, 1"},
	{"sliding_window: a denied request doesn't save the step back", "    start, dirty = now - now % window, 1", "    start = now - now % window"},
	{"sliding_window: a peek saves the step back", "dirty == 1 and outcome ~= peek then\n    save(l, k, start, prev", "dirty == 1 then\n    save(l, k, start, prev"},
	{"smooth: stays behind a clock that stepped back", "    next_free, last_charge, dirty = next_free - last_charge + now, now, 1", ""},
	{"smooth: a denied request doesn't save the step back", "    next_free, last_charge, dirty = next_free - last_charge + now, now, 1", "    next_free, last_charge = next_free - last_charge + now, now"},
	{"smooth: a peek saves the step back", "dirty == 1 and outcome ~= peek then\n    used = smooth_save", "dirty == 1 then\n    used = smooth_save"},
	{"smooth: a node behind sets the last charge back", "return used, next_free, max(now, last_charge), dirty", "return used, next_free, now, dirty"},
	{"sliding_log: stays behind a clock that stepped back", "if step > step_back then", "if false then"},
	{"sliding_log: a step back by buckets is one by their ends", "local step = newest - grid + 1 - now", "local step = newest - now"},
	{"sliding_log: a second step back forgets the first", "newest, shift = newest - step, shift + step", "newest, shift = newest - step, step"},
	{"sliding_log: expires by the clock, not by its own time", "eff - window + shift)", "eff - window)"},
	{"sliding_log: retry by its own time", "retry = stamp - shift + window - now", "retry = stamp + window - now"},
	{"sliding_log: more by its own time", "oldest = oldest_live - shift", "oldest = oldest_live"},
	{"sliding_log: reset by its own time", "newest = l.newest - shift\n  end\n  charge", "newest = l.newest\n  end\n  charge"},
	{"sliding_log: min_interval by its own time", "newest = l.newest - shift\n  end\n  local step", "newest = l.newest\n  end\n  local step"},
	{"sliding_log: charges by the clock", "local stamp = ceil((eff + shift) / grid) * grid", "local stamp = ceil(eff / grid) * grid"},
	{"sliding_log: keeps its own time when it begins anew", "if charge > 0 and live == 0 then\n    shift = 0", "if false then\n    shift = 0"},
	{"sliding_log: begins anew with a denied request", "if charge > 0 and live == 0 then\n    shift = 0", "if live == 0 then\n    shift = 0"},
	{"sliding_log: a denied request doesn't save the step back", "elseif outcome ~= peek and shift ~= l.shift then", "elseif false then"},
	{"sliding_log: a peek saves the step back", "elseif outcome ~= peek and shift ~= l.shift then", "elseif shift ~= l.shift then"},
	{"sliding_log: a charge doesn't save the step back", "drop, entry, count, shift, stamp", "drop, entry, count, l.shift, stamp"},
	{"sliding_log: forgets how far it is ahead when its ring is written in place", "l.head, entries, shift, newest, first, after, l[1]))", "l.head, entries, 0, newest, first, after, l[1]))"},
	{"sliding_log: how far it was ahead stays when its ring grows", "0, entries, shift, newest, first, after, l[1]) .. text", "0, entries, l.shift, newest, first, after, l[1]) .. text"},
	{"sliding_log: how far it is ahead stays when all is given back", "pack_numbers('<ddddddd', 0, 0, 0, 0, 0, 0, 0)", "pack_numbers('<ddddddd', 0, 0, l.shift, 0, 0, 0, 0)"},
	{"ban: stays behind a clock that stepped back", "    start, ends = now, ends - start + now\n", ""},
	{"ban: a step back leaves its end", "    start, ends = now, ends - start + now\n", "    start = now\n"},
	{"ban: a denied request doesn't save the step back", "if not is_peek and (counts or ban.stepped_back) then", "if not is_peek and counts then"},
	{"ban: a peek saves the step back", "if not is_peek and (counts or ban.stepped_back) then", "if not is_peek and counts or ban.stepped_back then"},
	{"take: what a ban denies saves no step back of it", "now, limits_deny, outcome == peek)", "now, limits_deny, outcome == peek or ban.stands)"},
	{"take: what a ban denies saves no step back of limits", "ban and ban.stands then\n      charge = 0\n", "ban and ban.stands then\n      charge = 0\n      if ban and ban.stands then outcome = peek end\n"},
	{"operations: see nothing of each other", "local state = pending[k] or stored[k]", "local state = stored[k]"},
	{"operations: see nothing of each other's slots", "  if s then return s end\n  local state = pending[k] or stored[k] or ''", "  local state = stored[k] or ''"},
	{"operations: a key that is named twice is two", "  budget_of[k] = known\n", "  budget_of[k] = k\n"},
	{"operations: what a failed message changed stays", "pending, slots_of, changed_count = {}, {}, 0", "slots_of, changed_count = {}, 0"},
	{"operations: what a failed message did to slots stays", "pending, slots_of, changed_count = {}, {}, 0", "pending, changed_count = {}, 0"},
	{"operations: the keys behind a failed one are those of another", "pos, k, log_key = pos + length, k + own_state_keys, log_key + own_logs", "pos = pos + length"},
	{"operations: logs are charged again after a failure", "if log_keys > 0 then\n  run_each()", "if false then\n  run_each()"},
	{"operations: the first failure ends all", "elseif not pcall(run) then", "elseif not pcall(run) and false then"},
	{"operations: other overrides end an operation too early", "table.concat(found) --", "table.concat(found), pos, k, log_key --"},
	{"operations: early ones are carried out", "if now < not_before or", "if"},
	{"operations: those in the first instant are early", "now < not_before", "now <= not_before"},
	{"calendar: the last instant belongs to the old period", "if now >= period_end then", "if now > period_end then"},
	{"calendar: the expected period never ends", "if now >= end_now then", "if false then"},
	{"calendar: counts go on in the next period", "period_end, count, highest = end_now, 0, 0", "period_end, highest = end_now, 0"},
	{"calendar: the highest count goes on in the next period", "period_end, count, highest = end_now, 0, 0", "period_end, count = end_now, 0"},
	{"calendar: stays behind a clock that stepped back", "period_end, dirty = end_now, 1", ""},
	{"calendar: a clock that is slightly behind has stepped back", " and end_now - now > step_back then", " then"},
	{"calendar: another end of the present period is a step back", "period_end - end_now > end_next - period_end", "period_end > end_now"},
	{"calendar: a step back is not saved", "period_end, dirty = end_now, 1", "period_end = end_now"},
	{"calendar: a charged denial counts past events", "charge = min(charge, max(events - count, 0))", ""},
	{"calendar: nothing is claimed", "highest = max(highest, count)", ""},
	{"calendar: a claim alone isn't saved", "dirty == 1 or highest > before then", "dirty == 1 then"},
	{"calendar: every charge claims", "if outcome == settled then\n    highest", "if outcome ~= peek then\n    highest"},
	{"calendar: a claim lowers what was claimed before", "highest = max(highest, count)", "highest = count"},
	{"take: a claim without a charge is a peek", "mode == 4 and settled or (peeks", "mode == 4 and cost > 0 and settled or (peeks"},
	{"calendar: a refund lowers the highest count", "    save(l, k, period_end, count, highest, 0)\n  end\nend", "    save(l, k, period_end, count, count, 0)\n  end\nend"},
	{"calendar: gives back to any period", "count > 0 and period_end == receipt_end", "count > 0"},
	{"calendar: gives back more than there is", "    count = max(count - n, 0)", "    count = count - n"},
	{"calendar: a receipt has the highest count after", "return charge, period_end, before,", "return charge, period_end, highest,"},
	{"calendar: force charges what fits", "mode == 3 and not l.algorithm.is_calendar", "mode == 3"},
	{"operations: late ones are carried out", "not_after > 0 and now > not_after then", "false then"},
	{"operations: those in the last instant are late", "now > not_after", "now >= not_after"},
	{"operations: without a last instant they are late", "or not_after > 0 and now > not_after", "or now > not_after"},
	{"expiry: moves one quantum late", "expiry ~= expiry_before[k] and ttl_of", "expiry ~= expiry_before[k] and expiry ~= (expiry_before[k] or -9) + quantum and ttl_of"},
	{"expiry: before is that of the operation before", "if not pending[k] and (d", "if (d"},
	{"expiry: no expiry when it moves", "pending[k], 'PX', pending_ttl[k])\n    elseif not", "pending[k])\n    elseif not"},
	{"expiry: KEEPTTL is forgotten", "pending[k], 'KEEPTTL')", "pending[k])"},
	{"expiry: of the instant, not of the state", "local expiry = keep_until - keep_until % quantum", "local expiry = now - now % quantum"},
	{"bucket: the expiry is that of a full burst", "return last_tick + ticks * l[6] + l[5]", "return last_tick + l[5]"},
	{"fixed_window: the expiry before is one window", "return start + (1 + ceil(min(queued, l[4]) / l[1])) * l[2]", "return start + l[2]"},
	{"sliding_window: the expiry before is one window", "  elseif prev > 0 then\n    return start + window\n", "  elseif prev > 0 then\n    return start\n"},
	{"smooth: the expiry before is when the next is free", "return next_free + refill + l[7]", "return next_free + l[7]"},
	{"sliding_log: the expiry never moves", "same = keep_until - keep_until % quantum == before - before % quantum", "same = true"},
	{"sliding_log: the expiry is by its own time", "local keep_until, before, same = newest - shift + retention", "local keep_until, before, same = newest + retention"},
	{"sliding_log: min_interval doesn't keep it", "local retention, quantum = max(l[2], l[3]), l.quantum", "local retention, quantum = l[2], l.quantum"},
	{"sliding_log: no expiry when its ring grows", "redis.call('SET', key, text, 'PX', ttl_of(keep_until - keep_until % quantum + 2 * quantum))", "redis.call('SET', key, text)"},
	{"sliding_log: KEEPTTL is forgotten when its ring grows", "redis.call('SET', key, text, 'KEEPTTL')", "redis.call('SET', key, text)"},
	{"sliding_log: KEEPTTL is forgotten when all is given back", "0, 0, 0, 0, 0, 0), 'KEEPTTL')", "0, 0, 0, 0, 0, 0))"},
	{"sliding_log: a large ring that grows has no expiry", "    sliding_log_grow(l, k, places, left)\n    same = false\n", "    sliding_log_grow(l, k, places, left)\n"},
	{"sliding_log: a large ring forgets what is in front", "    sliding_log_move(l, k, 0, front, old)\n", ""},
	{"sliding_log: a large ring forgets what is behind", "    sliding_log_move(l, k, head, behind, places - behind)\n", ""},
	{"sliding_log: the ring begins where it did", "    l.head = (l.head + drop) % places\n", ""},
	{"sliding_log: the ring never ends", "    redis.call('SETRANGE', key, 56 + place * size, string.sub(text, 1, until_end))\n    redis.call('SETRANGE', key, 56, string.sub(text, until_end + 1))\n", "    redis.call('SETRANGE', key, 56 + place * size, text)\n"},
	{"sliding_log: reads past the end of the ring", "    text = text .. redis.call('GETRANGE', key, 56, 55 + (count - until_end) * size)\n", ""},
	{"sliding_log: halving of large logs is off", "entry, pos * size + offset) <= edge", "entry, pos * size + offset) <= (text and edge or edge - 1)"},
	{"sliding_log: the oldest few are all", "(high - 1) * size + offset) <= edge", "(high - 1) * size + offset) < edge"},
	{"sliding_log: a large charge is one of 1000", "sliding_log_repeat(entry, count)\n", "sliding_log_repeat(entry, min(count, 1000))\n"},
	{"sliding_log: gives back by moving nothing, from the end", "sliding_log_move(l, k, from + n, entries - from - n, from)", "sliding_log_move(l, k, from + n, entries - from - n, from + n)"},
	{"sliding_log: the newest given back is still the newest", "    newest = sliding_log_check(unpack_numbers('<d', before), forever)\n", ""},
	{"sliding_log: the bucket at hand doesn't grow", "redis.call('SETRANGE', keys[k], 72 + place * 24, pack_numbers('<d', after))", ""},
	{"sliding_log: the next event is the one after a bucket", "if first == number + 1 then", "if first ~= number + 1 then"},
	{"slots: one too many", "slots_ahead(slots, came) < slots_limit", "slots_ahead(slots, came) <= slots_limit"},
	{"slots: those of others don't count", "slots.others + slots.count + slots_ahead", "slots.count + slots_ahead"},
	{"slots: a look takes one", "if not peeks then slots_take", "if passes or not peeks then slots_take"},
	{"slots: denied requests take one", "slots_take(slots, zone, passes,", "slots_take(slots, zone, true,"},
	{"slots: found with the one just taken", "zone.slots_free and 1 or 0, count_before,", "zone.slots_free and 1 or 0, slots.count,"},
	{"slots: a set finds what it sets", "return pack_numbers('<Bd', 1, count_before)", "return pack_numbers('<Bd', 1, slots.count)"},
	{"slots: a count that is too late isn't clamped", "if expires > latest or line_expires > latest_line then", "if line_expires > latest_line then"},
	{"slots: a clamped count isn't saved by a denial", "local changes, waiting = passes or s.stepped_back,", "local changes, waiting = passes,"},
	{"slots: a look saves a clamped count", "if not peeks then slots_take", "if not peeks or slots.stepped_back then slots_take"},
	{"slots: live 1 µs too long", "if expires <= now then count", "if expires < now then count"},
	{"slots: others' are forgotten", "s.others_state = s.others_state .. pack_numbers(", "s.others_state = pack_numbers("},
	{"slots: all the others' are forgotten", "local expires, state = s.others_expire, s.others_state", "local expires, state = s.others_expire, ''"},
	{"slots: the last of the others alone counts", "s.others, s.others_expire = s.others + count,", "s.others, s.others_expire = count,"},
	{"slots: expire with the last of the others", "    expires = max(expires, s.expires, s.line_expires)\n", ""},
	{"slots: expire with the instance's", "s.others + count, max(s.others_expire, expires, line_expires)", "s.others + count, 0"},
	{"slots: the expiry before is that of the living", "local expiry, quantum = s.stored_expiry", "local expiry, quantum = s.others_expire"},
	{"slots: an expiry stays without a count", "count > 0 and now + slots_expiry or 0", "now + slots_expiry"},
	{"lines: none is ahead", "ahead = ahead + before", "ahead = 0"},
	{"lines: all of one are ahead", "if came <= mark then", "if false then"},
	{"lines: a mark that came with it is ahead", "if came <= mark then", "if came < mark then"},
	{"lines: only the last mark counts", "{ m4, m3, m2, m1 }", "{ m4 }"},
	{"lines: those at a mark count, too", "floor(behind * (4 - n) / 4)", "floor(behind * (5 - n) / 4)"},
	{"lines: the first one isn't ahead", "if first > 0 and first < came then", "if false then"},
	{"lines: a first one that came with it is ahead", "if first > 0 and first < came then", "if first > 0 and first <= came then"},
	{"lines: a first one that has left is ahead", "if first > 0 and first < came then", "if first < came then"},
	{"lines: only the last line counts", "ahead = ahead + before", "ahead = before"},
	{"lines: only the first line counts", "1, #s.others_lines, #no_line do", "1, min(#s.others_lines, 1), #no_line do"},
	{"lines: the own one is ahead", "elseif max(expires, line_expires) > 0 then", "end\n    if max(expires, line_expires) > 0 then"},
	{"lines: a new request is first", "came = now - waited", "came = now - 2 * waited"},
	{"lines: one that has waited in another line is new", "came = now - waited", "if waiting > 0 then came = now - waited end"},
	{"lines: live 1 µs too long", "if line_expires <= now then", "if line_expires < now then"},
	{"lines: die with the count", "if line_expires <= now then", "if line_expires <= now or count == 0 then"},
	{"lines: one of a clock that was ahead isn't clamped", "if expires > latest or line_expires > latest_line then", "if expires > latest then"},
	{"lines: others' without a count are forgotten", "elseif max(expires, line_expires) > 0 then", "elseif expires > 0 then"},
	{"lines: the own one without a count is forgotten", "if max(s.expires, s.line_expires) > 0 then", "if s.expires > 0 then"},
	{"lines: keep their first request", "if passes then s.line = pack_numbers('<I7', 0) .. zone.line:sub(8) end", ""},
	{"lines: are shorter by one", "came, max(waiting - 1, 0),", "came, max(waiting - 2, 0),"},
	{"lines: a slot changes none", "if passes or is_new or behind", "if is_new or behind"},
	{"lines: are never written by a denial", "if passes or is_new or behind ~= waiting - 1 or s.line_expires < now + line_expiry - line_renewal then", "if passes then"},
	{"lines: are written by each denial", "s.line_expires < now + line_expiry - line_renewal then", "true then"},
	{"lines: are never renewed", " or s.line_expires < now + line_expiry - line_renewal then", " then"},
	{"lines: only a later first one is new", " or first > zone.came + line_slack", ""},
	{"lines: only an earlier first one is new", "first < zone.came - line_slack or ", ""},
	{"lines: those that came together wait for each other", "  came = came - line_slack\n", ""},
	{"lines: a new length waits for the renewal", "behind ~= waiting - 1 or ", ""},
	{"lines: a new first one waits for the renewal", " or is_new or", " or"},
	{"lines: an empty one has an end", "if passes and waiting == 1 then", "if false then"},
	{"lines: one without a first one is empty", "if passes and waiting == 1 then", "if passes then"},
	{"lines: one of another zone", "zone.waiting, zone.came = waiting, came", "zone.waiting, zone.came = max(waiting, zone.waiting), came"},
	{"lines: a set never ends one", "if ends_line == 1 then", "if false then"},
	{"lines: each set ends one", "if ends_line == 1 then", "if true then"},
	{"lines: a set writes none", "  slots_save(slots, key, instance, now, slots_expiry)\n  return", "  return"},
	{"slots: without a free one limits are charged", "zone.slots, zone.slots_key, has_room = slots, key, has_room and zone.slots_free", "zone.slots, zone.slots_key, has_room = slots, key, has_room"},
	{"write: what MGET shows as absent is written over", "pending[k], 'NX', 'PX', pending_ttl[k])", "pending[k], 'PX', pending_ttl[k])"},
	{"write: a denied one fails nothing", "if keys[own] == name then fail(operation, err) end", ""},
	{"write: a denied one fails the first operation on its key", "if keys[own] == name then fail", "if own == changed_keys[next_change] then fail"},
	{"write: a denied one fails operations by the keys of others", "    own_k = own_k + own_state_keys\n", ""},
	{"write: nothing is written after a denied one", "  next_change = next_change + 1\nend\n\nreplies[1]", "  break\nend\n\nreplies[1]"},
	{"take: a ban that stands lets others pass", "zone.ban, has_room = ban, has_room and not ban.stands", "zone.ban = ban"},
	{"take: the ban of another zone", "zone.slots, zone.ban = mode, shadow == 1, check_count, cost, nil, nil", "zone.slots = mode, shadow == 1, check_count, cost, nil"},
	{"take: the slots of another operation", "zone.slots, zone.ban = mode, shadow == 1, check_count, cost, nil, nil", "zone.ban = mode, shadow == 1, check_count, cost, nil"},
	{"ban: a ban by denials is an operator's", "ban.start, ban.denials, ban.by_operator = now, 0, 0", "ban.start, ban.denials = now, 0"},
	{"ban: a step back makes an operator's ban one by denials", "ban.denials * 128 + ban.by_operator * 64 + ban.level", "ban.denials * 128 + ban.level"},
	{"ban: more bans than levels", "min(ban.level + 1, 63)\n      began", "ban.level + 1\n      began"},
	{"ban: a ban isn't one more", "ban.ends, ban.level = now + duration, min(ban.level + 1, 63)", "ban.ends = now + duration"},
	{"take: a denial in one zone is told of all", "peek or passes and granted or denied, false", "peek or passes and granted or denied, not allowed"},
	{"take: the burst of another operation", "if burst > 0 then l[3] = burst end -- read_limit", "if burst > 0 and l[3] == 0 then l[3] = burst end -- read_limit"},
	{"refund: the limit of another operation", "if refund_check.limit_pos ~= limit_pos then", "if refund_check.limit_pos < 0 then"},
	{"refund: by another receipt", "limit_pos, burst, receipt_a, receipt_b, charged_at, n, pos = unpack_numbers('<I4ddddd', message, pos)", "limit_pos, burst, receipt_b, receipt_a, charged_at, n, pos = unpack_numbers('<I4ddddd', message, pos)"},
	{"parts: rounded down", "local part = ceil(ceil(rest", "local part = floor(ceil(rest"},
	{"parts: never coarse", "local coarse = ceil(max(rest, 1) / floor(forever / 2 / to))", "local coarse = 1"},
	{"parts: coarse ones that are more than an event", "whole * to + min(part, to)", "whole * to + part"},
	{"parts: the ticks of a leaky_bucket are 1 µs", "if l.tick == l.window then", "if false then"},
	{"parts: not in lowest terms", "return events / divisor, l.window / divisor", "return events, l.window"},
	{"parts: a larger limit gives nothing back", "  used = max(used - min(ticks, ceil(used / rate)) * rate, 0)\n", ""},
	{"parts: a larger limit isn't charged", "    used = used + min(convert_parts(delta, l.unit, unit, forever / 2), forever - 1 - used)\n", ""},
	{"parts: a larger limit isn't refunded", "    used = max(used - convert_parts(-delta, l.unit, unit, forever / 2), 0)\n", ""},
	{"bucket: other limits count in the same parts", "if events ~= l[8] and events > 0 then", "if false then"},
	{"bucket: a larger limit's use is a debt", "    admitted, larger = full, min(events, 1)\n", "    larger = min(events, 1)\n"},
	{"bucket: another limit's debt is forgiven", "rest = convert_parts(rest, other, unit, most - full)", "rest = 0"},
	{"bucket: another limit's debt has no bound", "rest = convert_parts(rest, other, unit, most - full)", "rest = convert_parts(rest, other, unit, most)"},
	{"bucket: a debt is never owed", "kind == 1 and 1 or 0, larger", "0, larger"},
	{"bucket: the expiry is that of the smaller limit", "  if larger == 1 then\n    local rate = parts_of(l, floor(counted_by / 4))\n    ticks", "  if false then\n    local rate = parts_of(l, floor(counted_by / 4))\n    ticks"},
	{"bucket: the expiry forgets the debt to the larger limit", "ceil(bucket_all(admitted, rest, counted_by) / rate)", "ceil(admitted / rate)"},
	{"bucket: a smaller limit makes the larger one forget", "if larger == 1 then\n    local admitted, last_tick", "if false then\n    local admitted, last_tick"},
	{"bucket: a smaller limit's bucket stays full", "rest = max(convert_parts(full, unit, other, forever / 2) - convert_parts(used, unit, other, forever / 2), 0)", "rest = 0"},
	{"bucket: the larger limit forgets its debt", "(counted_by % 4 == 2 and 0 or rest)", "0"},
	{"bucket: the larger limit refills from now on", "      floor(max(eff - last_tick, 0) / l[6]), delta)", "      0, delta)"},
	{"bucket: the debt of the smaller limit is in its parts", "kind, rest = 3, convert_parts(debt, unit, other, all)", "kind, rest = 3, min(debt, all)"},
	{"bucket: saved for the larger limit for ever", "if all > convert_parts(used, unit, other, forever - 1) then", "if true then"},
	{"bucket: the larger limit counts the debt twice", "        all = all - rest\n", ""},
	{"bucket: the debt of the smaller limit is the larger one's", "kind, rest = 3,", "kind, rest = 0,"},
	{"bucket: a credit is used", "(counted_by % 4 == 2 and 0 or rest)", "rest"},
	{"bucket: a debt is forgotten to be owed", "l.counted_by + min(owed, debt))", "l.counted_by)"},
	{"bucket: a debt of requests is owed", "  if charge > 0 and outcome ~= settled then\n    owed = 0\n  elseif", "  if"},
	{"bucket: corrections of a debt make it owed", "elseif charge > 0 and before <= full then\n    owed = 1", "elseif charge > 0 then\n    owed = 1"},
	{"bucket: counts beyond what is exact", "    charge = min(charge, floor((most - used) / unit))\n", ""},
	{"bucket: the larger limit is charged what was asked for", "owed, larger, used - before)", "owed, larger, charge * unit)"},
	{"bucket: the larger limit isn't told of a refund", "eff, owed, larger, -refundable)", "eff, owed, larger, 0)"},
	{"bucket: a refund by the larger limit takes the credit", "if counted_by % 4 == 2 and larger == 0", "if false and larger == 0"},
	{"bucket: what is left of a debt isn't owed", "used - refundable, eff, owed, larger", "used - refundable, eff, 0, larger"},
	{"bucket: a debt of corrections blocks refunds", "owed == 0 and used > full and", "used > full and"},
	{"bucket: a refund of nothing is saved", "if refundable == 0 or owed", "if owed"},
	{"fixed_window: what exceeds the window counts in the next", "count = min(max(queued - (windows - 1) * events, 0), events)", "count = min(max(max(count - events, 0) + queued - (windows - 1) * events, 0), events)"},
	{"fixed_window: a window takes the whole queue", "min(max(queued - (windows - 1) * events, 0), events)", "max(queued - (windows - 1) * events, 0)"},
	{"fixed_window: the queue is a window early", "(windows - 1) * events, 0), events)", "windows * events, 0), events)"},
	{"fixed_window: a queue has any number of windows", "(floor(forever / 4 / l[2]) + 1) * l[1], fixed_window_keep_until", "forever, fixed_window_keep_until"},
	{"fixed_window: what exceeds the window delays requests", "queued or min(count, l[1]) end", "queued or count end"},
	{"fixed_window: a window before a queue has room", "queued > 0 and l[1] + queued or min(count, l[1]) end", "min(count, l[1]) + queued end"},
	{"bucket: a reply has what the smaller limit saved", "      return used_now\n", "      return used\n"},
	{"fixed_window: a charged denial makes room", "max(count, events) - charge, 0, events - charge", "events - charge, 0, events - charge"},
	{"fixed_window: corrections queue", "if outcome ~= settled and used + charge > events then", "if used + charge > events then"},
	{"fixed_window: queues more than its charge", "queue = min(used + charge - events, charge)", "queue = used + charge - events"},
	{"fixed_window: settled charges block refunds", "if queued > 0 and used > refundable then", "if count + queued > events and used > refundable then"},
	{"fixed_window: gives back what a later window takes", "  n = min(n, refundable)\n  if n > 0 and used", "  if n > 0 and used"},
	{"fixed_window: gives back the queue twice", "max(count - n + ahead, 0)", "max(count - n, 0)"},
	{"fixed_window: a receipt has no queue", "min(receipt_used, events), max(receipt_used - events, 0))", "receipt_used, 0)"},
	{"sliding_window: the window before weighs more than it may", "prev, cur = min(prev, events), min(cur, events)\n  local width, elapsed", "cur = min(cur, events)\n  local width, elapsed"},
	{"sliding_window: retry by what the window exceeds", "prev, cur = min(prev, events), min(cur, events)\n  if cur", "prev = min(prev, events)\n  if cur"},
	{"sliding_window: corrections are bounded", "  if outcome == denied then\n    most =", "  if outcome ~= granted then\n    most ="},
	{"sliding_log: drops what a larger limit has allowed", "min(beyond, charge), nil", "beyond, nil"},
	{"sliding_log: more when the first of too many expires", "if beyond > 0 and beyond < live then", "if false then"},
	{"sliding_log: the expiry before is by its own quantum", "l.entries > 0 and l.writer == l[1] then", "l.entries > 0 then"},
	{"sliding_log: the first limit has written it", "l.head, entries, shift, newest, first, after, l[1]))", "l.head, entries, shift, newest, first, after, l.writer))"},
	{"sliding_log: a refund marks the log", "l.shift, newest, l.first, after, l.writer))", "l.shift, newest, l.first, after, l[1]))"},
	{"smooth: other limits count in the same parts", "if events ~= l[19] and events > 0 then", "if false then"},
	{"smooth: a larger limit's use is a debt", "    return full, min(events, 1)\n", "    return used, min(events, 1)\n"},
	{"smooth: warm_up counts in parts", "  if l[8] > 0 then\n    return used, 0\n  elseif", "  if"},
	{"smooth: the expiry is that of the smaller limit", "  if larger == 1 then\n    local rate = parts_of(l, floor(counted_by / 4))\n    refill", "  if false then\n    local rate = parts_of(l, floor(counted_by / 4))\n    refill"},
	{"smooth: a smaller limit makes the larger one forget", "  if larger == 1 then\n    local used_before", "  if false then\n    local used_before"},
	{"smooth: the larger limit refills from now on", "max(now - next_free_before, 0)", "0"},
	{"smooth: saved for the larger limit for ever", "if ceil(all / other) > l[3] then", "if true then"},
	{"smooth: the larger limit has written it itself", "eff, counted_by - counted_by % 4 + 2)", "eff, counted_by - counted_by % 4)"},
	{"smooth: the larger limit isn't told of a refund", "eff, larger, left - used)\n  end", "eff, larger, 0)\n  end"},
	{"smooth: the larger limit isn't charged", "larger, used - before)\n  end\n  return charge, used, next_free, eff", "larger, 0)\n  end\n  return charge, used, next_free, eff"},
	{"take: settling charges what fits", "mode == 3 and not l.algorithm.is_calendar) and min", "not l.algorithm.is_calendar) and min"},
	{"take: settling smooth charges what does not fit", "l.algorithm.is_binary_only or mode == 3 and not", "mode == 3 and not"},
	{"expiry: before is that of another limit", "if not pending[k] and (d == l.counted_by or d - d % 2 == l.counted_by) then", "if not pending[k] then"},
	{"bucket: a larger limit forgets what fits a smaller one", "if all <= full and marks < 2 then", "if all <= full then"},
	{"bucket: the expiry of a debt is that of a full bucket", "if rest == 0 and counted_by", "if counted_by"},
	{"bucket: a debt is not read", "l.counted_by or debt > 0 or", "l.counted_by or"},
	{"bucket: what a larger burst has admitted is a debt", " or admitted > burst * unit then", " then"},
	{"fixed_window: what fits empties the queue", "if queued == 0 and count + charge <= events then", "if count + charge <= events then"},
	{"expiry: before is that of the limit another one kept", "d - d % 2 == l.counted_by", "d - d % 4 == l.counted_by"},
	{"parts: a credit is rounded up", "rest = full - convert_parts(max(convert_parts(full, unit, other, forever / 2) - rest, 0), other, unit, full)", "rest = convert_parts(rest, other, unit, full)"},
	{"bucket: a larger limit's credit is forgotten", "rest = full - convert_parts(max(", "rest = 0 * convert_parts(max("},
	{"bucket: a larger limit has always admitted more than the burst", "admitted > full or kind >= 2 and events > l[8]", "admitted > full"},
	{"bucket: the credit is the larger limit's, too", "admitted - larger * min(rest, admitted), 0", "admitted - min(rest, admitted), 0"},
	{"smooth: has saved up while requests wait", "    used = l[3] * window\n", ""},
	{"smooth: a reply has the use of the larger limit", "      return l[3] * l[2]\n", "      return all\n"},
}

// mutantSeeds holds for each mutant the seed of a program that catches it, so that one program is
// enough as long as neither changes. -update writes it.
const mutantSeeds = "testdata/mutant_seeds.json"

var update = flag.Bool("update", false, "write "+mutantSeeds)

// Programs of the parity test find every mutant. A mutant without a seed, or whose seed no longer catches it,
// is searched for: among a few programs, and with -update among many.
func TestParityCatchesMutants(t *testing.T) {
	t.Parallel()
	redistest.Long(t)
	client := redistest.Start(t).Client
	seeds := make(map[string]uint64)
	text, err := os.ReadFile(mutantSeeds)
	if err == nil {
		err = json.Unmarshal(text, &seeds)
	}
	if err != nil && !*update {
		t.Fatal(err)
	}
	every, most := everyScript(), uint64(300)
	if *update {
		most = 30_000
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			if !strings.Contains(every, m.old) {
				t.Fatalf("the script no longer holds %q", m.old)
			}
			client.ScriptFlush(context.Background())
			script := loader(t, client, func(s string) string { return strings.ReplaceAll(s, m.old, m.new) })
			catches := func(seed uint64) bool {
				p := newProgram(seed)
				if !strings.Contains(p.features().Script(), m.old) {
					return false // its script has no such mistake
				}
				diff, err := p.difference(client, script)
				return err != nil || diff != ""
			}
			client.FlushAll(context.Background())
			seed, known := seeds[m.name]
			if known && catches(seed) {
				return
			}
			client.FlushAll(context.Background())
			for seed = range most {
				if catches(seed) {
					seeds[m.name] = seed
					t.Logf("caught by seed %d: run this test with -update, which keeps it", seed)
					return
				}
			}
			t.Errorf("not caught by the first %d programs: run this test with -update, which tries more", most)
		})
	}
	if *update {
		maps.DeleteFunc(seeds, func(name string, _ uint64) bool {
			return !slices.ContainsFunc(mutants, func(m mutant) bool { return m.name == name })
		})
		text, err := json.MarshalIndent(seeds, "", "\t")
		if err == nil {
			err = os.WriteFile(mutantSeeds, append(text, '\n'), 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// everyScript returns the script of everything that can be decided.
func everyScript() string {
	var every algorithms.Features
	for _, a := range algorithms.All() {
		every = every.With(a)
	}
	return every.WithBan().WithSlots().Script()
}
