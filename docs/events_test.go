package docs_test

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// docs/metrics-and-logs.md has every event, and no other.
func TestEventReference(t *testing.T) {
	var rows []string
	for _, row := range caddytest.TableRows(caddytest.SectionOf(t, caddytest.ReferencePage, "Events")) {
		rows = append(rows, caddytest.CodeIn(row[0])...)
	}
	wantSame(t, "events", rows, append(caddytest.ParseSource(t, ".").Constants("event"), caddytest.ParseSource(t, "internal/denials").Constants("event")...))
	wantSame(t, "events", rows, caddytest.EventNames)
}
