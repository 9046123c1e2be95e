// Package reporttest has reports for tests of the formats of reports. It never computes a report: all numbers are made up.
package reporttest

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// Begins is when the log of [Shop] begins.
var Begins = time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)

const bucket = 10 * time.Minute

// Shop is a day of a shop: customers by day, somebody who tries passwords in the evening, and a search
// that nothing denies.
func Shop() *report.Report {
	from, to := Begins.Add(3*time.Second), Begins.Add(24*time.Hour-2*time.Second)
	api := zone("api", []string{
		"token_bucket 20 1s 40", "fixed_window 50000 24h",
		"plan gold: token_bucket 200 1s",
	}, "{http.request.header.X-Api-Key}")
	login := zone("login", []string{"gcra 30 1m 10"}, "{client_ip}")
	search := zone("search", []string{"sliding_window 600 1m", "concurrency 20"}, "{client_ip}")
	wave := func(hour, peak, width float64) float64 { return math.Exp(-(hour - peak) * (hour - peak) / width) }
	for i := range 144 {
		hour := float64(i) / 6
		customers := 180 + 2400*wave(hour, 11, 9) + 1900*wave(hour, 16.5, 7) + 120*math.Sin(float64(i)*2.1)
		burst := 900 * wave(hour, 11.4, 0.09)
		add(api, int64(customers+burst), int64(burst*0.8))
		attack := 640*wave(hour, 20.5, 0.35) + 300*wave(hour, 3.2, 0.02)
		add(login, int64(24+200*wave(hour, 10, 12)+40*wave(hour, 18, 5)+attack), int64(attack*0.93))
		add(search, int64(30+700*wave(hour, 12, 14)+60*math.Sin(float64(i)*1.3)+60), 0)
	}
	api.Keys, api.KeysDenied, login.Keys, login.KeysDenied, search.Keys = 1_284, 3, 2_310, 14, 4_052
	api.Demand = []report.Demand{
		demand(1, 40, 3, 11, 24, 61),
		demand(86400, 8190, 60, 700, 2600, 8190),
	}
	login.Demand = []report.Demand{demand(60, 214, 2, 6, 14, 212)}
	search.Demand = []report.Demand{demand(60, 188, 4, 22, 61, 188)}
	for i, n := range []int64{412, 164, 57} {
		api.TopKeys = append(api.TopKeys, key(fmt.Sprintf("customer-%d", 7+31*i), 8190-int64(i)*1900, n, 11.2, 11.8,
			61-int64(i)*9, 8190-int64(i)*1900))
	}
	for i, n := range []int64{3120, 1502, 610, 240, 92, 31, 12, 4} {
		login.TopKeys = append(login.TopKeys, key(fmt.Sprintf("203.0.113.%d", 9+i*17), n+n/9+40, n, 20.0-float64(i)/10, 21.3, 212/int64(i+1)))
	}
	login.TopKeys[2].Key = "2001:db8:4c::/64"
	finish(api, login, search)
	login.DeniedByBan = login.Denied / 3
	api.Proposals = []report.Proposal{
		proposal("token_bucket", "1s", "token_bucket 20 1s 40", api, 5, 100, 0.6, 0.14),
		proposal("fixed_window", "24h", "fixed_window 50000 24h", api, 500, 60000, 0.9, 0.0009),
	}
	api.Proposals = append(api.Proposals, report.Proposal{
		Set: "plan gold", Current: "token_bucket 200 1s",
		Reason: "the log has no request with this limit",
	})
	login.Proposals = []report.Proposal{proposal("gcra", "1m", "gcra 30 1m 10", login, 2, 260, 0.7, 0.05)}
	search.Proposals = []report.Proposal{proposal("sliding_window", "1m", "sliding_window 600 1m", search, 5, 600, 0.8, 0.045)}
	requests := api.Requests + login.Requests
	c := report.Configuration{
		Name: "Caddyfile", Tally: report.Tally{Requests: requests + 4_310, Denied: api.Denied + login.Denied}, Limited: requests,
		BucketSeconds: bucket.Seconds(), Begins: &Begins, Zones: []report.Zone{*api, *login, *search},
		Notes: []string{
			"The log has no header X-Plan, so all requests have the default limits of plan in zone api. Log it with log_append.",
			"The handler encode passes requests on without being simulated.",
		},
	}
	for i := range api.Timeline {
		c.Timeline = append(c.Timeline, report.Tally{
			Requests: api.Timeline[i].Requests + login.Timeline[i].Requests + 30, Denied: api.Timeline[i].Denied + login.Timeline[i].Denied,
		})
	}
	return &report.Report{
		Propose: "requests:0.1%",
		Log: report.Log{
			Files: []string{"access.log.2026-11-20.gz", "access.log"}, Lines: c.Requests + 118 + 3, Requests: c.Requests,
			OtherLines: 118, BrokenLines: 3,
			Broken: []report.BrokenLine{{
				File: "access.log", Line: 90_112,
				Error: "unexpected end of JSON input",
			}, {
				File: "access.log", Line: 90_113,
				Error: "invalid character 'x' looking for beginning of value",
			}},
			LateRequests: 2, DeniedBefore: 41, From: &from, To: &to,
		},
		Configurations: []report.Configuration{c},
	}
}

