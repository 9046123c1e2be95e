package placeholder

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/shorthand"
)

// CheckKey checks the alternatives of a key. In JSON, errors name placeholders by their full names.
func CheckKey(texts []string, inJSON bool) error {
	var errs []error
	for i, text := range texts {
		errs = append(errs, checkKeyText(text, inJSON))
		if i < len(texts)-1 && strings.HasSuffix(text, ",") {
			errs = append(errs, fmt.Errorf("key %q ends in a comma: "+
				"write a space alone between alternatives, or one text that combines values, as in \"{client_ip}|{path}\"", text))
		}
		if strings.HasSuffix(text, "};") {
			errs = append(errs, fmt.Errorf("key %q ends in a semicolon, which is the same text for all requests: leave it out", keys.Shorten(text)))
		}
	}
	return errors.Join(errs...)
}

// nginxForm is a variable of nginx.
var nginxForm = regexp.MustCompile(`\$[a-z]\w*`)

func checkKeyText(text string, inJSON bool) error {
	inBraces := func(name string) string {
		if long, short := shorthand.Expand(name); short && inJSON {
			name = long
		}
		return "{" + name + "}"
	}
	variable := nginxForm.FindString(text)
	switch {
	case variable != "":
		return fmt.Errorf("key %q: keys have no nginx variables, so %s is the same text for all requests: "+
			"write a placeholder, such as %s or %s",
			keys.Shorten(text), variable, inBraces("client_ip"), inBraces("header.X-Api-Key"))
	case strings.HasPrefix(text, "'{") && !inJSON:
		return fmt.Errorf("key %q begins with a single quote, but a Caddyfile has only double quotes: write for example \"{client_ip} {path}\"",
			keys.Shorten(text))
	case strings.ContainsAny(text, "{}"):
		return keys.CheckBraces("key", text)
	case shorthand.LacksBraces(text):
		return fmt.Errorf("key %q is the name of a placeholder, and without braces the same for all requests: write %s", text, inBraces(text))
	}
	return nil
}
