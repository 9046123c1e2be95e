package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

// call is one run of a subcommand.
type call struct {
	cmd       *cobra.Command
	args      []string
	zone, key string     // of a keySubcommand
	instances []instance // at least one
	json      bool
	out       io.Writer
	style     style
}

func newCall(cmd *cobra.Command, args []string) (*call, error) {
	instances, err := addresses(cmd)
	if err != nil {
		return nil, err
	}
	c := &call{cmd: cmd, args: args, instances: instances, json: boolFlag(cmd, "json"), out: cmd.OutOrStdout()}
	c.style.Colored = terminal.Of(c.out) != nil && terminal.IsColored()
	return c, nil
}

func boolFlag(cmd *cobra.Command, name string) bool {
	value, _ := cmd.Flags().GetBool(name)
	return value
}

func stringFlag(cmd *cobra.Command, name string) string {
	value, _ := cmd.Flags().GetString(name)
	return value
}

// print prints the output of a command.
func (c *call) print(text string) error {
	_, err := io.WriteString(c.out, text)
	return err
}

// argument returns an argument, or "" if it is left out.
func (c *call) argument(i int) string {
	if i < len(c.args) {
		return c.args[i]
	}
	return ""
}

// answer is the answer of an instance: a body, or an error.
type answer struct {
	from instance
	body json.RawMessage
	err  error
}

// ask asks instances at the same time. The answers are in the order of the instances.
func ask(instances []instance, get func(instance) (json.RawMessage, error)) []answer {
	answers := make([]answer, len(instances))
	var wg sync.WaitGroup
	for n, i := range instances {
		wg.Go(func() {
			body, err := get(i)
			answers[n] = answer{i, body, err}
		})
	}
	wg.Wait()
	return answers
}

