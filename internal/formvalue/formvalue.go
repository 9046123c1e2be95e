// Package formvalue reads single fields from the bodies of HTML forms. It never guesses: a body that parsers read
// differently is an error.
//
// Invalid UTF-8 in names and values is replaced by U+FFFD, byte for byte. encoding/json does the same, so a
// field has the same value in a form and in JSON.
package formvalue

import (
	"bytes"
	"unicode/utf8"
)

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
