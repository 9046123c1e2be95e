package jsonvalue

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// text collects the decoded text of a name or a value, if it is needed. It collects at most a given number of bytes.
type text struct {
	needed    bool // false also when the text is too long
	tooLong   bool // the text was needed, but is longer than most
	most      int  // bytes
	collected []byte
	surrogate rune   // a half of a surrogate pair, while the other half can follow; else 0
	valid     []byte // the collected bytes with U+FFFD for invalid UTF-8
}

// begin begins another text.
func (t *text) begin(needed bool, most int) {
	t.needed, t.tooLong, t.most, t.collected, t.surrogate = needed, false, most, t.collected[:0], 0
}

// add adds bytes that stand for themselves.
func (t *text) add(p []byte) {
	if t.needed && len(p) > 0 { // apart from append, so that a text that isn't needed costs no call
		t.append(p)
	}
}

func (t *text) append(p []byte) {
	t.endSurrogate()
	if len(t.collected)+len(p) > t.most {
		t.needed, t.tooLong = false, true
		return
	}
	t.collected = append(t.collected, p...)
}

func (t *text) addByte(c byte) { t.add([]byte{c}) }

func (t *text) addRune(c rune) {
	var encoded [utf8.UTFMax]byte
	t.add(utf8.AppendRune(encoded[:0], c))
}

// addUTF16 adds a character of UTF-16. Two of them can make one character of the text.
func (t *text) addUTF16(c rune) {
	if both := utf16.DecodeRune(t.surrogate, c); both != utf8.RuneError {
		t.surrogate = 0
		t.addRune(both)
		return
	}
	t.endSurrogate()
	if utf16.IsSurrogate(c) {
		t.surrogate = c
		return
	}
	t.addRune(c)
}

// endSurrogate adds U+FFFD for a half of a surrogate pair, when the other half doesn't follow.
func (t *text) endSurrogate() {
	if t.surrogate != 0 {
		t.surrogate = 0
		t.addRune(utf8.RuneError)
	}
}

// decoded returns the text. If the text isn't needed or is too long, ok is false. The text is valid until the next
// one begins.
func (t *text) decoded() (decoded []byte, ok bool) {
	t.endSurrogate()
	if !t.needed {
		return nil, false
	}
	if utf8.Valid(t.collected) {
		return t.collected, true
	}
	// The bytes of one character can arrive in two pieces, so UTF-8 is checked only here.
	t.valid = t.valid[:0]
	for _, c := range string(t.collected) {
		t.valid = utf8.AppendRune(t.valid, c)
	}
	if len(t.valid) > t.most {
		t.tooLong = true
		return nil, false
	}
	return t.valid, true
}

// countDigits returns how many digits p begins with.
func countDigits(p []byte) int {
	for i, c := range p {
		if c < '0' || c > '9' {
			return i
		}
	}
	return len(p)
}

// plainLength returns how many bytes at the beginning of p stand for themselves in a string. These are all but
// quotation marks, backslashes and control characters.
func plainLength(p []byte) int {
	i := 0
	for ; len(p)-i >= 8; i += 8 {
		if special := specialBytes(binary.LittleEndian.Uint64(p[i:])); special != 0 {
			return i + bits.TrailingZeros64(special)/8
		}
	}
	for ; i < len(p); i++ {
		if c := p[i]; c < ' ' || c == '"' || c == '\\' {
			break
		}
	}
	return i
}

// specialBytes examines eight bytes at once. The lowest bit that is set in its result is the highest bit of the
// first byte that doesn't stand for itself. The result is 0 if there is none.
//
// The method is that of Sean Eron Anderson's "Bit Twiddling Hacks" (hasless and haszero). Subtracting sets the
// highest bit of each byte that is too small. Bytes of 0x80 and above have that bit from the beginning, and are
// excluded by &^. A borrow can disturb only bytes after a special one.
func specialBytes(eight uint64) uint64 {
	const (
		each    = 0x0101010101010101 // one in each byte
		highest = 0x80 * each
	)
	quote, backslash := eight^'"'*each, eight^'\\'*each // zero in such a byte
	control := (eight - ' '*each) &^ eight
	return (control | (quote-each)&^quote | (backslash-each)&^backslash) & highest
}
