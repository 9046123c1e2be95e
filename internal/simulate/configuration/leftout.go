package configuration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// leftOut counts the requests that are left out of a zone. A request whose key or cost is not known is left out
// of it: any guess would deny the wrong requests.
type leftOut struct {
	excluded bool         // by the user of the command
	users    []usedOfUser // by each alternative of the key
	decided  atomic.Bool

	mu       sync.Mutex
	requests int64
	reason   string // of one of them: the first one in the alphabet, so that the order of requests doesn't matter
}

// usedOfUser says which facts about users a key needs. A log has only the ID.
type usedOfUser struct{ id, more bool }

const idOfUser = limiter.UserPrefix + "user.id"

func newLeftOut(z *limiter.Zone) *leftOut {
	s := new(leftOut)
	for _, text := range z.KeyTexts() {
		var used usedOfUser
		names, _ := keys.Placeholders(text) // checked when the zone was loaded
		for _, name := range names {
			if strings.HasPrefix(name, limiter.UserPrefix) {
				used.id, used.more = used.id || name == idOfUser, used.more || name != idOfUser
			}
		}
		s.users = append(s.users, used)
	}
	return s
}

// Reasons for which a request is left out of a zone.
const (
	byName      = "--without-zone names it"
	withoutUser = "its key needs the ID of a user, which the log lacks, or no authentication comes before rate_limit"
	withoutMore = "its key needs facts about users, and a log has only their ID"
)

func (s *configuration) leftOutOf(z *limiter.Zone) *leftOut { return s.leftOut[s.zones.index[z]] }

// whyLeftOut returns why the log doesn't tell the key or the cost of a request in a zone. It is empty if the log does.
func (w *loggedWalk) whyLeftOut(e *limiter.Entry) string {
	s, needs := w.configuration.leftOutOf(e.Zone), &e.Zone.BodyNeeds
	for i := range e.Alternative + 1 {
		switch {
		case needs.Keys[i] != 0:
			return "its key needs the bodies of requests, and a log has none"
		case s.users[i].more:
			return withoutMore
		}
	}
	if s.users[e.Alternative].id {
		if id, _ := w.replacer.GetString(idOfUser); id == "" {
			return withoutUser
		}
	}
	switch {
	case needs.Plan != 0:
		return "its plan needs the bodies of requests, and a log has none"
	case needs.Factor != 0:
		return "its factor needs the bodies of requests, and a log has none"
	}
	if _, logged := w.logged.Charged[e.Zone.Name]; logged && e.Mode == algorithms.Binary {
		return ""
	}
	switch {
	case needs.Cost != 0:
		return "its cost needs the bodies of requests, and the log lacks the field " + accesslog.ChargedPrefix + e.Zone.Name
	case e.Settles() && e.Zone.Settle.NeedsJSON && !w.visited.WasDenied:
		return "its settle needs the bodies of responses, and the log lacks the field " + accesslog.ChargedPrefix + e.Zone.Name
	}
	return ""
}

// leaveOut removes the zones of which the key or the cost of the request is not known.
func (w *loggedWalk) leaveOut(state *limiter.State) {
	kept := state.Entries[:0]
	for i := range state.Entries {
		e := &state.Entries[i]
		about := w.configuration.leftOutOf(e.Zone)
		reason := byName
		if !about.excluded {
			reason = w.whyLeftOut(e)
		}
		if about.see(reason); reason == "" {
			kept = append(kept, *e)
		}
	}
	state.Entries = kept
}

// see sees a request in the zone.
func (s *leftOut) see(reason string) {
	if reason == "" {
		setOnce(&s.decided)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests++; s.requests == 1 || reason < s.reason {
		s.reason = reason
	}
}

// exclude omits the zones with these names.
func (s *configuration) exclude(names []string) error {
	found := make(map[string]bool)
	for z := range s.zones.index {
		s.leftOutOf(z).excluded = slices.Contains(names, z.Name)
		found[z.Name] = true
	}
	for _, name := range names {
		if !found[name] {
			return fmt.Errorf("there is no zone %q to leave out: the zones are %s", name, strings.Join(slices.Sorted(maps.Keys(found)), ", "))
		}
	}
	return nil
}

// LeftOut implements [simulate.Configuration].
func (s *configuration) LeftOut() (zones []report.LeftOut) {
	for i, about := range s.leftOut {
		if about.requests > 0 {
			zones = append(zones, report.LeftOut{
				Zone: s.zones.all[i].Name, Requests: about.requests, Partly: about.decided.Load(), Reason: about.reason,
			})
		}
	}
	return zones
}
