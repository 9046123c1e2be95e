package command

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

func explainCommand() *cobra.Command {
	var method, data, clientIP, user string
	var headers []string
	cmd := subcommand(Manual{
		Use:   "explain <url>",
		Short: "Explains how Caddy would decide a request now",
		Long: `
Explains how Caddy would decide a request now: the zones that the request meets,
its key in each zone, what remains of each limit, and which limit decides.
Nothing is charged. -X, -H and -d are as in curl, but a body in JSON gets the
content type of JSON.

The exit code is 3 if the request would be denied.`,
		Examples: `
  $ caddy rate-limit explain https://example.com/orders
  $ caddy rate-limit explain https://example.com/login -X POST --client-ip 203.0.113.9
  $ caddy rate-limit explain https://example.com/v1/chat -H 'X-Api-Key: customer-7' -d '{"model": "large"}'`,
	}, func(c *call) error {
		r := adminapi.ExplainedRequest{Method: method, URL: c.args[0], ClientIP: clientIP, User: user}
		var err error
		if r.Headers, err = headerFields(headers); err != nil {
			return err
		}
		if c.cmd.Flags().Changed("data") {
			if r.Body, err = bodyOf(c.cmd, data); err != nil {
				return err
			}
			r.Method = cmp.Or(r.Method, http.MethodPost)
			if r.Headers["Content-Type"] == nil {
				r.Headers["Content-Type"] = adminapi.Strings{"application/x-www-form-urlencoded"} // as curl does
				if json.Valid([]byte(r.Body)) && strings.ContainsAny(strings.TrimSpace(r.Body)[:1], "{[") {
					r.Headers["Content-Type"] = adminapi.Strings{"application/json"}
				}
			}
		}
		return c.explain(r)
	})
	flags := cmd.Flags()
	flags.StringVarP(&method, "request", "X", "", "Method of the request (default GET, or POST with a body)")
	flags.StringArrayVarP(&headers, "header", "H", nil, "Header field of the request, such as 'X-Api-Key: customer-7'; can be repeated")
	flags.StringVarP(&data, "data", "d", "", "Body of the request; @file for the content of a file, @- for standard input")
	flags.StringVar(&clientIP, "client-ip", "", "Address of the client")
	flags.StringVar(&user, "user", "", "ID of the user that authentication would let in")
	return cmd
}

// headerFields returns the fields of flags such as 'X-Api-Key: customer-7'.
func headerFields(flags []string) (map[string]adminapi.Strings, error) {
	fields := make(map[string]adminapi.Strings)
	for _, flag := range flags {
		name, value, ok := strings.Cut(flag, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, UsageErrorf("--header %q is not a header field: write for example 'X-Api-Key: customer-7'", flag)
		}
		name = http.CanonicalHeaderKey(name)
		fields[name] = append(fields[name], strings.TrimSpace(value))
	}
	return fields, nil
}

// maxBody is the maximum length of a body that is read from a file. The admin API accepts less.
const maxBody = 1 << 20

// bodyOf returns the body that the flag --data gives.
func bodyOf(cmd *cobra.Command, data string) (string, error) {
	name, isFile := strings.CutPrefix(data, "@")
	if !isFile {
		return data, nil
	}
	reader := cmd.InOrStdin()
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("--data: %w", err)
		}
		defer file.Close()
		reader = file
	}
	body, err := io.ReadAll(io.LimitReader(reader, maxBody))
	if err != nil {
		return "", fmt.Errorf("--data: %w", err)
	}
	return string(body), nil
}

// explain asks all instances about a request.
func (c *call) explain(r adminapi.ExplainedRequest) error {
	answers := ask(c.instances, func(t target) (json.RawMessage, error) { return t.request("POST", r, nil, "explain") })
	bodies, err := show(c, answers, func(bodies []decoded[adminapi.Explanation]) string {
		return titled(c, bodies, func(d decoded[adminapi.Explanation]) string { return explanationView(c.style, time.Now(), d.body) })
	})
	denied := func(d decoded[adminapi.Explanation]) bool { return d.body.Verdict == "denied" }
	if err == nil && slices.ContainsFunc(bodies, denied) {
		return errDenied
	}
	return err
}

