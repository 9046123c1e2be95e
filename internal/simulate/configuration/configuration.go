// Package configuration leads logged requests through the routes of a Caddy configuration, for simulations. It never
// opens a port, a log, a storage or a connection.
package configuration

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

// configuration is a configuration without the rest of Caddy. It leads logged requests through the routes of
// the http app, down to their rate_limit handlers. It implements [simulate.Configuration].
type configuration struct {
	servers   []*server
	httpPort  uint
	httpsPort uint
	onlyHost  string // of requests without a host; empty if the routes name no host, or several
	zones     *zones
	statuses  map[int]bool // of denials by the zones, besides 429
	maxKeys   int64
	notes     *notes
	leftOut   []*leftOut // by the index of the zone
	walks     sync.Pool  // of *loggedWalk
}

// Zones implements [simulate.Configuration].
func (s *configuration) Zones() []simulate.Zone { return s.zones.all }

// MaxKeys implements [simulate.Configuration].
func (s *configuration) MaxKeys() int64 { return s.maxKeys }

// ShownKey implements [simulate.Configuration].
func (s *configuration) ShownKey(zone int, key string) string {
	secret := s.zones.secrets[zone]
	if len(key) > maxVisitedKey && secret != "" {
		return key[maxVisitedKey:] // the HMAC of the whole key
	}
	return keys.NewShown(secret, key).Marked()
}

// Notes implements [simulate.Configuration].
func (s *configuration) Notes() []string { return s.notes.texts() }

// A simulation keeps many Visits at the same time, to sort them. These constants bound the texts in a
// [simulate.Visit], which clients choose.
const (
	// maxVisitedText is how many bytes of the address of the client, and of the User-Agent, a Visit has.
	maxVisitedText = 64
	// maxVisitedKey is how many bytes a key can have. A longer key ends with its hash instead of its rest.
	maxVisitedKey = keyhash.MaxKept
)

// visitedKey returns the key of a request for a Visit. Different keys remain different. Unlike a short key, it is
// the same in each process.
func visitedKey(key string) string {
	if beginning, name, ok := keyhash.SplitShort(key); ok {
		return beginning + name
	}
	return strings.Clone(key)
}

// Visit implements [simulate.Configuration]. It returns an error for a request that no server accepts.
func (s *configuration) Visit(logged *accesslog.Request) (*simulate.Visit, error) {
	u, err := parseRequestURI(logged)
	if err != nil {
		return nil, err
	}
	v := new(simulate.Visit)
	v.Start, v.End, v.Instant = logged.Start, max(logged.End, logged.Start), logged.Instant
	v.Client, v.UserAgent = visitedText(logged.Client()), visitedText(logged.Header.Get("User-Agent"))
	v.WasDenied = s.wasDenied(logged)
	s.notes.seeRequest(logged)
	server, host := s.serverOf(logged)
	if server == nil {
		return v, nil
	}
	w := s.walks.Get().(*loggedWalk)
	defer s.walks.Put(w)
	if err := w.run(logged, server, u, host, v); err != nil {
		s.notes.seeError(logged, err)
	}
	return v, nil
}

// visitedText returns a copy of the beginning of a text.
func visitedText(text string) string { return strings.Clone(text[:min(len(text), maxVisitedText)]) }

// parseRequestURI parses the URI of a request as Go's HTTP server does.
func parseRequestURI(logged *accesslog.Request) (*url.URL, error) {
	uri := logged.URI
	onlyAuthority := logged.Method == http.MethodConnect && !strings.HasPrefix(uri, "/")
	if onlyAuthority {
		uri = "http://" + uri
	}
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return nil, fmt.Errorf("the URI of the request: %w", errors.Unwrap(err))
	}
	if onlyAuthority {
		u.Scheme = ""
	}
	return u, nil
}

// Interface guard
var _ simulate.Configuration = (*configuration)(nil)
