// Package jsonvalue reads single values from a JSON text while the text streams past.
package jsonvalue

import (
	"errors"
	"io"
	"unicode/utf16"
	"unicode/utf8"
)

// ErrSyntax reports a text that is not JSON, or one with more than 10,000 objects and arrays within one another.
var ErrSyntax = errors.New("the text is not valid JSON")

// maxDepth is the number of objects and arrays that can be open at once. It equals that of encoding/json.
const maxDepth = 10_000

// Reader finds the values at some paths of a JSON text. The text is written to it in pieces of any size.
// A Reader must be made by [NewReader]. It must not be used by several goroutines at once.
//
// A Reader agrees with encoding/json. It accepts the same texts, and its values are those that encoding/json
// decodes into an any. So it decodes escapes, replaces invalid UTF-8 by U+FFFD, and of two members with one
// name it takes the last.
//
// Its memory is bounded by its paths and by maxValue, whatever is written. In addition it needs one bit for
// each open object or array.
type Reader struct {
	targets     []target
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
	surrogate rune   // the first half of a surrogate pair, while the second can follow; else 0

	// The decoded text of the current name, string, number or literal, where it is needed.
	keeping  bool
	kept     []byte
	keepMost int
	valid    []byte // kept with its invalid UTF-8 replaced
}

// target is a path, and the value that was found there.
type target struct {
	steps []step
	// matched is how many of the steps lead to the current value.
	matched int
	found   bool
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
		r.targets[i].matched, r.targets[i].found = 0, false
	}
	r.state, r.failed, r.depth, r.watched = beforeValue, false, 0, 0
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

