package denials

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
)

// zonesOf returns the zones of a request with these keys.
func zonesOf(s *Source, keys ...string) func() []RecordedZone {
	return func() (zones []RecordedZone) {
		for _, key := range keys {
			zones = append(zones, RecordedZone{Zone: "z", Key: s.RecordedKey(key), Cost: 1})
		}
		return zones
	}
}

// Denials of one zone and key share an ID while they come every second, for a minute. Each ID is
// known for ten minutes at least, and has the first of its denials.
func TestDenialIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, h, reported := new(records), new(Source), make(map[string]int64)
		l := newLog(func(d Denial) { reported[d.id] += d.count }, records)
		defer l.Close()
		deny := func(d Denial) string {
			d.Source = h
			return l.Record(d, zonesOf(h, d.Key))
		}
		var ids []string
		for second := range 130 {
			for n := range 3 {
				id := deny(Denial{Zone: "z", Key: "a", Path: fmt.Sprint("/", second, "/", n), Wait: algorithms.Forever})
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
			record := records.lookUp(id)
			if record == nil {
				t.Fatalf("the ID %s is unknown", id)
			}
			if want := fmt.Sprint("/", []int{0, 60, 120}[i], "/0"); record.Path != want || record.ID != id || record.RetryAfter != nil {
				t.Errorf("ID %d is about %+v, want %s", i+1, record.Denial, want)
			}
		}
		others := map[string]bool{ids[2]: true}
		for _, d := range []Denial{{Zone: "z", Key: "b"}, {Zone: "y", Key: "a"}, {Zone: "z", Key: "a", Shadow: true}} {
			others[deny(d)] = true
		}
		if len(others) != 4 {
			t.Errorf("another key, zone or shadow shares an ID: %v", others)
		}
		if id := deny(Denial{Zone: "z", Key: "a", Ban: true}); id != "" {
			t.Errorf("a ban has the ID %q", id)
		}
		time.Sleep(10*time.Minute - time.Second)
		if records.lookUp(ids[2]) == nil {
			t.Error("an ID is unknown after 10 minutes")
		}
		if records.lookUp(ids[1]) != nil {
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
	records, seen := new(records), make(map[string]bool)
	for range 1000 {
		id := randomID()
		if seen[id] || !regexp.MustCompile(`^[0-9a-hjkmnp-tv-z]{10}$`).MatchString(id) {
			t.Fatalf("the ID %q", id)
		}
		seen[id] = true
		d := Denial{id: id, Source: new(Source)}
		records.add(newRecord(&d, nil))
		typed := " " + strings.NewReplacer("0", "O", "1", "l").Replace(strings.ToUpper(id)) + "\n"
		if record := records.lookUp(typed); record == nil || record.ID != id {
			t.Fatalf("%q is unknown", typed)
		}
	}
	if record := records.lookUp("<b>\"" + strings.Repeat("x", 1000)); record != nil {
		t.Errorf("an unknown ID has the record %+v", record)
	}
}

// The memory of many denials, and of long ones, is bounded.
func TestDenialRecordsAreBounded(t *testing.T) {
	long := strings.Repeat("x", 20_000)
	for name, key := range map[string]string{"many": "", "long": long} {
		t.Run(name, func(t *testing.T) {
			records, last := new(records), ""
			for range 2 * maxRecords {
				d := Denial{id: randomID(), Source: new(Source), Host: clipText(key), ClientIP: key}
				last = d.id
				records.add(newRecord(&d, zonesOf(d.Source, key, key+"2")()))
			}
			n, bytes := 0, 0
			for record := records.oldest; record != nil; record = record.next {
				n++
				bytes += record.textBytes()
			}
			if n != len(records.byID) || n > maxRecords || bytes != records.bytes || bytes > maxRecordBytes {
				t.Errorf("%d records, %d by ID, with %d bytes, counted %d", n, len(records.byID), bytes, records.bytes)
			}
			if key == "" && n != maxRecords || key != "" && bytes < maxRecordBytes-10_000 {
				t.Errorf("only %d records with %d bytes are known", n, bytes)
			}
			record := records.lookUp(last)
			if record == nil {
				t.Fatal("the last record is unknown")
			}
			want := keys.Shown{Text: key[:min(len(key), maxRecordedKey)], Cut: key != ""}
			if got := record.Zones[0]; got.Key != want || len(record.ClientIP) > maxLoggedTextBytes {
				t.Errorf("the last record has a key of %d bytes, cut: %v", len(got.Key.Text), got.Key.Cut)
			}
		})
	}
}

// With hash_keys a record has no text that keys are made of.
func TestDenialRecordsHashKeys(t *testing.T) {
	d := Denial{id: "x", Source: &Source{HashSecret: "pepper"}, Method: "GET", Host: "sesame", Path: "/sesame", ClientIP: "sesame"}
	record := newRecord(&d, zonesOf(d.Source, "sesame")())
	if got := fmt.Sprintf("%+v %+v", record.Denial, record.Zones[0].Key); strings.Contains(got, "sesame") || !strings.Contains(got, wire.HashedKey("pepper", "sesame")) {
		t.Error(got)
	}
}
