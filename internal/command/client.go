package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminclient"
)

// target is a zone of an instance, or the instance if it has no zone.
type target struct {
	from  adminclient.Instance
	zone  string
	owner adminclient.Instance // the one that is asked about the zone's budgets; set by [call.zones]
}

// request calls the admin API. The body can be nil.
func (t target) request(method string, body any, query url.Values, parts ...string) (json.RawMessage, error) {
	var text []byte
	if body != nil {
		text = compactJSON(body)
	}
	status, answer, err := t.from.Send(context.Background(), method, adminclient.Path(query, parts...), text)
	if err != nil || status < http.StatusBadRequest {
		return answer, err
	}
	var failure struct{ Error string }
	if err := json.Unmarshal(answer, &failure); err != nil || failure.Error == "" {
		return nil, t.misunderstood(fmt.Errorf("status %d", status))
	}
	return nil, t.inWords(status, failure.Error)
}

// inWords returns an error of the admin API as people need it who write a command and no body.
func (t target) inWords(status int, message string) error {
	switch {
	case status == http.StatusForbidden:
		origin := string(t.from)
		if _, host, ok := strings.Cut(origin, "/"); ok { // behind the network
			origin = strings.TrimPrefix(host, "/")
		}
		return fmt.Errorf("the Caddy at %s answers only to known addresses (%s): write origins %s in the admin block of its global options, "+
			"or use another --address", t.from, message, origin)
	case strings.HasPrefix(message, "the body: limits["):
		message, _, _ = strings.Cut(strings.TrimPrefix(message, "the body: "), `; write for example {"`)
		_, message, _ = strings.Cut(message, " ")
		message = "the limit " + strings.Replace(message, ": write one of ", ": write unlimited, or one of ", 1)
	case status == http.StatusServiceUnavailable && !strings.Contains(message, "is not a budget"):
		message += "; caddy rate-limit status shows the store"
	}
	return errors.New(message)
}

// misunderstood returns an error about an answer that could not be decoded.
func (t target) misunderstood(err error) error {
	return fmt.Errorf("the Caddy at %s answers in a way that this command doesn't understand (%w): use the command of its version",
		t.from, err)
}

// get returns the answer about a path.
func (t target) get(parts ...string) (json.RawMessage, error) {
	return t.request("GET", nil, nil, parts...)
}

// requestKey calls the admin API about a key of the zone. The resource is keys, override or ban.
func (t target) requestKey(method, resource, key string, body any) (json.RawMessage, error) {
	return t.request(method, body, url.Values{"key": {key}}, "zones", t.zone, resource)
}

// asked says which instances are asked about a zone.
type asked bool

const (
	everyInstance asked = false
	// oneOfRedis is only one of the instances that share a Redis, because all have the same budgets, overrides and bans
	// there. It is the first instance for which Redis works.
	oneOfRedis asked = true
)

// zones returns all zones of all instances for which has is true, or only one zone if it is given. failed has the answers
// of instances that could not be asked.
func (c *call) zones(zone string, which asked, has func(adminapi.Zone) bool) (zones []target, failed []answer) {
	lists, failed := decode[[]adminapi.Zone](ask(c.instances, func(t target) (json.RawMessage, error) { return t.get("zones") }))
	owners := redisOwners(lists)
	for _, list := range lists {
		known := zone == ""
		for _, z := range list.body {
			of := target{list.from, z.Name, list.from}
			if z.Store != "memory" {
				of.owner = owners[redisZoneOf(list.from, z)]
			}
			wanted := z.Name == zone || zone == "" && has(z)
			if wanted && (which == everyInstance || of.owner == of.from) && !slices.ContainsFunc(zones, of.isSame) {
				zones = append(zones, of)
			}
			known = known || z.Name == zone
		}
		if !known { // the answer says so
			zones = append(zones, target{list.from, zone, list.from})
		}
	}
	return zones, failed
}

func (t target) isSame(other target) bool { return t.from == other.from && t.zone == other.zone }

// redisZone is a zone of one Redis. All instances that have it share its budgets.
type redisZone struct{ name, store string }

// localStore matches stores whose address means another Redis on each machine.
var localStore = regexp.MustCompile(`^redis (unix|/|localhost:|127\.|\[?::1)`)

// redisZoneOf returns the same for two instances if their zones have the same Redis.
func redisZoneOf(i adminclient.Instance, z adminapi.Zone) redisZone {
	if !localStore.MatchString(z.Store) {
		return redisZone{z.Name, z.Store}
	}
	machine := "localhost"
	if a, err := caddy.ParseNetworkAddress(string(i)); err == nil && !a.IsUnixNetwork() {
		machine = a.Host
	}
	return redisZone{z.Name, z.Store + " of " + machine}
}

// redisOwners returns the instance to ask about each zone of each Redis: the first one for which Redis
// works, or for which most of it works.
func redisOwners(lists []decoded[[]adminapi.Zone]) map[redisZone]adminclient.Instance {
	owners, least := make(map[redisZone]adminclient.Instance), make(map[redisZone]int)
	for _, list := range lists {
		for _, z := range list.body {
			id := redisZoneOf(list.from, z)
			if n := z.FailingNodes; owners[id] == "" || n < least[id] {
				owners[id], least[id] = list.from, n
			}
		}
	}
	return owners
}
