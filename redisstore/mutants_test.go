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
	{"take: all limits charged although one refuses", "      charge = 0\n", ""},
	{"take: the last limit alone decides", "      local room = 1\n", "      local room = 1\n      has_room = true\n"},
	{"take: cost below what fits", "if want > fits then", "if want >= fits then"},
	{"take: the cost of another zone", "= zone.mode, zone.cost, zone.slots", "= zone.mode, zones[1].cost, zone.slots"},
	{"take: nary grants by its first limit", "for n = c + 1, c + zone.checks do charge", "for n = c + 1, c + 1 do charge"},
	{"take: nary wants everything", "want = min(cost, 1)", "want = cost"},
	{"take: force wants something", "mode == 3 then want = 0", "mode == 3 then want = 1"},
	{"take: force charges what does not fit", "charge = min(cost, check.fits)", "charge = cost"},
	{"take: force charges although another zone refuses", "if mode == 3 and passes then", "if mode == 3 then"},
	{"take: uniform's refusals are free", "if not passes and mode ~= 2 or b", "if not passes or b"},
	{"take: uniform forgets what was charged just now", "_, retry = l.algorithm.decide(l, key, now, cost)", ""},
	{"take: shadows refuse", "(has_room or shadow == 1)", "has_room"},
	{"take: shadows are charged what they have no room for", "allowed and (zone.has_room or not zone.shadow)", "allowed"},
	{"take: shadows go by their first limit", "room, has_room = 0, false", "room, has_room = 0, shadow == 1 and c > 1 and has_room"},
	{"take: shadows are charged although another zone refuses", "allowed and (zone.has_room or not zone.shadow)", "(allowed or zone.shadow) and (zone.has_room or not zone.shadow)"},
	{"take: a shadow's refusals are its neighbours' too", "allowed and (zone.has_room or not zone.shadow)", "allowed and (zone.has_room or not zone.shadow)\n    allowed = passes"},
	{"take: all are shadows", "local want, has_room = cost, true", "local want, has_room = cost, true\n    shadow = 1"},
	{"take: a shadow is charged although no slot is free", "zone.slots, zone.slots_key, has_room = s, key, has_room and s.free", "zone.slots, zone.slots_key, has_room = s, key, has_room and (s.free or shadow == 1)"},
	{"take: a shadow takes a slot although its limits deny", "if passes and s.takes then", "if (passes or allowed and zone.shadow and s.free) and s.takes then"},
	{"take: a shadow goes by its first limit and the slots", "zone.slots, zone.slots_key, has_room = s, key, has_room and s.free", "zone.slots, zone.slots_key, has_room = s, key, (has_room or shadow == 1) and s.free"},
	{"take: a shadow goes by the next zone", "allowed and (zone.has_room or not zone.shadow)", "allowed and ((zones[z + 1] or zone).has_room or not zone.shadow)"},
	{"take: the slot just taken isn't in flight", "had, s.others + s.count)", "had, s.others + had)"},
	{"take: the slot of another request isn't in flight", "had, s.others + s.count)", "had, max(s.others + s.count - 1, 0))"},
	{"take: a ban counts that no slot is free", "now, limits_deny, cost == 0)", "now, limits_deny or s and not s.free, cost == 0)"},
	{"token_bucket: debt without bound", "used = min(used + charge * window, most)", "used = used + charge * window"},
	{"gcra: debt without bound", "    ahead, part = floor(most / events), most % events\n", ""},
	{"fixed_window: a charged refusal does not restart the window", "start, count = max(now, start), events - charge", "count = events - charge"},
	{"fixed_window: counts past events", "start, count = max(now, start), events - charge", "start = max(now, start)"},
	{"fixed_window: a charged refusal moves the window back", "start, count = max(now, start), events - charge", "start, count = now, events - charge"},
	{"fixed_window: counts past events at the clock", "charge = max(events - count, 0)", "charge = charge"},
	{"leaky_bucket: debt without bound", "charge = max(min(charge, 2 * burst - level), 0)", ""},
	{"sliding_window: counts without bound", "charge = max(min(charge, 2 * events - cur), 0)", ""},
	{"sliding_log: keeps more than its newest events", "    dead, live, drop, oldest_live = dead + over, live - over, l.drop_over, l.oldest_over\n", ""},
	{"prelude: state loses digits", "pack_numbers('<i8i8', a, b), untouched", "pack_numbers('<i8i8', a - a % 10, b), untouched"},
	{"prelude: no expiry", "text[k], 'NX', 'PX', lifetimes[k])", "text[k], 'NX')"},
	{"token_bucket: clock steps back", "local eff = max(now, at)\n  used = max", "local eff = now\n  used = max"},
	{"token_bucket: elapsed is not clamped to the time to full", "used = max(used - min(eff - at, ceil(used / events)) * events, 0)", "used = used - (eff - at) * events"},
	{"token_bucket: rounds the refill up", "min(eff - at, ceil(used / events))", "min(eff - at + 1, ceil(used / events))"},
	{"token_bucket: retry rounds down", "retry = ceil((cost * window - free) / events) + eff - now", "retry = floor((cost * window - free) / events) + eff - now"},
	{"token_bucket: retry forgets the step back", "retry = ceil((cost * window - free) / events) + eff - now", "retry = ceil((cost * window - free) / events)"},
	{"token_bucket: cost of burst refused for ever", "if cost > burst then\n    retry = forever\n  elseif cost > fits then\n    retry = ceil((cost", "if cost >= burst then\n    retry = forever\n  elseif cost > fits then\n    retry = ceil((cost"},
	{"token_bucket: more counts from the wrong token", "more = ceil(((remaining + 1) * window - free) / events)", "more = ceil((remaining * window - free) / events)"},
	{"gcra: a passed arrival time counts", "if tat < eff then", "if tat < eff - 1 then"},
	{"gcra: keeps the part of a passed arrival time", "tat, part = eff, 0", "tat = eff"},
	{"gcra: spacing is rounded", "ahead, part = ahead + floor(part / events), part % events", "ahead, part = ahead + floor(part / events), 0"},
	{"gcra: part does not count", "(burst * window - ahead * events - part)", "(burst * window - ahead * events)"},
	{"gcra: retry forgets the step back", "/ events) + eff - now\n  end\n  return fits, retry, tat", "/ events)\n  end\n  return fits, retry, tat"},
	{"gcra: retry rounds down", "retry = ahead + ceil(", "retry = ahead + floor("},
	{"gcra: reset forgets the part", "local untouched = tat + ceil(part / events)", "local untouched = tat"},
	{"fixed_window: the last instant belongs to the old window", "now - start >= window", "now - start > window"},
	{"fixed_window: windows never start at the clock", "if clock then", "if false then"},
	{"fixed_window: retry from the start", "retry = start + floor((count + cost - 1) / events) * window - now", "retry = floor((count + cost - 1) / events) * window"},
	{"leaky_bucket: clock steps back", "(max(now, drip) - drip)", "(now - drip)"},
	{"leaky_bucket: one drip at a time", "max(level - drips * events, 0)", "max(level - drips, 0)"},
	{"leaky_bucket: the grid moves with every request", "drip, level = drip + drips * window,", "drip, level = max(now, drip),"},
	{"leaky_bucket: the grid of an empty bucket stays", "  if level == 0 then\n    drip = now\n  end\n", ""},
	{"leaky_bucket: retry rounds down", "retry = drip + ceil(", "retry = drip + floor("},
	{"leaky_bucket: more by one event", "ceil((level - burst + remaining + 1) / events)", "ceil((level - burst + remaining) / events)"},
	{"sliding_window: forgets the window before", "start, prev, cur = start + window, cur, 0\n  end\n  return", "start, prev, cur = start + window, 0, 0\n  end\n  return"},
	{"sliding_window: keeps what is two windows old", "now - start >= 2 * window", "now - start > 2 * window"},
	{"sliding_window: clock steps back", "floor((max(now, start) - start) / unit)", "floor((now - start) / unit)"},
	{"sliding_window: the border belongs to the old window", "elseif now - start >= window then", "elseif now - start > window then"},
	{"sliding_window: the window before does not weigh less", "prev * (width - into)", "prev * width"},
	{"sliding_window: rounds the way in up", "floor((max(now, start) - start) / unit)", "ceil((max(now, start) - start) / unit)"},
	{"sliding_window: never waits for the next window", "if cur + cost > events then\n    start, prev, cur = start + window, cur, 0\n  end", ""},
	{"sliding_window: waits past the next window", "start + min(into * unit, window)", "start + into * unit"},
	{"sliding_window: reset one window early", "return start + 2 * window\n", "return start + window\n"},
	{"sliding_log: an event of exactly one window still counts", "eff - window + ahead)", "eff - window + ahead - 1)"},
	{"sliding_log: halving is off", "text, (middle - from) * size + skip) <= edge", "text, (middle - from) * size + skip) < edge"},
	{"sliding_log: expired buckets count as events", "return sliding_log_check(first - l.first, l.held), entries", "return entries, entries"},
	{"sliding_log: clock steps back", "local eff = max(now, newest - grid + 1)", "local eff = now"},
	{"sliding_log: min_interval is only told, not kept", "    fits = 0\n    if cost > 0", "    if cost > 0"},
	{"sliding_log: min_interval refuses peeks", "    if cost > 0 then\n      retry = max(retry, early)\n    end", "    retry = max(retry, early)"},
	{"sliding_log: min_interval hides the window", "retry = max(retry, early)", "retry = early"},
	{"sliding_log: more although it is too early", "max(more, early), max(reset", "more, max(reset"},
	{"sliding_log: forgets the last request too early", "max(more, early), max(reset, early)", "max(more, early), reset"},
	{"sliding_log: retry by the wrong event", "dead + live + cost - events - 1", "dead + live + cost - events"},
	{"sliding_log: keeps what is dead", "now, drop, entry, count, ahead, stamp", "now, 0, entry, count, ahead, stamp"},
	{"sliding_log: drops one too many", "now, drop, entry, count, ahead, stamp", "now, min(drop + 1, l.entries), entry, count, ahead, stamp"},
	{"sliding_log: pushes at most 1000", "for done = 0, count - 1, 1000 do\n    local n = min(count - done, 1000)\n    sliding_log_set", "for done = 0, min(count - 1, 0), 1000 do\n    local n = min(count - done, 1000)\n    sliding_log_set"},
	{"sliding_log: a stamp loses digits", "pack_numbers('<d', stamp), charge", "pack_numbers('<d', stamp - stamp % 100), charge"},
	{"sliding_log: no expiry", "if not same then\n    redis.call('PEXPIRE'", "if false then\n    redis.call('PEXPIRE'"},
	{"sliding_log: an early bucket end is an early request", "interval > 0 and early > 0 and", "early > 0 and"},
	{"sliding_log: buckets end early", "ceil((eff + ahead) / grid) * grid", "floor((eff + ahead) / grid) * grid"},
	{"sliding_log: events die by the end of a bucket", "newest - grid + 1)", "newest)"},
	{"sliding_log: a bucket of each event", "elseif live == 0 or l.newest ~= stamp then", "elseif true then"},
	{"sliding_log: numbers begin anew", "pack_numbers('<ddd', stamp, after - charge, after)", "pack_numbers('<ddd', stamp, 0, after)"},
	{"sliding_log: a part of a bucket is kept", "local first, after = l.first + dead,", "local first, after = l.first,"},
	{"sliding_log: the bucket of the event before", "sliding_log_count(l, k, 2, number)", "sliding_log_count(l, k, 2, number - 1)"},
	{"sliding_log: gives back the oldest", "local low, from, _, before = sliding_log_dead(l, k, at - 1)", "local low, from, _, before = 0, 0, nil, nil"},
	{"sliding_log: gives back more than there is", "n = min(n, high - low)", "n = high - low"},
	{"sliding_log: gives back by moving nothing", "sliding_log_move(l, k, 0, from, n)", "sliding_log_move(l, k, 0, from, 0)"},
	{"sliding_log: later buckets keep their numbers", "if i > 1 then number = number - n end", ""},
	{"sliding_log: an empty bucket stays", "for i = all and 2 or 1, entries - from do", "for i = 1, entries - from do"},
	{"take: nothing is charged in advance", "if wait > longest then", "if true then"},
	{"take: charges 1 µs too far in advance", "if wait > longest then", "if wait > longest + 1 then"},
	{"take: everything is charged in advance", "local want, has_room = cost, true", "local want, has_room = cost, true\n    longest = max(longest, 1000)"},
	{"take: has to come back for room, not for a place", "if wait < forever then wait = wait - longest end", ""},
	{"take: a receipt for nothing", "if charged == 0 then x, y = 0, 0 end", ""},
	{"take: peeks are requests", "cost == 0 and peek or passes", "passes"},
	{"token_bucket: initial is full", "return withheld * window, now, 1", "return 0, now, 1"},
	{"token_bucket: a refused first request is forgotten", "or dirty == 1 and outcome ~= peek then\n    save(l, k, full + l[5], used, eff)", "then\n    save(l, k, full + l[5], used, eff)"},
	{"token_bucket: debt in advance is bounded, too", "if outcome == denied then\n    local most = max(used, 2 * burst", "if true then\n    local most = max(used, 2 * burst"},
	{"token_bucket: gives back what was refilled", "left = n * window\n", "left = n * window\n  else\n    left = n * window\n"},
	{"token_bucket: gives back all", "  if n < ceil(left / window) then\n    left = n * window\n  end\n", ""},
	{"token_bucket: those behind don't count", "if used > burst * window and used > left then", "if false then"},
	{"gcra: those behind don't count", "local behind = tat > a or tat == a and part > b", "local behind = false"},
	{"leaky_bucket: those behind don't count", "if level > burst and level > left then", "if false then"},
	{"fixed_window: those behind don't count", "if count > events and count > left then", "if false then"},
	{"smooth: those behind don't count", "if free > eff and (free > next_free or free == next_free and used ~= left) then", "if false then"},
	{"gcra: gives back what has passed", "if a - eff <= floor(back / events) then", "if false then"},
	{"gcra: gives back more than there is", "    tat, part = eff, 0\n  end\n  save", "    part = 0\n  end\n  save"},
	{"leaky_bucket: debt in advance is bounded, too", "if outcome == denied then\n    charge = max(min(charge, 2 * burst - level), 0)", "if true then\n    charge = max(min(charge, 2 * burst - level), 0)"},
	{"leaky_bucket: gives back what has leaked", "n = min(n, left)\n  if n > 0 and level > 0", "if n > 0 and level > 0"},
	{"fixed_window: later windows take nothing", "max(count - passed * events, 0)", "0"},
	{"fixed_window: more after one window", "more = start + max(floor(count / events), 1) * window - now", "more = start + window - now"},
	{"fixed_window: reset after one window", "local untouched = start + ceil(count / events) * window", "local untouched = start + window"},
	{"fixed_window: gives back to another window", " and start == then_start then", " then"},
	{"fixed_window: a refusal undoes what was charged in advance", "if clock or count > events then", "if clock then"},
	{"sliding_window: gives back to the current window only", "elseif at == start - window and prev > 0 then", "elseif false then"},
	{"sliding_window: gives back to any window", "if at == start and cur > 0 then", "if cur > 0 then"},
	{"smooth: this request pays", "if free > eff then\n    fits = 0", "if free > eff + cost then\n    fits = 0"},
	{"smooth: nothing is saved up", "free = free + ceil((charge * window - spent) / events)", "free = free + ceil(charge * window / events)"},
	{"smooth: saves up during debt", "if now > free then\n    used = max(used - min(now - free,", "if now > free then\n    used = max(used - min(now,"},
	{"smooth: the wait rounds down", "free + ceil((charge * window - spent) / events)", "free + floor((charge * window - spent) / events)"},
	{"smooth: charges without bound", "  charge = min(charge, most)\n", ""},
	{"smooth: never warm", "local dx = min(ceil(min(charge, enough) * idle_n / idle_per), idle)", "local dx = 0"},
	{"smooth: warms up too far", "idle_n / idle_per), idle)", "idle_n / idle_per), warm_up)"},
	{"smooth: cold costs the same", "local extra = ceil(", "local extra = 0 * ceil("},
	{"smooth: cools down", "if warm_up == 0 then\n    used = max(used - min(max(back", "if true then\n    used = max(used - min(max(back"},
	{"smooth: less is given back", "min(ceil(back / events), free - eff)", "min(floor(back / events), free - eff)"},
	{"smooth: more is used when given back", "max(back - sooner * events, 0)", "(back - sooner * events)"},
	{"smooth: initial is full", "withheld * window, now, now, 1", "0, now, now, 1"},
	{"take: the last override alone counts", "same = same and text == expected", "same = text == expected"},
	{"take: overrides don't count", "    if not same then\n      return", "    if false then\n      return"},
	{"take: the first budget is an override", "stored[budgets[k]] or ''", "stored[k + 1] or ''"},
	{"take: the limit of another operation", "if check.limit_at ~= limit_at then", "if check.limit_at < 0 then"},
	{"take: an override of nothing", "stored[budgets[k]] or ''", "stored[budgets[k]] or '='"},
	{"ban: a window that has passed still counts", "if now - start >= window then\n    start, denials", "if now - start > window then\n    start, denials"},
	{"ban: the window never ends", "if now - start >= window then\n    start, denials", "if false then\n    start, denials"},
	{"ban: the window begins with the last refusal", "if l.denials == 0 then\n      l.start = now", "if true then\n      l.start = now"},
	{"ban: bans are never forgotten", "if level == 0 or now >= ends + most then", "if level == 0 then"},
	{"ban: bans are forgotten 1 µs late", "now >= ends + most", "now > ends + most"},
	{"ban: bans are forgotten when they end", "now >= ends + most", "now >= ends"},
	{"ban: stands 1 µs too long", "denials, level, ends > now", "denials, level, ends >= now"},
	{"ban: what costs nothing passes", "has_room and not b.stands", "has_room and (not b.stands or cost == 0)"},
	{"ban: one refusal too many", "l.denials >= after", "l.denials > after"},
	{"ban: never doubles", "duration = min(2 * duration, most)", ""},
	{"ban: doubles without bound", "duration = min(2 * duration, most)", "duration = 2 * duration"},
	{"ban: doubles at once", "for _ = 1, l.level do", "for _ = 0, l.level do"},
	{"ban: refusals before a ban count after it", "l.start, l.denials = now, 0", "l.start = now"},
	{"ban: state says less than reset-after", "untouched = max(untouched, ends + most)", "untouched = max(untouched, ends)"},
	{"ban: refusals are forgotten at once", "untouched = start + window\n  end\n  if counts", "untouched = start\n  end\n  if counts"},
	{"ban: peeks write", "if counts or l.stepped_back and not peeks then", "if true then"},
	{"ban: one that stands doesn't say until when", "local ends_after = max(l.ends - now, 0)", "local ends_after = began * max(l.ends - now, 0)"},
	{"take: requests are held until a ban ends", "has_room and not b.stands", "has_room and (not b.stands or b.ends - now <= longest)"},
	{"take: what a ban refuses is charged", "mode ~= 2 or b and b.stands then", "mode ~= 2 then"},
	{"take: refusals during a ban count", "local counts, began = denied and not l.stands, 0", "local counts, began = denied, 0"},
	{"take: a ban counts what other zones refuse", "now, limits_deny, cost == 0)", "now, not allowed, cost == 0)"},
	{"take: a ban counts what its first limit refuses", "limits_deny = limits_deny or room == 0", "limits_deny = limits_deny or c == 1 and room == 0"},
	{"take: a ban counts what passes", "now, limits_deny, cost == 0)", "now, true, cost == 0)"},
	{"ban: a denial counts twice", "l.denials = l.denials + 1", "l.denials = l.denials + 2"},
	{"take: the refusal that brings a ban doesn't say so", "      began = 1\n", ""},
	{"prelude: a step back of a second and 1 µs holds", "step_back = 1000000", "step_back = 1000001"},
	{"prelude: a step back of a second doesn't hold", "step_back = 1000000", "step_back = 999999"},
	{"prelude: receipts ahead give back", "if charged_at - now <= step_back or l.algorithm.is_log then", "if true then"},
	{"prelude: a receipt 1 s ahead gives nothing back", "if charged_at - now <= step_back or l.algorithm.is_log then", "if charged_at - now < step_back or l.algorithm.is_log then"},
	{"prelude: a log's receipts are those of a clock", "if charged_at - now <= step_back or l.algorithm.is_log then", "if charged_at - now <= step_back then"},
	{"token_bucket: stays behind a clock that stepped back", "    at, dirty = now, 1", ""},
	{"token_bucket: a step back gives back what was used", "    at, dirty = now, 1", "    used, at, dirty = 0, now, 1"},
	{"token_bucket: a denied request doesn't save the step back", "    at, dirty = now, 1", "    at = now"},
	{"token_bucket: a peek saves the step back", "dirty == 1 and outcome ~= peek then\n    save(l, k, full + l[5], used, eff)", "dirty == 1 then\n    save(l, k, full + l[5], used, eff)"},
	{"leaky_bucket: stays behind a clock that stepped back", "    drip, dirty = now, 1", ""},
	{"leaky_bucket: a step back empties it", "    drip, dirty = now, 1", "    drip, level, dirty = now, 0, 1"},
	{"leaky_bucket: a denied request doesn't save the step back", "    drip, dirty = now, 1", "    drip = now"},
	{"leaky_bucket: a peek saves the step back", "dirty == 1 and outcome ~= peek then\n    save(l, k, untouched, drip, level)", "dirty == 1 then\n    save(l, k, untouched, drip, level)"},
	{"fixed_window: stays behind a clock that stepped back", "    start, dirty = fresh, 1", ""},
	{"fixed_window: a step back gives back what was used", "    start, dirty = fresh, 1", "    start, count, dirty = fresh, 0, 1"},
	{"fixed_window: a step back moves windows off the clock", "    start, dirty = fresh, 1", "    start, dirty = now, 1"},
	{"fixed_window: a denied request doesn't save the step back", "    start, dirty = fresh, 1", "    start = fresh"},
	{"fixed_window: a peek saves the step back", "dirty == 1 and outcome ~= peek then\n    save(l, k, untouched, start, count)", "dirty == 1 then\n    save(l, k, untouched, start, count)"},
	{"sliding_window: stays behind a clock that stepped back", "    start, dirty = now - now % window, 1", ""},
	{"sliding_window: a step back gives back what was used", "    start, dirty = now - now % window, 1", "    start, cur, dirty = now - now % window, 0, 1"},
	{"sliding_window: a step back gives back the window before", "    start, dirty = now - now % window, 1", "    start, prev, dirty = now - now % window, 0, 1"},
	{"sliding_window: a step back moves windows off the clock", "    start, dirty = now - now % window, 1", "    start, dirty = now, 1"},
	{"sliding_window: a denied request doesn't save the step back", "    start, dirty = now - now % window, 1", "    start = now - now % window"},
	{"sliding_window: a peek saves the step back", "dirty == 1 and outcome ~= peek then\n    save(l, k, untouched, start, prev, cur)", "dirty == 1 then\n    save(l, k, untouched, start, prev, cur)"},
	{"gcra: stays behind a clock that stepped back", "    tat, at, dirty = tat - at + now, now, 1", ""},
	{"gcra: a step back gives back what was used", "    tat, at, dirty = tat - at + now, now, 1", "    tat, at, dirty = now, now, 1"},
	{"gcra: a step back leaves tat", "    tat, at, dirty = tat - at + now, now, 1", "    at, dirty = now, 1"},
	{"gcra: forgets when the last charge was", "    tat, at, dirty = tat - at + now, now, 1", "    tat, dirty = tat - at + now, 1"},
	{"gcra: a denied request doesn't save the step back", "    tat, at, dirty = tat - at + now, now, 1", "    tat, at = tat - at + now, now"},
	{"gcra: a peek saves the step back", "dirty == 1 and outcome ~= peek then\n    save(l, k, untouched, tat, part, eff)", "dirty == 1 then\n    save(l, k, untouched, tat, part, eff)"},
	{"gcra: a node behind sets the last charge back", "local eff = max(now, at)\n  if tat", "local eff = now\n  if tat"},
	{"smooth: stays behind a clock that stepped back", "    free, at, dirty = free - at + now, now, 1", ""},
	{"smooth: a step back gives back what was used", "    free, at, dirty = free - at + now, now, 1", "    free, at, dirty = now, now, 1"},
	{"smooth: a step back leaves the next free instant", "    free, at, dirty = free - at + now, now, 1", "    at, dirty = now, 1"},
	{"smooth: a denied request doesn't save the step back", "    free, at, dirty = free - at + now, now, 1", "    free, at = free - at + now, now"},
	{"smooth: a peek saves the step back", "dirty == 1 and outcome ~= peek then\n    save(l, k, full + l[7], used, free, eff)", "dirty == 1 then\n    save(l, k, full + l[7], used, free, eff)"},
	{"smooth: a node behind sets the last charge back", "return used, free, max(now, at), dirty", "return used, free, now, dirty"},
	{"sliding_log: stays behind a clock that stepped back", "if back > step_back then", "if false then"},
	{"sliding_log: a step back by buckets is one by their ends", "local back = newest - grid + 1 - now", "local back = newest - now"},
	{"sliding_log: a second step back forgets the first", "newest, ahead = newest - back, ahead + back", "newest, ahead = newest - back, back"},
	{"sliding_log: the newest instant stays", "newest, ahead = newest - back, ahead + back", "ahead = ahead + back"},
	{"sliding_log: expires by the clock, not by its own time", "eff - window + ahead)", "eff - window)"},
	{"sliding_log: retry by its own time", "retry = stamp - ahead + window - now", "retry = stamp + window - now"},
	{"sliding_log: more by its own time", "oldest = oldest_live - ahead", "oldest = oldest_live"},
	{"sliding_log: reset by its own time", "newest = l.newest - ahead\n  end\n  charge", "newest = l.newest\n  end\n  charge"},
	{"sliding_log: min_interval by its own time", "newest = l.newest - ahead\n  end\n  local back", "newest = l.newest\n  end\n  local back"},
	{"sliding_log: charges by the clock", "local stamp = ceil((eff + ahead) / grid) * grid", "local stamp = ceil(eff / grid) * grid"},
	{"sliding_log: tells of charges by its own time", "oldest_live = stamp - ahead, stamp - ahead,", "oldest_live = stamp, stamp,"},
	{"sliding_log: keeps its own time when it begins anew", "if charge > 0 and live == 0 then\n    ahead = 0", "if false then\n    ahead = 0"},
	{"sliding_log: begins anew with a denied request", "if charge > 0 and live == 0 then\n    ahead = 0", "if live == 0 then\n    ahead = 0"},
	{"sliding_log: a denied request doesn't save the step back", "elseif outcome ~= peek and ahead ~= l.ahead then", "elseif false then"},
	{"sliding_log: a peek saves the step back", "elseif outcome ~= peek and ahead ~= l.ahead then", "elseif ahead ~= l.ahead then"},
	{"sliding_log: a charge doesn't save the step back", "drop, entry, count, ahead, stamp", "drop, entry, count, l.ahead, stamp"},
	{"sliding_log: forgets how far it is ahead when its ring is written in place", "l.head, entries, ahead, newest, first, after))", "l.head, entries, 0, newest, first, after))"},
	{"sliding_log: how far it is ahead is an event", "  l.held = l.entries\n", "  l.held = l.entries + min(l.ahead, 1)\n"},
	{"sliding_log: how far it is ahead is the newest event", "l.ahead, l.newest = sliding_log_check(ahead, forever), sliding_log_check(newest, forever)", "l.ahead, l.newest = sliding_log_check(ahead, forever), sliding_log_check(ahead, forever)"},
	{"sliding_log: how far it was ahead stays when its ring grows", "0, entries, ahead, newest, first, after) .. text", "0, entries, l.ahead, newest, first, after) .. text"},
	{"sliding_log: how far it is ahead stays when all is given back", "pack_numbers('<dddddd', 0, 0, 0, 0, 0, 0)", "pack_numbers('<dddddd', 0, 0, l.ahead, 0, 0, 0)"},
	{"ban: stays behind a clock that stepped back", "    start, ends = now, ends - start + now\n", ""},
	{"ban: a step back ends it", "    start, ends = now, ends - start + now\n", "    start, ends = now, now\n"},
	{"ban: a step back leaves its end", "    start, ends = now, ends - start + now\n", "    start = now\n"},
	{"ban: a denied request doesn't save the step back", "if counts or l.stepped_back and not peeks then", "if counts then"},
	{"ban: a peek saves the step back", "if counts or l.stepped_back and not peeks then", "if counts or l.stepped_back then"},
	{"ban: forgets when it began", "l.start, l.denials = now, 0", "l.start, l.denials = 0, 0"},
	{"take: what a ban refuses saves no step back of it", "now, limits_deny, cost == 0)", "now, limits_deny, cost == 0 or b.stands)"},
	{"take: what a ban refuses saves no step back of limits", "b and b.stands then\n      charge = 0\n", "b and b.stands then\n      charge = 0\n      if b and b.stands then outcome = peek end\n"},
	{"operations: see nothing of each other", "local state = text[k] or stored[k]", "local state = stored[k]"},
	{"operations: see nothing of each other's slots", "  if s then return s end\n  local state = text[k] or stored[k] or ''", "  local state = stored[k] or ''"},
	{"operations: a key that is named twice is two", "  budgets[k] = known\n", "  budgets[k] = k\n"},
	{"operations: what a failed message changed stays", "text, slots_at, changes = {}, {}, 0", "slots_at, changes = {}, 0"},
	{"operations: what a failed message did to slots stays", "text, slots_at, changes = {}, {}, 0", "text, changes = {}, 0"},
	{"operations: the keys behind a failed one are those of another", "at, k, log = at + length, k + own_strings, log + own_logs", "at = at + length"},
	{"operations: logs are charged again after a failure", "if log_keys > 0 then\n  run_each()", "if false then\n  run_each()"},
	{"operations: the first failure ends all", "elseif not pcall(run) then", "elseif not pcall(run) and false then"},
	{"operations: other overrides end an operation too early", "table.concat(found) --", "table.concat(found), at, k, log --"},
	{"operations: late ones are carried out", "if not_after > 0 and now > not_after then", "if false then"},
	{"operations: those in the last instant are late", "now > not_after", "now >= not_after"},
	{"operations: without a last instant they are late", "if not_after > 0 and now", "if now"},
	{"prelude: states of three numbers lose digits", "c and pack_numbers('<i8i8i8', a, b, c)", "c and pack_numbers('<i8i8i8', a - a % 10, b, c)"},
	{"expiry: never moves", "expiry ~= expiry_before[k] and lifetime", "not expiry_before[k] and lifetime"},
	{"expiry: moves one quantum late", "expiry ~= expiry_before[k] and lifetime", "expiry ~= expiry_before[k] and expiry ~= (expiry_before[k] or -9) + 1 and lifetime"},
	{"expiry: before is that of the operation before", "if not text[k] then expiry_before[k] =", "if true then expiry_before[k] ="},
	{"expiry: no expiry when it moves", "text[k], 'PX', lifetimes[k])\n    elseif not", "text[k])\n    elseif not"},
	{"expiry: KEEPTTL is forgotten", "text[k], 'KEEPTTL')", "text[k])"},
	{"expiry: of the instant, not of the state", "local expiry = floor(untouched / span)", "local expiry = floor(now / span)"},
	{"token_bucket: the expiry is that of a full burst", "return at + ceil(used / l[1]) + l[5] end", "return at + l[5] end"},
	{"leaky_bucket: the expiry before is one window", "return drip + ceil(level / l[1]) * l[2] end", "return drip + l[2] end"},
	{"fixed_window: the expiry before is one window", "return start + ceil(count / l[1]) * l[2] end", "return start + l[2] end"},
	{"sliding_window: the expiry before is one window", "  elseif prev > 0 then\n    return start + window\n", "  elseif prev > 0 then\n    return start\n"},
	{"smooth: the expiry before is when the next is free", "return free + ceil(used / l[5]) + l[7] end", "return free + l[7] end"},
	{"gcra: the expiry before is the last charge", "return tat + ceil(part / l[1]) end", "return part end"},
	{"sliding_log: the expiry never moves", "same = expiry == floor((l.newest - l.ahead + kept) / span)", "same = true"},
	{"sliding_log: the expiry is by its own time", "local expiry, same = floor((newest - ahead + kept) / span)", "local expiry, same = floor((newest + kept) / span)"},
	{"sliding_log: min_interval doesn't keep it", "local kept, span = max(l[2], l[3]), l.quantum", "local kept, span = l[2], l.quantum"},
	{"sliding_log: no expiry when its ring grows", "redis.call('SET', key, text, 'PX', lifetime(expiry, span))", "redis.call('SET', key, text)"},
	{"sliding_log: KEEPTTL is forgotten when its ring grows", "redis.call('SET', key, text, 'KEEPTTL')", "redis.call('SET', key, text)"},
	{"sliding_log: KEEPTTL is forgotten when all is given back", "0, 0, 0, 0, 0, 0), 'KEEPTTL')", "0, 0, 0, 0, 0, 0))"},
	{"sliding_log: a large ring that grows has no expiry", "    sliding_log_grow(l, k, places, left)\n    same = false\n", "    sliding_log_grow(l, k, places, left)\n"},
	{"sliding_log: a large ring forgets what is in front", "    sliding_log_move(l, k, 0, front, old)\n", ""},
	{"sliding_log: a large ring forgets what is behind", "    sliding_log_move(l, k, head, behind, places - behind)\n", ""},
	{"sliding_log: the ring begins where it did", "    l.head = (l.head + drop) % places\n", ""},
	{"sliding_log: the ring never ends", "    redis.call('SETRANGE', key, 48 + place * size, string.sub(text, 1, here))\n    redis.call('SETRANGE', key, 48, string.sub(text, here + 1))\n", "    redis.call('SETRANGE', key, 48 + place * size, text)\n"},
	{"sliding_log: reads past the end of the ring", "    text = text .. redis.call('GETRANGE', key, 48, 47 + (count - here) * size)\n", ""},
	{"sliding_log: halving of large logs is off", "sliding_log_entries(l, k, middle, 1), skip) <= edge", "sliding_log_entries(l, k, middle, 1), skip) < edge"},
	{"sliding_log: the oldest few are all", "(high - 1) * size + skip) <= edge", "(high - 1) * size + skip) < edge"},
	{"sliding_log: a large charge is one of 1000", "sliding_log_repeat(entry, count)\n", "sliding_log_repeat(entry, min(count, 1000))\n"},
	{"sliding_log: gives back by moving nothing, from the end", "sliding_log_move(l, k, from + n, entries - from - n, from)", "sliding_log_move(l, k, from + n, entries - from - n, from + n)"},
	{"sliding_log: the newest given back is still the newest", "    newest = sliding_log_check(unpack_numbers('<d', before), forever)\n", ""},
	{"sliding_log: the bucket at hand doesn't grow", "redis.call('SETRANGE', keys[k], 64 + place * 24, pack_numbers('<d', after))", ""},
	{"sliding_log: the next event is the one after a bucket", "if first == number + 1 then", "if first ~= number + 1 then"},
	{"slots: one too many", "s.others + s.count < most", "s.others + s.count <= most"},
	{"slots: those of others don't count", "s.others + s.count < most", "s.count < most"},
	{"slots: those of the instance don't count", "s.others + s.count < most", "s.others < most"},
	{"slots: a look takes one", "if passes and s.takes then", "if passes then"},
	{"slots: denied requests take one", "if passes and s.takes then", "if s.takes then"},
	{"slots: two are taken", "instance, had + 1, now", "instance, had + 2, now"},
	{"slots: one is taken instead of another", "instance, had + 1, now", "instance, 1, now"},
	{"slots: how many there are with the one just taken", "local had = s.count\n      if", "local had = s.count + 1\n      if"},
	{"slots: found with the one just taken", "s.free and 1 or 0, had,", "s.free and 1 or 0, s.count,"},
	{"slots: free after, not before", "s.takes, s.free = has_slots == 1,", "s.takes, s.free = has_slots == 1, s.others + s.count + 1 < most, "},
	{"slots: a set finds what it sets", "return pack_numbers('<Bd', 1, had)", "return pack_numbers('<Bd', 1, s.count)"},
	{"slots: a set adds", "slots_set(s, key, instance, number, now", "slots_set(s, key, instance, had + number, now"},
	{"slots: a count that is too late isn't clamped", "if expires > now + lifetime then", "if false then"},
	{"slots: a clamped count isn't saved by a denial", "elseif s.stepped_back and s.takes then", "elseif false then"},
	{"slots: a look saves a clamped count", "elseif s.stepped_back and s.takes then", "elseif s.stepped_back then"},
	{"slots: every denial saves", "elseif s.stepped_back and s.takes then", "elseif s.takes then"},
	{"slots: live 1 µs too long", "if expires > now and count > 0 then", "if expires >= now and count > 0 then"},
	{"slots: never expire", "if expires > now and count > 0 then", "if count > 0 then"},
	{"slots: others' are forgotten", "kept = kept .. pack_numbers(slots_form, id, count, expires)", ""},
	{"slots: the others behind are forgotten", "s.count, s.expires) .. s.after", "s.count, s.expires)"},
	{"slots: the others in front are forgotten", "state = s.before .. pack_numbers", "state = pack_numbers"},
	{"slots: the last of the others alone counts", "s.others, s.last = s.others + count,", "s.others, s.last = count,"},
	{"slots: expire with the last of the others", "    last = max(last, s.expires)\n", ""},
	{"slots: expire with the instance's", "s.others + count, max(s.last, expires)", "s.others + count, 0"},
	{"slots: the expiry before is that of the living", "floor(s.last_stored / (lifetime / 3))", "floor(s.last / (lifetime / 3))"},
	{"slots: a count lives a µs less", "s.count, s.expires = count, now + lifetime", "s.count, s.expires = count, now + lifetime - 1"},
	{"slots: without a free one limits are charged", "zone.slots, zone.slots_key, has_room = s, key, has_room and s.free", "zone.slots, zone.slots_key, has_room = s, key, has_room"},
	{"write: what MGET shows as absent is written over", "text[k], 'NX', 'PX', lifetimes[k])", "text[k], 'PX', lifetimes[k])"},
	{"write: a refused one fails nothing", "if keys[own] == name then fail(operation, err) end", ""},
	{"write: a refused one fails the first operation on its key", "if keys[own] == name then fail", "if own == changed[next_change] then fail"},
	{"write: a refused one fails all operations", "if keys[own] == name then fail(operation, err) end", "fail(operation, err)"},
	{"write: a refused one fails operations by the keys of others", "    own_k = own_k + own_strings\n", ""},
	{"write: nothing is written after a refused one", "  next_change = next_change + 1\nend\n\nout[1]", "  break\nend\n\nout[1]"},
	{"take: a ban that stands lets others pass", "zone.ban, has_room = b, has_room and not b.stands", "zone.ban = b"},
	{"take: the ban of another zone", "zone.slots, zone.ban = mode, shadow == 1, limits_of, cost, nil, nil", "zone.slots = mode, shadow == 1, limits_of, cost, nil"},
	{"take: the slots of another operation", "zone.slots, zone.ban = mode, shadow == 1, limits_of, cost, nil, nil", "zone.ban = mode, shadow == 1, limits_of, cost, nil"},
	{"ban: more bans than levels", "min(l.level + 1, 63)\n      began", "l.level + 1\n      began"},
	{"ban: a ban isn't one more", "l.ends, l.level = now + duration, min(l.level + 1, 63)", "l.ends = now + duration"},
	{"take: a denial in one zone is told of all", "local charge, outcome, limits_deny = cost, cost == 0 and peek or passes and granted or denied, false", "local charge, outcome, limits_deny = cost, cost == 0 and peek or passes and granted or denied, not allowed"},
	{"take: the burst of another operation", "if burst > 0 then l[3] = burst end -- the", "if burst > 0 and l[3] == 0 then l[3] = burst end -- the"},
	{"refund: the limit of another operation", "if given_back.limit_at ~= limit_at then", "if given_back.limit_at < 0 then"},
	{"refund: by another receipt", "limit_at, burst, a, b, charged_at, n, at = unpack_numbers('<I4ddddd', message, at)", "limit_at, burst, b, a, charged_at, n, at = unpack_numbers('<I4ddddd', message, at)"},
}

