package store

import (
	"hash/maphash"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// togetherHash returns a hash of all rules and keys that can deny the requests, and of their demands.
func (c *DenyCache) togetherHash(requests []Request) (hash uint64) {
	type part struct {
		before  uint64
		key, id string
		demand
		maxWait algorithms.Micros
	}
	for i := range requests {
		r := &requests[i]
		for j := range countRules(r) {
			if rule := ruleOf(r, j); !r.Shadow {
				hash = maphash.Comparable(c.seed, part{hash, r.Key, rule.id, rule.demand, rule.maxWait})
			}
		}
	}
	return hash
}

// recollection holds the facts that are remembered about the requests of one call.
type recollection struct {
	denied    *Request      // a request that is denied; or nil
	sentAt    time.Duration // of the newest denial
	together  uint64        // of the newest denial
	unknown   bool          // the denial of a rule is not remembered
	changedAt time.Duration // when the key of such a rule was last changed
}

// denies reports whether requests are certainly denied, and then fills in their outcomes. A rule whose denial
// isn't remembered could deny them for longer. So the store must have been asked about all rules together, or
// is asked now. Requests of a denied key ask for this reason at most once per askAgain, because a flood can vary
// its other keys.
func (c *DenyCache) denies(requests []Request) bool {
	var known recollection
	now := c.now()
	for i := range requests {
		if ask := c.recall(&requests[i], now, &known); ask {
			return false
		}
	}
	if known.denied == nil || !known.unknown || known.sentAt >= known.changedAt && known.together == c.togetherHash(requests) {
		return known.denied != nil
	}
	s, key := c.locate(known.denied.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	askAt := &s.askOthersAt[key.key[1]%changeCells]
	if now < *askAt {
		return true
	}
	*askAt = now + askAgain
	return false
}
