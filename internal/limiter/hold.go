package limiter

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// HoldPolicy is the compiled option hold of a zone: which responses ban the key, and for how long.
type HoldPolicy struct {
	Statuses     []int // 4 stands for 4xx, 5 for 5xx
	Max, Default algorithms.Micros
}

// SpanOf returns for how long a response at an instant bans the key: until its Retry-After. 0 begins no ban. p can be nil.
func (p *HoldPolicy) SpanOf(status int, header http.Header, at time.Time) (span algorithms.Micros) {
	matches := func(s int) bool { return caddyhttp.StatusCodeMatches(status, s) }
	if p == nil || status == statusClientClosedRequest || !slices.ContainsFunc(p.Statuses, matches) {
		return 0
	}
	span = p.Default
	if value := header.Get("Retry-After"); value != "" {
		if until, err := http.ParseTime(value); err == nil {
			if sent, err := http.ParseTime(header.Get("Date")); err == nil { // by the same clock
				at = sent
			}
			span = max(until.Sub(at).Microseconds(), 0)
		} else if seconds, err := strconv.ParseUint(value, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
			span = algorithms.Micros(min(seconds, 1<<31)) * 1_000_000
		}
	}
	return min(span, p.Max)
}

// ban bans the request's keys as the header of the response says, before the client has it. So the client's next request is
// denied. A denial by another limiter is no response of the upstream. If the store fails, the response is passed on all the same.
func (state *State) ban(r *http.Request, status int, header http.Header) {
	for i := range state.Entries {
		e := &state.Entries[i]
		if e.Zone.Hold == nil { // the usual zone needs no clock
			continue
		}
		if span := e.Zone.Hold.SpanOf(status, header, time.Now()); span > 0 && state.outermost().innermost.passed {
			if err := state.Limiter.hold(r.Context(), e.Hold(span)); err != nil {
				state.Limiter.ReportStoreFailure(err)
			}
			if !e.Shadow {
				e.Zone.Metrics.CountBan()
			}
			state.logDenial(r, e, denials.Denial{Shadow: e.Shadow, Ban: true, Cause: denials.Cause{Reason: store.DeniedByHold}, Wait: span})
		}
	}
}

// Many responses can begin holds at once. If these are of one key and end in the same second, they are one change of the store.
// Few changes are made at a time, because each needs its own connection to Redis.
var (
	sameHolds singleflight.Group
	holdsRoom = semaphore.NewWeighted(8)
)

// hold makes a change that bans a key.
func (l *Limiter) hold(ctx context.Context, c store.Change) error {
	ends := time.Now().Add(time.Duration(c.BanFor) * time.Microsecond).Unix()
	_, err, _ := sameHolds.Do(fmt.Sprintf("%p %q %q %d", l, c.Zone, c.Key, ends), func() (any, error) {
		ctx := context.WithoutCancel(ctx)
		_ = holdsRoom.Acquire(ctx, 1) // never fails
		defer holdsRoom.Release(1)
		return nil, l.Store.Change(ctx, c)
	})
	return err
}
