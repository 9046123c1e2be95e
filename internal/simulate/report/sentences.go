package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

// Both the text and the HTML page have the sentences of this file. They are safe on a terminal.

// Sentence says what a zone would have done.
func (z *Zone) Sentence() string {
	name := "Zone " + terminal.Printable(z.Name)
	switch {
	case z.AllDenied() > 0:
	case len(z.Limits) == 0:
		return fmt.Sprintf("%s has no limit. It has %s from %s.", name, Counted(z.Requests, "request"), Counted(z.Keys, "key"))
	default:
		return fmt.Sprintf("%s would have denied none of %s, from %s.", name, Counted(z.Requests, "request"), Counted(z.Keys, "key"))
	}
	requests, keys, mode, more := z.Denied, z.KeysDenied, "", ""
	switch {
	case z.Denied == 0:
		requests, keys, mode = z.ShadowDenied, z.KeysShadowDenied, " without shadow mode"
	case z.ShadowDenied > 0:
		more = fmt.Sprintf(", and %s more without shadow mode (%s)", Number(z.ShadowDenied), PercentOf(z.ShadowDenied, z.Requests))
	}
	text := fmt.Sprintf("%s would have denied %s (%s)", name, partOf(requests, z.Requests, "request"), PercentOf(requests, z.Requests))
	if z.Keys > 1 {
		text += fmt.Sprintf(", from %s (%s)", partOf(keys, z.Keys, "key"), PercentOf(keys, z.Keys))
	}
	return text + mode + more + "."
}

// Fact is a smaller fact about a zone or a log.
type Fact struct {
	Name  string
	Texts []string
}

// Facts returns the facts about the denials and delays of a zone that are not zero. instant writes a time.
func (z *Zone) Facts(instant func(time.Time) string) (facts []Fact) {
	if z.FirstDenied != nil && z.LastDenied != nil {
		text := "at " + instant(*z.FirstDenied)
		if z.AllDenied() > 1 {
			text = "the first " + text + ", the last at " + instant(*z.LastDenied)
		}
		denials := Fact{"denials", []string{text}}
		add := func(text string) { denials.Texts = append(denials.Texts, text) }
		if z.DeniedByBan > 0 {
			add(Number(z.DeniedByBan) + " of them by a ban")
		}
		if z.DeniedBySlots > 0 {
			add(Number(z.DeniedBySlots) + " of them by concurrency")
		}
		if z.ShadowDenied > 0 {
			add("Shadow denied requests pass.")
		}
		facts = append(facts, denials)
	}
	if z.Delayed > 0 {
		facts = append(facts, Fact{"delays", []string{Counted(z.Delayed, "request") + ", the longest by " + short(z.LongestDelay)}})
	}
	if n := z.RequestsWithoutRoom; n > 0 {
		text := Counted(n, "request") + " of keys beyond max_keys. The numbers of keys and the proposals exclude them."
		facts = append(facts, Fact{"max_keys", []string{text}})
	}
	return facts
}

// Sentences say what was read, and what is odd about it. They leave out broken lines.
func (l *Log) Sentences() []string {
	sentences := []string{
		fmt.Sprintf("%s in %s, with %s.", Counted(l.Lines, "line"), Counted(int64(len(l.Files)), "file"), Counted(l.Requests, "request")),
	}
	add := func(n int64, format string, args ...any) {
		if n > 0 {
			sentences = append(sentences, fmt.Sprintf(format, args...))
		}
	}
	add(l.OtherLines, "%s of Caddy.", verb(l.OtherLines, "line",
		"is not a request, but for example a message", "are not requests, but for example messages"))
	add(l.LateRequests, "%s too far out of order to be sorted. The simulation decided %s late.",
		verb(l.LateRequests, "request", "was", "were"), oneOr(l.LateRequests, "it", "them"))
	add(l.DeniedBefore, "%s denied by a rate limit when the log was written. The log doesn't say how %s would have ended otherwise.",
		verb(l.DeniedBefore, "request", "was", "were"), oneOr(l.DeniedBefore, "it", "they"))
	return sentences
}

// Text says in sentences what a proposed limit denies, or why there is none.
func (p *Proposal) Text() string {
	current := limitText(p.Current)
	if p.Set != "" {
		current = strings.TrimSpace(current + " of " + terminal.Printable(p.Set))
	}
	if p.Line == "" {
		if current != "" {
			current = " for " + strings.TrimPrefix(current, "of ")
		}
		return "None" + current + ": " + terminal.Printable(p.Reason) + "."
	}
	var sentences []string
	add := func(format string, args ...any) { sentences = append(sentences, fmt.Sprintf(format, args...)) }
	switch {
	case p.Line == p.Current:
		add("This is the present limit%s.", strings.TrimPrefix(current, limitText(p.Current)))
	case p.Configured != nil:
		add("It replaces %s, which alone would have denied %s.", current, denials(p.Configured.DeniedRequests, p.Configured.DeniedKeys, p))
	case p.Current != "":
		add("It replaces %s.", current)
	}
	add("It would have denied %s.", denials(p.DeniedRequests, p.DeniedKeys, p))
	if p.Next != nil {
		add("The next smaller limit, %s, would have denied %s.", limitText(p.Next.Line), denials(p.Next.DeniedRequests, p.Next.DeniedKeys, p))
	} else {
		add("There is no smaller limit.")
	}
	return strings.Join(sentences, " ")
}

// denials says what a limit would have denied.
func denials(requests, keys int64, p *Proposal) string {
	if requests == 0 {
		return "no request"
	}
	return fmt.Sprintf("%s (%s), from %s (%s)",
		Counted(requests, "request"), PercentOf(requests, p.Requests), Counted(keys, "key"), PercentOf(keys, p.Keys))
}
