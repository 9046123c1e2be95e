// Package webhook sends Caddy's events to a URL, for example of a chat or of a program that sends mail. It never
// decides on a request.
//
// Build it in with xcaddy, beside the rate limiter:
//
//	--with github.com/caddy-rate-limit/caddy-rate-limit/examples/webhook
package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
)

func init() { caddy.RegisterModule(Handler{}) }

// Handler posts each event as JSON: its name, and its data.
type Handler struct {
	URL string `json:"url"`
}

// CaddyModule returns the module's ID.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.webhook", New: func() caddy.Module { return new(Handler) }}
}

// UnmarshalCaddyfile reads webhook <url>.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if !d.Args(&h.URL) {
		return d.ArgErr()
	}
	return nil
}

// Handle posts an event. Events wait for it, so it gives up after ten seconds.
func (h *Handler) Handle(ctx context.Context, e caddy.Event) error {
	body, err := json.Marshal(map[string]any{"event": e.Name(), "data": e.Data})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		return fmt.Errorf("the webhook answers %s", response.Status)
	}
	return nil
}

// Interface guards
var (
	_ caddyevents.Handler   = (*Handler)(nil)
	_ caddyfile.Unmarshaler = (*Handler)(nil)
)