// Shadow is [Shop] with login in shadow mode, and with api in shadow mode for a part of its keys.
func Shadow() *report.Report {
	r := Shop()
	c := &r.Configurations[0]
	api, login := &c.Zones[0], &c.Zones[1]
	shadow := func(t *report.Tally, part int64) {
		t.ShadowDenied = t.Denied / part
		t.Denied -= t.ShadowDenied
	}
	login.Shadow, login.KeysDenied, login.KeysShadowDenied = true, 0, 14
	api.KeysDenied, api.KeysShadowDenied = 2, 1
	shadow(&api.TopKeys[1].Tally, 1)
	for i := range login.TopKeys {
		shadow(&login.TopKeys[i].Tally, 1)
	}
	for i := range c.Timeline {
		shadow(&api.Timeline[i], 4)
		shadow(&login.Timeline[i], 1)
		all := &c.Timeline[i]
		all.ShadowDenied = api.Timeline[i].ShadowDenied + login.Timeline[i].ShadowDenied
		all.Denied -= all.ShadowDenied
	}
	finish(api, login)
	c.ShadowDenied = api.ShadowDenied + login.ShadowDenied
	c.Denied -= c.ShadowDenied
	return r
}

// Compared is [Shop] with a second configuration, which has a smaller limit for search, and a new zone.
func Compared() *report.Report {
	r, second := Shop(), Shop().Configurations[0]
	second.Name = "Caddyfile.new"
	login, search := &second.Zones[1], &second.Zones[2]
	search.Limits = []string{"sliding_window 60 1m"}
	for i := range login.Timeline {
		login.Timeline[i].Denied /= 2
		search.Timeline[i].Denied = search.Timeline[i].Requests / 40
	}
	login.Limits, login.Proposals, login.KeysDenied = []string{"gcra 60 1m 20"}, nil, 9
	login.Denied, search.Denied, search.KeysDenied = 0, 0, 41
	finish(login, search)
	search.TopKeys = []report.Key{key("198.51.100.77", 4_120, 1_204, 9, 17, 188), key("198.51.100.12", 2_002, 310, 10, 14, 96)}
	for i := range second.Timeline {
		second.Timeline[i].Denied = second.Zones[0].Timeline[i].Denied + login.Timeline[i].Denied + search.Timeline[i].Denied
	}
	second.Denied = second.Zones[0].Denied + login.Denied + search.Denied
	exports := zone("exports", []string{"fixed_window 5 1h"}, "{http.auth.user.id}")
	exports.Shadow = true
	for range 144 {
		add(exports, 2, 0)
	}
	finish(exports)
	exports.Keys = 4
	second.Zones = append(second.Zones, *exports)
	r.Configurations = append(r.Configurations, second)
	r.Comparison = &report.Comparison{
		DeniedByBoth: 3_011, NewlyDenied: search.Denied, NoMoreDenied: 2_410,
		ClientCountNewlyDenied: 41, ClientCountNoMoreDenied: 1,
		ClientsNewlyDenied: []report.ClientChange{{
			Client: "198.51.100.77", Requests: 1_204,
			Zones: []string{"search"},
		}, {Client: "198.51.100.12", Requests: 310, Zones: []string{"search"}}},
		ClientsNoMoreDenied: []report.ClientChange{{Client: "203.0.113.9", Requests: 1_560, Zones: []string{"login"}}},
	}
	return r
}

// Empty is a report about a log without requests.
func Empty() *report.Report {
	return &report.Report{
		Log: report.Log{Files: []string{"-"}, Lines: 4, OtherLines: 4},
		Configurations: []report.Configuration{{
			Name:  "Caddyfile",
			Zones: []report.Zone{{Name: "login", Limits: []string{"gcra 30 1m 10"}}},
		}},
	}
}

