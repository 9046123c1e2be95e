package simulate

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

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/closest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/command"
)

// adapt returns the JSON of a configuration file. Without an adapter, the name of the file decides as in caddy
// run. The function adapts the file itself, because caddycmd.LoadConfig differs between versions, and logs
// what it does.
func adapt(file, adapter string) ([]byte, error) {
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
		return nil, unknownAdapter(adapter)
	}
	config, _, err = a.Adapt(config, map[string]any{"filename": file})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return config, nil
}

// adapterNames returns the config adapters of this program.
func adapterNames() (names []string) {
	for _, m := range caddy.GetModules("caddy.adapters") {
		names = append(names, m.ID.Name())
	}
	slices.Sort(names)
	return names
}

func unknownAdapter(name string) error {
	names := adapterNames()
	if n := closest.Index(name, names); n >= 0 {
		return command.UsageErrorf("there is no config adapter %q: did you mean %s?", name, names[n])
	}
	return command.UsageErrorf("there is no config adapter %q: write one of %s", name, strings.Join(names, ", "))
}
