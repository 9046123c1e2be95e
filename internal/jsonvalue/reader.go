// Package jsonvalue reads single values from a JSON text while the text streams past. It
// never holds more of the text than these values.
package jsonvalue

import (
	"errors"
	"io"
)

// ErrSyntax reports a text that is not JSON, or one with more than 10,000 objects and arrays within one another.
var ErrSyntax = errors.New("the text is not valid JSON")

// maxDepth is the number of objects and arrays that can be open at once. encoding/json has the same bound.
const maxDepth = 10_000

// Reader finds the values at some paths of a JSON text. The text is written to it in pieces of any size.
// A Reader must be made by [NewReader]. It must not be used by several goroutines at once.
//
// A Reader agrees with encoding/json: it accepts the same texts, and it finds the values that encoding/json decodes
// into an any. So a Reader decodes escapes, replaces each byte of invalid UTF-8 by U+FFFD, and takes the last of
// two members with one name.
//
// The paths and maxValue bound the memory of a Reader, whatever is written. In addition it needs one bit for each
// open object or array.
type Reader struct {
	targets     []target
	repeated    bool
	maxValue    int
	longestName int // of all paths

	state   state
	failed  bool
	depth   int      // how many objects and arrays are open
	objects []uint64 // one bit for each open object or array; it is set for an object
	// watched is how many of the open objects and arrays lie on a path. They are the outermost ones: when an
	// object doesn't lie on a path, nothing inside it does.
	watched int
	indexes []int // for each watched array the number of the current element

	inName    bool   // the current string is the name of a member
	literal   string // the rest of true, false or null
	hexDigits int    // how many digits of \uXXXX have been read
	escaped   rune   // the digits of \uXXXX so far

	text text // of the current name, string, number or literal
}

// target is a path, and the value that was found there.
type target struct {
	steps []step
	// matched is how many of the steps lead to the current value.
	matched int
	reached int // the most steps that have led to a value of this text
	found   bool
	tooLong bool // the value was longer than maxValue
	value   []byte
}

// state says which bytes can follow.
type state uint8

const (
	beforeValue        state = iota
	beforeElementOrEnd       // after [
	beforeNameOrEnd          // after {
	beforeName               // after , in an object
	beforeColon              // after a name
	afterValue               // before , ] or }
	afterText                // after the outermost value
	inString
	inEscape    // after \
	inHexDigits // after \u
	inLiteral   // in true, false or null
	afterMinus  // at the beginning of a number
	afterZero   // a number that begins with 0
	inInteger   // in the digits before the point
	afterPoint  // before the first digit of the fraction
	inFraction  // after it
	afterE      // before the sign of the exponent
	afterSign   // before the first digit of the exponent
	inExponent  // after it
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
		t := &r.targets[i]
		t.matched, t.reached, t.found, t.tooLong = 0, 0, false, false
	}
	r.state, r.failed, r.repeated, r.depth, r.watched = beforeValue, false, false, 0, 0
}

// Value returns the value at the path with the number i. Strings are decoded, numbers and the words true and
// false are as written. For null, an object, an array, an absent value and a value that is too long,
// ok is false.
//
// Before the end of the text, Value returns the last complete value at the path so far.
func (r *Reader) Value(i int) (text string, ok bool) {
	if t := &r.targets[i]; t.found {
		return string(t.value), true
	}
	return "", false
}

// Repeated reports whether an object on a path has the next name of the path twice. RFC 8259 calls the value then
// unpredictable. Other names don't count.
func (r *Reader) Repeated() bool { return r.repeated }

// TooLong reports whether the last value at the path with the number i is longer than maxValue.
func (r *Reader) TooLong(i int) bool { return r.targets[i].tooLong }

// Write reads the next piece of the text. After an error, which is [ErrSyntax], each further call returns it too.
func (r *Reader) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0 && !r.failed; {
		rest = rest[r.read(rest):]
	}
	if r.failed {
		return 0, ErrSyntax
	}
	return len(p), nil
}

// Close ends the text. It returns [io.ErrUnexpectedEOF] when the text isn't complete.
func (r *Reader) Close() error {
	if !r.failed && r.depth == 0 && r.numberIsComplete() {
		r.endScalar()
	}
	switch {
	case r.failed:
		return ErrSyntax
	case r.state != afterText:
		return io.ErrUnexpectedEOF
	}
	return nil
}

