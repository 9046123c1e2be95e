package ratelimit

import (
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// The option exempt names requests of the zone that pass unlimited. It comes before everything else
// that the zone does with a request: the zone doesn't even make the key.

// exempts reports whether a request passes the zone unlimited.
func (z *zone) exempts(r *http.Request) (bool, error) {
	if len(z.exempt) == 0 {
		return false, nil
	}
	return z.exempt.AnyMatchWithError(r)
}

// checkExempt returns an error for a matcher set that exempts all requests.
func (c *Zone) checkExempt() error {
	for _, set := range c.ExemptRaw {
		if len(set) == 0 {
			return errors.New(`exempt has a matcher set without matchers, which would exempt all requests: ` +
				`write for example {"client_ip": {"ranges": ["203.0.113.0/24"]}}, or leave it out`)
		}
	}
	return nil
}

// unmarshalExempt reads exempt <matcher>, or exempt { <matchers> }.
func (c *Zone) unmarshalExempt(d *caddyfile.Dispenser) error {
	set, err := matcherSet(d, "client_ip 203.0.113.0/24")
	c.ExemptRaw = append(c.ExemptRaw, set)
	return err
}
