package ratelimit

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/admin"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// An unknown ID is an error with status 404. The error has only the beginning of a long ID.
func TestUnknownDenialID(t *testing.T) {
	t.Parallel()
	_, err := new(admin.Request).ExplainDenial(t.Context(), adminapi.Request{Denial: "<b>\"" + strings.Repeat("x", 1000)})
	var failed caddy.APIError
	if !errors.As(err, &failed) || failed.HTTPStatus != http.StatusNotFound || len(err.Error()) > 300 {
		t.Errorf("an unknown ID: %v", err)
	}
}
