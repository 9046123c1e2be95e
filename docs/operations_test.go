package docs_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// docs/metrics-and-logs.md has every metric with its type and its labels, and no other. docs/operations.md has every
// reason of store errors.
func TestMetricsReference(t *testing.T) {
	rows := make(map[string][]string)
	for _, row := range caddytest.TableRows(caddytest.SectionOf(t, caddytest.ReferencePage, "Metrics")) {
		if name := caddytest.CodeIn(row[0])[0]; strings.HasPrefix(name, "caddy_") {
			rows[name] = row
		}
	}
	labelValues := make(map[string]bool)
	for _, family := range allMetrics(t) {
		var labels []string
		for _, m := range family.Metric {
			labels = nil
			for _, label := range m.GetLabel() {
				labels = append(labels, label.GetName())
				labelValues[label.GetName()+" "+label.GetValue()] = true
			}
		}
		name, kind := family.GetName(), strings.ToLower(family.GetType().String())
		row, ok := rows[name]
		delete(rows, name)
		switch {
		case !ok:
			t.Errorf("%s: no row of the metrics is about %s", caddytest.ReferencePage, name)
		case row[1] != kind:
			t.Errorf("%s: %s is a %s, not a %s", caddytest.ReferencePage, name, kind, row[1])
		case !slices.Equal(slices.Sorted(slices.Values(caddytest.CodeIn(row[2]))), labels):
			t.Errorf("%s: the labels of %s are %s, not %s", caddytest.ReferencePage, name, labels, row[2])
		}
	}
	for name := range rows {
		t.Errorf("%s: there is no metric %s", caddytest.ReferencePage, name)
	}
	var values []string
	for _, row := range caddytest.TableRows(caddytest.SectionOf(t, caddytest.ReferencePage, "Values of other labels")) {
		values = append(values, caddytest.CodeIn(row[0])[0]+" "+caddytest.CodeIn(row[1])[0])
	}
	maps.DeleteFunc(labelValues, func(value string, _ bool) bool {
		return strings.HasPrefix(value, "zone ") || strings.HasPrefix(value, "outcome ") || strings.HasPrefix(value, "reason ")
	})
	wantSame(t, "values of labels", values, slices.Collect(maps.Keys(labelValues)))
	wantSame(t, "outcomes", caddytest.FirstColumn(t, caddytest.ReferencePage, "Outcomes"), telemetry.Outcomes())
	reasons := caddytest.FirstColumn(t, caddytest.RunbookPage, "Redis is slow, or gone")
	wantSame(t, "reasons", reasons, append(caddytest.ParseSource(t, "store").Constants("Reason"), "other"))
}

// allMetrics returns all metrics with all their labels, as of a process in which each of them has a value.
func allMetrics(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	z := telemetry.ZoneMetrics{Name: t.Name(), HasSlots: true, HasDelay: true, HasBan: true, HasHold: true, HasSettle: true, HasReservedWait: true}
	z.CountDecision(telemetry.OutcomeAllowed, 0)
	telemetry.CountStoreError(store.ErrOpen)
	registry := prometheus.NewPedanticRegistry()
	errtest.None(t, telemetry.Register(registry, telemetry.Sources{
		Zones: func() []*telemetry.ZoneMetrics { return []*telemetry.ZoneMetrics{&z} },
		Redis: func() (sum telemetry.RedisState, ok bool) { return sum, true },

		MemoryKeys: func() float64 { return 0 }, MemoryOverflowed: func() float64 { return 0 },
	}))
	families, err := registry.Gather()
	errtest.None(t, err)
	return families
}

// wantSame checks that the pages list these names, in any order.
func wantSame(t *testing.T, what string, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("the %s of %s and %s are %q, want %q", what, caddytest.ReferencePage, caddytest.RunbookPage, got, want)
	}
}

// docs/metrics-and-logs.md has every message that the module logs, with its level and its fields, and no
// other. In a message of the page … stands for any text.
func TestLogReference(t *testing.T) {
	var found []caddytest.LogMessage
	for _, directory := range []string{".", "internal/denials", "internal/limiter", "internal/placeholder", "internal/routes", "redisstore", "store"} {
		found = append(found, caddytest.ParseSource(t, directory).Messages()...)
	}
	if len(found) < 25 {
		t.Fatalf("only %d messages found", len(found))
	}
	denialFields := caddytest.FirstColumn(t, caddytest.ReferencePage, "Fields of denials and bans")
	used := make(map[string]int)
	rows := caddytest.TableRows(caddytest.SectionOf(t, caddytest.ReferencePage, "Denials and bans"))
	denials := len(rows)
	for _, heading := range []string{"Redis and the stores", "When a configuration loads", "While requests come"} {
		rows = append(rows, caddytest.TableRows(caddytest.SectionOf(t, caddytest.ReferencePage, heading))...)
	}
	for _, m := range found {
		matches := 0
		for i, row := range rows {
			message := caddytest.CodeIn(row[0])[0]
			if !regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(message), "…", ".*") + "$").MatchString(m.Text) {
				continue
			}
			matches++
			used[message]++
			if row[1] != m.Level {
				t.Errorf("%s: the level of %q is %s, not %s", caddytest.ReferencePage, message, m.Level, row[1])
			}
			said := denialFields
			if i >= denials {
				said = caddytest.CodeIn(row[2])
			}
			for _, field := range m.Fields {
				if field != "…" && !slices.Contains(said, field) {
					t.Errorf("%s: %q has a field %s, which the page doesn't say", caddytest.ReferencePage, message, field)
				}
			}
			for _, field := range said {
				if !slices.Contains(m.Fields, field) && !slices.Contains(m.Fields, "…") {
					t.Errorf("%s: %q has no field %s", caddytest.ReferencePage, message, field)
				}
			}
		}
		if matches != 1 {
			t.Errorf("%s: %d rows are about the message %q, want 1", caddytest.ReferencePage, matches, m.Text)
		}
	}
	for _, row := range rows {
		if message := caddytest.CodeIn(row[0])[0]; used[message] == 0 {
			t.Errorf("%s: no message is %q", caddytest.ReferencePage, message)
		}
	}
}

// docs/metrics-and-logs.md has every event, and no other.
func TestEventReference(t *testing.T) {
	rows := caddytest.FirstColumn(t, caddytest.ReferencePage, "Events")
	wantSame(t, "events", rows, append(caddytest.ParseSource(t, ".").Constants("event"), caddytest.ParseSource(t, "internal/denials").Constants("event")...))
	wantSame(t, "events", rows, caddytest.EventNames)
}
