package faultsim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
)

// operation is something that an operator does, by the admin API of an instance.
type operation struct {
	kind     string
	at       time.Duration // since the beginning
	instance int
	zone     int           // the number of the zone
	key      string        // of a ban or an override
	events   int64         // of the limit of an override, or of a reload that changes the limit of the zone
	burst    int64         // of such a reload; 0: as many as events
	lasts    time.Duration // a ban or an override; 0: until it is removed

	sent, ended time.Time
	err         error
	listed      map[string]string // the values of the listed keys
}

// The kinds of operations.
const (
	bans           = "ban"
	unbans         = "unban"
	overrides      = "override"
	endsOverride   = "end of an override"
	listsBans      = "list of bans"
	listsOverrides = "list of overrides"
	reloads        = "reload"
)

// banned is the value of a key that an operator has banned.
const banned = "banned"

// value is the value that the operation gives a key: banned, or the text of an override; "" for none.
func (op *operation) value() string {
	switch op.kind {
	case bans:
		return banned
	case overrides:
		return strconv.FormatInt(op.events, 10)
	}
	return ""
}

func (op *operation) String() string {
	text := fmt.Sprintf("%v an operator, instance %d: %s", op.at.Round(time.Microsecond), op.instance, op.kind)
	if op.zone > 0 {
		text += fmt.Sprintf(", zone %d", op.zone)
	}
	if op.key != "" {
		text += ", key " + op.key
	}
	if op.events > 0 {
		text += fmt.Sprintf(", %d events", op.events)
	}
	if op.burst > 0 {
		text += fmt.Sprintf(", burst %d", op.burst)
	}
	if op.lasts > 0 {
		text += fmt.Sprintf(" for %v", op.lasts)
	}
	if op.listed != nil {
		text += fmt.Sprint(": ", op.listed)
	}
	if op.err != nil {
		text += fmt.Sprintf(": %v", op.err)
	}
	return text + fmt.Sprintf(", ended after %v", op.ended.Sub(op.sent))
}

// overriddenBy returns the zone with the limit of an override; "" stands for none.
func (z *zonePlan) overriddenBy(text string) *zonePlan {
	if text == "" {
		return z
	}
	return z.with(must(strconv.ParseInt(text, 10, 64)), 0)
}

// with returns the zone with another limit.
func (z *zonePlan) with(events, burst int64) *zonePlan {
	by := *z
	by.quota.Events, by.quota.Burst = events, burst
	return &by
}

// drawOperations draws what operators do. In a third of the seeds they do nothing.
func (s *scenario) drawOperations(r *rand.Rand) {
	if r.IntN(3) == 0 {
		return
	}
	kinds, zones := []string{reloads}, []int{0}
	add := func(zone int, all ...string) {
		for _, kind := range all {
			kinds, zones = append(kinds, kind), append(zones, zone)
		}
	}
	for n, z := range s.zones {
		if n > 0 && z.quota.Algorithm != "" && r.IntN(2) == 0 {
			z.overridden = true
			add(n, overrides, overrides, endsOverride, listsOverrides)
		}
		if z.ban != nil {
			add(n, bans, bans, unbans, listsBans)
		}
	}
	for at := span(r, time.Second, 10*time.Second); at < s.length; at += span(r, 500*time.Millisecond, 8*time.Second) {
		kind := r.IntN(len(kinds))
		op := &operation{kind: kinds[kind], zone: zones[kind], at: at, instance: r.IntN(s.instances)}
		if op.kind != reloads && op.kind != listsBans && op.kind != listsOverrides {
			op.key = keyName(r.IntN(s.keys))
		}
		switch op.kind {
		case bans:
			op.lasts = span(r, 500*time.Millisecond, 8*time.Second).Truncate(time.Millisecond)
		case overrides:
			op.events = 1 + r.Int64N(2*s.zones[op.zone].quota.Events)
			op.lasts = pick(r, 0, span(r, 500*time.Millisecond, 10*time.Second).Truncate(time.Millisecond))
		}
		s.operated = append(s.operated, op)
	}
}