// explanationView shows an explanation: first how often the keys of the request were denied recently, and then how it would
// be decided now.
func explanationView(s terminal.Style, now time.Time, e adminapi.Explanation) string {
	var b strings.Builder
	r := e.Request
	for _, h := range e.Handlers {
		for _, z := range h.Zones {
			for _, text := range denialTexts(now, z.Denials) {
				line := fmt.Sprintf("Recently, key %s of zone %s: %s\n", shownKey(*z.Key), quoteName(z.Zone), text)
				if !strings.Contains(b.String(), line) { // two handlers can have the zone
					b.WriteString(line)
				}
			}
		}
	}
	if b.Len() > 0 {
		b.WriteString("Now: ")
	}
	b.WriteString(s.Paint(printable(e.Verdict), verdictColors[e.Verdict]) + decisionText(e.Verdict, e.Decides) + "\n")
	fmt.Fprintf(&b, "\n%s %s from %s", printable(r.Method), printable(r.URL), printable(r.ClientIP))
	if r.User != "" {
		b.WriteString(" as " + quoteName(r.User))
	}
	b.WriteString("\n")
	for n, h := range e.Handlers {
		fmt.Fprintf(&b, "\nHandler %d of server %s", n+1, printable(h.Server))
		if !h.Reached {
			b.WriteString(" (not reached, because an earlier handler denies)")
		}
		b.WriteString("\n" + handlerView(s, h.Zones))
	}
	if len(e.Handlers) == 0 {
		b.WriteString("\nThe request meets no rate_limit handler.\n")
	}
	for n, note := range e.Notes {
		if n == 0 {
			b.WriteString("\n")
		}
		b.WriteString(s.Paint("Note:", terminal.Yellow) + " " + printable(note) + "\n")
	}
	return b.String()
}

// verdictColors are the colors of verdicts.
var verdictColors = map[string]string{
	"denied": terminal.Red, "banned": terminal.Red, "delayed": terminal.Yellow, "allowed": terminal.Green, "unlimited": terminal.Green,
}

// decisionText says which zone decides, such as " by zone api: gcra 5 1m, again in 12s".
func decisionText(verdict string, d *adminapi.Decision) string {
	if d == nil {
		return ""
	}
	text := " by zone " + quoteName(d.Zone) + ": " + printable(cmp.Or(d.Limit, d.Reason))
	if d.Reason == "reserved" {
		text += " (reserved by requests in flight)"
	}
	switch {
	case d.RetryAfter == nil && verdict == "denied":
		text += ", and waiting won't help"
	case d.RetryAfter == nil:
	case verdict == "delayed":
		text += ", for " + span(*d.RetryAfter)
	default:
		text += ", again in " + span(*d.RetryAfter)
	}
	return text
}

// handlerView shows the zones that limit the request in a table, and the others in a line.
func handlerView(s terminal.Style, zones []adminapi.ExplainedZone) string {
	t := terminal.NewTable("ZONE", "VERDICT", "LIMIT", ">REMAINING", ">FREES IN", "KEY")
	var others []string
	for _, z := range zones {
		if z.Applies != "yes" && len(z.Limits) == 0 && z.Concurrency == nil && z.Ban == nil {
			others = append(others, quoteName(z.Zone)+" ("+printable(strings.ReplaceAll(z.Applies, "_", " "))+")")
			continue
		}
		addZone(t, z)
	}
	text := t.Text(s)
	if len(others) > 0 {
		text += "Not limited by: " + strings.Join(others, ", ") + "\n"
	}
	return text
}

// addZone adds a row for each limit of a zone, and for its slots and its ban. Only the first row names
// the zone.
func addZone(t *terminal.Table, z adminapi.ExplainedZone) {
	name := quoteName(z.Zone)
	if z.Shadow {
		name += " (shadow)"
	}
	if z.Cost > 1 {
		name += fmt.Sprintf(" (cost %s)", count(z.Cost))
	}
	if z.Store == "local" {
		name += " (local budgets)"
	}
	verdict := terminal.Plain(printable(cmp.Or(z.Verdict, z.Applies)))
	verdict.Color = verdictColors[z.Verdict]
	key := ""
	if z.Key != nil {
		key = shownKey(*z.Key)
	}
	if z.Alternative != "" {
		key += fmt.Sprintf(" (from %s)", alternativeText(z.Alternative))
	}
	row := func(limit, remaining, frees string) {
		t.Add(name, verdict, limit, remaining, frees, key)
		name, verdict, key = "", terminal.Cell{}, ""
	}
	var from string
	if z.Override != nil {
		from = " (override)"
	} else if z.Plan != nil {
		from = " (" + planText(*z.Plan) + ")"
	}
	for _, l := range z.Limits {
		remaining := count(l.Remaining)
		if l.Reserved > 0 {
			remaining += fmt.Sprintf(" (%s reserved)", count(l.Reserved))
		}
		row(printable(l.Limit)+from, remaining, freesIn(l))
	}
	if z.Concurrency != nil {
		row(fmt.Sprintf("concurrency %d", z.Concurrency.Limit), count(max(z.Concurrency.Limit-z.Concurrency.InUse, 0)), "")
	}
	switch {
	case z.Ban != nil && z.Ban.Banned:
		row("ban", "0", span(z.Ban.Ends))
	case z.Ban != nil && z.Ban.Begins:
		row("ban, which begins with this denial", "", "")
	}
	if len(z.Limits) == 0 && z.Concurrency == nil && name != "" {
		row("no limit"+from, "", "")
	}
}
