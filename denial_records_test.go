package ratelimit

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// requestTo returns the entries of a request with this key in one zone.
func requestTo(key string) []zoneEntry {
	return []zoneEntry{{zone: &zone{name: "z"}, Request: &store.Request{Key: key, Cost: 1}}}
}

// Denials of one zone and key share an ID while they come every second, for a minute. Each ID is
// known for ten minutes at least, and has the first of its denials.
func TestDenialIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, h, reported := new(denialRecords), new(Handler), make(map[string]int64)
		l := newDenialLog(func(d denial) { reported[d.id] += d.count }, records)
		defer l.close()
		deny := func(d denial) string {
			d.handler = h
			return l.record(d, requestTo(d.key))
		}
		var ids []string
		for second := range 130 {
			for n := range 3 {
				id := deny(denial{zone: "z", key: "a", path: fmt.Sprint("/", second, "/", n), wait: algorithms.Forever})
				if len(ids) == 0 || ids[len(ids)-1] != id {
					ids = append(ids, id)
				}
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if len(ids) != 3 {
			t.Fatalf("denials in 130 s have the IDs %q, want 3", ids)
		}
		for i, id := range ids {
			record, err := records.lookUp(id)
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprint("/", []int{0, 60, 120}[i], "/0"); record.Path != want || record.ID != id || record.RetryAfter != nil {
				t.Errorf("ID %d is about %+v, want %s", i+1, record.Denial, want)
			}
		}
		others := map[string]bool{ids[2]: true}
		for _, d := range []denial{{zone: "z", key: "b"}, {zone: "y", key: "a"}, {zone: "z", key: "a", shadow: true}} {
			others[deny(d)] = true
		}
		if len(others) != 4 {
			t.Errorf("another key, zone or shadow shares an ID: %v", others)
		}
		if id := deny(denial{zone: "z", key: "a", ban: true}); id != "" {
			t.Errorf("a ban has the ID %q", id)
		}
		time.Sleep(10*time.Minute - time.Second)
		if _, err := records.lookUp(ids[2]); err != nil {
			t.Error(err)
		}
		if _, err := records.lookUp(ids[1]); err == nil {
			t.Error("an ID is known after 11 minutes")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if records.oldest != nil || records.newest != nil || records.byID != nil || records.bytes != 0 || records.timer != nil {
			t.Errorf("records are kept: %+v", records)
		}
		for id, count := range reported {
			if id != "" && count < 1 {
				t.Errorf("%s is reported with the count %d", id, count)
			}
		}
	})
}

// An operator can type an ID in capitals, and take letters for digits.
func TestDenialIDsAreReadable(t *testing.T) {
	records, seen := new(denialRecords), make(map[string]bool)
	for range 1000 {
		id := newDenialID()
		if seen[id] || !regexp.MustCompile(`^[0-9a-hjkmnp-tv-z]{10}$`).MatchString(id) {
			t.Fatalf("the ID %q", id)
		}
		seen[id] = true
		d := denial{id: id, handler: new(Handler)}
		records.add(newDenialRecord(&d, nil))
		typed := " " + strings.NewReplacer("0", "O", "1", "l").Replace(strings.ToUpper(id)) + "\n"
		if record, err := records.lookUp(typed); err != nil || record.ID != id {
			t.Fatalf("%q: %v", typed, err)
		}
	}
	_, err := records.lookUp("<b>\"" + strings.Repeat("x", 1000))
	var failed caddy.APIError
	if !errors.As(err, &failed) || failed.HTTPStatus != http.StatusNotFound || len(err.Error()) > 300 {
		t.Errorf("an unknown ID: %v", err)
	}
}

