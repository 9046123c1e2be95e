package redisstore_test

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// takeSlot takes a slot of a key.
func takeSlot(t *testing.T, s store.Store, key string, limit int64) store.Request {
	t.Helper()
	r := []store.Request{{Zone: "z", Key: key, Cost: 1, Slots: &store.Slots{ID: store.SlotsID("z", ""), Limit: limit}}}
	allowed, err := s.Take(t.Context(), r)
	if o := r[0].Outcome; err != nil || allowed != o.Slots.Taken || allowed != (o.Verdict == store.Allowed) {
		t.Fatalf("allowed %v, error %v, %+v", allowed, err, o)
	}
	return r[0]
}
