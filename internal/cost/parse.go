package cost

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Form says what a sum looks like. Only Caddyfiles have short names of placeholders, so it and the errors have the full names.
const Form = "2, {http.request.header.X-Cost}, or 5*{http.request.header.X-Output} + {http.request.header.X-Input}"

// words matches placeholders, operators, and numbers or names.
var words = regexp.MustCompile(`\{[^{}]*\}|[+*{}]|[^\s+*{}]+`)

// Parse reads a sum, such as
//
//	5*{header.X-Output} + {header.X-Input} or {header.X-Prompt} + 10 min 1 max 4000
//
// A term is a number, or a placeholder with a factor before it and alternatives behind it. Numbers have up to six
// decimals. lacksBraces reports whether a text is the name of a placeholder without its braces. Only errors need it, so it
// may be nil for texts that are known to be right.
func Parse(text string, lacksBraces func(string) bool) (*Sum, error) {
	p := &parser{words: words.FindAllString(text, -1), sum: &Sum{text: strings.TrimSpace(text), max: Max}, lacksBraces: lacksBraces}
	if err := p.parse(); err != nil {
		return nil, err
	}
	return p.sum, nil
}

// parser reads a sum word by word.
type parser struct {
	words       []string
	sum         *Sum
	lacksBraces func(string) bool
}

// next returns the next word without taking it. It is empty at the end.
func (p *parser) next() string {
	if len(p.words) == 0 {
		return ""
	}
	return p.words[0]
}

func (p *parser) take() string {
	word := p.next()
	p.words = p.words[min(1, len(p.words)):]
	return word
}

// takes takes the next word if it is the given one.
func (p *parser) takes(word string) bool {
	if p.next() != word {
		return false
	}
	p.take()
	return true
}

func (p *parser) parse() error {
	for more := true; more; more = p.takes("+") {
		if err := p.parseTerm(); err != nil {
			return err
		}
	}
	if err := p.parseBound("min", &p.sum.min); err != nil {
		return err
	}
	if err := p.parseBound("max", &p.sum.max); err != nil {
		return err
	}
	switch word := p.next(); {
	case word != "":
		return fmt.Errorf("has %q where the next term or the end is expected: write + between terms, and min before max, as in "+
			"5*{http.request.header.X-Output} + {http.request.header.X-Input} min 1 max 4000", word)
	case len(p.sum.terms) > maxTerms:
		return fmt.Errorf("has %d terms with placeholders: write at most %d", len(p.sum.terms), maxTerms)
	case p.sum.min > p.sum.max:
		return fmt.Errorf("has a min of %d above its max of %d: write a max from %[1]d, or a lower min", p.sum.min, p.sum.max)
	}
	return nil
}

// parseBound reads min or max, if it is next.
func (p *parser) parseBound(name string, bound *int64) (err error) {
	if !p.takes(name) {
		return nil
	}
	word := p.take()
	if *bound, err = strconv.ParseInt(word, 10, 64); err != nil || *bound < 0 || *bound > Max {
		return fmt.Errorf("has the %s %q: write a whole number from 0 to %d, as in {http.request.header.X-Cost} max 4000", name, word, int64(Max))
	}
	return nil
}

// parseTerm reads a number, or a placeholder and its alternatives.
func (p *parser) parseTerm() error {
	t := term{factor: unit}
	if !isPlaceholder(p.next()) {
		word := p.take()
		number, err := p.parseNumber(word)
		switch {
		case err != nil:
			return err
		case !p.takes("*"):
			if p.sum.constant += number; p.sum.constant > Max*unit {
				return fmt.Errorf("is above %d, the largest cost", int64(Max))
			}
			return nil
		case number == 0 || number > maxFactor:
			return fmt.Errorf("has the factor %s: write one above 0, and up to %d", word, int64(maxFactor/unit))
		}
		t.factor = number
	}
	for more := true; more; more = p.takes("or") {
		word := p.take()
		if !isPlaceholder(word) {
			return fmt.Errorf("has %s where a placeholder is expected: write for example %s", quoted(word), Form)
		}
		t.values = append(t.values, word)
	}
	p.sum.terms = append(p.sum.terms, t)
	return nil
}

// quoted returns a word in the form that an error shows; "" is the end of the sum.
func quoted(word string) string {
	if word == "" {
		return "nothing"
	}
	return strconv.Quote(word)
}

func isPlaceholder(word string) bool { return len(word) > 1 && word[0] == '{' }

// parseNumber reads a number of a sum, in millionths.
func (p *parser) parseNumber(word string) (uint64, error) {
	number, ok := parseDecimal(word)
	_, decimals, _ := strings.Cut(word, ".")
	switch {
	case !ok && p.lacksBraces(word):
		return 0, fmt.Errorf("has %s, the name of a placeholder, without its braces: write {%[1]s}", word)
	case !ok:
		return 0, fmt.Errorf("has %s where a number from 0 or a placeholder is expected: write for example %s", quoted(word), Form)
	case len(decimals) > 6:
		return 0, fmt.Errorf("has %s with more than six decimals: round it", word)
	}
	return number, nil
}
