package command

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// An instance that has lost Redis isn't asked about the zones there, if another one still has it.
func TestRedisOwners(t *testing.T) {
	zones := func(failing int) []adminapi.Zone {
		return []adminapi.Zone{{Name: "api", Store: "redis r:1", FailingNodes: &failing}, {Name: "login", Store: "memory"}}
	}
	for _, test := range []struct {
		failing [3]int
		want    instance
	}{
		{[3]int{0, 0, 0}, "a:1"},
		{[3]int{1, 0, 0}, "b:1"},
		{[3]int{3, 2, 1}, "c:1"},
		{[3]int{1, 1, 1}, "a:1"},
	} {
		var lists []decoded[[]adminapi.Zone]
		for n, from := range []instance{"a:1", "b:1", "c:1"} {
			lists = append(lists, decoded[[]adminapi.Zone]{from, zones(test.failing[n])})
		}
		want := map[redisZone]instance{{"api", "redis r:1"}: test.want, {"login", "memory"}: "a:1"}
		if got := redisOwners(lists); !maps.Equal(got, want) {
			t.Errorf("failing nodes %v: %v, want %v", test.failing, got, want)
		}
	}
}

// Instances share a store if its name is the same for both.
func TestStoresOfInstances(t *testing.T) {
	const local, remote = "redis localhost:6379 db 0", "redis 10.0.0.9:6379 db 0"
	for _, test := range []struct {
		a, b   instance
		store  string
		shared bool
	}{
		{"10.0.0.1:2019", "10.0.0.2:2019", remote, true},
		{"10.0.0.1:2019", "10.0.0.2:2019", local, false},
		{"10.0.0.1:2019", "10.0.0.2:2019", "redis unix//run/redis.sock db 0", false},
		{"10.0.0.1:2019", "10.0.0.2:2019", "redis localhost.example:6379 db 0", true},
		{"localhost:2019", "localhost:2020", local, true},
		{"localhost:2019", "unix//run/caddy.sock", local, true},
	} {
		if shared := test.a.store(test.store) == test.b.store(test.store); shared != test.shared {
			t.Errorf("%s and %s share %s: %v", test.a, test.b, test.store, shared)
		}
	}
}

// A command waits for an answer for ten seconds, and not for longer. Then it says whether a change may have been made.
func TestCommandWaitsForAnswer(t *testing.T) {
	const limit = 10 * time.Second
	for _, test := range []struct {
		takes   time.Duration
		changes bool
		want    string // the error
	}{
		{0, true, ""},
		{limit - 1, false, ""},
		{limit - 1, true, ""},
		{limit + 1, false, "no Caddy answers at a:1 (no answer within 10s): start Caddy"},
		{limit + 1, true, "no Caddy answers at a:1 (no answer within 10s, so it is unknown whether a change is made): start Caddy"},
		{1000 * time.Hour, true, "no answer within 10s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			body, err := instance("a:1").await(test.changes, func() (json.RawMessage, error) {
				time.Sleep(test.takes) // virtual time
				return json.RawMessage("{}"), nil
			})
			took := time.Since(began)
			time.Sleep(test.takes) // virtual time: the call ends
			if test.want == "" {
				if string(body) != "{}" || err != nil || took != test.takes {
					t.Errorf("an answer after %v: %s, %v after %v", test.takes, body, err, took)
				}
				return
			}
			var unreachable *unreachableError
			if !errors.As(err, &unreachable) || !strings.Contains(err.Error(), test.want) || took != limit {
				t.Errorf("an answer after %v: %v after %v, want %s", test.takes, err, took, test.want)
			}
		})
	}
}
