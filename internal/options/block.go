package options

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Block is a block of a Caddyfile, as errors name it, and its options.
type Block struct {
	Name    string
	Options []string
	Words   bool // the options are words of a line, which are too short to be meant by another word
}

// Names returns the names of options.
func Names(all []Option) (names []string) {
	for _, o := range all {
		if o.Read != nil {
			names = append(names, o.Name)
		}
	}
	return names
}

// ReadBlock reads the block that begins on this line, if there is one. name is the name of the block
// for errors, which also name the block in blocks that an option belongs in. Unknown options are errors, and so are options
// that stand twice although they are not repeatable. Every error gets the file and line of its option. In the end check,
// if not nil, checks the options together. Its error gets the position of the first option that its text names, unless
// the block has several of this name.
func ReadBlock(d *caddyfile.Dispenser, name string, all []Option, blocks []Block, check func() error) error {
	if d.NextArg() {
		return WithPosition(d, fmt.Errorf("%s takes no value %q here: write its options in braces", name, d.Val()))
	}
	seen := make(map[string][]caddyfile.Dispenser)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		at := *d
		if err := readOption(d, name, all, blocks, len(seen[d.Val()]) > 0); err != nil {
			return WithPosition(&at, err)
		}
		seen[at.Val()] = append(seen[at.Val()], at)
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

// readOption reads one option of a block. again reports whether the option stood there before.
func readOption(d *caddyfile.Dispenser, block string, all []Option, blocks []Block, again bool) error {
	i := slices.IndexFunc(all, func(o Option) bool { return o.Name == d.Val() && o.Read != nil })
	if i < 0 {
		return unknownOptionError(d.Val(), block, all, blocks)
	}
	o := &all[i]
	if again && !o.Repeatable {
		return fmt.Errorf("%s is given twice: write it once", o.Name)
	}
	if err := o.Read(d); err != nil {
		return o.explain(err)
	}
	if d.NextBlock(d.Nesting()) {
		return fmt.Errorf("%s takes no block", o.Name)
	}
	return nil
}

// unknownOptionError returns the error for an option that a block doesn't have.
func unknownOptionError(name, block string, all []Option, blocks []Block) error {
	unknown := fmt.Sprintf("unknown option %.100q of %s", name, block)
	var homes []string
	for _, b := range blocks {
		if slices.Contains(b.Options, name) {
			homes = append(homes, b.Name)
		}
	}
	if homes != nil {
		return fmt.Errorf("%s: it belongs in %s", unknown, strings.Join(homes, " or "))
	}
	if near := Suggest(name, Names(all)); near != "" {
		o := all[slices.IndexFunc(all, func(o Option) bool { return o.Name == near })]
		return fmt.Errorf("%s (did you mean %s?): write for example %s", unknown, near, strings.TrimSpace(near+" "+o.Example))
	}
	for _, b := range blocks {
		if near := Suggest(name, b.Options); near != "" && !b.Words {
			return fmt.Errorf("%s (did you mean %s?): it belongs in %s", unknown, near, b.Name)
		}
	}
	if len(all) == 0 {
		return errors.New(unknown + ": it has none")
	}
	return fmt.Errorf("%s: write one of %s", unknown, strings.Join(Names(all), ", "))
}

// positionedError is an error whose text has a file and line.
type positionedError struct{ error }

func (e positionedError) Unwrap() error { return e.error }

// Positioned returns an error whose text has a file and line already.
func Positioned(err error) error { return positionedError{err} }

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
