package configuration

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// zonePreface and zoneEnd are the Caddyfile around the text of the zone. A zone must have a limit, so its end has one that
// no log reaches. The number of lines of the preface is zonePrefaceLines.
const (
	zonePreface = ":80 {\n\trate_limit {\n\t\tzone " + simulate.ZoneName + " {\n"
	zoneEnd     = "\n\t\t\tfixed_window 1000000000000000 24h\n\t\t}\n\t}\n}\n"
	zoneFile    = "--zone"
)

var zonePrefaceLines = strings.Count(zonePreface, "\n")

// LoadZone loads a site that serves every request, and has one zone with the given options, in the syntax of a Caddyfile.
// For example, "key {client_ip}" is the text of a zone. The options are on separate lines, or separated by a semicolon
// between spaces. Limits of the text are kept, and the set of
// limits is open. Errors name the flag --zone.
//
// The program must have Caddy's adapter for Caddyfiles, and the directive rate_limit.
func LoadZone(text string) (simulate.Configuration, error) {
	adapter := caddyconfig.GetAdapter("caddyfile")
	if adapter == nil {
		return nil, errors.New("the program has no adapter for Caddyfiles")
	}
	text = report.ZoneLines(text)
	if err := checkZoneText(text); err != nil {
		return nil, err
	}
	config, _, err := adapter.Adapt([]byte(zonePreface+text+zoneEnd), map[string]any{"filename": zoneFile})
	if err != nil {
		return nil, zoneError(err, strings.Count(text, "\n")+1)
	}
	if config, err = serveEveryPort(config); err != nil {
		return nil, err
	}
	c, err := load(config)
	if err != nil {
		return nil, zoneError(err, 1)
	}
	set := &c.zones.all[0].Sets[0]
	set.Limits, set.Open = set.Limits[:len(set.Limits)-1], true // without the limit of zoneEnd
	return c, nil
}

// serveEveryPort removes the port of the only server. A server without addresses gets all requests of a log.
func serveEveryPort(config []byte) ([]byte, error) {
	var c map[string]map[string]map[string]map[string]map[string]json.RawMessage // apps, http, servers, srv0
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, err
	}
	for _, server := range c["apps"]["http"]["servers"] {
		delete(server, "listen")
	}
	return json.Marshal(c)
}

// checkZoneText returns an error if the text ends its zone, leaves a block open, or has a semicolon that
// separates nothing.
func checkZoneText(text string) error {
	if strings.TrimSpace(text) == "" {
		return fmt.Errorf("%s is empty: write options of a zone, such as key {client_ip}", zoneFile)
	}
	tokens, err := caddyfile.Tokenize([]byte(text), zoneFile)
	if err != nil {
		return zoneError(err, 1)
	}
	depth := 0
	for _, token := range tokens {
		switch {
		case token.Quoted(): // is text
		case token.Text == "{":
			depth++
		case token.Text == "}":
			depth--
		case len(token.Text) > 1 && strings.HasSuffix(token.Text, ";"): // else the next options are part of this one
			return fmt.Errorf("%s: write a space before the semicolon of %q, or quotes around it", zoneFile, token.Text)
		}
		if depth < 0 {
			break
		}
	}
	if depth != 0 {
		return fmt.Errorf("%s: the braces of %q don't match: write options of a zone, such as key {client_ip}", zoneFile, text)
	}
	return nil
}

var (
	zoneLine  = regexp.MustCompile(regexp.QuoteMeta(zoneFile) + `:(\d+)`)
	zoneNoise = regexp.MustCompile(`^.*zone "` + simulate.ZoneName + `": `)
)

// zoneError returns an error about the zone. It omits the site around the zone, which the user hasn't
// written, and counts lines from the beginning of the zone, which has this number of lines.
func zoneError(err error, lines int) error {
	text := strings.TrimPrefix(zoneNoise.ReplaceAllString(err.Error(), ""), zoneFile+": ")
	text = zoneLine.ReplaceAllStringFunc(text, func(place string) string {
		line, _ := strconv.Atoi(place[len(zoneFile)+1:])
		return fmt.Sprintf("line %d", max(line-zonePrefaceLines, 1))
	})
	if lines == 1 {
		text = strings.TrimSuffix(text, ", at line 1")
	}
	return fmt.Errorf("%s: %s", zoneFile, text)
}