// The memory of many denials, and of long ones, is bounded.
func TestDenialRecordsAreBounded(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for name, key := range map[string]string{"many": "", "long": long} {
		t.Run(name, func(t *testing.T) {
			records, last := new(denialRecords), ""
			for range 2 * maxDenialRecords {
				d := denial{id: newDenialID(), handler: new(Handler), host: clipText(key), clientIP: key}
				last = d.id
				records.add(newDenialRecord(&d, append(requestTo(key), requestTo(key+"2")...)))
			}
			n, bytes := 0, 0
			for record := records.oldest; record != nil; record = record.next {
				n++
				bytes += record.textBytes()
			}
			if n != len(records.byID) || n > maxDenialRecords || bytes != records.bytes || bytes > maxDenialRecordBytes {
				t.Errorf("%d records, %d by ID, with %d bytes, counted %d", n, len(records.byID), bytes, records.bytes)
			}
			if key == "" && n != maxDenialRecords || key != "" && bytes < maxDenialRecordBytes-10_000 {
				t.Errorf("only %d records with %d bytes are known", n, bytes)
			}
			record, err := records.lookUp(last)
			if err != nil {
				t.Fatal(err)
			}
			want := shownKey{text: key[:min(len(key), maxRecordedKey)], cut: key != ""}
			if got := record.zones[0]; got.key != want || len(record.ClientIP) > maxLoggedTextBytes {
				t.Errorf("the last record has a key of %d bytes, cut: %v", len(got.key.text), got.key.cut)
			}
		})
	}
}

// With hash_keys a record has no text that keys are made of.
func TestDenialRecordsHashKeys(t *testing.T) {
	d := denial{id: "x", handler: &Handler{hashSecret: "pepper"}, method: "GET", host: "sesame", path: "/sesame", clientIP: "sesame"}
	record := newDenialRecord(&d, requestTo("sesame"))
	if got := fmt.Sprintf("%+v %+v", record.Denial, record.zones[0].key); strings.Contains(got, "sesame") || !strings.Contains(got, redisstore.HashedKey("pepper", "sesame")) {
		t.Error(got)
	}
}

// The problem document, error pages, the log and the event of a denial have the same ID.
func TestDenialsShowTheirID(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		config := func(use string) string {
			return strings.Replace(site("zone api {\n key {header.Key}\n gcra 1 1h\n}\nzone tried {\n key {header.Key}\n gcra 1 1d\n shadow\n}\nproblem_json\n"+use),
				"admin {$ADMIN}", "admin {$ADMIN}\n\tevents {\n\ton rate_limit_exceeded test_record\n}", 1)
		}
		c := startCaddy(t, config(use))
		shown := func(body string, pattern string) string {
			t.Helper()
			m := regexp.MustCompile(pattern).FindStringSubmatch(body)
			if m == nil {
				t.Fatalf("no ID in %s", body)
			}
			return m[1]
		}
		c.get(t, "/", "Key", "a").want(t, 200)
		inBody := shown(c.get(t, "/", "Key", "a").body, `"denial":"(\w{10})"`)
		c.waitForLog(t, `"msg":"recorded event"`)
		var logged, emitted string
		for line := range strings.Lines(c.logged()) {
			switch {
			case strings.Contains(line, `"rate limit exceeded"`):
				logged = shown(line, `"id":"(\w{10})"`)
			case strings.Contains(line, `"recorded event"`):
				emitted = shown(line, `"id":"(\w{10})"`)
			case strings.Contains(line, `"rate limit would be exceeded"`):
				if shown(line, `"id":"(\w{10})"`) == inBody {
					t.Error("a shadow shares the ID of the zone that denies")
				}
			}
		}
		if logged != inBody || emitted != inBody {
			t.Errorf("the body has %s, the log %s and the event %s", inBody, logged, emitted)
		}
		if other := shown(c.get(t, "/", "Key", "a").body, `"denial":"(\w{10})"`); other != inBody {
			t.Errorf("the second denial of the key has the ID %s, want %s", other, inBody)
		}
		c.get(t, "/", "Key", "b").want(t, 200)
		if other := shown(c.get(t, "/", "Key", "b").body, `"denial":"(\w{10})"`); other == inBody {
			t.Errorf("two keys share the ID %s", inBody)
		}
		c.reload(t, config(use)+"handle_errors {\n respond \"ID {http.rate_limit.exceeded.id}\"\n}\n")
		_ = shown(c.get(t, "/", "Key", "b").body, `^ID (\w{10})$`)
		if body := c.get(t, "/ready").body; body != "ok" {
			t.Error(body)
		}
	})
}
