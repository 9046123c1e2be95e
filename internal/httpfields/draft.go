// Package httpfields writes the header fields and problem documents by which a server tells
// clients about their limits. It never decides what they say.
//
//   - RateLimit and RateLimit-Policy, of draft-ietf-httpapi-ratelimit-headers-11
//   - the families of single-valued fields, such as X-RateLimit-Remaining
//   - Retry-After
//   - problem documents, of RFC 9457
package httpfields

import (
	"strconv"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Names of header fields, in the form that net/http uses as keys.
const (
	RateLimitPolicy = "Ratelimit-Policy"
	RateLimit       = "Ratelimit"
	RetryAfter      = "Retry-After"
)

// MaxInteger is the largest integer of a structured field (RFC 9651). Larger numbers are sent
// as MaxInteger.
const MaxInteger = 999_999_999_999_999

// AppendQuotaPolicy appends an item to a list for RateLimit-Policy: at most quota events at
// once, and the seconds in which the client can take as many again. If seconds is 0, the item leaves them out.
// For example, "api";q=60;w=60.
func AppendQuotaPolicy(list []byte, name string, quota, seconds int64) []byte {
	list = appendItem(list, name)
	list = appendParameter(list, ";q=", quota)
	if seconds > 0 {
		list = appendParameter(list, ";w=", seconds)
	}
	return list
}

// AppendConcurrencyPolicy appends an item to a list for RateLimit-Policy: at most quota
// requests in flight. For example, "api";q=10;qu="concurrent-requests".
func AppendConcurrencyPolicy(list []byte, name string, quota int64) []byte {
	list = appendItem(list, name)
	list = appendParameter(list, ";q=", quota)
	return append(list, `;qu="concurrent-requests"`...)
}

// AppendRateLimit appends an item to a list for RateLimit: how much remains, and the whole
// seconds until more remains, rounded up. If moreAfter is 0, the item leaves the seconds out.
// For example, "api";r=12;t=3.
func AppendRateLimit(list []byte, name string, remaining int64, moreAfter algorithms.Micros) []byte {
	list = appendItem(list, name)
	list = appendParameter(list, ";r=", remaining)
	if moreAfter > 0 {
		list = appendParameter(list, ";t=", Seconds(moreAfter))
	}
	return list
}

// appendItem appends the beginning of an item. The name is printable ASCII without quotes and
// backslashes, so it needs no escapes.
func appendItem(list []byte, name string) []byte {
	if len(list) > 0 {
		list = append(list, ", "...)
	}
	return strconv.AppendQuote(list, name)
}

func appendParameter(list []byte, name string, value int64) []byte {
	return strconv.AppendInt(append(list, name...), min(value, MaxInteger), 10)
}

// Seconds returns a span of time in whole seconds, rounded up.
func Seconds(span algorithms.Micros) int64 {
	const second = 1_000_000
	return span/second + min(span%second, 1)
}
