package ratelimit

import (
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
)

// Limiter returns the limiter of the handler, which Provision has made. It is for the packages of this module.
func (h *Handler) Limiter() *limiter.Limiter { return h.limiter }

// ServeHTTP charges a request to all zones that it belongs to, at one instant. Then it
// passes the request to next, at once or after a delay, or denies it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return h.limiter.Serve(w, r, next)
}
