package caddytest

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// Adapt turns a Caddyfile into indented JSON.
func Adapt(t testing.TB, text []byte) (string, error) {
	t.Helper()
	result, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(text, map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return "", err
	}
	for _, w := range warnings {
		if !strings.Contains(w.Message, "is not formatted") {
			t.Errorf("warning: %v", w)
		}
	}
	var b bytes.Buffer
	if err := json.Indent(&b, result, "", "\t"); err != nil {
		t.Fatal(err)
	}
	return b.String(), nil
}

// Validate provisions a JSON configuration and cleans it up again.
func Validate(config string) error {
	var c *caddy.Config
	if err := caddy.StrictUnmarshalJSON([]byte(config), &c); err != nil {
		return err
	}
	Provisioning.Lock()
	defer Provisioning.Unlock()
	return caddy.Validate(c)
}

// Provisioning is locked while Caddy provisions a configuration, because Caddy then sets variables of the process.
var Provisioning sync.Mutex
