package cost

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
)

// Form says what a sum looks like. Only Caddyfiles have short names of placeholders, so it and the errors have the full names.
const Form = "2, {http.request.header.X-Cost}, or 5*{http.request.header.X-Output} + {http.request.header.X-Input}"

// Parse reads a sum, such as
//
//	5*{header.X-Output} + {header.X-Input} or {header.X-Prompt} + 10 min 1 max 4000
//
// A term is a number, or a placeholder with a factor before it and alternatives behind it. Numbers have up to six
// decimals.
func Parse(text string) (*Sum, error) {
	words, err := split(text)
	if err != nil {
		return nil, err
	}
	p := &parser{words: words, sum: &Sum{text: strings.TrimSpace(text), max: Max}}
	if err := p.parse(); err != nil {
		return nil, err
	}
	return p.sum, nil
}

// split returns the words, placeholders and operators of a text.
func split(text string) (words []string, err error) {
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		end := strings.IndexAny(text, " \t\r\n{+*")
		switch {
		case text[0] == '{':
			if end = strings.IndexByte(text, '}') + 1; end == 0 || strings.IndexByte(text[1:end], '{') >= 0 {
				return nil, errors.New("has a brace without its counterpart: write placeholders as {name}")
			}
		case end < 0:
			end = len(text)
		case end == 0:
			end = 1
		}
		words, text = append(words, text[:end]), text[end:]
	}
	return words, nil
}

// parser reads a sum word by word.
type parser struct {
	words []string
	sum   *Sum
}

// next returns the next word without taking it. It is empty at the end.
func (p *parser) next() string {
	if len(p.words) == 0 {
		return ""
	}
	return p.words[0]
}

// takes takes the next word if it is the given one.
func (p *parser) takes(word string) bool {
	if p.next() != word {
		return false
	}
	p.words = p.words[1:]
	return true
}

func (p *parser) take() string {
	word := p.next()
	p.words = p.words[min(1, len(p.words)):]
	return word
}

func (p *parser) parse() error {
	for {
		if err := p.parseTerm(); err != nil {
			return err
		}
		if !p.takes("+") {
			break
		}
	}
	if len(p.sum.terms) > maxTerms {
		return fmt.Errorf("has %d terms with placeholders: write at most %d", len(p.sum.terms), maxTerms)
	}
	bounds := p.next()
	for _, b := range []struct {
		name  string
		value *int64
	}{{"min", &p.sum.min}, {"max", &p.sum.max}} {
		if p.takes(b.name) {
			if err := p.parseBound(b.name, b.value); err != nil {
				return err
			}
		}
	}
	switch word := p.next(); {
	case word == "min" || word == "max":
		return errors.New("has its bounds in another order than min and max: write for example {http.request.header.X-Cost} min 1 max 4000")
	case word != "":
		return fmt.Errorf("has %q where the next term or the end is expected: write + between terms, as in %s", word, Form)
	case len(p.sum.terms) == 0 && bounds != "":
		return fmt.Errorf("is always the same, so it needs no %s: leave it out", bounds)
	case p.sum.min > p.sum.max:
		return fmt.Errorf("has a min of %d above its max of %d", p.sum.min, p.sum.max)
	}
	return nil
}

// parseBound reads what follows min or max.
func (p *parser) parseBound(name string, value *int64) error {
	word := p.take()
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil || n < 0 || n > Max {
		return fmt.Errorf("has the %s %q: write a whole number from 0 to %d, as in {http.request.header.X-Cost} max 4000", name, word, int64(Max))
	}
	*value = n
	return nil
}

func (p *parser) parseTerm() error {
	word := p.next()
	if isPlaceholder(word) {
		return p.parseValues(unit)
	}
	number, err := parseNumber(p.take())
	if err != nil {
		return err
	}
	if !p.takes("*") {
		if p.sum.constant += number; p.sum.constant > Max*unit {
			return fmt.Errorf("is above %d, the largest cost", int64(Max))
		}
		return nil
	}
	switch {
	case !isPlaceholder(p.next()):
		return fmt.Errorf("has no placeholder after %s*: write for example %[1]s*{http.request.header.X-Tokens}", word)
	case number == 0 || number > maxFactor:
		return fmt.Errorf("has the factor %s: write one above 0, and up to %d", word, int64(maxFactor/unit))
	}
	return p.parseValues(number)
}

// parseValues reads a placeholder and its alternatives.
func (p *parser) parseValues(factor uint64) error {
	t := term{factor: factor}
	for {
		word := p.take()
		if !isPlaceholder(word) {
			return fmt.Errorf("has no placeholder after or, but %q: write another name of the same value, "+
				"as in {http.request.header.X-Input} or {http.request.header.X-Prompt}", word)
		}
		t.values = append(t.values, word)
		if !p.takes("or") {
			break
		}
	}
	p.sum.terms = append(p.sum.terms, t)
	return nil
}

func isPlaceholder(word string) bool { return strings.HasPrefix(word, "{") }

// parseNumber reads a number of a sum, in millionths.
func parseNumber(word string) (uint64, error) {
	number, ok := parseDecimal(word)
	_, decimals, _ := strings.Cut(word, ".")
	switch {
	case word == "":
		return 0, errors.New("ends where a term is expected: write for example " + Form)
	case keys.LacksBraces(word):
		return 0, fmt.Errorf("has %s, the name of a placeholder, without its braces: write {%[1]s}", word)
	case strings.HasPrefix(word, "-"):
		return 0, fmt.Errorf("has the negative number %s, but nothing can be taken away from a cost: write numbers from 0", word)
	case !ok:
		return 0, fmt.Errorf("has %q, which is neither a number from 0 nor a placeholder: write for example %s", word, Form)
	case len(decimals) > 6:
		return 0, fmt.Errorf("has %s with more than six decimals: round it", word)
	}
	return number, nil
}
