package ratelimit

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports, count := 0, int64(0)
		f := newRefusals(func(r refusal) {
			reports++
			count += r.count
		})
		const keys, each, seconds = 5000, 3, 4
		for range seconds {
			for i := range keys * each {
				f.note(refusalKey{zone: "z", key: fmt.Sprint(i % keys)}, refusal{})
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if most := (seconds + 1) * (mostRecentRefusals + 1); reports > most {
			t.Errorf("%d reports in %d seconds, want at most %d", reports, seconds, most)
		}
		if len(f.recent) > mostRecentRefusals+1 {
			t.Errorf("%d keys are remembered", len(f.recent))
		}
		f.note(refusalKey{zone: "z", key: "0"}, refusal{})
		f.close()
		if want := int64(keys*each*seconds + 1); count != want {
			t.Errorf("%d refusals are reported, want %d", count, want)
		}
		f.note(refusalKey{zone: "z", key: "late"}, refusal{}) // of a request that outlives its configuration
		if want := int64(keys*each*seconds + 2); count != want {
			t.Errorf("%d refusals are reported, want %d", count, want)
		}
	})
}

func TestRefusalsForgetQuietKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newRefusals(func(refusal) {})
		defer f.close()
		f.note(refusalKey{zone: "z", key: "a"}, refusal{})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(f.recent) != 0 || f.timer != nil {
			t.Errorf("%d keys are remembered, timer %v", len(f.recent), f.timer)
		}
	})
}

// What is kept of a request is bounded, and costs nothing anew while it is the same.
func TestRefusalsKeepLittle(t *testing.T) {
	var last refusal
	f := newRefusals(func(r refusal) { last = r })
	defer f.close()
	long := strings.Repeat("x", 100_000)
	k := refusalKey{zone: "z", key: "a"}
	note := func(path string) {
		f.note(k, refusal{method: clip("GET"), host: clip(long), path: clip(path)})
	}
	note(long)
	if known := f.recent[k]; len(known.host) != mostLogged || len(known.path) != mostLogged || len(last.path) != mostLogged {
		t.Errorf("%d bytes of a host and %d of a path are kept", len(known.host), len(known.path))
	}
	if n := testing.AllocsPerRun(100, func() { note(long) }); n > 0 {
		t.Errorf("%v allocations for a request like the last one", n)
	}
	note("/other")
	if path := f.recent[k].path; path != "/other" {
		t.Errorf("the path is %.20s, want that of the latest request", path)
	}
}

// A ban is logged once, where it begins, and denials say what denies.
func TestDenialsSayWhy(t *testing.T) {
	eachStore(t, func(t *testing.T, use string) {
		config := func(options, use string) string {
			return strings.Replace(site("zone api {\n key {header.Key}\n gcra 1 1h\n token_bucket 100 1h\n"+options+"\n}\nlog_key\n"+use), "rate_limit @limited", "uri @limited strip_prefix /shown\nrate_limit @limited", 1)
		}
		c := startCaddy(t, config("ban 1h after 2", use))
		for range 6 {
			c.get(t, "/shown/path?secret", "Key", "a")
		}
		const who = `"remote_ip":"127.0.0.1","client_ip":"127.0.0.1","count":\d+`
		const what = `"method":"GET","host":"127.0.0.1:\d+","path":"/shown/path"`
		wantLine := func(pattern string) {
			t.Helper()
			waitFor(t, pattern, func() bool { return regexp.MustCompile(pattern).MatchString(c.logged()) })
		}
		wantLine(`"msg":"rate limit exceeded","zone":"api","wait":[0-9.]+,` + who + `,"reason":"limit","limit":"gcra 1 1h",` + what + `,"key":"a"}`)
		wantLine(`"msg":"key banned","zone":"api","until":"20[0-9TZ:-]+","duration":3600,` + who + `,"reason":"limit","limit":"gcra 1 1h",` + what + `,"key":"a"}`)
		wantLine(`"msg":"rate limit exceeded","zone":"api","wait":3[0-9.]+,` + who + `,"reason":"ban","limit":"ban",` + what + `,"key":"a"}`)
		if n := strings.Count(c.logged(), `"key banned"`); n != 1 {
			t.Errorf("a ban is logged %d times, want once", n)
		}
		c.reload(t, config("shadow\n ban 1h", use))
		for range 3 {
			c.get(t, "/shown/path", "Key", "b").want(t, 200)
		}
		wantLine(`"msg":"key would be banned","zone":"api"`)
	})
}
