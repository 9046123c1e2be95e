package ratelimit

import (
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
	"weak"

	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

func TestDenialsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, reports, count := new(Handler), 0, int64(0)
		l := newDenialLog(func(d denial) {
			reports++
			count += d.count
		}, new(denialRecords))
		const keys, each, seconds = 5000, 3, 4
		for range seconds {
			for i := range keys * each {
				l.record(denial{zone: "z", key: fmt.Sprint(i % keys), handler: h}, nil)
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if most := (seconds + 1) * (maxDenialLogKeys + 1); reports > most {
			t.Errorf("%d reports in %d seconds, want at most %d", reports, seconds, most)
		}
		if len(l.recent) > maxDenialLogKeys+1 {
			t.Errorf("%d keys are remembered", len(l.recent))
		}
		l.record(denial{zone: "z", key: "0", handler: h}, nil)
		l.close()
		if want := int64(keys*each*seconds + 1); count != want {
			t.Errorf("%d denials are reported, want %d", count, want)
		}
		l.record(denial{zone: "z", key: "late", handler: h}, nil) // of a request that outlives its configuration
		if want := int64(keys*each*seconds + 2); count != want {
			t.Errorf("%d denials are reported, want %d", count, want)
		}
	})
}

func TestDenialsForgetQuietKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newDenialLog(func(denial) {}, new(denialRecords))
		defer l.close()
		l.record(denial{zone: "z", key: "a", handler: new(Handler)}, nil)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(l.recent) != 0 || l.timer != nil {
			t.Errorf("%d keys are remembered, timer %v", len(l.recent), l.timer)
		}
	})
}

// Only the beginning of a long key is logged. Two keys that are logged alike are counted
// separately.
func TestDenialsCutKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := make(map[string]int64)
		l := newDenialLog(func(d denial) { counts[d.key] += d.count }, new(denialRecords))
		yes := true
		logging := &Handler{Options: Options{LogKey: &yes}}
		hashing := &Handler{Options: Options{LogKey: &yes}, hashSecret: "pepper"}
		long := strings.Repeat("x", 12_000)
		whole, cut := long[:maxShownKey], long[:maxShownKey]+"…"
		for range 3 {
			for _, key := range []string{"", "k", whole, long + "a", long + "b", cut} {
				l.record(denial{zone: "z", key: key, handler: logging}, nil)
			}
			l.record(denial{zone: "hashed", key: long, handler: hashing}, nil)
			l.record(denial{zone: "z", key: "hidden", handler: new(Handler)}, nil)
		}
		if n := len(l.recent); n != 8 {
			t.Errorf("%d keys are counted, want 8", n)
		}
		l.record(denial{zone: "z", key: "k", handler: hashing}, nil) // of the same zone elsewhere, where keys are secret
		l.close()
		want := map[string]int64{"": 6, "k": 3, whole: 3, cut: 9, redisstore.HashedKey("pepper", long): 3, redisstore.HashedKey("pepper", "k"): 3}
		for key, n := range want {
			if key == "k" { // the last denial of a second tells for all
				n = 1
			}
			if counts[key] != n {
				t.Errorf("%.300q: %d denials, want %d", key, counts[key], n)
			}
		}
		if len(counts) != len(want) {
			t.Errorf("%d keys are reported, want %d", len(counts), len(want))
		}
	})
}

// Nothing of a key is kept but what operators are shown, however long it is and whatever it
// is part of.
func TestNothingOfAKeyIsKept(t *testing.T) {
	yes := true
	z := &zone{deniedKeys: newDeniedKeys()}
	denials := newDenialLog(func(denial) {}, new(denialRecords))
	defer denials.close()
	header := func() weak.Pointer[[12_000]byte] {
		header := new([12_000]byte)
		for _, key := range []string{unsafe.String(&header[5], 7_000), unsafe.String(&header[5], 20)} {
			for _, h := range []*Handler{new(Handler), {Options: Options{LogKey: &yes}}, {Options: Options{LogKey: &yes}, hashSecret: "pepper"}} {
				denials.record(denial{zone: "z" + h.hashSecret, key: key, handler: h, host: key[:5]}, requestTo(key))
				z.deniedKeys.add(time.Now(), h.hashSecret, key)
			}
			z.knownOverrides.remember(key, knownOverride{Override: &store.Override{Text: "{}"}})
		}
		return weak.Make(header)
	}()
	runtime.GC()
	if header.Value() != nil {
		t.Error("a key is kept")
	}
	runtime.KeepAlive(denials)
	runtime.KeepAlive(z)
}