// mutantSeeds holds for each mutant the seed of a program that catches it, so that one program is
// enough as long as neither changes. -update writes it.
const mutantSeeds = "testdata/mutant_seeds.json"

var update = flag.Bool("update", false, "write "+mutantSeeds)

// Programs of the parity test find every mutant. A mutant without a seed, or whose seed no longer
// catches it, is searched for.
func TestParityCatchesMutants(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client
	seeds := make(map[string]uint64)
	text, err := os.ReadFile(mutantSeeds)
	if err == nil {
		err = json.Unmarshal(text, &seeds)
	}
	if err != nil && !*update {
		t.Fatal(err)
	}
	every := everyScript()
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			if !strings.Contains(every, m.old) {
				t.Fatalf("the script no longer holds %q", m.old)
			}
			client.ScriptFlush(context.Background())
			script := loader(t, client, func(s string) string { return strings.ReplaceAll(s, m.old, m.new) })
			catches := func(seed uint64) bool {
				p := newProgram(seed)
				if !strings.Contains(p.set().Script(), m.old) {
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
			for seed = range uint64(5000) {
				if catches(seed) {
					seeds[m.name] = seed
					t.Logf("caught by seed %d: run this test with -update, which keeps it", seed)
					return
				}
			}
			t.Error("not caught")
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
	var every algorithms.Set
	for _, a := range algorithms.All() {
		every = every.With(a)
	}
	return every.WithBan().WithSlots().Script()
}
