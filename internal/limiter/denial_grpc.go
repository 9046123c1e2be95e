package limiter

import (
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A gRPC client reads the outcome of a call from the field grpc-status. It reads status 429 as
// UNAVAILABLE, which many clients retry after a short time, and it ignores Retry-After. So a denied call gets a
// response of status 200 with a header and no body ("Trailers-Only"). gRPC-Web clients read it, too. See
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md and PROTOCOL-WEB.md beside it.

// The status codes of gRPC that denied calls get.
const (
	grpcResourceExhausted = "8"
	grpcUnavailable       = "14"
)

// grpcDenialMessages are the texts that gRPC clients get, by the reason of the denial. They are
// printable ASCII without a percent sign, so they need no percent-encoding.
var grpcDenialMessages = map[string]string{
	store.DeniedByLimit:       "rate limit exceeded",
	store.DeniedByConcurrency: "too many requests in flight",
	store.DeniedByReserved:    "rate limit reserved by requests in flight",
	store.DeniedByBan:         "banned after too many requests",
	store.DeniedByHold:        "an earlier response asks to wait",
}

// respondToGRPC responds to a gRPC call, and reports whether the request is one. A wait of 0 means that
// the wait is unknown.
func respondToGRPC(w http.ResponseWriter, r *http.Request, status, message string, wait algorithms.Micros) bool {
	contentType := grpcContentType(r)
	if contentType == "" {
		return false
	}
	if seconds := httpfields.FormatRetryAfter(wait); wait > 0 && seconds != "" {
		message += ", retry after " + seconds + " s"
	}
	header := w.Header()
	header["Content-Type"] = []string{contentType}
	header["Grpc-Status"] = []string{status}
	header["Grpc-Message"] = []string{message}
	if wait > 0 {
		header["Grpc-Retry-Pushback-Ms"] = []string{formatPushback(wait)}
	}
	w.WriteHeader(http.StatusOK)
	return true
}

// grpcContentType returns the content type of a gRPC call, in lower case and without parameters. For other
// requests it returns "". A call has the method POST. Other methods don't count, because a cache could
// store the response with status 200 as a page.
func grpcContentType(r *http.Request) string {
	if r.Method != http.MethodPost {
		return ""
	}
	mediaType, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	protocol, codec, hasCodec := strings.Cut(mediaType, "+")
	switch protocol {
	case "application/grpc", "application/grpc-web", "application/grpc-web-text":
	default:
		return ""
	}
	if hasCodec && isGRPCCodec(codec) {
		return mediaType
	}
	return protocol
}

// isGRPCCodec reports whether a text from a client is the name of an encoding of messages, such as
// proto or json.
func isGRPCCodec(name string) bool {
	const maxLength = 64
	return name != "" && len(name) <= maxLength && !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("+-._", c)
	})
}

// formatPushback returns the value of grpc-retry-pushback-ms: milliseconds, rounded up. The value has
// 32 bits. A wait that is longer, or that never ends, is -1, which means that the client must not retry.
func formatPushback(wait algorithms.Micros) string {
	const millisecond = 1000
	if wait > math.MaxInt32*millisecond {
		return "-1"
	}
	return strconv.FormatInt((wait+millisecond-1)/millisecond, 10)
}
