package caddytest

import (
	"fmt"
	"strings"
	"testing"
)

// The events.
const (
	EventExceeded       = "rate_limit_exceeded"
	EventShadowExceeded = "rate_limit_shadow_exceeded"
	EventBanned         = "rate_limit_banned"
	EventThreshold      = "rate_limit_threshold"
	EventDown           = "rate_limit_store_down"
	EventUp             = "rate_limit_store_up"
)

// EventNames are the names of all events.
var EventNames = []string{EventExceeded, EventShadowExceeded, EventBanned, EventThreshold, EventDown, EventUp}

// Times returns how often the log says something, once it holds all that came before.
func (c *Caddy) Times(t *testing.T, text string) int {
	t.Helper()
	mark := fmt.Sprintf("mark %d of the log", len(c.Logged()))
	if r := c.Load(t, `{"`+mark+`": true}`, "application/json"); r.StatusCode == 200 {
		t.Fatal("this is no configuration")
	}
	c.WaitForLog(t, mark)
	return strings.Count(c.Logged(), text)
}

// WaitForOutages sends requests until the log says n times that Redis fails.
func (c *Caddy) WaitForOutages(t *testing.T, n int) {
	t.Helper()
	EventuallySees(t, fmt.Sprint("Redis has failed ", n, " times"), func() int {
		Flood(t, 8, 8, "/", c)
		return strings.Count(c.Logged(), `"Redis is failing, and Caddy won't ask it until it recovers`)
	}, func(failed int) bool { return failed == n })
}
