package algorithms

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Option is a setting of a limit besides events, window and burst. An algorithm lists the options
// of its limits. Reading, checking, describing and fingerprinting of limits follow the list.
type Option struct {
	Name    string // in configurations
	Example string // of a value in a Caddyfile

	// value returns the value in a quota, or nil if the option isn't set.
	value func(*Quota) *int64
	// write returns a value as users write it.
	write func(int64) string
	// min and max bound the value, unless max is 0. advice ends the error.
	min, max int64
	advice   string
	// check judges what the bounds don't, if the option is set; nil accepts everything.
	check func(*Quota) error
	// normalize gives one form to quotas that mean the same; nil changes nothing.
	normalize func(*Quota)
	// phrase describes the option in [Limit.String], with %s for the value. The value usual is
	// left out.
	phrase, usual string
	// fingerprint returns the option for [Limit.Fingerprint], if it is set; nil stands for its
	// name and value.
	fingerprint func(*Quota) string
}

const unbounded = math.MaxInt64

// unlessZero returns the place of a value that isn't set if it is 0.
func unlessZero(n *int64) *int64 {
	if *n == 0 {
		return nil
	}
	return n
}

// writeCount writes a value that is a number of things.
func writeCount(n int64) string { return strconv.FormatInt(n, 10) }

func (o *Option) judge(q *Quota) error {
	n := *o.value(q)
	switch {
	case o.max == unbounded && n < o.min:
		return fmt.Errorf("%s must be at least %s, not %s%s", o.Name, o.write(o.min), o.write(n), o.advice)
	case o.max > 0 && (n < o.min || n > o.max):
		return fmt.Errorf("%s must be from %s to %s, not %s%s", o.Name, o.write(o.min), o.write(o.max), o.write(n), o.advice)
	case o.check != nil:
		return o.check(q)
	}
	return nil
}

func (o *Option) describe(q *Quota) string {
	if n := o.value(q); n != nil && o.write(*n) != o.usual {
		return fmt.Sprintf(o.phrase, o.write(*n))
	}
	return ""
}

// CaddyfileText returns the text of [Limit.String] as a Caddyfile has it, with the options in a block.
// It returns other texts as they are.
func (a *Algorithm) CaddyfileText(text string) string {
	var block strings.Builder
	for _, o := range a.Options {
		phraseStart, phraseEnd, _ := strings.Cut(o.phrase, "%s")
		before, after, found := strings.Cut(text, phraseStart)
		if !found {
			continue
		}
		value := after
		if i := strings.IndexByte(after, ' '); i >= 0 {
			value = after[:i]
		}
		text = before + strings.TrimPrefix(after[len(value):], phraseEnd)
		fmt.Fprintf(&block, "\t%s %s\n", o.Name, value)
	}
	if block.Len() == 0 {
		return text
	}
	return text + " {\n" + block.String() + "}"
}

func (o *Option) forKeys(q *Quota) string {
	n := o.value(q)
	switch {
	case n == nil:
		return ""
	case o.fingerprint != nil:
		return o.fingerprint(q)
	}
	return fmt.Sprint(" ", o.Name, " ", *n)
}

// OptionNames returns the names of the algorithm's options.
func (a *Algorithm) OptionNames() (names []string) {
	for _, o := range a.Options {
		names = append(names, o.Name)
	}
	return names
}

// Option returns the option of that name; nil if the algorithm's limits don't have it.
func (a *Algorithm) Option(name string) *Option {
	for _, o := range a.Options {
		if o.Name == name {
			return o
		}
	}
	return nil
}

// Takes reports whether the algorithm's limits have an option.
func (a *Algorithm) Takes(option string) bool { return a.Option(option) != nil }

// checkOptions judges all options of a quota.
func (a *Algorithm) checkOptions(q *Quota) error {
	for _, owner := range registered {
		for _, o := range owner.Options {
			if o.value(q) != nil && !slices.Contains(a.Options, o) {
				return fmt.Errorf("%s has no option %s: it belongs to %s", a.Name, o.Name, strings.Join(AlgorithmsWith(o.Name), " and "))
			}
		}
	}
	for _, o := range a.Options {
		if o.value(q) == nil {
			continue
		}
		if err := o.judge(q); err != nil {
			return err
		}
	}
	return nil
}

// AlgorithmsWith returns the names of the algorithms whose limits have an option.
func AlgorithmsWith(option string) (names []string) {
	for _, a := range registered {
		if a.Takes(option) {
			names = append(names, a.Name)
		}
	}
	return names
}