// read reads some bytes at the beginning of p, and returns how many. When a number ends, that is none, because
// only the byte after a number shows its end. Then the state has changed.
func (r *Reader) read(p []byte) int {
	switch r.state {
	case inString:
		return r.readString(p)
	case inEscape:
		r.readEscape(p[0])
	case inHexDigits:
		r.readHexDigit(p[0])
	case inLiteral:
		return r.readLiteral(p)
	case afterMinus, afterZero, inInteger, afterPoint, inFraction, afterE, afterSign, inExponent:
		return r.readNumber(p)
	default:
		return r.readStructure(p)
	}
	return 1
}

// readStructure reads spaces, and then one byte: one outside strings, numbers and literals, or the first
// byte of such a value.
func (r *Reader) readStructure(p []byte) int {
	spaces := 0
	for p[spaces] == ' ' || p[spaces] == '\n' || p[spaces] == '\r' || p[spaces] == '\t' {
		if spaces++; spaces == len(p) {
			return spaces
		}
	}
	c := p[spaces]
	switch r.state {
	case beforeValue:
		r.beginValue(c)
	case beforeElementOrEnd:
		if c == ']' {
			r.endContainer()
			break
		}
		r.nextElement()
		r.beginValue(c)
	case beforeNameOrEnd:
		if c == '}' {
			r.endContainer()
			break
		}
		fallthrough
	case beforeName:
		r.beginName(c)
	case beforeColon:
		r.state = beforeValue
		r.failed = c != ':'
	case afterValue:
		r.readAfterValue(c)
	default: // afterText
		r.failed = true
	}
	return spaces + 1
}

// readAfterValue reads the byte after a value within an object or an array.
func (r *Reader) readAfterValue(c byte) {
	object := r.inObject()
	switch {
	case c == ',' && object:
		r.state = beforeName
	case c == ',':
		r.nextElement()
		r.state = beforeValue
	case c == '}' && object, c == ']' && !object:
		r.endContainer()
	default:
		r.failed = true
	}
}

// beginValue reads the first byte of a value.
func (r *Reader) beginValue(c byte) {
	switch {
	case c == '{':
		r.beginContainer(c)
		r.state = beforeNameOrEnd
		return
	case c == '[':
		r.beginContainer(c)
		r.state = beforeElementOrEnd
		return
	case c == '"':
		r.state, r.inName = inString, false
		r.text.begin(r.isTarget(), r.maxValue)
		return
	case c == 't':
		r.state, r.literal = inLiteral, "rue"
	case c == 'f':
		r.state, r.literal = inLiteral, "alse"
	case c == 'n':
		r.state, r.literal = inLiteral, "ull"
	case c == '-':
		r.state = afterMinus
	case c == '0':
		r.state = afterZero
	case '1' <= c && c <= '9':
		r.state = inInteger
	default:
		r.failed = true
		return
	}
	r.text.begin(r.isTarget() && c != 'n', r.maxValue)
	r.text.addByte(c)
}

// beginContainer begins an object or an array.
func (r *Reader) beginContainer(opening byte) {
	if r.depth == maxDepth {
		r.failed = true
		return
	}
	word, bit := r.depth/64, uint64(1)<<(r.depth%64)
	if word == len(r.objects) {
		r.objects = append(r.objects, 0)
	}
	if opening == '{' {
		r.objects[word] |= bit
	} else {
		r.objects[word] &^= bit
	}
	if r.watched == r.depth && r.leadsToTarget() {
		r.indexes[r.depth] = -1
		r.watched++
	}
	r.depth++
}

// endContainer ends the innermost object or array.
func (r *Reader) endContainer() {
	r.depth--
	r.watched = min(r.watched, r.depth)
	r.endValue()
}

// inObject reports whether the innermost open value is an object.
func (r *Reader) inObject() bool {
	last := r.depth - 1
	return r.objects[last/64]>>(last%64)&1 == 1
}

// endValue comes after each value.
func (r *Reader) endValue() {
	r.state = afterValue
	if r.depth == 0 {
		r.state = afterText
	}
}

// endScalar ends a string, number or literal that is a value.
func (r *Reader) endScalar() {
	if value, ok := r.text.decoded(); ok || r.text.tooLong {
		for i := range r.targets {
			if t := &r.targets[i]; t.matched == r.depth && len(t.steps) == r.depth {
				t.value, t.found, t.tooLong = append(t.value[:0], value...), ok, r.text.tooLong
			}
		}
	}
	r.endValue()
}