// Write reads the next piece of the text. After an error, which is [ErrSyntax], each further call returns it too.
func (r *Reader) Write(p []byte) (int, error) {
	for n := 0; n < len(p) && !r.failed; n++ {
		if r.state == inString {
			length := plainLength(p[n:])
			r.keep(p[n : n+length])
			if n += length; n == len(p) {
				break
			}
		}
		r.read(p[n])
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

// read reads one byte.
func (r *Reader) read(c byte) {
	switch r.state {
	case inString:
		r.readString(c)
	case inEscape:
		r.readEscape(c)
	case inHexDigits:
		r.readHexDigit(c)
	case inLiteral:
		r.readLiteral(c)
	case afterMinus, afterZero, inInteger, afterPoint, inFraction, afterE, afterSign, inExponent:
		r.readNumber(c)
	default:
		r.readBetween(c)
	}
}

// readBetween reads a byte outside strings, numbers and literals.
func (r *Reader) readBetween(c byte) {
	if c == ' ' || c == '\n' || c == '\r' || c == '\t' {
		return
	}
	switch {
	case r.state == beforeValue:
		r.beginValue(c)
	case r.state == beforeElementOrEnd && c == ']':
		r.endContainer()
	case r.state == beforeElementOrEnd:
		r.nextElement()
		r.beginValue(c)
	case r.state == beforeNameOrEnd && c == '}':
		r.endContainer()
	case (r.state == beforeNameOrEnd || r.state == beforeName) && c == '"':
		r.beginString(true)
	case r.state == beforeColon && c == ':':
		r.state = beforeValue
	case r.state == afterValue && c == ',' && r.inObject():
		r.state = beforeName
	case r.state == afterValue && c == ',':
		r.nextElement()
		r.state = beforeValue
	case r.state == afterValue && (c == '}' && r.inObject() || c == ']' && !r.inObject()):
		r.endContainer()
	default:
		r.failed = true
	}
}

// beginValue reads the first byte of a value.
func (r *Reader) beginValue(c byte) {
	switch {
	case c == '{':
		r.beginContainer(true)
		r.state = beforeNameOrEnd
		return
	case c == '[':
		r.beginContainer(false)
		r.state = beforeElementOrEnd
		return
	case c == '"':
		r.beginString(false)
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
	r.beginKeeping(r.isTarget() && c != 'n', r.maxValue)
	r.keepByte(c)
}

// beginContainer begins an object or an array.
func (r *Reader) beginContainer(object bool) {
	if r.depth == maxDepth {
		r.failed = true
		return
	}
	word, bit := r.depth/64, uint64(1)<<(r.depth%64)
	if word == len(r.objects) {
		r.objects = append(r.objects, 0)
	}
	if object {
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
	if value, ok := r.keptText(); ok {
		for i := range r.targets {
			if t := &r.targets[i]; t.matched == r.depth && len(t.steps) == r.depth {
				t.value, t.found = append(t.value[:0], value...), true
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
	name, ok := r.keptText()
	r.match(func(s step) bool { return ok && s.name == string(name) })
}

// match finds the paths that lead to the next member or element of the innermost object or array. A value that was found
// there before is forgotten, because a later member of one name replaces the earlier.
func (r *Reader) match(selected func(step) bool) {
	parent := r.depth - 1
	for i := range r.targets {
		t := &r.targets[i]
		t.matched = min(t.matched, parent)
		if t.matched == parent && len(t.steps) > parent && selected(t.steps[parent]) {
			t.matched = r.depth
			t.found = false
		}
	}
}

// beginString begins a string, which is a name or a value.
func (r *Reader) beginString(name bool) {
	r.state, r.inName = inString, name
	if name {
		r.beginKeeping(r.watched == r.depth, r.longestName)
	} else {
		r.beginKeeping(r.isTarget(), r.maxValue)
	}
}

// readString reads a byte that is not plain, within a string.
func (r *Reader) readString(c byte) {
	switch {
	case c == '\\':
		r.state = inEscape
	case c == '"' && r.inName:
		r.endName()
	case c == '"':
		r.endScalar()
	default:
		r.failed = true
	}
}

// readEscape reads the byte after a backslash.
func (r *Reader) readEscape(c byte) {
	r.state = inString
	switch c {
	case '"', '\\', '/':
		r.keepByte(c)
	case 'b':
		r.keepByte('\b')
	case 'f':
		r.keepByte('\f')
	case 'n':
		r.keepByte('\n')
	case 'r':
		r.keepByte('\r')
	case 't':
		r.keepByte('\t')
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
		r.keepUTF16(r.escaped)
	}
}

// keepUTF16 keeps a character of UTF-16. Two of them can make one character of the text.
func (r *Reader) keepUTF16(c rune) {
	if first := r.surrogate; first != 0 {
		r.surrogate = 0
		if both := utf16.DecodeRune(first, c); both != utf8.RuneError {
			r.keepRune(both)
			return
		}
		r.keepRune(utf8.RuneError)
	}
	if 0xd800 <= c && c < 0xdc00 {
		r.surrogate = c
		return
	}
	r.keepRune(c) // U+FFFD for a second half without the first
}

// readLiteral reads a byte of true, false or null.
func (r *Reader) readLiteral(c byte) {
	if c != r.literal[0] {
		r.failed = true
		return
	}
	r.keepByte(c)
	if r.literal = r.literal[1:]; r.literal == "" {
		r.endScalar()
	}
}

// readNumber reads a byte of a number, or the byte after it.
func (r *Reader) readNumber(c byte) {
	digit := '0' <= c && c <= '9'
	switch {
	case r.state == afterMinus && c == '0':
		r.state = afterZero
	case (r.state == afterMinus || r.state == inInteger) && digit:
		r.state = inInteger
	case (r.state == afterZero || r.state == inInteger) && c == '.':
		r.state = afterPoint
	case (r.state == afterPoint || r.state == inFraction) && digit:
		r.state = inFraction
	case (r.state == afterZero || r.state == inInteger || r.state == inFraction) && (c == 'e' || c == 'E'):
		r.state = afterE
	case r.state == afterE && (c == '+' || c == '-'):
		r.state = afterSign
	case (r.state == afterE || r.state == afterSign || r.state == inExponent) && digit:
		r.state = inExponent
	case r.numberIsComplete():
		r.endScalar()
		r.readBetween(c)
		return
	default:
		r.failed = true
		return
	}
	r.keepByte(c)
}

// numberIsComplete reports whether the current value is a number that can end here.
func (r *Reader) numberIsComplete() bool {
	return r.state == afterZero || r.state == inInteger || r.state == inFraction || r.state == inExponent
}

// beginKeeping prepares for the text of a name or a value.
func (r *Reader) beginKeeping(needed bool, most int) {
	r.keeping, r.kept, r.keepMost, r.surrogate = needed, r.kept[:0], most, 0
}

// keep appends a piece of the current name or value.
func (r *Reader) keep(p []byte) {
	if !r.keeping || len(p) == 0 {
		return
	}
	if r.surrogate != 0 {
		r.surrogate = 0
		r.keepRune(utf8.RuneError)
	}
	if len(r.kept)+len(p) > r.keepMost {
		r.keeping = false
		return
	}
	r.kept = append(r.kept, p...)
}

func (r *Reader) keepByte(c byte) { r.keep([]byte{c}) }

func (r *Reader) keepRune(c rune) {
	var encoded [utf8.UTFMax]byte
	r.keep(utf8.AppendRune(encoded[:0], c))
}

// keptText returns the text of the current name or value. ok is false when it wasn't needed or is too long.
// The text is valid until the next one begins.
func (r *Reader) keptText() (text []byte, ok bool) {
	if r.surrogate != 0 {
		r.surrogate = 0
		r.keepRune(utf8.RuneError)
	}
	if !r.keeping {
		return nil, false
	}
	if utf8.Valid(r.kept) {
		return r.kept, true
	}
	// Bytes of one character can come in two pieces, so only the whole can be judged.
	r.valid = r.valid[:0]
	for _, c := range string(r.kept) {
		r.valid = utf8.AppendRune(r.valid, c)
	}
	return r.valid, len(r.valid) <= r.keepMost
}

// plainLength returns how many bytes at the beginning of p are ordinary bytes of a string.
func plainLength(p []byte) int {
	for i, c := range p {
		if c < ' ' || c == '"' || c == '\\' {
			return i
		}
	}
	return len(p)
}
