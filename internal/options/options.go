// Package options reads the values and blocks of a Caddyfile, and strict JSON. Each error names the place, and
// says what to write instead. It never knows what an option does: the caller passes the options.
package options

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// No error text of the module holds < > or &, because Caddy's admin API sends errors as JSON, where < becomes \u003c.

// Option is an option of a block. Errors about its value end with the example.
type Option struct {
	Name       string // in a Caddyfile
	Example    string // of what follows the name
	Repeatable bool   // the option may stand more than once in a block
	Value      any    // as configured; nil if the option isn't set

	Read  func(*caddyfile.Dispenser) error // the rest of the option's line, and its block; nil if a Caddyfile has no such option
	Check func() error                     // of the value by itself; nil accepts every value
}

// mustError is an error about the value of an option, without the name of the option and the correction.
type mustError struct {
	text  string // such as "must be a whole number, not 10k"
	meant string // the value that was probably meant, or ""
}

func (e mustError) Error() string { return e.text }

// Must returns an error about the value of an option, such as "must be above 0, not -1". The name of the option
// comes in front of the text, and the example behind it.
func Must(format string, args ...any) error { return mustError{text: fmt.Sprintf(format, args...)} }

// explain adds the name of the option, and what to write instead, to an error of [Must].
func (o *Option) explain(err error) error {
	must, ok := errors.AsType[mustError](err)
	switch {
	case !ok:
		return err
	case must.meant != "" && !strings.HasSuffix(o.Example, "ms"): // where 100 doesn't mean seconds
		return fmt.Errorf("%s %s: write %s %s", o.Name, must.text, o.Name, must.meant)
	}
	return fmt.Errorf("%s %s: write for example %s", o.Name, must.text, strings.TrimSpace(o.Name+" "+o.Example))
}

// ReadLine reads the options of one line, each at most once, and with its name in front of its values.
func ReadLine(words []string, all []Option) error {
	for len(words) > 0 {
		i := slices.IndexFunc(all, func(o Option) bool { return o.Name == words[0] })
		if i < 0 {
			return Must("takes %s, each with its value, not %q", strings.Join(Names(all), ", "), strings.Join(words, " "))
		}
		o := all[i]
		all = slices.Delete(all, i, i+1)
		isName := func(word string) bool { return slices.ContainsFunc(all, func(o Option) bool { return o.Name == word }) }
		n := len(words)
		if next := slices.IndexFunc(words[1:], isName); next >= 0 {
			n = 1 + next
		}
		var line []caddyfile.Token
		for _, word := range words[:n] {
			line = append(line, caddyfile.Token{Text: word})
		}
		d := caddyfile.NewDispenser(line)
		d.Next()
		if err := o.Read(d); err != nil {
			return o.explain(err)
		}
		words = words[n:]
	}
	return nil
}

// Single returns an option whose one value becomes that of a field. check can be nil.
func Single[T any](name, example string, field *T, parse func(string) (T, error), check func(T) error) Option {
	return withCheck(field, check, Option{Name: name, Example: example, Read: func(d *caddyfile.Dispenser) error {
		text, err := Value(d)
		if err == nil {
			*field, err = parse(text)
		}
		return err
	}})
}

// List returns an option whose values, at least one, become those of a field. check can be nil.
func List[L ~[]T, T any](name, example string, field *L, parse func(string) (T, error), check func(L) error) Option {
	return withCheck(field, check, Option{Name: name, Example: example, Read: func(d *caddyfile.Dispenser) error {
		*field = nil
		for _, text := range d.RemainingArgs() {
			value, err := parse(text)
			if err != nil {
				return err
			}
			*field = append(*field, value)
		}
		if len(*field) == 0 {
			return Must("has no value")
		}
		return nil
	}})
}

// Made returns an option that read makes the value of a field of. check can be nil.
func Made[T any](name, example string, field *T, read func(*caddyfile.Dispenser) (T, error), check func(T) error) Option {
	return withCheck(field, check, Option{Name: name, Example: example, Read: func(d *caddyfile.Dispenser) (err error) {
		*field, err = read(d)
		return err
	}})
}

// withCheck adds the value of the field to an option, and the check of this value.
func withCheck[T any](field *T, check func(T) error, o Option) Option {
	o.Value = UnlessZero(*field)
	if check == nil {
		return o
	}
	read := o.Read
	o.Check = func() error { return o.explain(check(*field)) }
	o.Read = func(d *caddyfile.Dispenser) error {
		if err := read(d); err != nil {
			return err
		}
		return check(*field)
	}
	return o
}

