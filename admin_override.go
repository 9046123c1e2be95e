package ratelimit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// setOverride sets the run-time override of a key.
func (a *adminRequest) setOverride() (any, error) {
	if err := a.checkKey(true); err != nil {
		return nil, adminError(http.StatusBadRequest, "key %w (percent-encoded)", err)
	}
	var body struct {
		LimitSet
		TTL *caddy.Duration `json:"ttl"`
	}
	text, err := readLimitTexts([]byte(a.body))
	if err == nil {
		err = decodeStrictly(text, &body)
	}
	if err != nil {
		return nil, adminError(http.StatusBadRequest,
			`the body: %w; write for example {"limits":["token_bucket 100 1m"],"ttl":"1h"} or {"unlimited":true}`, err)
	}
	o, ttl := storedOverride{LimitSet: body.LimitSet}, time.Duration(0)
	if body.TTL != nil {
		if ttl = time.Duration(*body.TTL); ttl < time.Millisecond {
			return nil, adminError(http.StatusBadRequest,
				`ttl must be at least 1ms, not %v: write for example "1h" (a number is nanoseconds), or leave it out for no end`, ttl)
		}
		o.Until = time.Now().Add(ttl).UTC().Truncate(time.Millisecond)
	}
	stored, err := o.text()
	if err != nil {
		return nil, err
	}
	return nil, a.changeOverride(stored, ttl)
}

// removeOverride removes the run-time override of a key.
func (a *adminRequest) removeOverride() (any, error) { return nil, a.changeOverride("", 0) }

// changeOverride sets the run-time override of a key, or removes it if the text is empty. If ttl is
// 0, the override has no end.
func (a *adminRequest) changeOverride(text string, ttl time.Duration) error {
	for _, z := range a.zones {
		if !z.runtimeOverrides {
			return adminError(http.StatusConflict, "zone %q does not look for overrides at run time: write runtime_overrides in it", z.name)
		}
		if text == "" {
			continue
		}
		if _, err := z.compileStoredOverride(text); err != nil {
			return adminError(http.StatusBadRequest, "override: %w", err)
		}
	}
	err := a.changeKey(func(*zone) (store.Change, error) {
		return store.Change{Override: &text, OverrideFor: ttl.Microseconds()}, nil
	})
	if err == nil {
		for _, z := range a.zones {
			z.rememberOverride(a.key, text)
		}
	}
	return err
}

// readLimitTexts returns the body of an override in which all limits are objects. Limits can be texts,
// too, such as "token_bucket 100 1m". The one text "unlimited" stands for no limits. A body that isn't
// JSON is returned as it is.
func readLimitTexts(body []byte) ([]byte, error) {
	var fields map[string]json.RawMessage
	var limits []json.RawMessage
	if json.Unmarshal(body, &fields) != nil || json.Unmarshal(fields["limits"], &limits) != nil {
		return body, nil
	}
	if len(limits) == 1 && string(bytes.TrimSpace(limits[0])) == `"unlimited"` && fields["unlimited"] == nil {
		delete(fields, "limits")
		fields["unlimited"] = []byte("true")
		return json.Marshal(fields)
	}
	for i, value := range limits {
		var text string
		if value[0] != '"' || json.Unmarshal(value, &text) != nil {
			continue
		}
		limit, err := parseLimitText(text)
		if err != nil {
			return nil, fmt.Errorf("limits[%d] %q: %w", i, text, err)
		}
		if limits[i], err = json.Marshal(limit); err != nil {
			return nil, err
		}
	}
	var err error
	if fields["limits"], err = json.Marshal(limits); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// parseLimitText reads a limit that is written as in a Caddyfile, or as operators see it.
func parseLimitText(text string) (l Limit, err error) {
	name, _, _ := strings.Cut(text, " ")
	if name == "unlimited" {
		return l, errors.New(`"unlimited" can't stand beside limits: write it alone`)
	}
	if algorithm, err := algorithms.Lookup(name); err == nil {
		text = algorithm.CaddyfileText(text)
	}
	tokens, err := caddyfile.Tokenize([]byte(text), "limit")
	if err != nil && !errors.Is(err, io.EOF) { // EOF is the error of an empty text
		return l, err
	}
	d := caddyfile.NewDispenser(tokens)
	if !d.Next() {
		return l, errors.New("it has no limit: write for example token_bucket 100 1m")
	}
	if l, err = unmarshalLimit(d, d.Val()); err != nil {
		return l, err
	}
	if d.Next() {
		return l, fmt.Errorf("%q follows the limit: write each limit in its own string", d.Val())
	}
	return l, nil
}
