package keys

import (
	"errors"
	"fmt"
	"strings"
)

// OwnPrefix is the beginning of the names of this module's placeholders.
const OwnPrefix = "http.rate_limit"

// ZoneFields are the fields of {http.rate_limit.<zone>.<field>}.
var ZoneFields = strings.Fields("limit remaining reset retry_after allowed charged banned")

// DenialFields are the fields of {http.rate_limit.exceeded.<field>}.
var DenialFields = strings.Fields("name limit remaining retry_after reason id")

// The placeholders of addresses.
const (
	RemoteAddress = "http.request.remote" // and .host, .port
	RemoteHost    = "http.request.remote.host"
	RemotePort    = "http.request.remote.port"
	ClientAddress = "http.vars.client_ip"
)

// Placeholders returns the names of the placeholders in a text, as a [caddy.Replacer]
// finds them.
func Placeholders(text string) (names []string, err error) {
	begin := -1 // of a name
	for i := 0; i < len(text) && err == nil; i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && (text[i+1] == '{' || text[i+1] == '}'):
			i++ // an escaped brace
		case text[i] == '{' && begin < 0:
			begin = i + 1
		case text[i] == '}' && begin >= 0:
			names, begin = append(names, text[begin:i]), -1
		case text[i] == '{' || text[i] == '}':
			err = errBraces
		}
	}
	if begin >= 0 {
		err = errBraces
	}
	return names, err
}

var errBraces = errors.New(`has a brace without its counterpart: write placeholders as {name}, and a brace itself as \{`)

// CheckBraces returns an error if the braces in an option's text don't match.
func CheckBraces(option, text string) error {
	if _, err := Placeholders(text); err != nil {
		return fmt.Errorf("%s %q %w", option, text, err)
	}
	return nil
}

// Shorten returns the short form of placeholders, as in a Caddyfile. Caddy replaces
// the short form before it calls this module.
func Shorten(text string) string {
	return strings.NewReplacer("{http.vars.client_ip}", "{client_ip}", "{http.request.remote.host}", "{remote_host}",
		"{http.request.header.", "{header.", "{http.request.uri.query.", "{query.", "{http.request.uri.path.", "{path.",
		"{http.request.cookie.", "{cookie.", "{http.vars.", "{vars.", "{http.request.remote.port}", "{remote_port}").Replace(text)
}
