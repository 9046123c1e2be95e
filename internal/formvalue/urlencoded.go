package formvalue

import (
	"bytes"
	"errors"
)

// The reasons why a body is rejected.
var (
	ErrEscape    = errors.New("a % is not followed by two hexadecimal digits")
	ErrTooLong   = errors.New("the value of the field is too long")
	ErrAmbiguous = errors.New("servers disagree about the meaning of the body")
)

// URLEncoded returns the value of a field from a body of the type application/x-www-form-urlencoded. ok is
// false when the body has no field of that name. A value of more than maxValue bytes is [ErrTooLong].
//
// It reads the body as the URL standard says (https://url.spec.whatwg.org/#urlencoded-parsing). Only & separates
// fields, + is a space, and a field without = has an empty value. Unlike the standard, URLEncoded returns an error
// where servers disagree, because a client could show another value to them. No browser sends these bodies:
//
//   - the field twice. Some servers read the first value, and others the last one.
//   - the field, and a name that PHP reads as the same field: " user", or "user[]" beside "user".
//   - an invalid escape. Some servers skip the field.
//   - a semicolon that is not escaped. It separates fields for some servers, and others skip the field.
//   - a body that begins as JSON does. Some servers read JSON whatever the type of the body is.
//   - a question mark at the beginning, or a byte order mark. Some servers skip it, as JavaScript's URLSearchParams
//     skips the question mark of a URL. For others it is part of the first name.
func URLEncoded(body []byte, field string, maxValue int) (value string, ok bool, err error) {
	if bytes.IndexByte(body, ';') >= 0 || beginsAsJSON(body) || bytes.HasPrefix(body, []byte{'?'}) {
		return "", false, ErrAmbiguous
	}
	most := 3 * (len(field) + 1) // a longer name is not the field, but PHP can read it as the field
	other := false               // another name that PHP reads as the field
	for pair := range bytes.SplitSeq(body, []byte{'&'}) {
		if !hasValidEscapes(pair) {
			return "", false, ErrEscape
		}
		name, text, _ := bytes.Cut(pair, []byte{'='})
		if len(pair) == 0 {
			continue
		}
		for rest := cutSpace(name); len(name) > most && len(cutSpace(rest)) < len(rest); rest = cutSpace(rest) {
			name = rest // with at least one space
		}
		if decoded := string(validUTF8(unescape(name, most))); decoded != field {
			same, strange := likeField(decoded, field)
			if strange {
				return "", false, ErrAmbiguous
			}
			other = other || same
			continue
		}
		if ok {
			return "", false, ErrAmbiguous
		}
		if value, err = validValue(unescape(text, maxValue+1), maxValue); err != nil {
			return "", false, err
		}
		ok = true
	}
	if ok && other {
		return "", false, ErrAmbiguous
	}
	return value, ok, nil
}

// beginsAsJSON reports whether a text begins as a JSON object, list or string does, in any of the encodings that
// JSON parsers recognize by themselves. So a text with a byte order mark begins as JSON.
func beginsAsJSON(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	return len(text) > 0 && bytes.IndexByte([]byte("{[\"\x00\xEF\xFE\xFF"), text[0]) >= 0
}

// hasValidEscapes reports whether each percent sign is followed by two hexadecimal digits.
func hasValidEscapes(escaped []byte) bool {
	for {
		i := bytes.IndexByte(escaped, '%')
		if i < 0 {
			return true
		}
		if i+2 >= len(escaped) || !isHex(escaped[i+1]) || !isHex(escaped[i+2]) {
			return false
		}
		escaped = escaped[i+3:]
	}
}

// cutSpace returns a text without the space at its beginning, if there is one.
func cutSpace(escaped []byte) []byte {
	if len(escaped) > 0 && (escaped[0] == '+' || escaped[0] == ' ') {
		return escaped[1:]
	}
	return bytes.TrimPrefix(escaped, []byte("%20"))
}

// unescape decodes a text with valid escapes, up to so many bytes.
func unescape(escaped []byte, most int) []byte {
	decoded := make([]byte, 0, min(len(escaped), most))
	for i := 0; i < len(escaped) && len(decoded) < most; i++ {
		switch c := escaped[i]; c {
		case '+':
			decoded = append(decoded, ' ')
		case '%':
			decoded = append(decoded, hex(escaped[i+1])<<4|hex(escaped[i+2]))
			i += 2
		default:
			decoded = append(decoded, c)
		}
	}
	return decoded
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// hex returns the value of a hexadecimal digit.
func hex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	}
	return c - 'a' + 10
}
