// Package jsonvalue reads single values from a JSON text while the text streams past. It
// never holds more of the text than these values.
package jsonvalue

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

// ErrSyntax reports a text that is not JSON.
var ErrSyntax = errors.New("the text is not valid JSON")

// Reader finds the values at some paths of a JSON text. The text is written to it in pieces of any size.
// A Reader must be made by [NewReader]. It must not be used by several goroutines at once.
//
// A Reader finds the values that encoding/json decodes into an any. So it decodes escapes, replaces each byte of
// invalid UTF-8 by U+FFFD, and takes the last of two members with one name. It checks only what it needs to find
// the values: use [json.Valid] for a text that must be valid.
//
// The paths and maxValue bound the memory of a Reader, whatever is written.
type Reader struct {
	targets     []target
	repeated    bool
	maxValue    int
	longestName int // of all paths

	state state
	depth int // how many objects and arrays are open
	// watched is how many of the open objects and arrays lie on a path. They are the outermost ones: when an
	// object doesn't lie on a path, nothing inside it does.
	watched int
	indexes []int // for each watched array the number of the current element; isObject for an object

	inName  bool // the next string, or the current one, is the name of a member of a watched object
	needed  bool // the current name, string, number or literal is collected
	tooLong bool // it was, but is longer than most
	most    int  // bytes of it, when it is decoded
	written []byte
}

// isObject replaces the number of an element.
const isObject = -1

// target is a path, and the value that was found there.
type target struct {
	steps []step
	// matched is how many of the steps lead to the current value.
	matched int
	reached int // the most steps that have led to a value of this text
	found   bool
	tooLong bool // the value was longer than maxValue
	value   string
}

// state says what the next byte belongs to.
type state uint8

const (
	betweenValues state = iota
	inString
	inEscape  // after \
	inLiteral // a number, true, false or null
	afterText // after the outermost value
	failed
)

// NewReader returns a Reader for the values at the paths. Values longer than maxValue bytes count as absent.
func NewReader(maxValue int, paths ...Path) *Reader {
	r := &Reader{maxValue: maxValue, targets: make([]target, len(paths))}
	longestPath := 0
	for i, path := range paths {
		for _, name := range path {
			r.targets[i].steps = append(r.targets[i].steps, newStep(name))
			r.longestName = max(r.longestName, len(name))
		}
		longestPath = max(longestPath, len(path))
	}
	r.indexes = make([]int, longestPath)
	return r
}

// Reset prepares the Reader for another text. It keeps the paths.
func (r *Reader) Reset() {
	for i := range r.targets {
		r.targets[i] = target{steps: r.targets[i].steps}
	}
	r.state, r.repeated, r.depth, r.watched, r.inName = betweenValues, false, 0, 0, false
}

// Value returns the value at the path with the number i. Strings are decoded, numbers and the words true and
// false are as written. For null, an object, an array, an absent value and a value that is too long,
// ok is false.
//
// Before the end of the text, Value returns the last complete value at the path so far.
func (r *Reader) Value(i int) (text string, ok bool) { return r.targets[i].value, r.targets[i].found }

// Repeated reports whether an object on a path has the next name of the path twice. RFC 8259 calls the value then
// unpredictable. Other names don't count.
func (r *Reader) Repeated() bool { return r.repeated }

// TooLong reports whether the last value at the path with the number i is longer than maxValue.
func (r *Reader) TooLong(i int) bool { return r.targets[i].tooLong }

// Write reads the next piece of the text. After an error, which is [ErrSyntax], each later call returns it too.
func (r *Reader) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0 && r.state != failed; {
		rest = rest[r.read(rest):]
	}
	if r.state == failed {
		return 0, ErrSyntax
	}
	return len(p), nil
}

// Close ends the text. It returns [io.ErrUnexpectedEOF] when the text isn't complete.
func (r *Reader) Close() error {
	if r.state == inLiteral && r.depth == 0 {
		r.endValue(r.decodedLiteral())
	}
	switch r.state {
	case failed:
		return ErrSyntax
	case afterText:
		return nil
	}
	return io.ErrUnexpectedEOF
}

// read reads some bytes at the beginning of p, and returns how many. When a number or a word ends, that is none, because
// only the byte after it shows its end. Then the state has changed.
func (r *Reader) read(p []byte) int {
	switch r.state {
	case inString:
		return r.readString(p)
	case inEscape:
		r.state = inString
		r.collect(p[:1])
		return 1
	case inLiteral:
		n := 0
		for n < len(p) && !endsLiteral(p[n]) {
			n++
		}
		if r.collect(p[:n]); n < len(p) {
			r.endValue(r.decodedLiteral())
		}
		return n
	}
	return r.readStructure(p)
}

// endsLiteral reports whether a byte can't be part of a number or a word.
func endsLiteral(c byte) bool { return isSpace(c) || strings.IndexByte(`,:]}[{"`, c) >= 0 }

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// readStructure reads spaces, and then one byte outside strings, numbers and words, or the first byte of such a value.
func (r *Reader) readStructure(p []byte) int {
	n := 0
	for n < len(p) && isSpace(p[n]) {
		n++
	}
	if n == len(p) {
		return n
	}
	switch c := p[n]; {
	case r.state == afterText:
		r.state = failed
	case c == '{' || c == '[':
		r.beginContainer(c)
	case c == '}' || c == ']':
		r.endContainer()
	case c == ',' && r.depth > 0 && r.watched == r.depth:
		r.nextMember()
	case c == ':':
		r.inName = false
	case c == '"':
		r.state = inString
		r.beginText(c)
	case c != ',':
		r.state, r.inName = inLiteral, false
		r.beginText(c)
		return n // the byte is a part of the word
	}
	return n + 1
}

