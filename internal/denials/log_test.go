package denials

import (
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
)

func TestDenialsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, reports, count := new(Source), 0, int64(0)
		l := newLog(func(d Denial) {
			reports++
			count += d.count
		})
		const keys, each, seconds = 5000, 3, 4
		for range seconds {
			for i := range keys * each {
				l.Record(Denial{Zone: "z", Key: fmt.Sprint(i % keys), Source: h})
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if most := (seconds + 1) * (maxLogKeys + 1); reports > most {
			t.Errorf("%d reports in %d seconds, want at most %d", reports, seconds, most)
		}
		if len(l.recent) > maxLogKeys+1 {
			t.Errorf("%d keys are remembered", len(l.recent))
		}
		l.Record(Denial{Zone: "z", Key: "0", Source: h})
		l.Close()
		if want := int64(keys*each*seconds + 1); count != want {
			t.Errorf("%d denials are reported, want %d", count, want)
		}
		l.Record(Denial{Zone: "z", Key: "late", Source: h}) // of a request that outlives its configuration
		if want := int64(keys*each*seconds + 2); count != want {
			t.Errorf("%d denials are reported, want %d", count, want)
		}
	})
}

// Each share is reported by itself, with its key and limit, while denials flood the log. Shares are bounded, too.
func TestSharesHaveTheirOwnBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, limits := &Source{LogsKeys: true}, []*algorithms.Limit{new(algorithms.Limit), new(algorithms.Limit), new(algorithms.Limit)}
		reported := make(map[string]bool)
		others := 0
		l := newLog(func(d Denial) {
			switch {
			case d.Percent == 0:
			case d.overflow:
				others++
			default:
				reported[fmt.Sprintf("%s %d %d%% x%d", d.Key, slices.Index(limits, d.Limit), d.Percent, d.count)] = true
			}
		})
		defer l.Close()
		deny := func(n int) {
			for key := range n {
				l.Record(Denial{Zone: "attacked", Key: fmt.Sprint("attacker ", key), Source: source})
			}
		}
		const keys = maxLogKeys / 6
		deny(2 * maxLogKeys)
		for key := range keys {
			for _, limit := range limits {
				for _, percent := range []int64{80, 100} {
					l.Record(Denial{Zone: "z", Key: fmt.Sprint("k", key), Source: source, Cause: Cause{Limit: limit}, Percent: percent})
				}
			}
			deny(key % 3)
		}
		for key := range keys {
			for limit := range limits {
				for _, percent := range []int64{80, 100} {
					if name := fmt.Sprintf("k%d %d %d%% x1", key, limit, percent); !reported[name] {
						t.Errorf("%s is not reported", name)
					}
				}
			}
		}
		for key := range 5 * maxLogKeys {
			l.Record(Denial{Zone: "z", Key: fmt.Sprint("more", key), Source: source, Cause: Cause{Limit: limits[0]}, Percent: 80})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		l.mu.Lock() // a report may follow
		if len(reported) > maxLogKeys || others != 2 || len(l.recent) > 2*maxLogKeys+2 {
			t.Errorf("%d reports, %d of other keys, and %d are remembered", len(reported), others, len(l.recent))
		}
		l.mu.Unlock()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		l.Record(Denial{Zone: "z", Key: "later", Source: source, Cause: Cause{Limit: limits[0]}, Percent: 80})
		if !reported["later 0 80% x1"] {
			t.Error("after the flood, a share is not reported with its key")
		}
	})
}

// A ban ends when the store says, also if its report had to wait. No instant is shown later than it is.
func TestDenialsEndOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends []string
		l := newLog(func(d Denial) { ends = append(ends, d.until()) })
		defer l.Close()
		time.Sleep(900 * time.Millisecond)
		want := time.Now().Add(time.Hour).UTC().Truncate(time.Second).Format(time.RFC3339)
		for range 2 { // the second report waits for a second
			l.Record(Denial{Zone: "z", Key: "a", Source: new(Source), Ban: true, Wait: 3600e6})
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(ends) != 2 || ends[0] != want || ends[1] != want {
			t.Errorf("until %v, want twice %s", ends, want)
		}
	})
}

