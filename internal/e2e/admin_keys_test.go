package e2e

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// To look charges nothing and tells all; to reset makes all as it was.
func TestAdminKey(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, caddytest.Site(`zone brief {
			match path /brief
			gcra 1 1ms
		}
		zone api {
			match not path /brief
			key {query.user} {query.key}
			token_bucket 1 1h 3
			fixed_window 100 1h
			plan {query.plan} {
				pro {
					token_bucket 1 1h 5
					fixed_window 100 1h
				}
				free unlimited
			}
			override vip {
				gcra 7 7h
			}
			override staff unlimited
			concurrency 4
			ban 2h after 2 max 9h
		}
		sweep_interval 1ms
		`+use))
		fresh := seenKey(t, c, "k")
		wantRemaining(t, fresh,
			"1 token_bucket 1 1h 3: 3", "1 fixed_window 100 1h: 100", "1 pro token_bucket 1 1h 5: 5", "1 pro fixed_window 100 1h: 100",
			"2 token_bucket 1 1h 3: 3", "2 fixed_window 100 1h: 100", "2 pro token_bucket 1 1h 5: 5", "2 pro fixed_window 100 1h: 100")
		if fresh.Override != nil || len(fresh.Budgets) != 2 {
			t.Fatalf("%+v", fresh)
		}
		for _, b := range fresh.Budgets {
			if *b.Ban != (adminapi.Ban{}) || *b.Concurrency != (adminapi.Concurrency{Limit: 4}) {
				t.Errorf("%+v %+v", b.Ban, b.Concurrency)
			}
			for _, l := range b.Limits {
				if *l.RetryAfter != 0 || l.ResetAfter != 0 {
					t.Errorf("%+v", l)
				}
			}
		}

		c.Get(t, "/?key=k&plan=pro").Want(t, 200) // of one budget
		for range 2 {
			c.Get(t, "/?key=k").Want(t, 200)
		}
		var v adminapi.Key
		for range 3 { // it charges nothing
			v = seenKey(t, c, "k")
			wantRemaining(t, v, append(limitsLeft(fresh)[:4],
				"2 token_bucket 1 1h 3: 0", "2 fixed_window 100 1h: 97", "2 pro token_bucket 1 1h 5: 2", "2 pro fixed_window 100 1h: 97")...)
		}
		b := v.Budgets[1]
		wantSpan(t, "retry after", *b.Limits[0].RetryAfter, 3600)
		wantSpan(t, "reset after", b.Limits[0].ResetAfter, 3*3600)
		wantSpan(t, "reset after", b.Limits[1].ResetAfter, 3600)
		wantSpan(t, "reset after", b.Limits[2].ResetAfter, 3*3600)
		if *b.Limits[1].RetryAfter != 0 {
			t.Errorf("%+v", b.Limits[1])
		}

		// Denials that are looked at in between still bring a ban.
		c.Get(t, "/?key=k").Want(t, 429)
		if seenKey(t, c, "k").Budgets[1].Ban.Banned {
			t.Error("banned too soon")
		}
		waitForSweep(t, c)
		c.Get(t, "/?key=k").WantWait(t, 2*3600)
		for range 2 { // even if the ban is remembered
			c.Get(t, "/?key=k").WantWait(t, 2*3600)
			v = seenKey(t, c, "k")
			if ban := v.Budgets[1].Ban; !ban.Banned || v.Budgets[0].Ban.Banned {
				t.Errorf("%+v %+v", ban, v.Budgets[0].Ban)
			}
			wantSpan(t, "ban", v.Budgets[1].Ban.Ends, 2*3600)
			wantSpan(t, "retry after of a limit", *v.Budgets[1].Limits[0].RetryAfter, 3600)
		}

		c.Operate(t, 204, "DELETE", keyPath("k"), "")
		v = seenKey(t, c, "k")
		if d := v.Denials; len(d) != 1 || d[0].Denied != 4 || d[0].Limit != "ban" {
			t.Errorf("denials %+v", d)
		}
		if v.Denials = nil; !reflect.DeepEqual(v, fresh) {
			t.Errorf("after a reset %+v, want %+v", v, fresh)
		}
		// Overrides of the configuration.
		c.Get(t, "/?user=vip").Want(t, 200)
		v = seenKey(t, c, "vip")
		wantRemaining(t, v, "1 gcra 7 7h: 6", "2 gcra 7 7h: 7")
		if !reflect.DeepEqual(v.Override, &adminapi.Override{From: "config", Limits: []string{"gcra 7 7h"}}) {
			t.Errorf("%+v", v.Override)
		}
		c.Operate(t, 204, "DELETE", keyPath("vip"), "")
		wantRemaining(t, seenKey(t, c, "vip"), "1 gcra 7 7h: 7", "2 gcra 7 7h: 7")
		v = seenKey(t, c, "staff")
		wantRemaining(t, v)
		if !reflect.DeepEqual(v.Override, &adminapi.Override{From: "config", Limits: []string{"unlimited"}}) {
			t.Errorf("%+v", v.Override)
		}
		wantRemaining(t, seenKey(t, c, "other"), limitsLeft(fresh)...)
	})
}

