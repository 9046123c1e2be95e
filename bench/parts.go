package main

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// part is a set of setups that take turns: what disturbs the machine disturbs all of them, so
// their ratios hold.
type part struct {
	name, title string
	connections int
	rounds      int
	turn        time.Duration
	timeout     string // of Redis; empty is the default
	halved      bool   // Caddy gets half of the processors; see startCaddy
	setups      []*setup
}

// setup is a Caddy and the load on it. Where a field says nothing, complete sets it.
type setup struct {
	name      string
	reference string // the setup of the same part that it is compared with, if any
	program   string // ours, references or mholt
	redis     string // near, far, cluster or none
	nodes     int    // of the cluster
	declares  bool   // the cluster has the option declare_keys
	directive string
	respond   string   // the directive that answers
	body      body     // of the requests
	keys      int      // that requests are spread over
	status    int      // of all responses
	fields    []string // that all responses have, set by complete

	results
}

const (
	ours       = "ours"
	references = "references"
	mholt      = "mholt" // see the flag

	bare     = "bare Caddy"
	manyKeys = 100_000
	fewKeys  = 10_000
	patient  = "10s" // a time-out that a stall of the machine does not reach
	short    = 700 * time.Millisecond

	bucket  = "token_bucket 1000000 1s\n"
	others  = "token_bucket 60000000 1m\ngcra 2000000 1s\n"
	drained = "gcra 1 365d\n"
	monthly = "calendar 1000000000 month\n"
	slots   = "concurrency 1000\n"
	settled = "cost 2\nsettle {\ncost 1\n}\n" // each response gives half of the charge back

	// If a value of a body were not read, these would deny requests: those of the empty key, and the
	// fifth of a key whose charges stay. So the run would fail.
	noEmptyKey  = "override \"\" {\ngcra 1 365d\n}\n"
	smallBudget = "token_bucket 1 1h 20000\ncost 5000\n"
	jsonRespond = "respond `" + `\{"id":"chat-1","choices":[\{"text":"One budget."\}],"usage":\{"total_tokens":1\}\}` + "`\n"
)

var (
	jsonLogin = body{"application/json", `{"username": "user-` + keyMark + `", "password": "correct horse battery staple", "remember": true}`}
	formLogin = body{"application/x-www-form-urlencoded", "username=user-" + keyMark + "&password=correct+horse+battery+staple&remember=on"}
)

// zone returns a directive with a zone of these lines. Each request has a key in X-Key, and
// one of a thousand numbers in X-Plan.
func zone(lines ...string) string { return zoneOf("{header.X-Key}", lines...) }

// zoneOf returns a directive with a zone of this key.
func zoneOf(key string, lines ...string) string {
	return "rate_limit {\nzone bench {\nkey " + key + "\n" + strings.Join(lines, "") + "}\n}\n"
}

// plans returns an option with a plan for each value of X-Plan, and ten kinds of limits.
func plans() string {
	var b strings.Builder
	b.WriteString("plan {header.X-Plan} {\ndefault unlimited\n")
	for i := range planValues {
		fmt.Fprintf(&b, "%0*d {\ntoken_bucket %d 1s\n}\n", planDigits, i+1, 1_000_000+i%10)
	}
	return b.String() + "}\n"
}