// The copies of parts of a request are bounded. No copy is made again while the part is the same.
func TestDenialsKeepLittle(t *testing.T) {
	var last denial
	l := newDenialLog(func(d denial) { last = d }, new(denialRecords))
	defer l.close()
	h, long := new(Handler), strings.Repeat("x", 100_000)
	k := denialLogKey{zone: "z", key: keyHashes.Sum("a")}
	note := func(path string) {
		l.record(denial{zone: "z", key: "a", handler: h, method: clipText("GET"), host: clipText(long), path: clipText(path)}, nil)
	}
	note(long)
	if known := l.recent[k]; len(known.host) != maxLoggedTextBytes || len(known.path) != maxLoggedTextBytes || len(last.path) != maxLoggedTextBytes {
		t.Errorf("%d bytes of a host and %d of a path are kept", len(known.host), len(known.path))
	}
	if n := testing.AllocsPerRun(100, func() { note(long) }); n > 0 {
		t.Errorf("%v allocations for a request like the last one", n)
	}
	note("/other")
	if path := l.recent[k].path; path != "/other" {
		t.Errorf("the path is %.20s, want that of the latest request", path)
	}
}

// A ban is logged once, where it begins, and denials say what denies.
func TestDenialsSayWhy(t *testing.T) {
	t.Parallel()
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
			eventually(t, pattern, func() bool { return regexp.MustCompile(pattern).MatchString(c.logged()) })
		}
		wantLine(`"msg":"rate limit exceeded","zone":"api","wait":[0-9.]+,` + who + `,"reason":"limit","limit":"gcra 1 1h",` + what + `,"id":"\w{10}","key":"a"}`)
		wantLine(`"msg":"key banned","zone":"api","until":"20[0-9TZ:-]+","duration":3600,` + who + `,"reason":"limit","limit":"gcra 1 1h",` + what + `,"key":"a"}`)
		wantLine(`"msg":"rate limit exceeded","zone":"api","wait":3[0-9.]+,` + who + `,"reason":"ban","limit":"ban",` + what + `,"id":"\w{10}","key":"a"}`)
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

func TestDenialsAreReported(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, `{
	admin {$ADMIN}
	events {
		on rate_limit_exceeded test_record
	}
}
{$SITE}
rate_limit {
	zone api {
		match path /x
		key {header.Key}
		gcra 1 1h
	}
	log_key
}
respond ok
`)
	for range 21 {
		c.get(t, "/x?token=query", "Key", "secret")
	}
	counted := func() (sum int) {
		for _, m := range regexp.MustCompile(`"msg":"rate limit exceeded".*"count":(\d+)`).FindAllStringSubmatch(c.logged(), -1) {
			n, _ := strconv.Atoi(m[1])
			sum += n
		}
		return sum
	}
	eventually(t, "20 denials are reported", func() bool { return counted() >= 20 })
	if n := counted(); n != 20 {
		t.Errorf("%d denials are reported, want 20", n)
	}
	log := c.logged()
	for _, want := range []string{
		`"logger":"http.handlers.rate_limit","msg":"rate limit exceeded","zone":"api","wait":`,
		`"remote_ip":"127.0.0.1","client_ip":"127.0.0.1","count":1,"reason":"limit","limit":"gcra 1 1h","method":"GET","host":"` + c.site + `","path":"/x","id":"`,
		`","key":"secret"}`,
		`"msg":"recorded event","name":"rate_limit_exceeded","data":{"client_ip":"127.0.0.1","count":1,"host":"` + c.site + `","id":"`,
		`","limit":"gcra 1 1h","method":"GET","path":"/x","reason":"limit","remote_ip":"127.0.0.1","wait":`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s", want)
		}
	}
	if strings.Contains(log, "token=query") {
		t.Error("a query is logged")
	}
	if n := strings.Count(log, "rate limit exceeded"); n > 5 {
		t.Errorf("20 denials in about a second are %d lines, want 2", n)
	}
	c.reload(t, site("zone api {\n key {header.Key}\n gcra 1 1h\n}"))
	c.get(t, "/", "Key", "hidden")
	c.get(t, "/", "Key", "hidden")
	c.waitForLog(t, `"path":"/","id":`)
	if strings.Contains(c.logged(), "hidden") {
		t.Error("a key is logged without log_key")
	}
}
