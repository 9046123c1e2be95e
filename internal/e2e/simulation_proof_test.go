package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/configuration"
)

// provenSite returns a Caddyfile with these zones, whose access log has all that a simulation needs, and the
// decision of each zone as a field.
func provenSite(zones map[string]string, use, respond string) string {
	config := "{\n\tadmin {$ADMIN}\n}\n{$SITE}\nlog\nlog_append " + accesslog.InstantField + " {http.rate_limit.instant}\n"
	limits := ""
	for name, options := range zones {
		config += fmt.Sprintf("log_append zone_%s {http.rate_limit.%[1]s.allowed}\n", name)
		limits += fmt.Sprintf("\tzone %s {\n\t\t%s\n\t}\n", name, strings.ReplaceAll(options, "; ", "\n\t\t"))
	}
	return config + "@limited not path /ready\nrate_limit @limited {\n" + limits + use + "}\n" + respond + "\n"
}

// provenRequest is a request of the log.
type provenRequest struct {
	visit   *simulate.Visit
	status  int
	allowed map[string]string // what the zones said, by their names
	decided map[string]bool   // whether the zones denied the request in the simulation
	denied  bool              // in the simulation
}

// provenLog returns the requests in the access log of a Caddy, once there are n of them, as its own
// configuration meets them in a simulation.
func provenLog(t *testing.T, c *caddytest.Caddy, n int) (simulate.Configuration, []provenRequest) {
	t.Helper()
	config, err := c.Do("GET", "http://"+c.Admin+"/config/", "")
	errtest.None(t, err)
	s, err := configuration.Load([]byte(config.Text))
	errtest.None(t, err)
	var parser accesslog.Parser
	var requests []provenRequest
	for _, line := range accessLines(t, c, n) {
		var logged accesslog.Request
		errtest.None(t, parser.Parse([]byte(line), &logged), line)
		visit, err := s.Visit(&logged)
		errtest.None(t, err, line)
		var fields map[string]any
		errtest.None(t, json.Unmarshal([]byte(line), &fields), line)
		r := provenRequest{visit: visit, status: logged.Status, allowed: make(map[string]string)}
		for _, z := range s.Zones() {
			r.allowed[z.Name], _ = fields["zone_"+z.Name].(string)
		}
		requests = append(requests, r)
	}
	return s, requests
}

// decide lets a Decider decide the requests, in the order of their instants.
func decideProven(s simulate.Configuration, requests []provenRequest) {
	slices.SortStableFunc(requests, func(a, b provenRequest) int { return cmp.Compare(a.visit.Arrival(), b.visit.Arrival()) })
	d := simulate.NewDecider(s, provenObserver{s.Zones(), requests})
	for i := range requests {
		requests[i].decided = make(map[string]bool)
		requests[i].visit.Number = int64(i)
		d.Decide(requests[i].visit)
	}
	d.Finish()
}

type provenObserver struct {
	zones    []simulate.Zone
	requests []provenRequest
}

func (o provenObserver) Observe(d *simulate.Decided) {
	r := &o.requests[d.Number]
	r.denied = d.Denied
	for i := range d.Zones {
		r.decided[o.zones[d.Zones[i].Zone].Name] = d.Zones[i].Denied
	}
}

// keyIn returns the key of a request in a zone.
func (r *provenRequest) keyIn(zone string) (key string) {
	for _, h := range r.visit.Handlers {
		for i := range h.Requests {
			if h.Requests[i].Zone == zone {
				key = h.Requests[i].Key
			}
		}
	}
	return key
}

// checkProven checks that each zone denied the same requests in the simulation as in Caddy. Requests of one
// key that were decided at the same instant can have been decided in any order. It returns the number of
// denials by zone.
func checkProven(t *testing.T, s simulate.Configuration, requests []provenRequest) (denials map[string]int) {
	t.Helper()
	denials = make(map[string]int)
	for _, z := range s.Zones() {
		type moment struct {
			key string
			at  algorithms.Micros
		}
		served, simulated := make(map[moment]int), make(map[moment]int)
		for i := range requests {
			r := &requests[i]
			m := moment{r.keyIn(z.Name), r.visit.Arrival()}
			if r.visit.Instant == 0 {
				t.Fatalf("a request has no instant: %+v", r.visit)
			}
			switch r.allowed[z.Name] {
			case "false":
				served[m]++
				denials[z.Name]++
			case "true":
			default:
				continue // a remembered denial by another zone
			}
			if r.decided[z.Name] {
				simulated[m]++
			}
		}
		wrong := 0
		for i := range requests {
			m := moment{requests[i].keyIn(z.Name), requests[i].visit.Arrival()}
			if served[m] != simulated[m] {
				if wrong++; wrong == 1 {
					t.Errorf("zone %s, request %d of key %s at %d: %d denied, and %d in the simulation", z.Name, i, m.key, m.at, served[m], simulated[m])
				}
			}
		}
		if wrong > 0 {
			t.Errorf("zone %s: %d of %d requests differ", z.Name, wrong, len(requests))
		}
	}
	return denials
}