func parts() []*part {
	all := []*part{
		{
			name: "memory", title: "Budgets in memory, 64 connections", connections: 64, rounds: 12, turn: short, halved: true,
			setups: []*setup{
				{name: bare, program: references},
				{name: "bare Caddy, status 429", program: references, respond: "respond 429\n", status: http.StatusTooManyRequests},
				{name: "memory", reference: bare, directive: zone(bucket)},
				{name: "memory, one key", reference: "memory", directive: zone(bucket), keys: 1},
				{name: "memory, denied", reference: "bare Caddy, status 429", directive: zone(drained), keys: 1, status: http.StatusTooManyRequests},
				{name: "calendar", reference: "memory", directive: zone(monthly)},
				{name: "notify", reference: "calendar", directive: zone(monthly, "notify 80%\n")},
				{name: "sum as cost", reference: "memory", directive: zone(bucket, "cost 2*{header.X-Plan} + 1\n")},
			},
		},
		{
			name: "bodies", title: "Bodies, budgets in memory, 64 connections", connections: 64, rounds: 8, turn: short, halved: true,
			setups: []*setup{
				{name: "header, JSON body", directive: zone(bucket), body: jsonLogin},
				{
					name: "JSON field", reference: "header, JSON body", body: jsonLogin,
					directive: zoneOf("{http.rate_limit.request.json.username}", bucket, noEmptyKey),
				},
				{name: "header, form", directive: zone(bucket), body: formLogin},
				{
					name: "form field", reference: "header, form", body: formLogin,
					directive: zoneOf("{http.rate_limit.request.form.username}", bucket, noEmptyKey),
				},
				{
					name: "settle, fixed cost", respond: jsonRespond, body: jsonLogin, keys: fewKeys,
					directive: zone(smallBudget, "settle {\ncost 1\n}\n"),
				},
				{
					name: "settle by JSON response", reference: "settle, fixed cost", respond: jsonRespond, body: jsonLogin, keys: fewKeys,
					directive: zone(smallBudget, "settle {\ncost {http.rate_limit.response.json.usage.total_tokens}\n}\n"),
				},
			},
		},
		{
			name: "redis", title: "Budgets in Redis, 64 connections", connections: 64, rounds: 6, turn: 2 * short, timeout: patient,
			setups: []*setup{
				{name: bare, program: references},
				{name: "redis_rate", reference: bare, program: references, redis: "near", directive: "redis_rate\n"},
				{name: "floor", reference: bare, program: references, redis: "near", directive: "floor\n"},
				{name: "redis", reference: bare, redis: "near", directive: zone(bucket)},
				{name: "redis, one key", reference: "redis", redis: "near", directive: zone(bucket), keys: 1},
				{name: "redis, denied", reference: bare, redis: "near", directive: zone(drained), keys: 1, status: http.StatusTooManyRequests},
				{name: "three limits", reference: "redis", redis: "near", directive: zone(bucket, others)},
				{name: "calendar", reference: "redis", redis: "near", directive: zone(monthly)},
				{name: "notify", reference: "calendar", redis: "near", directive: zone(monthly, "notify 80%\n")},
				{name: "factor", reference: "redis", redis: "near", directive: zone(bucket, "factor {header.X-Plan}\n")},
				{name: "plans", reference: "redis", redis: "near", directive: zone(plans())},
				{name: "concurrency", reference: "redis", redis: "near", directive: zone(bucket, slots)},
				{name: "settle", reference: "redis", redis: "near", directive: zone(bucket, settled)},
			},
		},
		{
			name: "redis256", title: "Budgets in Redis, 256 connections", connections: 256, rounds: 6, turn: 2 * short, timeout: patient,
			setups: []*setup{
				{name: bare, program: references},
				{name: "redis_rate", reference: bare, program: references, redis: "near", directive: "redis_rate\n"},
				{name: "floor", reference: bare, program: references, redis: "near", directive: "floor\n"},
				{name: "redis", reference: bare, redis: "near", directive: zone(bucket)},
			},
		},
		{
			name: "cluster", title: "Clusters, 64 connections", connections: 64, rounds: 6, turn: 2 * short, timeout: patient,
			setups: clusters(),
		},
		{
			name: "cluster256", title: "Clusters, 256 connections", connections: 256, rounds: 6, turn: 2 * short, timeout: patient,
			setups: clusters(),
		},
		{
			name: "far", title: "Redis 10 ms away, 600 connections", connections: 600, rounds: 6, turn: time.Second, timeout: patient,
			setups: []*setup{
				{name: "plain", redis: "far", directive: zone(bucket)},
				{name: "concurrency", reference: "plain", redis: "far", directive: zone(bucket, slots)},
				{name: "settle", reference: "plain", redis: "far", directive: zone(bucket, settled)},
				{name: "plain, one key", redis: "far", directive: zone(bucket), keys: 1},
				{name: "concurrency, one key", reference: "plain, one key", redis: "far", directive: zone(bucket, slots), keys: 1},
				{name: "settle, one key", reference: "plain, one key", redis: "far", directive: zone(bucket, settled), keys: 1},
			},
		},
		{
			name: "crowd", title: "4000 connections", connections: 4000, rounds: 5, turn: 2 * time.Second, timeout: patient,
			setups: []*setup{
				{name: "memory", directive: zone(bucket)},
				{name: "redis", reference: "memory", redis: "near", directive: zone(bucket)},
			},
		},
		// The processor time of Redis for a check alone belongs here, by algorithm, in script
		// calls of 9 and of 32 checks. It takes no Caddy, only a connection to Redis.
	}
	if *mholtBinary != "" {
		all[0].setups = append(all[0].setups, &setup{
			name: mholt, reference: bare, program: mholt, directive: zone("events 100\nwindow 1s\n"),
		})
	}
	for _, p := range all {
		for _, s := range p.setups {
			s.complete()
		}
		if *quick {
			p.rounds, p.turn = 2, p.turn/3
		}
	}
	return all
}

// clusters returns setups of one Redis and of clusters.
func clusters() []*setup {
	const one = "one Redis"
	return []*setup{
		{name: one, redis: "near", directive: zone(bucket)},
		{name: "one node", reference: one, redis: "cluster", nodes: 1, directive: zone(bucket)},
		{name: "three nodes", reference: one, redis: "cluster", nodes: 3, directive: zone(bucket)},
		{name: "six nodes", reference: one, redis: "cluster", nodes: 6, directive: zone(bucket)},
		{name: "three nodes, declare_keys", reference: one, redis: "cluster", nodes: 3, declares: true, directive: zone(bucket)},
		{name: "three nodes, floor", reference: one, program: references, redis: "cluster", nodes: 3, directive: "floor\n"},
		{name: "three nodes, redis_rate", reference: one, program: references, redis: "cluster", nodes: 3, directive: "redis_rate\n"},
	}
}

func (s *setup) complete() {
	if s.program == "" {
		s.program = ours
	}
	if s.respond == "" {
		s.respond = "respond ok\n"
	}
	if s.keys == 0 {
		s.keys = manyKeys
	}
	if s.status == 0 {
		s.status = http.StatusOK
	}
	switch {
	case s.directive == "" || s.program == mholt:
	case s.status != http.StatusOK:
		s.fields = []string{"\r\nRatelimit: ", "\r\nRetry-After: "}
	default:
		s.fields = []string{"\r\nRatelimit: "}
	}
}

// caddyfile returns the configuration of the setup, at an address, with a Redis.
func (s *setup) caddyfile(addr string, redis []string, timeout string) string {
	options := "admin off\nlog {\nlevel ERROR\n}\n"
	if s.program == ours && redis != nil {
		options += "rate_limit {\non_store_error deny\nredis " + strings.Join(redis, " ") + " {\n"
		if timeout != "" {
			options += "timeout " + timeout + "\n"
		}
		if s.redis == "cluster" {
			options += "cluster\n"
		}
		if s.declares {
			options += "declare_keys\n"
		}
		options += "}\n}\n"
	}
	if s.program == ours && redis == nil {
		options += "rate_limit {\nmemory {\nmax_keys 10000000\n}\n}\n"
	}
	return "{\n" + options + "}\nhttp://" + addr + " {\n" + s.directive + s.respond + "}\n"
}
