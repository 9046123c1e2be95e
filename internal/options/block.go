package options

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Table describes the options of all blocks. Errors name the block that an option belongs in, and the
// option that was probably meant.
type Table struct {
	Blocks     []Block           // the first one that has an option is the one that errors name
	Repeatable []string          // options that may stand more than once in a block
	Examples   map[string]string // by option, such as "for example key {client_ip}"
	// Correct returns the correction for an option that a block doesn't have, or "" if Blocks says enough.
	Correct func(option, block string) string
}

// Block is a block of a Caddyfile and the names of its options.
type Block struct {
	Name    string
	Within  string // the block around it, whose errors name this block first; can be empty
	Options []string
}

// ReadBlock reads the block that begins on this line, if there is one. name is the name of the block
// for errors. Options that are not in options are errors, and so are options that stand twice
// although they are not repeatable. read reads the rest of the option's line, and the option's
// block. Every error gets the file and line of its option. In the end check, if not nil, checks the options together. Its
// error gets the position of the first option that its text names, unless the block has several of this name.
func (t *Table) ReadBlock(d *caddyfile.Dispenser, name string, options []string, read func(option string) error, check func() error) error {
	if d.NextArg() {
		return WithPosition(d, fmt.Errorf("%s takes no value %q here: write its options in braces", name, d.Val()))
	}
	seen := make(map[string][]caddyfile.Dispenser)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option, at := d.Val(), *d
		var err error
		switch {
		case !slices.Contains(options, option):
			err = t.unknownOptionError(option, name, options)
		case seen[option] != nil && !slices.Contains(t.Repeatable, option):
			err = fmt.Errorf("%s is given twice: write it once", option)
		default:
			err = read(option)
		}
		if err == nil && d.NextBlock(d.Nesting()) {
			err = fmt.Errorf("%s takes no block", option)
		}
		if err != nil {
			return WithPosition(&at, err)
		}
		seen[option] = append(seen[option], at)
	}
	if check == nil {
		return nil
	}
	err := check()
	if err != nil {
		for word := range strings.FieldsSeq(err.Error()) {
			if at := seen[strings.Trim(word, ":,")]; len(at) == 1 {
				return WithPosition(&at[0], err)
			}
		}
	}
	return err
}

// unknownOptionError returns the error for an option that a block doesn't have.
func (t *Table) unknownOptionError(option, block string, options []string) error {
	unknown := fmt.Sprintf("unknown option %.100q of %s", option, block)
	if correction := cmp.Or(t.Correct(option, block), corrections[option]); correction != "" {
		return fmt.Errorf("%s: %s", unknown, correction)
	}
	if home := t.home(option, block); home != "" {
		return fmt.Errorf("%s: it belongs in %s", unknown, home)
	}
	if slices.Contains(directives, option) {
		return fmt.Errorf("%s: it is a directive: write } above it, to close %s", unknown, block)
	}
	name := Suggest(option, options)
	verb, matcher := cmp.Or(name, "match"), strings.TrimPrefix(option, name+"_")
	_, noMatcher := caddy.GetModule("http.matchers." + matcher)
	switch {
	case noMatcher == nil && slices.Contains(options, verb) && (verb == "match" || verb == "exempt"):
		return fmt.Errorf("%s (did you mean %s %s?)", unknown, verb, matcher)
	case name != "":
		example := ""
		if t.Examples[name] != "" {
			example = ": write " + t.Examples[name]
		}
		return fmt.Errorf("%s (did you mean %s?)%s", unknown, name, example)
	}
	var elsewhere []string
	for _, b := range t.Blocks {
		elsewhere = append(elsewhere, b.Options...)
	}
	if name := Suggest(option, elsewhere); name != "" {
		return fmt.Errorf("%s (did you mean %s?): it belongs in %s", unknown, name, t.home(name, block))
	}
	if len(options) == 0 {
		return errors.New(unknown + ": it has none")
	}
	return fmt.Errorf("%s: write one of %s", unknown, strings.Join(options, ", "))
}

// home returns the name of the block that an option belongs in, or "" for none. block is the block that
// has the option by mistake.
func (t *Table) home(option, block string) (home string) {
	for _, b := range t.Blocks {
		if !slices.Contains(b.Options, option) {
			continue
		}
		if b.Within == block {
			return b.Name
		}
		if home == "" {
			home = b.Name
		}
	}
	return home
}

// positionedError is an error whose text has a file and line.
type positionedError struct{ error }

func (e positionedError) Unwrap() error { return e.error }

// WithPosition adds file and line to an error, unless it has them already.
func WithPosition(d *caddyfile.Dispenser, err error) error {
	if errors.As(err, new(positionedError)) {
		return err
	}
	return positionedError{d.WrapErr(err)}
}

// Position returns the file and line at d, as errors name them.
func Position(d *caddyfile.Dispenser) string {
	return strings.TrimPrefix(d.Err("").Error(), ", at ")
}

// AtPosition adds a position to an error, unless the position is "".
func AtPosition(position string, err error) error {
	if position == "" {
		return err
	}
	return positionedError{fmt.Errorf("%w, at %s", err, position)}
}
