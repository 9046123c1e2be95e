package formvalue

import (
	"bytes"
	"errors"
)

// The reasons why [URLEncoded] rejects a body.
var (
	ErrEscape    = errors.New("a % is not followed by two hexadecimal digits")
	ErrAmbiguous = errors.New("servers disagree about the meaning of the body")
)

// URLEncoded returns the first value of a field from a body of the type application/x-www-form-urlencoded. ok is
// false when the body has no field of that name.
//
// It reads the body as the URL standard says (https://url.spec.whatwg.org/#urlencoded-parsing). Only & separates
// fields, + is a space, and a field without = has an empty value. Unlike the standard, URLEncoded returns an error
// where servers disagree, because a client could show another value to them. No browser sends these bodies:
//
//   - an invalid escape. Some servers skip the field.
//   - a semicolon that is not escaped. It separates fields for some servers, and others skip the field.
//   - a body that begins as JSON does. Some servers read JSON whatever the type of the body is.
func URLEncoded(body []byte, field string) (value string, ok bool, err error) {
	if bytes.IndexByte(body, ';') >= 0 || beginsAsJSON(body) {
		return "", false, ErrAmbiguous
	}
	var name, text []byte // used for all fields, so that many fields allocate little
	for len(body) > 0 {
		var pair []byte
		pair, body, _ = bytes.Cut(body, []byte{'&'})
		if len(pair) == 0 {
			continue
		}
		escapedName, escapedText, _ := bytes.Cut(pair, []byte{'='})
		if name, err = unescape(name[:0], escapedName); err != nil {
			return "", false, err
		}
		if text, err = unescape(text[:0], escapedText); err != nil {
			return "", false, err
		}
		if !ok && string(validUTF8(name)) == field {
			value, ok = string(validUTF8(text)), true
		}
	}
	return value, ok, nil
}

// beginsAsJSON reports whether a text begins as a JSON object, list or string does, in any of the encodings that
// JSON parsers recognize by themselves.
func beginsAsJSON(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	return len(text) > 0 && bytes.IndexByte([]byte("{[\"\x00\xEF\xFE\xFF"), text[0]) >= 0
}

// unescape appends the decoded form of escaped to decoded.
func unescape(decoded, escaped []byte) ([]byte, error) {
	for i := 0; i < len(escaped); i++ {
		switch c := escaped[i]; c {
		case '+':
			decoded = append(decoded, ' ')
		case '%':
			if i+2 >= len(escaped) || !isHex(escaped[i+1]) || !isHex(escaped[i+2]) {
				return nil, ErrEscape
			}
			decoded = append(decoded, hex(escaped[i+1])<<4|hex(escaped[i+2]))
			i += 2
		default:
			decoded = append(decoded, c)
		}
	}
	return decoded, nil
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
