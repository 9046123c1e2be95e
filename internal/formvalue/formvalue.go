// Package formvalue reads single fields from the bodies of HTML forms. It never guesses: a body that parsers read
// differently is an error.
//
// Invalid UTF-8 in names and values is replaced by U+FFFD, byte for byte. encoding/json does the same, so a
// field has the same value in a form and in JSON.
package formvalue

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/url"
	"strings"
	"unicode/utf8"
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
	if !validEscapes(body) {
		return "", false, ErrEscape
	}
	other := false // another name that PHP reads as the field
	for pair := range bytes.SplitSeq(body, []byte{'&'}) {
		if len(pair) == 0 {
			continue
		}
		rawName, rawText, _ := bytes.Cut(pair, []byte{'='})
		if decode(rawName, len(field)) != field {
			unspaced := trimSpaces(rawName)
			same, strange := likeField(decode(unspaced, len(field)), field)
			if same && (strange || len(unspaced) < len(rawName)) {
				return "", false, ErrAmbiguous
			}
			other = other || same
			continue
		}
		if ok {
			return "", false, ErrAmbiguous
		}
		if value, ok = decode(rawText, maxValue), true; len(value) > maxValue {
			return "", false, ErrTooLong
		}
	}
	if ok && other {
		return "", false, ErrAmbiguous
	}
	return value, ok, nil
}

// validEscapes reports whether two hexadecimal digits follow each percent sign.
func validEscapes(body []byte) bool {
	for found := true; ; {
		if _, body, found = bytes.Cut(body, []byte{'%'}); !found {
			return true
		}
		if n, _ := hex.Decode(make([]byte, 1), body[:min(2, len(body))]); n == 0 {
			return false
		}
	}
}

// decode returns a name or value whose escapes are valid. If it has more than most bytes, decode returns only its
// beginning, of more than most bytes. So clients can't fill the memory with long texts.
func decode(raw []byte, most int) string {
	raw = raw[:min(len(raw), 3*(most+utf8.UTFMax))] // no byte takes more than three
	if i := bytes.LastIndexByte(raw, '%'); i >= 0 && i+3 > len(raw) {
		raw = raw[:i] // of an escape that is cut
	}
	text, _ := url.QueryUnescape(string(raw))
	return validUTF8(text)
}

// trimSpaces returns a name without the spaces at its beginning, before it is decoded.
func trimSpaces(raw []byte) []byte {
	for {
		rest := bytes.TrimPrefix(bytes.TrimLeft(raw, " +"), []byte("%20"))
		if len(rest) == len(raw) {
			return raw
		}
		raw = rest
	}
}

// beginsAsJSON reports whether a text begins as a JSON object, list or string does, in any of the encodings that
// JSON parsers recognize by themselves. So a text with a byte order mark begins as JSON.
func beginsAsJSON(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	return len(text) > 0 && bytes.IndexByte([]byte("{[\"\x00\xEF\xFE\xFF"), text[0]) >= 0
}

// underscores replaces the characters that PHP doesn't allow in the name of a variable.
var underscores = strings.NewReplacer(" ", "_", ".", "_", "[", "_")

// likeField reports whether PHP reads a field of another name as the field, or as a list in its place. The name has no
// leading spaces. strange reports whether such a name is in no form, because it has a NUL or a [ that isn't closed.
//
// PHP ignores leading spaces, and the rest of a name after NUL. It reads dots, spaces and an open [ as underscores.
// See https://www.php.net/manual/en/language.variables.external.php. Of several values it keeps the last one.
func likeField(name, field string) (same, strange bool) {
	short, _, _ := strings.Cut(name, "\x00")
	field = strings.TrimLeft(field, " ")
	if !strings.HasPrefix(underscores.Replace(short), underscores.Replace(field)) {
		return false, false
	}
	begin, rest := short[:len(field)], short[len(field):]
	if rest != "" && rest[0] != '[' && !strings.HasSuffix(field, "]") { // PHP ignores text behind a ]
		return false, false
	}
	return true, len(short) < len(name) || strings.Count(begin, "[") > strings.Count(field, "[")
}

// validUTF8 replaces each invalid byte of text by U+FFFD. strings.ToValidUTF8 would replace a run of invalid bytes
// by one U+FFFD.
func validUTF8(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	return string([]rune(text))
}
