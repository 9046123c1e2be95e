package simulate

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// ZoneName is the name of the zone in a configuration of [ZoneConfig].
const ZoneName = "new"

// open is the quota of the limit that asks for proposals from nothing. No log reaches it.
var open = algorithms.Quota{Algorithm: "fixed_window", Events: 1_000_000_000_000_000, Window: 24 * hour}

// isOpen reports whether a limit asks for proposals from nothing.
func isOpen(l *algorithms.Limit) bool {
	return l.Quota.Algorithm == open.Algorithm && l.Events == open.Events && l.Window == open.Window
}

// zonePreface is the Caddyfile before the text of the zone. The number of its lines is zonePrefaceLines.
const (
	zonePreface = ":80, :443 {\n\trate_limit {\n\t\tzone " + ZoneName + " {\n"
	zoneEnd     = "\n\t\t\tfixed_window 1000000000000000 24h\n\t\t}\n\t}\n}\n"
	zoneFile    = "--zone"
)

var zonePrefaceLines = strings.Count(zonePreface, "\n")

// ZoneConfig returns the configuration of a site that serves every request, and has one zone with the
// given options, in the syntax of a Caddyfile. For example, "key {client_ip}" is the text of a zone. The
// options are on separate lines, or separated by a semicolon between spaces. Limits of the text are kept.
// The zone also has a limit that no log reaches. It makes [Recorder.Propose] propose limits from nothing; see
// [NewLimitSet].
//
// The program must have Caddy's adapter for Caddyfiles, and the directive rate_limit.
func ZoneConfig(text string) (config []byte, err error) {
	adapter := caddyconfig.GetAdapter("caddyfile")
	if adapter == nil {
		return nil, errors.New("the program has no adapter for Caddyfiles")
	}
	text = zoneLines(text)
	if err := checkBraces(text); err != nil {
		return nil, err
	}
	config, _, err = adapter.Adapt([]byte(zonePreface+text+zoneEnd), map[string]any{"filename": zoneFile})
	if err != nil {
		return nil, zoneError(err, strings.Count(text, "\n") > 0)
	}
	return config, nil
}

// zoneLines returns the options of a zone on separate lines.
func zoneLines(options string) string {
	return strings.TrimSpace(strings.ReplaceAll(options, " ; ", "\n"))
}

// checkBraces returns an error if the text ends its zone, or leaves a block open.
func checkBraces(text string) error {
	tokens, err := caddyfile.Tokenize([]byte(text), zoneFile)
	if err != nil {
		return zoneError(err, false)
	}
	depth := 0
	for _, token := range tokens {
		switch {
		case token.Quoted(): // is text
		case token.Text == "{":
			depth++
		case token.Text == "}":
			depth--
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
	zoneNoise = regexp.MustCompile(`^.*zone "` + ZoneName + `": `)
)

// zoneError returns an error of the adapter without what the user hasn't written: the site around the
// zone, and its lines.
func zoneError(err error, severalLines bool) error {
	text := zoneNoise.ReplaceAllString(err.Error(), "")
	text = zoneLine.ReplaceAllStringFunc(text, func(place string) string {
		line, _ := strconv.Atoi(place[len(zoneFile)+1:])
		return fmt.Sprintf("line %d", max(line-zonePrefaceLines, 1))
	})
	if !severalLines {
		text = strings.TrimSuffix(text, ", at line 1")
	}
	return fmt.Errorf("%s: %s", zoneFile, text)
}