// beginContainer begins an object or an array.
func (r *Reader) beginContainer(opening byte) {
	watched := r.watched == r.depth && r.leadsToTarget()
	r.depth++
	if r.inName = false; !watched {
		return
	}
	r.watched = r.depth
	if opening == '{' {
		r.indexes[r.depth-1], r.inName = isObject, true
		return
	}
	r.indexes[r.depth-1] = 0
	r.match(func(s step) bool { return s.index == 0 })
}

// endContainer ends the innermost object or array.
func (r *Reader) endContainer() {
	if r.depth--; r.depth < 0 {
		r.state = failed
		return
	}
	r.watched = min(r.watched, r.depth)
	r.afterValue()
}

// nextMember begins another member or element of a watched object or array.
func (r *Reader) nextMember() {
	index := &r.indexes[r.depth-1]
	if *index == isObject {
		r.inName = true
		return
	}
	*index++
	r.match(func(s step) bool { return s.index == *index })
}

// afterValue comes after each value.
func (r *Reader) afterValue() {
	if r.state, r.inName = betweenValues, false; r.depth == 0 {
		r.state = afterText
	}
}

// beginText begins a string that is a value or a name, a number or a word. Only those on a path are collected.
func (r *Reader) beginText(first byte) {
	r.written, r.tooLong = r.written[:0], false
	if r.inName {
		r.needed, r.most = true, r.longestName
		return
	}
	r.needed, r.most = r.isTarget() && first != 'n', r.maxValue
}

// collect collects bytes of a text as it is written. An escape has at most six bytes for each byte that it stands for.
func (r *Reader) collect(p []byte) {
	if !r.needed {
		return
	}
	if len(r.written)+len(p) > 6*r.most {
		r.needed, r.tooLong = false, true
		return
	}
	r.written = append(r.written, p...)
}

// readString reads bytes of a string that stand for themselves, and the byte after them.
func (r *Reader) readString(p []byte) int {
	n := 0
	for n < len(p) && p[n] != '"' && p[n] != '\\' {
		n++
	}
	r.collect(p[:n])
	if n == len(p) {
		return n
	}
	if p[n] == '\\' {
		r.state = inEscape
		r.collect(p[n : n+1])
		return n + 1
	}
	switch text, ok := r.decodedString(); {
	case r.state == failed:
	case r.inName:
		r.state = betweenValues
		r.match(func(s step) bool { return ok && s.name == text })
	default:
		r.endValue(text, ok)
	}
	return n + 1
}

// decodedString returns the current string, if it is needed and not too long.
func (r *Reader) decodedString() (text string, ok bool) {
	if !r.needed {
		return "", false
	}
	text = string(r.written)
	isPlain := utf8.ValidString(text) && !strings.Contains(text, `\`)
	if !isPlain && json.Unmarshal([]byte(`"`+text+`"`), &text) != nil {
		r.state = failed
	}
	if r.tooLong = len(text) > r.most; r.tooLong {
		return "", false
	}
	return text, true
}

// decodedLiteral returns the current number or word, if it is needed and not too long.
func (r *Reader) decodedLiteral() (text string, ok bool) {
	if r.tooLong = r.tooLong || r.needed && len(r.written) > r.most; !r.needed || r.tooLong {
		return "", false
	}
	if !json.Valid(r.written) {
		r.state = failed
	}
	return string(r.written), true
}

// endValue ends a string, number or word that is a value.
func (r *Reader) endValue(text string, ok bool) {
	if r.state == failed {
		return
	}
	for i := range r.targets {
		if t := &r.targets[i]; t.isCurrent(r) && (ok || r.tooLong) {
			t.value, t.found, t.tooLong = text, ok, r.tooLong
		}
	}
	r.afterValue()
}

// isCurrent reports whether the path leads to the current value.
func (t *target) isCurrent(r *Reader) bool {
	return r.watched == r.depth && t.matched == r.depth && len(t.steps) == r.depth
}

// isTarget reports whether any path leads to the current value.
func (r *Reader) isTarget() bool {
	for i := range r.targets {
		if r.targets[i].isCurrent(r) {
			return true
		}
	}
	return false
}

// leadsToTarget reports whether a path leads into the current value.
func (r *Reader) leadsToTarget() bool {
	for i := range r.targets {
		if t := &r.targets[i]; t.matched == r.depth && len(t.steps) > r.depth {
			return true
		}
	}
	return false
}

// match finds the paths that lead to the next member or element of the innermost object or array. It forgets the values
// that were found there before, because a later member of one name replaces the earlier.
func (r *Reader) match(selected func(step) bool) {
	parent := r.depth - 1
	for i := range r.targets {
		t := &r.targets[i]
		t.matched = min(t.matched, parent)
		if t.matched == parent && len(t.steps) > parent && selected(t.steps[parent]) {
			r.repeated = r.repeated || t.reached > parent // no other step leads here twice
			t.matched, t.reached = r.depth, max(t.reached, r.depth)
			t.value, t.found, t.tooLong = "", false, false
		}
	}
}
