package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

// call is one run of a subcommand.
type call struct {
	cmd       *cobra.Command
	args      []string
	zone, key string   // arguments of the subcommand; empty if it has none, or is about all zones
	instances []target // at least one
	json      bool
	out       io.Writer
	style     terminal.Style
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

// answer is the answer of a target: a body, or an error.
type answer struct {
	target
	body json.RawMessage
	err  error
}

// decoded is a body that a target answers.
type decoded[T any] struct {
	target
	body T
}

// ask asks instances at the same time, and each about one zone after the other.
func ask(targets []target, get func(target) (json.RawMessage, error)) []answer {
	answers := make([]answer, len(targets))
	var wg sync.WaitGroup
	for n, t := range targets {
		if slices.ContainsFunc(targets[:n], func(earlier target) bool { return earlier.from == t.from }) {
			continue
		}
		wg.Go(func() {
			for n, of := range targets {
				if of.from == t.from {
					body, err := get(of)
					answers[n] = answer{of, body, err}
				}
			}
		})
	}
	wg.Wait()
	return answers
}

// decode returns the bodies of the answers, and the answers without one.
func decode[T any](answers []answer) (bodies []decoded[T], failed []answer) {
	for _, a := range answers {
		d := decoded[T]{target: a.target}
		if a.err == nil {
			if err := json.Unmarshal(a.body, &d.body); err != nil {
				a.err = a.misunderstood(err)
			}
		}
		if a.err != nil {
			failed = append(failed, a)
		} else {
			bodies = append(bodies, d)
		}
	}
	return bodies, failed
}

// compactJSON returns JSON without escapes for < > and &. The value must be made of what JSON has.
func compactJSON(v any) []byte {
	text, err := options.ReadableJSON(v)
	if err != nil {
		panic(err)
	}
	return text
}

// document returns the document for scripts: the body of a single instance, or an object with the bodies by address. If
// no zone is given, the bodies of an instance are in an object by zone. An instance that failed has an error, as in the
// admin API.
func (c *call) document(answers []answer) any {
	documents := make(map[string]any)
	for _, a := range answers {
		from := string(a.from)
		if _, failed := documents[from].(map[string]string); failed {
			continue
		}
		byZone, _ := documents[from].(map[string]json.RawMessage)
		switch {
		case a.err != nil:
			documents[from] = map[string]string{"error": a.err.Error()}
		case c.zone != "" || a.zone == "":
			documents[from] = a.body
		case byZone == nil:
			documents[from] = map[string]json.RawMessage{a.zone: a.body}
		default:
			byZone[a.zone] = a.body
		}
	}
	if len(c.instances) > 1 {
		return documents
	}
	if document := documents[string(c.instances[0].from)]; document != nil {
		return document
	}
	return struct{}{} // no zone was asked about
}

// show prints the bodies of answers, and returns them with the errors of instances that failed.
func show[T any](c *call, answers []answer, view func([]decoded[T]) string) ([]decoded[T], error) {
	bodies, failed := decode[T](answers)
	var errs []error
	for _, a := range failed {
		if len(c.instances) > 1 && !strings.Contains(a.err.Error(), string(a.from)) {
			a.err = fmt.Errorf("%w (from %s)", a.err, a.from)
		}
		errs = append(errs, a.err)
	}
	text := ""
	switch {
	case len(failed) > 0 && (len(bodies) == 0 && !c.json || len(c.instances) == 1):
	case c.json:
		text = terminal.PrintableJSON(string(compactJSON(c.document(answers)))) + "\n"
	default:
		text = view(bodies)
	}
	return bodies, errors.Join(append(errs, c.print(text))...)
}

// titled returns a view of each body. If there are several instances, each view has a title.
func titled[T any](c *call, bodies []decoded[T], view func(decoded[T]) string) string {
	var texts []string
	for _, d := range bodies {
		text := view(d)
		if len(c.instances) > 1 {
			text = c.style.Paint(fmt.Sprintf("Caddy at %s:", d.from), terminal.Bold) + "\n" + text
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "\n")
}