// Flag returns an option without a value.
func Flag(name string, field *bool) Option {
	return Made(name, "", field, func(d *caddyfile.Dispenser) (bool, error) {
		if d.NextArg() {
			return false, fmt.Errorf("%s takes no value, not %q: write it alone, or leave it out", name, d.Val())
		}
		return true, nil
	}, nil)
}

// OnOff returns an option that is true without a value, and false with the value off.
func OnOff(name string, field **bool) Option {
	return Made(name, "", field, func(d *caddyfile.Dispenser) (*bool, error) {
		args := d.RemainingArgs()
		on := len(args) == 0
		if !on && (len(args) > 1 || args[0] != "off") {
			return nil, fmt.Errorf("%s takes nothing or off, not %q: write it alone, or leave it out", name, strings.Join(args, " "))
		}
		return &on, nil
	}, nil)
}

// UnlessZero returns nil for a value that is zero, or an empty list or map.
func UnlessZero(v any) any {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Slice, reflect.Map:
		if r.Len() == 0 {
			return nil
		}
	default:
		if v == nil || r.IsZero() {
			return nil
		}
	}
	return v
}

// Value reads one value. The error doesn't show values, which may be secrets.
func Value(d *caddyfile.Dispenser) (string, error) {
	switch args := d.RemainingArgs(); len(args) {
	case 0:
		return "", Must("has no value")
	case 1:
		return args[0], nil
	default:
		return "", Must("takes one value, not %d", len(args))
	}
}

// Words reads the rest of a line as one value.
func Words(d *caddyfile.Dispenser) (string, error) {
	text := strings.TrimSpace(strings.Join(d.RemainingArgs(), " "))
	if text == "" {
		return "", Must("has no value")
	}
	return text, nil
}

// Text returns the text itself. The functions below parse other values.
func Text(text string) (string, error) { return text, nil }

// Integer parses a whole number.
func Integer(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, wholeNumber.wrong(strconv.Quote(text), text)
	}
	return n, nil
}

// SmallInteger parses a whole number of up to 32 bits.
func SmallInteger(text string) (int, error) {
	n, err := Integer(text)
	if err == nil && n != int64(int32(n)) {
		return 0, Must("is out of range with %d", n)
	}
	return int(n), err
}

// Duration parses a duration.
func Duration(text string) (caddy.Duration, error) {
	d, err := caddy.ParseDuration(text)
	if err != nil {
		return 0, duration.wrong(strconv.Quote(text), text)
	}
	return caddy.Duration(d), nil
}

// Number parses a number that can have decimals.
func Number(text string) (float64, error) {
	n, err := ParseNumber(text)
	if err != nil {
		return 0, number.wrong(strconv.Quote(text), text)
	}
	return n, nil
}

// Pointer returns parse with a pointer to its value, for fields that are nil by default.
func Pointer[T any](parse func(string) (T, error)) func(string) (*T, error) {
	return func(text string) (*T, error) {
		v, err := parse(text)
		return &v, err
	}
}

// Within returns a check whether a number is in a range.
func Within[T int | int64 | float64](least, most T) func(T) error {
	return func(v T) error {
		if !(v >= least && v <= most) { // also not a number
			return Must("must be from %v to %v, not %v", least, most, v)
		}
		return nil
	}
}

// Above0 is a check.
func Above0[T int64 | float64](v T) error {
	if !(v > 0) {
		return Must("must be above 0, not %v", v)
	}
	return nil
}

// OneOf returns a check that a text is one of these words.
func OneOf(words ...string) func(string) error {
	return func(text string) error {
		if !slices.Contains(words, text) {
			return Must("must be %s, not %.100q", strings.Join(words, " or "), text)
		}
		return nil
	}
}

// AtLeast returns a check whether a duration is long enough.
func AtLeast(least time.Duration) func(caddy.Duration) error {
	return func(d caddy.Duration) error {
		if time.Duration(d) < least {
			return Must("must be at least %v, not %v", least, time.Duration(d))
		}
		return WholeMicros(d)
	}
}

// WholeMicros returns an error for a duration that is not a whole number of microseconds.
func WholeMicros(d caddy.Duration) error {
	if time.Duration(d)%time.Microsecond != 0 {
		return Must("must be a whole number of microseconds, not %v", time.Duration(d))
	}
	return nil
}