// Only the beginning of a long key is logged. Two keys that are logged alike are counted
// separately.
func TestDenialsCutKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := make(map[string]int64)
		l := newLog(func(d Denial) { counts[d.Key] += d.count })
		logging := &Source{LogsKeys: true}
		hashing := &Source{LogsKeys: true, HashSecret: "pepper"}
		long := strings.Repeat("x", 12_000)
		whole, cut := long[:keys.MaxShown], long[:keys.MaxShown]+"…"
		for range 3 {
			for _, key := range []string{"", "k", whole, long + "a", long + "b", cut} {
				l.Record(Denial{Zone: "z", Key: key, Source: logging})
			}
			l.Record(Denial{Zone: "hashed", Key: long, Source: hashing})
			l.Record(Denial{Zone: "z", Key: "hidden", Source: new(Source)})
		}
		if n := len(l.recent); n != 8 {
			t.Errorf("%d keys are counted, want 8", n)
		}
		l.Record(Denial{Zone: "z", Key: "k", Source: hashing}) // of the same zone elsewhere, where keys are secret
		l.Close()
		want := map[string]int64{"": 6, "k": 3, whole: 3, cut: 9, wire.HashedKey("pepper", long): 3, wire.HashedKey("pepper", "k"): 3}
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
	top := NewTopKeys()
	denials := newLog(func(Denial) {})
	defer denials.Close()
	kept := storetest.IsKept(func(key string) {
		for _, s := range []*Source{new(Source), {LogsKeys: true}, {LogsKeys: true, HashSecret: "pepper"}} {
			denials.Record(Denial{Zone: "z" + s.HashSecret, Key: key, Source: s, Host: key[:5]})
			top.Add(time.Now(), s.HashSecret, key, false, Cause{})
		}
	})
	if kept {
		t.Error("a key is kept")
	}
	runtime.KeepAlive(denials)
	runtime.KeepAlive(top)
}

// The copies of parts of a request are bounded. No copy is made again while the part is the same.
func TestDenialsKeepLittle(t *testing.T) {
	var last Denial
	l := newLog(func(d Denial) { last = d })
	defer l.Close()
	h, long := new(Source), strings.Repeat("x", 100_000)
	k := logKey{zone: "z", key: keyHashes.Sum("a")}
	note := func(path string) {
		l.Record(Denial{Zone: "z", Key: "a", Source: h, Method: "GET", Host: long, Path: path})
	}
	note(long)
	if known := l.recent[k]; len(known.Host) != maxLoggedTextBytes || len(known.Path) != maxLoggedTextBytes || len(last.Path) != maxLoggedTextBytes {
		t.Errorf("%d bytes of a host and %d of a path are kept", len(known.Host), len(known.Path))
	}
	if n := testing.AllocsPerRun(100, func() { note(long) }); n > 0 {
		t.Errorf("%v allocations for a request like the last one", n)
	}
	note("/other")
	if path := l.recent[k].Path; path != "/other" {
		t.Errorf("the path is %.20s, want that of the latest request", path)
	}
}

// Denials of one zone and key share an ID while they come every second, for a minute. The log has each ID.
func TestDenialIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, reported := new(Source), make(map[string]int64)
		l := newLog(func(d Denial) { reported[d.id] += d.count })
		defer l.Close()
		deny := func(d Denial) string {
			d.Source = h
			return l.Record(d)
		}
		denied := make(map[string]int64)
		for range 130 {
			for range 3 {
				denied[deny(Denial{Zone: "z", Key: "a"})]++
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if len(denied) != 3 {
			t.Errorf("denials in 130 s have the IDs %v, want 3", denied)
		}
		for id := range denied {
			if !regexp.MustCompile(`^[0-9a-hjkmnp-tv-z]{10}$`).MatchString(id) || reported[id] == 0 {
				t.Errorf("the ID %q is reported with the count %d", id, reported[id])
			}
		}
		for _, d := range []Denial{{Zone: "z", Key: "b"}, {Zone: "y", Key: "a"}, {Zone: "z", Key: "a", Shadow: true}} {
			denied[deny(d)] = 1
		}
		if len(denied) != 6 {
			t.Errorf("another key, zone or shadow shares an ID: %v", denied)
		}
		if id := deny(Denial{Zone: "z", Key: "a", Ban: true}); id != "" {
			t.Errorf("a ban has the ID %q", id)
		}
	})
}
