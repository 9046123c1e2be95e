// Package formvalue reads single fields from the bodies of HTML forms. It never guesses: a body that parsers read
// differently is an error.
//
// Invalid UTF-8 in names and values is replaced by U+FFFD, byte for byte. encoding/json does the same, so a
// field has the same value in a form and in JSON.
package formvalue

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// underscores replaces the characters that PHP doesn't allow in the name of a variable.
var underscores = strings.NewReplacer(" ", "_", ".", "_", "[", "_")

// likeField reports whether PHP reads a field of another name as the field, or as a list in its place. strange
// reports whether such a name is in no form, because it begins with a space, or has a NUL or a [ that isn't closed.
//
// PHP ignores leading spaces, and the rest of a name after NUL. It reads dots, spaces and an open [ as underscores.
// See https://www.php.net/manual/en/language.variables.external.php. Of several values it keeps the last one.
func likeField(name, field string) (same, strange bool) {
	short, _, _ := strings.Cut(strings.TrimLeft(name, " "), "\x00")
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

// validUTF8 replaces each invalid byte of text by U+FFFD. bytes.ToValidUTF8 would replace a run of invalid bytes
// by one U+FFFD.
func validUTF8(text []byte) []byte {
	if utf8.Valid(text) {
		return text
	}
	return []byte(string(bytes.Runes(text)))
}

// validValue returns the text of a value, if it has at most so many bytes.
func validValue(text []byte, most int) (string, error) {
	if len(text) > most {
		return "", ErrTooLong
	}
	if text = validUTF8(text); len(text) > most {
		return "", ErrTooLong
	}
	return string(text), nil
}