// floodZones are zones of all algorithms.
var floodZones = map[string]string{
	"fixed":   "key {query.key}; fixed_window 20 300ms",
	"log":     "key {query.key}; sliding_log 20 300ms",
	"window":  "key {query.key}; sliding_window 20 300ms",
	"tokens":  "key {query.key}; token_bucket 60 1s 10",
	"leaky":   "key {query.key}; leaky_bucket 60 1s 10",
	"gcra":    "key {query.key}; gcra 60 1s 5; cost {query.cost}",
	"smooth":  "key {query.key}; smooth 60 1s",
	"several": "key {query.key}; token_bucket 100 1s 20; fixed_window 200 5s",
	"banning": "key {query.key}; gcra 100 1s 10; ban 200ms after 3 max 1s",
	"uniform": "key {query.key}; gcra 80 1s 10; mode uniform",
	"all":     "key static; token_bucket 100 1s 50",
	"still":   "key {query.key}; fixed_window 100 1000h", // which denies at any speed
}

// sendFlood sends requests of some keys over several connections, and a cost that depends on the key.
func sendFlood(t *testing.T, c *caddytest.Caddy, requests int) {
	t.Helper()
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 31))
			for range requests / 8 {
				key := random.IntN(4)
				errtest.Report(t, errtest.Of(c.Do("GET", fmt.Sprintf("http://%s/?key=%d&cost=%d", c.Site, key, 1+key/2), "")))
			}
		})
	}
	clients.Wait()
}

// A simulation over the access log of a flood denies exactly the requests that Caddy denied, in every zone:
// zones in shadow mode, and zones that deny. So it does with the time of Redis.
func TestSimulationDeniesWhatCaddyDenied(t *testing.T) {
	t.Parallel()
	const requests = 600
	for _, mode := range []string{"shadow", "enforced"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			caddytest.EachStore(t, func(t *testing.T, use string) {
				zones := make(map[string]string)
				for name, options := range floodZones {
					if mode == "shadow" {
						zones[name] = options + "; shadow"
					} else if name == "tokens" || name == "banning" || name == "fixed" || name == "still" {
						zones[name] = options
					}
				}
				c := caddytest.Start(t, provenSite(zones, use, "respond ok"))
				sendFlood(t, c, requests)
				s, proven := provenLog(t, c, requests)
				decideProven(s, proven)
				denials := checkProven(t, s, proven)
				all := 0
				for _, n := range denials {
					all += n
				}
				if all < 100 || mode == "shadow" && denials["still"] < 100 {
					t.Errorf("the zones denied only %v requests", denials)
				}
				statuses := make(map[int]int)
				for i := range proven {
					r := &proven[i]
					if statuses[r.status]++; r.denied != (r.status == http.StatusTooManyRequests) {
						statuses[-1]++
					}
				}
				if statuses[-1] > 0 && use == "" { // requests of one instant in Redis may be swapped
					t.Errorf("%d statuses differ from the simulation", statuses[-1])
				}
			})
		})
	}
}

// Requests overlap, take slots and settle. The decisions of each round come after all ends of the round
// before. So the order of both is known, and the simulation denies the same requests.
func TestSimulationEndsWhatCaddyEnded(t *testing.T) {
	t.Parallel()
	const rounds, perRound = 30, 12
	caddytest.EachStore(t, func(t *testing.T, use string) {
		gates := make(chan *sync.WaitGroup, 1)
		upstream := caddytest.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			gate := <-gates
			gates <- gate
			gate.Done()
			gate.Wait() // until all requests of the round are in flight
			// The requests of a round may be decided in any order if Redis decides them at one instant.
			round, _ := strconv.Atoi(r.URL.Query().Get("round"))
			w.Header().Set("X-Tokens", fmt.Sprint(round%5))
			w.WriteHeader([]int{200, 401}[round/5%2])
		})
		c := caddytest.Start(t, provenSite(map[string]string{
			"slots":  "key {query.key}; shadow; concurrency 3",
			"both":   "key {query.key}; shadow; concurrency 5; fixed_window 100 1h; ban 1h after 3",
			"logins": "key {query.key}; shadow; sliding_log 40 1h; settle {\nmatch status 401\n}",
			"tokens": "key {query.key}; shadow; fixed_window 60 1h; settle {\ncost {http.response.header.X-Tokens} max 3\n}",
			"spent":  "key {query.key}; shadow; token_bucket 200 1h; cost 5; settle {\ncost {http.response.header.X-Tokens}\n}",
		}, use, "@ready path /ready\nrespond @ready ok\nreverse_proxy "+upstream))
		n := 0
		for round := range rounds {
			gate := new(sync.WaitGroup)
			gate.Add(perRound)
			if round > 0 {
				<-gates
			}
			gates <- gate
			var clients sync.WaitGroup
			for range perRound {
				number := n
				n++
				clients.Go(func() {
					errtest.Report(t, errtest.Of(c.Do("GET", fmt.Sprintf("http://%s/?round=%d&key=%d", c.Site, round, number%2), "")))
				})
			}
			clients.Wait()
			accessLines(t, c, n)
		}
		s, proven := provenLog(t, c, n)
		decideProven(s, proven)
		denials := checkProven(t, s, proven)
		for _, z := range s.Zones() {
			if denials[z.Name] < 10 || denials[z.Name] > n-10 {
				t.Errorf("zone %s denied %d of %d requests", z.Name, denials[z.Name], n)
			}
		}
	})
}