// failures returns the errors of the answers. An error of several instances names its instance.
func failures(answers []answer) error {
	var errs []error
	for _, a := range answers {
		err := a.err
		if err != nil && len(answers) > 1 && !strings.Contains(err.Error(), string(a.from)) {
			err = fmt.Errorf("%w (from %s)", err, a.from)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// decoded is a body of an instance.
type decoded[T any] struct {
	from instance
	body T
}

// decode returns the bodies of the answers without an error.
func decode[T any](answers []answer) ([]decoded[T], error) {
	var bodies []decoded[T]
	for _, a := range answers {
		if a.err != nil {
			continue
		}
		d := decoded[T]{from: a.from}
		if err := json.Unmarshal(a.body, &d.body); err != nil {
			return nil, a.from.misunderstood(err)
		}
		bodies = append(bodies, d)
	}
	return bodies, nil
}

// compactJSON returns JSON without escapes for < > and &. The value must be made of what JSON has.
func compactJSON(v any) []byte {
	text, err := options.ReadableJSON(v)
	if err != nil {
		panic(err)
	}
	return text
}

// jsonDocument returns the document for scripts: the body of a single instance, or an object with the
// bodies by address. An instance that failed then has an error, as in the admin API.
func (c *call) jsonDocument(answers []answer) string {
	if len(c.instances) == 1 {
		if len(answers) == 0 {
			return "{}\n"
		}
		if answers[0].err != nil {
			return ""
		}
		return terminal.PrintableJSON(string(bytes.TrimSpace(answers[0].body))) + "\n"
	}
	var o options.Object
	for _, a := range answers {
		f := options.Field{Name: string(a.from), Value: a.body}
		if a.err != nil {
			f.Value = map[string]string{"error": a.err.Error()}
		}
		o = append(o, f)
	}
	return terminal.PrintableJSON(string(compactJSON(o))) + "\n"
}

// show prints the bodies of answers, and returns the errors of instances that failed.
func show[T any](c *call, answers []answer, view func([]decoded[T]) string) error {
	failed := failures(answers)
	if c.json {
		return errors.Join(c.print(c.jsonDocument(answers)), failed)
	}
	bodies, err := decode[T](answers)
	if err == nil && len(bodies) > 0 {
		err = c.print(view(bodies))
	}
	return errors.Join(err, failed)
}

// showEach prints a view of each body. If there are several instances, each view has a title.
func showEach[T any](c *call, answers []answer, view func(T) string) error {
	return show(c, answers, func(bodies []decoded[T]) string {
		var texts []string
		for _, d := range bodies {
			text := view(d.body)
			if len(c.instances) > 1 {
				text = c.style.Paint(fmt.Sprintf("Caddy at %s:", d.from), bold) + "\n" + text
			}
			texts = append(texts, text)
		}
		return strings.Join(texts, "\n")
	})
}

// place is where zones are: an instance, and the names of zones.
type place struct {
	instance instance
	zones    []string
}

// asked says which instances are asked about a zone.
type asked bool

const (
	everyInstance asked = false
	// oneOfRedis is only one of the instances that share a Redis, because all have the same budgets, overrides and bans
	// there. It is the first instance for which Redis works.
	oneOfRedis asked = true
)

// places returns all zones of all instances for which has is nil or true, or only one zone if it is given. failed has
// the errors of instances that could not be asked.
func (c *call) places(zone string, which asked, has func(adminapi.Zone) bool) (places []place, failed error) {
	if zone != "" && len(c.instances) == 1 {
		return []place{{c.instances[0], []string{zone}}}, nil
	}
	answers := ask(c.instances, func(i instance) (json.RawMessage, error) {
		if zone != "" {
			return i.getZone(zone)
		}
		return i.getZones()
	})
	lists, err := decode[[]adminapi.Zone](answers)
	owner := redisOwners(lists)
	for _, list := range lists {
		p := place{instance: list.from}
		for _, z := range list.body {
			elsewhere := which == oneOfRedis && z.Store != "memory" && owner[redisZone{z.Name, list.from.store(z.Store)}] != list.from
			if zone == "" && has != nil && !has(z) || slices.Contains(p.zones, z.Name) || elsewhere {
				continue
			}
			p.zones = append(p.zones, z.Name)
		}
		if len(p.zones) > 0 {
			places = append(places, p)
		}
	}
	return places, errors.Join(err, failures(answers))
}

// localStore matches stores whose address means another Redis on each machine.
var localStore = regexp.MustCompile(`^redis (unix|/|localhost:|127\.|\[?::1)`)

// store names a store, so that the stores of two instances have the same name if they are the same
// Redis.
func (i instance) store(store string) string {
	if !localStore.MatchString(store) {
		return store
	}
	machine := "localhost"
	if a, err := caddy.ParseNetworkAddress(string(i)); err == nil && !a.IsUnixNetwork() {
		machine = a.Host
	}
	return store + " of " + machine
}

func instancesOf(places []place) (instances []instance) {
	for _, p := range places {
		instances = append(instances, p.instance)
	}
	return instances
}

// askPlaces asks for a body for each zone of each place. For people, and if no zone is given, the bodies
// of a place are in an object by zone. For scripts the body of a given zone is as in the admin API.
func (c *call) askPlaces(zone string, places []place, get func(i instance, zone string) (json.RawMessage, error)) []answer {
	zones := make(map[instance][]string)
	for _, p := range places {
		zones[p.instance] = p.zones
	}
	return ask(instancesOf(places), func(i instance) (json.RawMessage, error) {
		bodies := make(map[string]json.RawMessage)
		for _, z := range zones[i] {
			body, err := get(i, z)
			if err != nil {
				return nil, err
			}
			if c.json && zone != "" {
				return body, nil
			}
			bodies[z] = body
		}
		return compactJSON(bodies), nil
	})
}

// redisOwners returns the instance to ask about each zone of each Redis: the first one for which Redis
// works, or for which most of it works.
func redisOwners(lists []decoded[[]adminapi.Zone]) map[redisZone]instance {
	owners, least := make(map[redisZone]instance), make(map[redisZone]int)
	for _, list := range lists {
		for _, z := range list.body {
			id := redisZone{z.Name, list.from.store(z.Store)}
			if n := failingNodes(z); owners[id] == "" || n < least[id] {
				owners[id], least[id] = list.from, n
			}
		}
	}
	return owners
}

// redisZone is a zone of one Redis. All instances that have it share its budgets.
type redisZone struct{ name, store string }

// failingNodes returns how many nodes of a zone's Redis fail, as its instance sees it.
func failingNodes(z adminapi.Zone) int {
	if z.FailingNodes == nil {
		return 0
	}
	return *z.FailingNodes
}