// drawChanges lets operators change limits in half of the seeds. A reload changes a limit of one instance. So instances have
// several versions of a configuration at the same time.
func (s *scenario) drawChanges(r *rand.Rand) {
	if r.IntN(2) == 0 {
		return
	}
	for at := span(r, time.Second, 5*time.Second); at < s.length; at += span(r, 300*time.Millisecond, 5*time.Second) {
		n := 1 + r.IntN(len(s.zones)-1)
		q := s.zones[n].quota
		if q.Algorithm == "" {
			continue
		}
		op := &operation{kind: reloads, zone: n, at: at, instance: r.IntN(s.instances), events: pick(r, q.Events, 1+r.Int64N(2*q.Events))}
		if a := must(algorithms.Lookup(q.Algorithm)); a.Burst && r.IntN(3) == 0 {
			op.burst = 1 + r.Int64N(2*q.Events)
		}
		s.operated = append(s.operated, op)
	}
	slices.SortStableFunc(s.operated, func(a, b *operation) int { return cmp.Compare(a.at, b.at) })
}

// operate lets an operator do something.
func (w *world) operate(op *operation) {
	w.mu.Lock()
	i := w.instances[op.instance]
	w.mu.Unlock()
	op.sent = time.Now()
	op.at = op.sent.Sub(w.began)
	key := "?key=" + op.key
	switch op.kind {
	case bans:
		_, op.err = w.ask(i, op, http.MethodPut, "/ban"+key, fmt.Sprintf(`{"duration":"%v"}`, op.lasts))
	case unbans:
		_, op.err = w.ask(i, op, http.MethodDelete, "/ban"+key, "")
	case overrides:
		_, op.err = w.ask(i, op, http.MethodPut, "/override"+key, fmt.Sprint(op.events, op.lasts.Nanoseconds()))
	case endsOverride:
		_, op.err = w.ask(i, op, http.MethodDelete, "/override"+key, "")
	case listsBans, listsOverrides:
		op.listed, op.err = w.list(i, op)
	case reloads:
		zones := slices.Clone(i.zones)
		if op.events > 0 {
			zones[op.zone] = zones[op.zone].with(op.events, op.burst)
		}
		l := w.load(i, zones)
		w.mu.Lock()
		i.limiter, i.zones = l, zones
		w.mu.Unlock()
	}
	op.ended = time.Now()
}

// ask asks the admin API of an instance about a zone.
func (w *world) ask(i *instance, op *operation, method, path, body string) (answer []byte, err error) {
	l, z := w.inForce(i), w.scenario.zones[op.zone].name
	zone := l.Zones[slices.IndexFunc(l.Zones, func(known *limiter.Zone) bool { return known.Name == z })]
	c := &admin.Configuration{
		Zones: map[string][]*admin.Zone{z: {{Zone: zone, Limiter: l}}},
		ParseOverride: func(body []byte) (text string, lasts time.Duration, err error) {
			_, err = fmt.Sscan(string(body), &text, &lasts)
			return text, lasts, err
		},
		CheckBan: func(caddy.Duration) error { return nil },
	}
	r := httptest.NewRequest(method, admin.Path+"zones/"+z+path, strings.NewReader(body))
	to := httptest.NewRecorder()
	err = admin.Serve(to, r, func() (*admin.Configuration, error) { return c, nil })
	return to.Body.Bytes(), err
}

// list returns the values of all listed keys.
func (w *world) list(i *instance, op *operation) (map[string]string, error) {
	listed := make(map[string]string)
	path := "/bans?limit=1"
	if op.kind == listsOverrides {
		path = "/overrides?limit=1"
	}
	for next := ""; ; {
		answer, err := w.ask(i, op, http.MethodGet, path+next, "")
		if err != nil {
			return nil, err
		}
		var page struct {
			adminapi.BanList
			Overrides []adminapi.ListedOverride `json:"overrides"`
		}
		if err := json.Unmarshal(answer, &page); err != nil {
			return nil, err
		}
		for _, b := range page.Bans {
			listed[*b.Key] = banned
		}
		for _, o := range page.Overrides {
			listed[*o.Key] = strings.Join(o.Limits, ", ")
		}
		if page.Next == "" {
			return listed, nil
		}
		next = "&cursor=" + page.Next
	}
}
