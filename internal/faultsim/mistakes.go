package faultsim

// mistake is a small mistake in the product: its name says what it then gets wrong.
type mistake struct{ name, file, old, new string }

// mistakes are planted one at a time. A simulation that misses one would miss the like in a real change.
var mistakes = []mistake{
	// The queue.
	{
		"a take overtakes a give-back", "redisstore/order.go",
		"	if len(k.correcting) == 0 {\n", "	if true {\n",
	},
	{
		"a message is never counted as ended", "redisstore/queue.go",
		"return b == ended }", "return false }",
	},
	{
		"nobody sends what came meanwhile", "redisstore/queue.go",
		"	for ; b != nil; b = s.finishAndNext(b) {\n", "	if b != nil {\n",
	},
	{
		"calls that have waited are forgotten", "redisstore/queue.go",
		"	requeueLocked(again)\n}\n", "	_ = again\n}\n",
	},
	{
		"no call waits for corrections", "redisstore/order.go",
		"		k.correcting[c.key] = b\n", "",
	},
	// Messages.
	{
		"a take is sent again after its reply was lost", "redisstore/script.go",
		"	case unconnected, c.corrections != nil && notRun:\n", "	case unconnected, notRun, m.err != nil:\n",
	},
	{
		"a lost message counts as one that did not run", "redisstore/script.go",
		"	if !m.isSent() || m.loadErr != nil ||", "	if true ||",
	},
	{
		"a message may run at any time", "redisstore/clock.go",
		"b.deadline.Sub(known.local).Microseconds(), nil\n", "1<<50, nil\n",
	},
	{
		"the deadline of a message is that of the first one", "redisstore/clock.go",
		"	if sent.After(last.local) || now > last.redis && ahead < time.Second {\n", "	if last.redis == 0 || ahead < 0 {\n",
	},
	{
		"a script that is lost is not loaded again", "redisstore/script.go",
		"	if slices.ContainsFunc(b.messages, (*message).lacksScript) {\n", "	if false {\n",
	},
	{
		"a replica is asked for ever", "redisstore/script.go",
		"	return strings.Contains(reply, \"READONLY\") || strings.Contains(reply, \"MASTERDOWN\")\n",
		"	return strings.Contains(reply, \"no such text\")\n",
	},
	// Slots.
	{
		"a slot is not given back", "redisstore/internal/slots/slots.go",
		"	k.held -= n\n", "",
	},
	{
		"a slot is given back twice", "redisstore/internal/slots/slots.go",
		"	k.held -= n\n", "	k.held -= 2 * n\n",
	},
	{
		"counts are never set again", "redisstore/internal/slots/slots.go",
		"setEvery: expiry / 3", "setEvery: 100 * expiry",
	},
	{
		"granted slots are not counted", "redisstore/internal/slots/slots.go",
		"	k.held += taken\n", "",
	},
	{
		"slots of the local budgets are not counted", "redisstore/internal/slots/slots.go",
		"	k.held++\n", "",
	},
	{
		"a slot is free at once, and Redis hears of it later", "redisstore/redisstore.go",
		"	c.keys.leaveSlots(corrections, true)\n", "	c.keys.leaveSlots(corrections, false)\n",
	},
	{
		"takes do not wait while a count is set", "redisstore/internal/slots/slots.go",
		"	case k.setInFlight, t.needsSet(k) && k.inFlight > 0:\n", "	case false:\n",
	},
	// The cluster.
	{
		"the charges of other nodes stay after an error", "redisstore/crosskey.go",
		"				c.correct(now, store.FullRefunds(g.requests), func(error) {})\n", "",
	},
	{
		"the charges of other nodes stay after a denial", "redisstore/crosskey.go",
		"	if !allowed {\n		concurrently", "	if false {\n		concurrently",
	},
	{
		"a slot that moves is not asked for", "redisstore/cluster.go",
		"asking: to.Kind == \"ASK\"", "asking: false",
	},
	{
		"the slots of a cluster are learned once", "redisstore/topology.go",
		"c.refreshBegan.IsZero() || time.Since(c.refreshBegan) >= refreshInterval", "c.refreshBegan.IsZero()",
	},
	{
		"a node that was replaced fails a request", "redisstore/cluster.go",
		"owner != nil && owner != h.node {\n", "owner == nil && false {\n",
	},
	// The breaker.
	{
		"no failure opens the breaker", "store/breaker.go",
		"	maxFailures = 5\n", "	maxFailures = 1 << 30\n",
	},
	{
		"the breaker never closes", "store/breaker.go",
		"	b.open.Store(false)\n	b.mu.Unlock()\n", "	b.mu.Unlock()\n",
	},
	{
		"the first failure opens the breaker", "store/breaker.go",
		"	maxFailures = 5\n", "	maxFailures = 1\n",
	},
	{
		"slots given back in an outage stay counted", "store/breaker.go",
		"			s.LeaveSlots(corrections)\n", "			_ = s\n",
	},
	// Local budgets.
	{
		"the local budgets do not see the slots of Redis", "store/failover.go",
		"	case err == nil && f.admitSlots(requests):\n", "	case err == nil:\n",
	},
	{
		"a late grant of Redis is not given back", "store/failover.go",
		"		f.store.Correct(FullRefunds(requests), f.failed)\n", "",
	},
	{
		"Redis does not hear of the slots of the local budgets", "store/failover.go",
		"		f.store.CountSlots(requests)\n", "",
	},
	{
		"the correction of a local decision goes to Redis", "store/failover.go",
		"		requests[i].Outcome.Local = true\n", "",
	},
	{
		"the local budgets grant all instead of their share", "store/failover.go",
		"		share.Limits[i].Limit = share.Limits[i].localLimit()\n", "		_ = i\n",
	},
	{
		"the local budgets decide while Redis is well", "store/failover.go",
		"	case err == nil && f.admitSlots(requests):\n",
		"	case err == nil && allowed && f.admitSlots(requests):\n",
	},
	{
		"slots of Redis are given back to Redis alone", "store/failover.go",
		"		toStore = append(toStore, c)\n		if leave.Leave {\n", "		toStore = append(toStore, c)\n		if false {\n",
	},
	// Denials that are remembered.
	{
		"a denial is remembered for a minute", "store/deny.go",
		"	maxDenialAge = time.Second\n", "	maxDenialAge = time.Minute\n",
	},
	{
		"a denial is remembered although events were given back", "store/deny.go",
		"		if corrections[i].Refund != 0 {\n", "		if false {\n",
	},
	{
		"a denial of much denies little", "store/deny.go",
		"r.Cost < s.denials[n].cost", "false",
	},
	// The limiter.
	{
		"refunds are dropped", "store/store.go",
		"c.Leave || c.Refund > 0 || c.Charges()", "c.Leave || c.Charges()",
	},
	{
		"corrections are made twice", "internal/limiter/serve.go",
		"	state.corrected = true\n", "",
	},
	{
		"a delayed client that leaves pays", "internal/limiter/delay.go",
		"				e.TrueCost, e.Settled = 0, true\n", "				_ = e\n",
	},
	{
		"the line does not hear of free slots", "internal/limiter/serve.go",
		"		state.Limiter.SlotLines.Wake(corrections)\n", "",
	},
	// Lines.
	{
		"the line forgets that a client has left", "internal/limiter/slot_wait.go",
		"			slots.Leave(w, instantOf(time.Now()))\n			return lines.Decided, errClientGone\n", "			return lines.Decided, errClientGone\n",
	},
	{
		"newcomers overtake", "internal/lines/slots.go",
		"	case need == nothing:\n", "	case true:\n",
	},
	{
		"the last of a line is the first", "internal/lines/slots.go",
		"l.requests.Front().Value", "l.requests.Back().Value",
	},
	{
		"places are not given back", "internal/lines/places.go",
		"		k.add(tenant, -1)\n", "",
	},
	{
		"an abandoned place is kept", "internal/lines/places.go",
		"		h.abandoned = true\n", "",
	},
	// Tenants.
	{
		"slots are counted for no tenant", "redisstore/slots.go",
		"CountName(r.Key, r.Slots.ID, r.Tenant.ID), request: r", "CountName(r.Key, r.Slots.ID, 0), request: r",
	},
	{
		"Redis does not hear of tenants", "internal/wire/message.go",
		"m.appendLine(r.Line, !r.WaitsForReserved, r.Tenant)", "m.appendLine(r.Line, !r.WaitsForReserved, store.Tenant{})",
	},
	{
		"all tenants wait in one line", "internal/lines/pools.go",
		"	return r.Requests[n.Zone].Tenant.ID\n", "	return 0 * r.Requests[n.Zone].Tenant.ID\n",
	},
	{
		"a slot goes to the tenant that holds the most", "algorithms/slots.lua",
		"ceil(level)) - r.held", "0) + r.held",
	},
	{
		"weights do not count", "algorithms/slots.lua",
		"held * r.weight / max(s.others_weight, weight)", "held",
	},
	// Calendars.
	{
		"a day does not end", "algorithms/calendar.lua",
		"    period_end, count, highest = end_now, 0, 0\n", "    period_end, highest = end_now, 0\n",
	},
	{
		"a charge of yesterday is given back today", "algorithms/calendar.lua",
		"  if count > 0 and period_end == receipt_end then\n", "  if count > 0 then\n",
	},
	{
		"a true cost that does not fit is not counted", "algorithms/operations.lua",
		"(l.algorithm.is_binary_only or mode == 3 and not l.algorithm.is_calendar) and min(cost, max(check.fits, 0)) or cost\n",
		"min(cost, max(check.fits, 0))\n",
	},
	// Limits that change.
	{
		"a denial by one limit denies under another", "store/deny.go",
		"r.Limits[i].ID, r.Limits[i].Events, r.Limits[i].Burst}", "r.Limits[i].ID, 0, 0}",
	},
	{
		"a limit with other events has another budget", "store/store.go",
		"		hash, place := l.Fingerprint(), 0\n", "		hash, place := l.Fingerprint()+fmt.Sprint(l.Events), 0\n",
	},
	{
		"a smaller limit forgets what a larger one has allowed", "algorithms/bucket.lua",
		"    admitted, larger = full, min(events, 1)\n", "    admitted = full\n",
	},
	// Operators.
	{
		"a ban by an operator ends at once", "algorithms/change.lua",
		"  ban_begin(ban, 1, now, tonumber(ARGV[3]), kind == 'hold')\n", "  ban_begin(ban, 1, now, 1)\n",
	},
	{
		"a ban is not lifted", "internal/admin/admin.go",
		"			c.Forget = append(c.Forget, b.ID)\n", "			_ = b\n",
	},
	{
		"a ban that was lifted is remembered", "store/deny.go",
		"	c.forget(change.Key)\n", "",
	},
	{
		"denials begin no ban", "algorithms/ban.lua",
		"    if ban.denials >= after then\n", "    if false then\n",
	},
	{
		"a ban begins with fewer denials", "algorithms/ban.lua",
		"    if ban.denials >= after then\n", "    if ban.denials + 1 >= after then\n",
	},
	{
		"overrides are not looked up", "internal/limiter/overrides.go",
		"looksUp: attempt < maxAttempts-1}", "looksUp: false}",
	},
	{
		"an instance does not notice the end of an override", "internal/limiter/overrides.go",
		"		delete(k.byKey, hash)\n		return true\n", "		return true\n",
	},
	{
		"an instance does not notice the next override of a key", "internal/limiter/overrides.go",
		"	k.byKey[hash] = o\n", "	if !ok {\n		k.byKey[hash] = o\n	}\n",
	},
	{
		"an override has no end", "algorithms/change.lua",
		"elseif ARGV[3] == '0' then\n", "elseif true then\n",
	},
	{
		"an override is not removed", "redisstore/redisstore.go",
		"	if c.Override != nil {\n", "	if c.Override != nil && *c.Override != \"\" {\n",
	},
	{
		"a list ends with its first page", "redisstore/list.go",
		"		if cursor != 0 {\n			page.page.Next", "		if false {\n			page.page.Next",
	},
	{
		"a list has bans that have ended", "redisstore/list.go",
		"		entry.Ban, ok = state.StandingBan(now)\n", "		entry.Ban, _ = state.StandingBan(now)\n",
	},
}
