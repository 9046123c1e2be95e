package command

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminclient"
)

// An instance that has lost Redis isn't asked about the zones there, if another one still has it.
func TestRedisOwners(t *testing.T) {
	zones := func(failing int) []adminapi.Zone {
		return []adminapi.Zone{{Name: "api", Store: "redis r:1", FailingNodes: failing}, {Name: "login", Store: "memory"}}
	}
	for _, test := range []struct {
		failing [3]int
		want    adminclient.Instance
	}{
		{[3]int{0, 0, 0}, "a:1"},
		{[3]int{1, 0, 0}, "b:1"},
		{[3]int{3, 2, 1}, "c:1"},
		{[3]int{1, 1, 1}, "a:1"},
	} {
		var lists []decoded[[]adminapi.Zone]
		for n, from := range []adminclient.Instance{"a:1", "b:1", "c:1"} {
			lists = append(lists, decoded[[]adminapi.Zone]{target{from: from}, zones(test.failing[n])})
		}
		want := map[redisZone]adminclient.Instance{{"api", "redis r:1"}: test.want, {"login", "memory"}: "a:1"}
		if got := redisOwners(lists); !maps.Equal(got, want) {
			t.Errorf("failing nodes %v: %v, want %v", test.failing, got, want)
		}
	}
}

// Instances share a zone if its store is the same for both.
func TestStoresOfInstances(t *testing.T) {
	const local, remote = "redis localhost:6379 db 0", "redis 10.0.0.9:6379 db 0"
	for _, test := range []struct {
		a, b   adminclient.Instance
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
		z := adminapi.Zone{Store: test.store}
		if shared := redisZoneOf(test.a, z) == redisZoneOf(test.b, z); shared != test.shared {
			t.Errorf("%s and %s share %s: %v", test.a, test.b, test.store, shared)
		}
	}
}

// A list has the entries of all its pages, and asks for no more than are left. If the limit cuts it, it has the cursor of the next page.
func TestPagesAreJoined(t *testing.T) {
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := map[string]string{"": `{"bans":[{"key":"a"}],"next":"1"}`, "1": `{"bans":[],"next":"2"}`, "2": `{"bans":[{"key":"` + r.FormValue("limit") + `"}]}`}
		_, _ = io.WriteString(w, page[r.FormValue("cursor")])
	}))
	defer admin.Close()
	zone := target{from: adminclient.Instance(strings.TrimPrefix(admin.URL, "http://")), zone: "api"}
	for limit, want := range map[int]string{
		1: `{"bans":[{"key":"a"}],"next":"1"}`, 2: `{"bans":[{"key":"a"},{"key":"1"}]}`, 3: `{"bans":[{"key":"a"},{"key":"2"}]}`,
	} {
		if got, err := getPages("bans")(zone, limit); string(got) != want || err != nil {
			t.Errorf("limit %d: %s, %v, want %s", limit, got, err, want)
		}
	}
}