// Odd has all that can go wrong with a page. Keys are long, are HTML, or change the direction of text. There are a
// single bucket, zones without keys, and proposals without limits.
func Odd() *report.Report {
	r := Shop()
	r.Log.Files = []string{"<b>access</b>.log", strings.Repeat("very-long-name", 20) + ".log"}
	c := &r.Configurations[0]
	c.Name = `Caddy"file</title><script>alert(1)</script>`
	odd := zone(`<img src=x onerror=alert(1)>`, []string{
		"token_bucket 5 1s",
		`plan "><script>: token_bucket 5 1s`,
	}, "{http.request.header.X-Key}", "{client_ip}")
	add(odd, 900_000_000_000, 899_999_999_999)
	finish(odd)
	odd.Keys, odd.KeysDenied = 7, 7
	odd.Delayed, odd.LongestDelay = 12, 4000
	odd.DeniedBySlots, odd.RequestsWithoutRoom = 3, 1_000_000
	odd.Demand = []report.Demand{demand(1, 5, 1, 1, 1, 1), {WindowSeconds: 86400 * 30, Quantiles: report.Quantiles{Max: 9e15}}}
	for _, k := range []string{
		"", `<script>alert("key")</script>`, strings.Repeat("W", 256), strings.Repeat("\u200b\u202e", 128),
		"\u202eabc\u2066\x00\x1b[31m\xff", "مرحبا بالعالم", "a\tb\nc",
	} {
		odd.TopKeys = append(odd.TopKeys, key(k, 9_007_199_254_740_993, 9_007_199_254_740_992, 1, 2, 5_000_000_000, 7))
	}
	odd.Proposals = []report.Proposal{
		{Reason: "no limit denies at most <0.1%>"},
		{Line: "token_bucket 5 1s", Current: "token_bucket 5 1s", Curve: []report.CurvePoint{{Events: 5, Line: "token_bucket 5 1s"}}},
		{Line: "token_bucket 7 1s", Curve: []report.CurvePoint{{
			Events: 7, Line: "token_bucket 7 1s",
			RequestShare: 1e-9, KeyShare: 1e-7,
		}, {Events: 1, Line: "token_bucket 1 1s", RequestShare: 1, KeyShare: 1}}},
	}
	plain := zone("no-limit", nil)
	plain.Requests, plain.Keys = 10, 0
	c.Zones = append(c.Zones, *odd, *plain, *zone("nothing", []string{"gcra 1 1m"}, "x"))
	c.Denied, c.ShadowDenied = 0, c.Denied
	for i := range c.Timeline {
		c.Timeline[i].Denied, c.Timeline[i].ShadowDenied = 0, c.Timeline[i].Denied
	}
	c.LeftOut = []report.LeftOut{
		{Zone: "<b>bodies", Requests: 4_000, Reason: "its key needs <bodies>"},
		{Zone: "tokens", Requests: 1, Partly: true, Reason: "its cost is \u202e"},
	}
	c.Notes = append(c.Notes, "A note with <i>HTML</i> and \u202ebidi.", strings.Repeat("long", 100))
	r.Log.Broken = append(r.Log.Broken, report.BrokenLine{
		File: "<x>", Line: 1 << 50,
		Error: `invalid character '<' in "\u202e` + "\u202e" + `"`,
	})
	return r
}

// Many is a report of a hundred zones, some of which deny requests.
func Many() *report.Report {
	r := Shop()
	c := &r.Configurations[0]
	c.Zones = nil
	for i := range 100 {
		z := zone(fmt.Sprintf("zone-%02d", i), []string{"token_bucket 5 1s"}, "{client_ip}")
		for j := range 144 {
			add(z, int64(j*i%97), int64(j*i%97)*int64(min(1, i%30))/20*int64(1-min(1, i%10)))
		}
		z.Keys = int64(i)
		finish(z)
		c.Zones = append(c.Zones, *z)
	}
	return r
}

