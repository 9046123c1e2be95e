package throttle

import (
	"testing"
	"time"
	"unsafe"
)

// withWallClockSetBack returns an instant as time.Now returns it after the clock of the machine was set back.
// The time package has no function for this, so the seconds of the wall clock are changed in place.
func withWallClockSetBack(t *testing.T, instant time.Time, by time.Duration) time.Time {
	t.Helper()
	changed := instant
	*(*uint64)(unsafe.Pointer(&changed)) -= uint64(by/time.Second) << 30
	if changed.Sub(instant) != 0 || changed.UnixNano() != instant.Add(-by).UnixNano() {
		t.Fatalf("%v was changed to %v: time.Time has another layout", instant, changed)
	}
	return changed
}

// A throttle lets the first message through, and then one in each interval, also after the clock of the
// machine was set back or ahead.
func TestThrottle(t *testing.T) {
	const interval = 10 * time.Second
	start, limit := time.Now(), new(Throttle)
	for _, event := range []struct {
		at      time.Duration // since the start
		setBack time.Duration // of the clock of the machine
		want    int64
	}{
		{0, 0, 1},
		{1, 0, 0},
		{interval - 1, 0, 0},
		{interval, 0, 3},
		{interval, 0, 0},
		{2*interval - 1, -time.Hour, 0},
		{2 * interval, time.Hour, 3},
		{3*interval - 1, 0, 0},
		{3 * interval, 0, 2},
	} {
		instant := withWallClockSetBack(t, start.Add(event.at), event.setBack)
		if n := limit.dueAt(instant, interval); n != event.want {
			t.Errorf("after %v, with the clock set back by %v: %d events, want %d", event.at, event.setBack, n, event.want)
		}
	}
}
