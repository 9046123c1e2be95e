package redisstore

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// pick returns one of its arguments.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// randomLimit draws a limit; one in eight is close to the largest that can be
// counted exactly.
func randomLimit(r *rand.Rand) *algorithms.Limit {
	for {
		all := algorithms.All()
		a := all[r.IntN(len(all))]
		q := algorithms.Quota{
			Algorithm: a.Name,
			Events:    pick(r, 1, 2, 3, 5, 7, 10, 1+r.Int64N(50)),
			Window:    pick[int64](r, 1, 2, 7, 10, 999, 1000, 1_000_000, 60_000_000, 1+r.Int64N(5_000_000)),
		}
		if a.Calendar {
			q.Window, q.Period = 0, pick(r, "day", "week", "month", "year")
			q.TimeZone = pick(r, "", "Europe/Berlin", "Pacific/Apia", "America/St_Johns")
		}
		if a.Burst && r.IntN(2) == 0 {
			q.Burst = pick(r, 1, 2, q.Events+1, 2*q.Events, 1+r.Int64N(40))
		}
		if r.IntN(8) == 0 {
			if q.Events, q.Burst = 1+r.Int64N(3000), 0; !a.Calendar {
				q.Window = 1 + r.Int64N(1<<r.IntN(53))
			}
			if a.Burst {
				q.Burst = 1 + r.Int64N(1<<r.IntN(40))
			}
		}
		if a.Takes("align") {
			q.Align = pick(r, "", "clock")
		}
		if a.Takes("min_interval") && r.IntN(3) == 0 {
			q.MinInterval = pick(r, 1, q.Window/q.Events, q.Window, 1+r.Int64N(2*q.Window))
		}
		if a.Takes("buckets") && r.IntN(2) == 0 {
			q.Buckets = pick(r, 1, 2, 10, 1+r.Int64N(200))
		}
		if a.Takes("initial") && r.IntN(3) == 0 {
			q.Initial = new(r.Int64N(cmp.Or(q.Burst, q.Events) + 1))
		}
		if a.Takes("warm_up") && r.IntN(2) == 0 {
			q.Burst, q.Initial = 0, nil
			q.WarmUp = pick(r, 1, q.Window, 10*q.Window, 1+r.Int64N(1<<r.IntN(45)))
			q.ColdFactor = pick[int64](r, 0, 0, 1000, 1500, 10_000, 1000+r.Int64N(999_001))
		}
		if l, err := algorithms.NewLimit(q); err == nil {
			return l
		}
	}
}

// randomBan draws a ban, of a zone with such a window.
func randomBan(r *rand.Rand, window algorithms.Micros) *algorithms.Ban {
	b := algorithms.Ban{
		After: pick[int64](r, 0, 1, 1, 2, 3, 5), Window: window,
		Duration: pick(r, 1, 1000, window, 1+r.Int64N(2*window), 1+r.Int64N(1<<r.IntN(48))),
	}
	b.Duration = min(b.Duration, 1<<50)
	b.Max = min(pick(r, b.Duration, b.Duration+1, 3*b.Duration, 8*b.Duration, b.Duration<<r.IntN(40)), 1<<51)
	if b.Max < b.Duration { // which has overflowed
		b.Max = 1 << 51
	}
	if err := b.Check(); err != nil {
		panic(err)
	}
	return &b
}

// drawLine draws where a request stands that may wait for a slot.
func drawLine(r *rand.Rand) (line store.SlotLine) {
	line.Waiting = pick[int64](r, 0, 0, 1, 1, 2, 5, store.MaxWaiting)
	if line.Waiting == 0 && r.IntN(2) == 0 {
		return line
	}
	step := pick[int64](r, 1, algorithms.LineSlack, algorithms.LineSlack) // with the slack, some requests came exactly that much earlier
	line.Waited = step * r.Int64N(pick[int64](r, 1, 20, 200))
	for n, waited := 0, line.Waited; n < 4 && line.Waiting > 1; n++ {
		waited = step * r.Int64N(waited/step+1)
		line.Marks[n] = waited
	}
	return line
}

// drawTenant draws the tenant of a request to a zone. In every other program no request has one.
func (p *program) drawTenant() store.Tenant {
	if p.seed%2 == 0 {
		return store.Tenant{}
	}
	return pick(p.lines, store.Tenant{}, store.Tenant{ID: 1 + p.lines.Uint64N(3), Weight: pick[int64](p.lines, 1, 1, 2, 3, 7, store.MaxWeight)},
		store.Tenant{ID: 1<<56 - 1, Weight: 1 + p.lines.Int64N(3)})
}

func packed(numbers ...int64) string {
	var b []byte
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return string(b)
}

func packedDoubles(numbers ...float64) string {
	var b []byte
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(n))
	}
	return string(b)
}