// FromNothing is a report without a configuration: only proposals, for several windows.
func FromNothing() *report.Report {
	r := Shop()
	c := &r.Configurations[0]
	c.Name, c.ZoneOptions, c.Denied, c.Notes = "key {client_ip} ; ipv6_prefix 64", "key {client_ip} ; ipv6_prefix 64", 0, nil
	for i := range c.Timeline {
		c.Timeline[i].Denied = 0
	}
	z := c.Zones[2]
	z.Name, z.Limits = "new", nil
	z.Proposals = []report.Proposal{
		proposal("sliding_window", "1s", "", &z, 1, 30, 0.8, 0.5), proposal("sliding_window", "10s", "", &z, 1, 90, 0.8, 0.16),
		proposal("sliding_window", "1m", "", &z, 5, 600, 0.8, 0.045), proposal("sliding_window", "1h", "", &z, 50, 6_000, 0.8, 0.006),
		proposal("token_bucket", "1m 10", "", &z, 5, 600, 0.8, 0.051), proposal("token_bucket", "1m 300", "", &z, 1, 600, 0.0008, 0.02),
	}
	z.Proposals[5].Next = nil
	z.Demand = []report.Demand{
		demand(1, 31, 1, 4, 9, 31), demand(10, 92, 2, 11, 30, 92),
		z.Demand[0], demand(3600, 1188, 9, 122, 361, 1188),
		demand(86400, 4188, 12, 322, 961, 4188),
	}
	c.Zones = []report.Zone{z}
	return r
}

func zone(name string, limits []string, key ...string) *report.Zone {
	return &report.Zone{Name: name, Limits: limits, Key: key}
}

func add(z *report.Zone, requests, denied int64) {
	z.Timeline = append(z.Timeline, report.Tally{Requests: requests, Denied: denied})
}

// finish adds up the timelines.
func finish(zones ...*report.Zone) {
	for _, z := range zones {
		z.Tally, z.FirstDenied, z.LastDenied = report.Tally{}, nil, nil
		for i, b := range z.Timeline {
			z.Add(b)
			if b.AllDenied() > 0 {
				last := Begins.Add(time.Duration(i)*bucket + 4*time.Minute)
				if z.LastDenied = &last; z.FirstDenied == nil {
					z.FirstDenied = &last
				}
			}
		}
	}
}

func at(hour float64) time.Time { return Begins.Add(time.Duration(hour * float64(time.Hour))) }

func key(name string, requests, denied int64, first, last float64, peaks ...int64) report.Key {
	return report.Key{Key: name, Tally: report.Tally{Requests: requests, Denied: denied}, Peaks: peaks, First: at(first), Last: at(last)}
}

func demand(window, peak, p50, p95, p99, maximum float64) report.Demand {
	d := report.Demand{WindowSeconds: window, Quantiles: report.Quantiles{P50: p50, P95: p95, P99: p99, Max: max(peak, maximum)}}
	return d
}

// proposal has a curve that falls from a share with few events to 0. The proposed limit denies at most
// a thousandth of the requests.
func proposal(algorithm, window, current string, z *report.Zone, low, high int64, share, fall float64) report.Proposal {
	text := func(events int64) string { return fmt.Sprintf("%s %d %s", algorithm, events, window) }
	point := func(events int64) report.CurvePoint {
		requests := math.Floor(share * math.Exp(-fall*float64(events)) * float64(z.Requests))
		keys := math.Floor(share * 0.5 * math.Exp(-fall*float64(events)*0.8) * float64(z.Keys))
		return report.CurvePoint{
			Events: events, Line: text(events), DeniedRequests: int64(requests), DeniedKeys: int64(min(requests, keys)),
			RequestShare: requests / float64(z.Requests), KeyShare: min(requests, keys) / float64(z.Keys),
		}
	}
	least := low
	for point(least).RequestShare > 0.001 {
		least++
	}
	found, next := point(least), point(least-1)
	p := report.Proposal{
		Current: current, Line: found.Line, Next: &next, Requests: z.Requests, Keys: z.Keys,
		DeniedRequests: found.DeniedRequests, DeniedKeys: found.DeniedKeys,
	}
	seen := make(map[int64]bool)
	add := func(events int64) {
		if !seen[events] {
			seen[events] = true
			p.Curve = append(p.Curve, point(events))
		}
	}
	for v := float64(low); v < float64(high); v *= 1.22 {
		add(int64(v))
	}
	add(least - 1)
	add(least)
	add(high)
	if current != "" {
		configured := point(high)
		configured.Line = current
		p.Configured = &configured
	}
	newly := []report.DeniedKey{
		{Key: "203.0.113.7", Requests: 600, Denied: 321, UserAgent: "Go-http-client/2.0"},
		{Key: "", Requests: 40, Denied: 7},
	}
	p.Change = &report.Change{NewlyDenied: 12, NoMoreDenied: 1, Keys: newly}
	inGap := func(events int64) report.CurvePoint {
		c := point(events)
		c.DeniedRequests, c.DeniedKeys = 328, 2
		return c
	}
	p.Gap = &report.Gap{
		Least: inGap(least), Largest: inGap(4 * least), Middle: inGap(2 * least),
		Change: report.Change{NewlyDenied: 1, Keys: newly[:1]},
	}
	return p
}