// isTarget reports whether the current value is one that a path leads to.
func (r *Reader) isTarget() bool {
	if r.watched != r.depth {
		return false
	}
	for i := range r.targets {
		if t := &r.targets[i]; t.matched == r.depth && len(t.steps) == r.depth {
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

// nextElement begins an element of an array.
func (r *Reader) nextElement() {
	if r.watched < r.depth {
		return
	}
	r.indexes[r.depth-1]++
	index := r.indexes[r.depth-1]
	r.match(func(s step) bool { return s.index == index })
}

// endName ends the name of a member.
func (r *Reader) endName() {
	r.state = beforeColon
	if r.watched < r.depth {
		return
	}
	name, ok := r.text.decoded()
	r.match(func(s step) bool { return ok && s.name == string(name) })
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
			t.found, t.tooLong = false, false
		}
	}
}

// beginName reads the quotation mark before the name of a member.
func (r *Reader) beginName(c byte) {
	r.failed = c != '"'
	r.state, r.inName = inString, true
	r.text.begin(r.watched == r.depth, r.longestName)
}

// readString reads bytes of a string that stand for themselves, and the byte after them.
func (r *Reader) readString(p []byte) int {
	length := plainLength(p)
	r.text.add(p[:length])
	if length == len(p) {
		return length
	}
	switch c := p[length]; {
	case c == '\\':
		r.state = inEscape
	case c == '"' && r.inName:
		r.endName()
	case c == '"':
		r.endScalar()
	default:
		r.failed = true
	}
	return length + 1
}

// readEscape reads the byte after a backslash.
func (r *Reader) readEscape(c byte) {
	r.state = inString
	switch c {
	case '"', '\\', '/':
		r.text.addByte(c)
	case 'b':
		r.text.addByte('\b')
	case 'f':
		r.text.addByte('\f')
	case 'n':
		r.text.addByte('\n')
	case 'r':
		r.text.addByte('\r')
	case 't':
		r.text.addByte('\t')
	case 'u':
		r.state, r.hexDigits, r.escaped = inHexDigits, 0, 0
	default:
		r.failed = true
	}
}

// readHexDigit reads a digit of \uXXXX.
func (r *Reader) readHexDigit(c byte) {
	switch {
	case '0' <= c && c <= '9':
		c -= '0'
	case 'a' <= c && c <= 'f':
		c -= 'a' - 10
	case 'A' <= c && c <= 'F':
		c -= 'A' - 10
	default:
		r.failed = true
		return
	}
	r.escaped = r.escaped<<4 | rune(c)
	if r.hexDigits++; r.hexDigits == 4 {
		r.state = inString
		r.text.addUTF16(r.escaped)
	}
}

// readLiteral reads bytes of true, false or null.
func (r *Reader) readLiteral(p []byte) int {
	length := min(len(p), len(r.literal))
	if string(p[:length]) != r.literal[:length] {
		r.failed = true
		return length
	}
	r.text.add(p[:length])
	if r.literal = r.literal[length:]; r.literal == "" {
		r.endScalar()
	}
	return length
}

// readNumber reads bytes of a number. It reads none when the number has ended.
func (r *Reader) readNumber(p []byte) int {
	if digits := countDigits(p); digits > 0 && r.state != afterZero {
		switch {
		case r.state == afterMinus && p[0] == '0':
			r.state, digits = afterZero, 1
		case r.state == afterMinus:
			r.state = inInteger
		case r.state == afterPoint:
			r.state = inFraction
		case r.state == afterE || r.state == afterSign:
			r.state = inExponent
		}
		r.text.add(p[:digits])
		return digits
	}
	switch c := p[0]; {
	case c == '.' && (r.state == afterZero || r.state == inInteger):
		r.state = afterPoint
	case (c == 'e' || c == 'E') && (r.state == afterZero || r.state == inInteger || r.state == inFraction):
		r.state = afterE
	case (c == '+' || c == '-') && r.state == afterE:
		r.state = afterSign
	case r.numberIsComplete():
		r.endScalar()
		return 0
	default:
		r.failed = true
	}
	r.text.addByte(p[0])
	return 1
}

// numberIsComplete reports whether the current value is a number that can end here.
func (r *Reader) numberIsComplete() bool {
	return r.state == afterZero || r.state == inInteger || r.state == inFraction || r.state == inExponent
}
