package command

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// The exit code tells scripts whether a Redis fails. A failing one is no error of the command, so it prints none.
func TestStatusExitCode(t *testing.T) {
	for state, want := range map[string]error{"": nil, "up": nil, "partly_down": errStoreFails, "down": errStoreFails} {
		var status adminapi.Status
		if state != "" {
			status.Redis = []adminapi.Redis{{Address: "other:6379", State: "up"}, {Address: "redis:6379", State: state}}
		}
		admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/zones") {
				_, _ = io.WriteString(w, "[]")
				return
			}
			_ = json.NewEncoder(w).Encode(status)
		}))
		for _, flag := range []string{"--json", "--check"} {
			root, printed := &cobra.Command{Use: "rate-limit", SilenceUsage: true}, new(strings.Builder)
			configure(root)
			root.SetArgs([]string{"status", flag, "--address", strings.TrimPrefix(admin.URL, "http://")})
			root.SetOut(printed)
			root.SetErr(printed)
			got, text := root.Execute(), printed.String()
			if got != want || json.Valid([]byte(text)) != (flag == "--json") || flag == "--check" && (text == "No warning.\n") != (want == nil) {
				t.Errorf("state %q %s: %v, want %v, and printed %s", state, flag, got, want, text)
			}
		}
		admin.Close()
	}
}

// A Caddy without package simulate says how to build one with it, whatever flags simulate has.
func TestMissingSimulate(t *testing.T) {
	cmd := &cobra.Command{Use: "rate-limit"}
	configure(cmd)
	var told bytes.Buffer
	cmd.SetErr(&told)
	cmd.SetArgs([]string{"simulate", "--zone", "key {client_ip}", "access.log"})
	if err := cmd.Execute(); err == nil || !strings.Contains(told.String(), "xcaddy build --with github.com/caddy-rate-limit/caddy-rate-limit/simulate ") {
		t.Errorf("error %v, and told %q", err, told.String())
	}
}
