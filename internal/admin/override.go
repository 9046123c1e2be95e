package admin

import (
	"net/http"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// setOverride sets the run-time override of a key.
func (a *OperatorRequest) setOverride() (any, error) {
	if err := a.checkKey(ForOverrides); err != nil {
		return nil, Error(http.StatusBadRequest, "key %w", err)
	}
	text, lasts, err := a.Configuration.ParseOverride([]byte(a.Body))
	if err != nil {
		return nil, Error(http.StatusBadRequest, "%w", err)
	}
	return nil, a.changeOverride(text, lasts)
}

// removeOverride removes the run-time override of a key.
func (a *OperatorRequest) removeOverride() (any, error) { return nil, a.changeOverride("", 0) }

// changeOverride sets the run-time override of a key, or removes it if the text is empty. If ttl is
// 0, the override has no end.
func (a *OperatorRequest) changeOverride(text string, ttl time.Duration) error {
	for _, z := range a.zones {
		if !z.RuntimeOverrides {
			return Error(http.StatusConflict, "zone %q does not look for overrides at run time: write runtime_overrides in it", z.Name)
		}
		if text == "" {
			continue
		}
		if _, _, err := z.CompileOverride(text); err != nil {
			return Error(http.StatusBadRequest, "override: %w", err)
		}
	}
	err := a.changeKey(func(*Zone) (store.Change, error) {
		return store.Change{Override: &text, OverrideFor: ttl.Microseconds()}, nil
	})
	if err == nil {
		for _, z := range a.zones {
			z.RememberOverride(a.key, text)
		}
	}
	return err
}