// waitForSweep waits until all is dropped from memory that is not to be kept. There is a zone brief, whose budget is not.
func waitForSweep(t *testing.T, c *caddytest.Caddy) {
	t.Helper()
	keys := func() int64 {
		if n := seen[[]adminapi.Zone](t, c, "zones")[0].Keys; n != nil {
			return *n
		}
		return -1 // with Redis
	}
	before := keys()
	c.Get(t, "/brief").Want(t, 200)
	caddytest.EventuallySees(t, fmt.Sprint(before, " keys are in memory"), keys, func(n int64) bool { return n == before })
}

// Handlers with separate connections to one Redis remember denials separately. A change is in force
// at once for both, and there is one ban.
func TestAdminSeveralHandlers(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	handler := func(timeout string) string {
		return fmt.Sprintf("rate_limit {\n zone api {\n key {query.key}\n fixed_window 2 1h\n ban 1h after 1000000 max 100h\n }\n redis %s {\n timeout %s\n }\n}\n", server.Addr, timeout)
	}
	c := caddytest.Start(t, "{\n admin {$ADMIN}\n}\n{$SITE}\nroute {\n handle /a {\n"+handler("30s")+"}\n handle /b {\n"+handler("31s")+"}\n respond ok\n}\n")
	if zones := seen[[]adminapi.Zone](t, c, "zones"); len(zones) != 1 {
		t.Errorf("%d zones, want 1", len(zones))
	}
	c.Operate(t, 204, "PUT", banPath("k"), "")
	for _, path := range []string{"/a?key=k", "/b?key=k", "/a?key=k", "/b?key=k"} { // both remember it
		c.Get(t, path).WantWait(t, 3600)
	}
	c.Operate(t, 204, "DELETE", banPath("k"), "")
	c.Get(t, "/a?key=k").Want(t, 200)
	c.Get(t, "/b?key=k").Want(t, 200)
	for range 2 {
		c.Get(t, "/a?key=k").Want(t, 429)
		c.Get(t, "/b?key=k").Want(t, 429)
	}
	c.Operate(t, 204, "PUT", banPath("k"), `{"duration":"1ms"}`)
	state, err := server.Client.Get(t.Context(), "caddy_rl:{k}:api:5b").Result()
	if ban, ok := algorithms.ParseState(state); err != nil || !ok || ban.C != 64+1 { // counts bans, and marks those by operators
		t.Errorf("%q %v", state, err)
	}
}

// An override at run time has precedence over that of the configuration, and ends after its ttl. A reset leaves it.
func TestAdminOverride(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.key}\n gcra 2 1h\n runtime_overrides\n override k unlimited\n ban 1h\n}"))
	began := time.Now()
	c.Operate(t, 204, "PUT", overridePath("k"), `{"ttl":"1h","limits":[{"algorithm":"fixed_window","events":2,"window":"1h"}]}`)
	c.Get(t, "/?key=k").Want(t, 200, "RateLimit", `"api";r=1;t=3600`)
	c.Operate(t, 204, "DELETE", keyPath("k"), "")
	v := seenKey(t, c, "k")
	wantRemaining(t, v, "fixed_window 2 1h: 2")
	earliest, latest := began.Add(time.Hour-time.Second), time.Now().Add(time.Hour)
	if u := v.Override.Until; v.Override.From != "runtime" || u.Before(earliest) || u.After(latest) {
		t.Errorf("%+v", v.Override)
	}
	c.Operate(t, 204, "PUT", overridePath("k"), `{"ttl":"1ms","limits":[{"algorithm":"gcra","events":1,"window":"1h"}]}`)
	caddytest.Eventually(t, "the override ends", func() bool { return seenKey(t, c, "k").Override.From == "config" })
	c.Get(t, "/?key=k").Want(t, 200, "RateLimit", "")
	c.Operate(t, 204, "PUT", banPath("k"), "") // applies to a key without limits, too
	c.Get(t, "/?key=k").Want(t, 429)
}
