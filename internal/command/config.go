package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// Adapt returns the JSON of a configuration file. Without an adapter, the name of the file decides as in caddy
// run. The function adapts the file itself, because caddycmd.LoadConfig differs between versions, and logs
// what it does.
func Adapt(file, adapter string) ([]byte, error) {
	config, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no configuration file %q: check the name", file)
	}
	if err != nil {
		return nil, err
	}
	base := strings.ToLower(filepath.Base(file))
	isCaddyfile := strings.HasPrefix(base, "caddyfile") || strings.HasSuffix(base, ".caddyfile")
	if adapter == "" && isCaddyfile && filepath.Ext(base) != ".json" {
		adapter = "caddyfile"
	}
	if adapter == "" {
		if !json.Valid(config) {
			return nil, fmt.Errorf("%s is not JSON: name its adapter, for example --adapter caddyfile", file)
		}
		return config, nil
	}
	a := caddyconfig.GetAdapter(adapter)
	if a == nil {
		return nil, UsageErrorf("there is no config adapter %q: write one of %s", adapter, strings.Join(AdapterNames(), ", "))
	}
	config, _, err = a.Adapt(config, map[string]any{"filename": file})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return config, nil
}

// AdapterNames returns the config adapters of this program.
func AdapterNames() (names []string) {
	for _, m := range caddy.GetModules("caddy.adapters") {
		names = append(names, m.ID.Name())
	}
	slices.Sort(names)
	return names
}

// hasNoAdmin reports whether the configuration in a file says admin off. A file that can't be read has
// another error.
func hasNoAdmin(file, adapter string) bool {
	config, err := Adapt(file, adapter)
	var parsed struct{ Admin caddy.AdminConfig }
	return err == nil && json.Unmarshal(config, &parsed) == nil && parsed.Admin.Disabled
}
