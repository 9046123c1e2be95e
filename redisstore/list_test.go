package redisstore

import (
	"context"
	"fmt"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A page reads a bounded part of the keys in Redis, and no command reads more than maxScanCount of them.
func TestListIsBounded(t *testing.T) {
	ctx, server := context.Background(), redistest.Shared(t)
	s := MustNew(t, Options{Address: server.Addr, Timeout: Patient, DialTimeout: Patient})
	t.Cleanup(func() { _ = s.Close() })
	const others = maxScanned + maxScanned/4
	fill := fmt.Sprintf("for i = 1, %d do redis.call('SET', 'other' .. i, '') end return 1", others)
	errtest.None(t, server.Client.Eval(ctx, fill, nil).Err())
	ban := &store.Ban{ID: store.BanID("z", ""), Ban: &algorithms.Ban{After: 1, Window: 1, Duration: 3_600_000_000, Max: 3_600_000_000}}
	errtest.None(t, s.Change(ctx, store.Change{Zone: "z", Key: "k", Ban: []*store.Ban{ban}, BanFor: 3_600_000_000}))
	pages, found := 0, 0
	for l := (store.Listing{Zone: "z", Kind: store.Bans, Limit: 1000}); ; pages++ {
		before := server.Calls(t, "scan")
		page, err := s.List(ctx, l)
		errtest.None(t, err)
		if calls := server.Calls(t, "scan") - before; calls > maxScanned/maxScanCount+1 {
			t.Errorf("page %d took %d commands", pages+1, calls)
		}
		found += len(page.Entries)
		if l.Cursor = page.Next; l.Cursor == "" {
			break
		}
	}
	if pages < others/maxScanned || found != 1 {
		t.Errorf("%d bans on %d pages and one", found, pages)
	}
	if total := server.Calls(t, "scan"); total < others/maxScanCount {
		t.Errorf("%d commands read %d keys", total, others)
	}
}

// A cursor is of these nodes only.
func TestCursor(t *testing.T) {
	three := []string{"a:1", "b:1", "c:1"}
	text := formatCursor(three, 2, 1<<63)
	if number, cursor, err := parseCursor(text, three); err != nil || number != 2 || cursor != 1<<63 {
		t.Errorf("%s: %d %d %v", text, number, cursor, err)
	}
	for _, others := range [][]string{{"a:1", "b:1"}, {"a:1", "b:1", "d:1"}, {"a:1", "b:1", "c:1", "d:1"}, {"a:1", "b:11", "c:1"}} {
		if _, _, err := parseCursor(text, others); err != store.ErrCursor {
			t.Errorf("%s is a cursor of other nodes: %v", text, err)
		}
	}
	for _, wrong := range []string{text + "0", "0" + text, text + " ", formatCursor(three, 3, 0), "x", "-"} {
		if _, _, err := parseCursor(wrong, three); err != store.ErrCursor {
			t.Errorf("%q is a cursor: %v", wrong, err)
		}
	}
}
