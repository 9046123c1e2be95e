package ratelimit

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/dustin/go-humanize"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/closest"
)

// This file makes errors about likely mistakes, with the correction. No error text of the module
// holds < > or &, because Caddy's admin API sends errors as JSON, where < becomes \u003c.

// synonyms maps words of other limiters, and of the JSON configuration, to the options
// that were probably meant. The first option that the block has is suggested.
var synonyms = map[string][]string{
	"bucket":          {"token_bucket"},
	"algorithm":       {"token_bucket"},
	"limit":           {"token_bucket", "limits"},
	"limits":          {"token_bucket"},
	"limit_req":       {"gcra", "limits"},
	"qps":             {"token_bucket", "limits"},
	"rate":            {"token_bucket", "limits"},
	"requests":        {"token_bucket", "limits"},
	"rps":             {"token_bucket", "limits"},
	"conn_limit":      {"concurrency"},
	"connections":     {"concurrency"},
	"in_flight":       {"concurrency"},
	"limit_conn":      {"concurrency"},
	"max_concurrent":  {"concurrency"},
	"max_connections": {"concurrency"},
	"max_in_flight":   {"concurrency"},
	"parallel":        {"concurrency"},
	"client_ip":       {"key"},
	"ip":              {"key"},
	"remote_ip":       {"key"},
	"source":          {"key"},
	"case":            {"key_case"},
	"fold_case":       {"key_case"},
	"ignore_case":     {"key_case"},
	"lowercase":       {"key_case"},
	"interval":        {"window"},
	"period":          {"window"},
	"events":          {"max_events"},
	"max_events":      {"events"},
	"burst":           {"limits"},
	"overrides":       {"runtime_overrides"},
	"allow":           {"exempt"},
	"allowlist":       {"exempt"},
	"bypass":          {"exempt"},
	"except":          {"exempt"},
	"ignore":          {"exempt"},
	"skip":            {"exempt"},
	"whitelist":       {"exempt"},
	"dry_run":         {"shadow"},
	"log_only":        {"shadow"},
	"nodelay":         {"delay"},
	"queue":           {"delay"},
	"wait":            {"delay"},
	"weight":          {"cost"},
	"code":            {"status"},
	"reject_status":   {"status"},
	"status_code":     {"status"},
	"rate_limits":     {"zone"},
	"zones":           {"zone", "rate_limits"},
	"addr":            {"address"},
	"host":            {"address"},
	"url":             {"address"},
	"database":        {"db"},
	"user":            {"username"},
	"prefix":          {"key_prefix"},
}

// suggest returns the name in names that was probably meant, or "".
func suggest(name string, names []string) string {
	for _, other := range synonyms[strings.ToLower(name)] {
		if slices.Contains(names, other) {
			return other
		}
	}
	if len(name) > 40 { // too long to be a misspelling
		return ""
	}
	for _, other := range names { // fixed means fixed_window
		if len(name) >= 4 && strings.HasPrefix(other, strings.ToLower(name)+"_") {
			return other
		}
	}
	letters := strings.NewReplacer("_", "", "-", "")
	bare := make([]string, len(names))
	for i, other := range names {
		bare[i] = letters.Replace(other)
	}
	if i := closest.Index(letters.Replace(strings.ToLower(name)), bare, min((len(name)+1)/3, 3)); i >= 0 {
		return names[i]
	}
	return ""
}

// optionBlock is a block of a Caddyfile and the names of its options.
type optionBlock struct {
	name    string
	options []string
}

func optionBlocks() []optionBlock {
	return []optionBlock{
		{"the global option rate_limit", []string{"memory"}},
		{"the memory block of the global option rate_limit", memoryOptions},
		{"the directive rate_limit or its global option", handlerOptions},
		{"a zone, as in zone api { ... }", zoneOptions()},
		{"a redis block", redisOptions},
		{"the tls block of redis", tlsOptions},
	}
}

// blockOf returns the name of the block that an option belongs in, or "" for none. of is the block
// that has the option by mistake.
func blockOf(option, of string) string {
	if of == "redis" && slices.Contains(tlsOptions, option) { // key is an option of zones, too
		return "the tls block of redis"
	}
	for _, home := range optionBlocks() {
		if slices.Contains(home.options, option) {
			return home.name
		}
	}
	limits := algorithms.AlgorithmsWith(option)
	if limits == nil {
		return ""
	}
	return "the block of " + strings.Join(limits, " or ")
}

// unknownOptionError returns the error for an option that a block doesn't have.
func unknownOptionError(option, of string, options []string) error {
	unknown := fmt.Sprintf("unknown option %.100q of %s", option, of)
	if option == "burst" && of != "the global option rate_limit" && of != "redis" {
		return burstOptionError(unknown, of)
	}
	if option == "status" && of == "settle" {
		return errors.New(unknown + ": write for example match status 401 403")
	}
	if home := blockOf(option, of); home != "" {
		return fmt.Errorf("%s: it belongs in %s", unknown, home)
	}
	if name := suggest(option, options); name != "" {
		return fmt.Errorf("%s (did you mean %s?)%s", unknown, name, exampleOf(name))
	}
	if _, err := caddy.GetModule("http.matchers." + option); err == nil && slices.Contains(options, "match") {
		return fmt.Errorf("%s (did you mean match %s?)", unknown, option)
	}
	var elsewhere []string
	for _, home := range optionBlocks() {
		elsewhere = append(elsewhere, home.options...)
	}
	if name := suggest(option, elsewhere); name != "" {
		return fmt.Errorf("%s (did you mean %s?): it belongs in %s", unknown, name, blockOf(name, of))
	}
	if len(options) == 0 {
		return errors.New(unknown + ": it has none")
	}
	return fmt.Errorf("%s: write one of %s", unknown, strings.Join(options, ", "))
}

// burstOptionError returns the error for a burst that is written as an option. unknown is the
// beginning of its text.
func burstOptionError(unknown, of string) error {
	name := of
	a, err := algorithms.Lookup(of)
	if err != nil {
		name = "token_bucket"
	} else if !a.Burst {
		return fmt.Errorf("%s: %s admits up to events at once; write a limit with a burst, such as token_bucket 10 1s 20", unknown, of)
	}
	return fmt.Errorf("%s: burst is the third argument of a limit, as in %s 10 1s 20", unknown, name)
}

// exampleOf returns an example of an option, or "" for none.
func exampleOf(option string) string {
	switch option {
	case "key":
		return ": write for example key {client_ip}"
	case "key_case":
		return ": write key_case lower"
	case "concurrency":
		return ": write for example concurrency 10"
	case "exempt":
		return ": write for example exempt client_ip 203.0.113.0/24"
	case "override":
		return ": write for example override 203.0.113.7 unlimited"
	}
	if slices.Contains(algorithmNames(), option) {
		return fmt.Sprintf(": write for example %s 10 1s", option)
	}
	return ""
}

var (
	rateForm        = regexp.MustCompile(`^([0-9]+)(?:r|req|requests)?/([0-9]*)([a-zA-Z]+)$`)
	placeholderForm = regexp.MustCompile(`^\{[^{}\s"]{1,100}\}$`)
	spanForm        = regexp.MustCompile(`([0-9.]+)[ _-]?([a-zA-Zµ]*)`)
	groupedForm     = regexp.MustCompile(`^[0-9]{1,3}([_,' ][0-9]{3})+$|^[0-9]+[kK]$`) // 10_000, or 10k
	sizeForm        = regexp.MustCompile(`^[0-9.]+(?:[MG]|[kKMGT]i?B)$`)               // 1GB

	spanUnits = map[string]string{
		"": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "m", "mins": "m", "minute": "m", "minutes": "m",
		"hr": "h", "hrs": "h", "hour": "h", "hours": "h", "day": "d", "days": "d", "msec": "ms", "millis": "ms", "milliseconds": "ms",
		"ms": "ms", "s": "s", "m": "m", "h": "h", "d": "d",
	}

	// daysOf has the units that Caddy doesn't know, in days.
	daysOf = map[string]int{"w": 7, "week": 7, "weeks": 7, "mo": 30, "month": 30, "months": 30}
)

// readRate reads events and window out of a text such as 10r/s.
func readRate(text string) (events, window string, ok bool) {
	parts := rateForm.FindStringSubmatch(text)
	if parts == nil {
		return "", "", false
	}
	count := parts[2]
	if count == "" {
		count = "1"
	}
	window, ok = meantDuration(count + parts[3])
	return parts[1], window, ok
}

// meantDuration returns the duration that was probably meant by a text: 1m for 1min, and
// 60s for 60.
func meantDuration(text string) (span string, ok bool) {
	if len(text) > 40 {
		return "", false
	}
	last := ""
	span = spanForm.ReplaceAllStringFunc(strings.TrimSpace(text), func(part string) string {
		s := spanForm.FindStringSubmatch(part)
		unit := strings.ToLower(s[2])
		if unit == "" && last == "h" { // 1h30
			unit = "m"
		}
		if n, err := strconv.Atoi(s[1]); err == nil && daysOf[unit] > 0 {
			return strconv.Itoa(n*daysOf[unit]) + "d"
		}
		if short, ok := spanUnits[unit]; ok {
			unit = short
		}
		last = unit
		return s[1] + unit
	})
	d, err := caddy.ParseDuration(span)
	return span, err == nil && d > 0
}

// meantInteger returns the whole number that was probably meant by a text: 10000 for 10_000.
func meantInteger(text string) (n int64, ok bool) {
	if sizeForm.MatchString(text) {
		bytes, err := humanize.ParseBytes(text)
		return int64(min(bytes, math.MaxInt64)), err == nil
	}
	if !groupedForm.MatchString(text) {
		return 0, false
	}
	digits := strings.NewReplacer("_", "", ",", "", "'", "", " ", "", "k", "000", "K", "000").Replace(text)
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil
}

// checkLimitValues returns an error with the correction if the values of a limit can't be
// read but their meaning is clear. The limit takes up to maxValues values.
func checkLimitValues(name string, args []string, maxValues int) error {
	meant := meantValues(args)
	if slices.Equal(meant, args) || len(meant) < 2 || len(meant) > 3 || !isInteger(meant[0]) {
		return nil
	}
	meant = meant[:min(len(meant), maxValues)]
	if _, err := caddy.ParseDuration(meant[1]); err != nil {
		return nil
	}
	return fmt.Errorf("%s: %q is not how events and window are written: write %[1]s %[3]s",
		name, strings.Join(args, " "), strings.Join(meant, " "))
}

// meantValues returns the events, window and burst that were probably meant. For example, 10r/s
// burst=20 probably means 10 1s 20. Each of 10 per minute, 10 1 minute, and 1m 10 means 10 1m.
func meantValues(args []string) (meant []string) {
	for i, arg := range args {
		before := ""
		if i > 0 {
			before = args[i-1]
		}
		for _, name := range []string{"rate", "events", "window", "burst"} {
			arg = strings.TrimPrefix(arg, name+"=")
		}
		events, window, isRate := readRate(arg)
		isUnit := arg != "" && spanUnits[strings.ToLower(arg)] != ""
		switch span, _ := meantDuration(before + arg); {
		case isRate:
			meant = append(meant, events, window)
		case isUnit && isInteger(before) && len(meant) > 1:
			meant[len(meant)-1] = span
		case isUnit && before == "per":
			span, _ = meantDuration("1" + arg)
			meant = append(meant, span)
		case arg == "per" || arg == "rate" || arg == "burst":
		default:
			meant = append(meant, arg)
		}
	}
	if len(meant) == 2 && isInteger(meant[1]) && !isInteger(meant[0]) {
		slices.Reverse(meant)
	}
	return meant
}

func isInteger(text string) bool {
	_, err := strconv.ParseInt(text, 10, 64)
	return err == nil
}

var matcherMissing = regexp.MustCompile(`^getting matcher module '([^']{1,100})'`)

// unknownMatcherName returns the name of the request matcher that Caddy doesn't know, if that is
// the error.
func unknownMatcherName(err error) (name string, ok bool) {
	if err == nil {
		return "", false
	}
	parts := matcherMissing.FindStringSubmatch(err.Error())
	if parts == nil {
		return "", false
	}
	return parts[1], true
}

// noMatcherError returns the error for a name in match or exempt that is no request matcher.
func noMatcherError(option, name string) error {
	switch {
	case strings.HasPrefix(name, "@") && option == "match":
		return fmt.Errorf("match takes matchers, not the matcher name %s: write for example\n"+
			"match {\n\tmethod POST\n\tpath /login\n}\nor name it behind the directive, as in rate_limit %[1]s", name)
	case strings.HasPrefix(name, "@"):
		return fmt.Errorf("%s takes matchers, not the matcher name %s: write for example %[1]s client_ip 203.0.113.0/24", option, name)
	case strings.HasPrefix(name, "/"):
		return fmt.Errorf("%s takes matchers with their names, not %q: write %[1]s path %[2]s", option, name)
	}
	if isAddress(name) {
		return fmt.Errorf("%s takes matchers with their names, not %q: write %[1]s client_ip %[2]s", option, name)
	}
	if slices.Contains(zoneOptions(), name) {
		return fmt.Errorf("%s has no matcher %q, which is an option of the zone: write } above it, to close %[1]s", option, name)
	}
	if meant := suggestMatcher(name); meant != "" {
		return fmt.Errorf("%s has no matcher %q (did you mean %s?)", option, name, meant)
	}
	return fmt.Errorf("%s has no matcher %q: write one of Caddy's request matchers, for example %[1]s path /api/*", option, name)
}

// isAddress reports whether the text is an address or a network.
func isAddress(text string) bool {
	_, err := netip.ParseAddr(text)
	if err != nil {
		_, err = netip.ParsePrefix(text)
	}
	return err == nil
}

// suggestMatcher returns the name of the request matcher that was probably meant, or "".
func suggestMatcher(name string) string {
	switch strings.ToLower(name) {
	case "address", "addr", "cidr", "ip", "network", "source":
		return "client_ip"
	}
	var names []string
	for _, module := range caddy.GetModules("http.matchers") {
		names = append(names, module.ID.Name())
	}
	slices.Sort(names)
	return suggest(name, names)
}

// checkSharedZoneNames returns an error with the correction if the values behind rate_limit can't
// be names of zones.
func checkSharedZoneNames(args []string) error {
	for _, arg := range args {
		if arg != "" && strings.Contains("@/*", arg[:1]) {
			return fmt.Errorf("rate_limit takes one matcher, which stands before the zones: write for example rate_limit %.100s api", arg)
		}
		if checkZoneName(arg) != nil {
			return limitBehindDirectiveError(arg, args)
		}
	}
	return nil
}

// limitBehindDirectiveError returns the error for a limit behind rate_limit. arg is the part of it that
// shows that args are no zones.
func limitBehindDirectiveError(arg string, args []string) error {
	return fmt.Errorf("rate_limit takes no value %.100q here: write\n%s", shortenPlaceholders(arg),
		exampleDirective("api", args)+"\ninstead, and keep the matcher if there is one")
}

// addressForm is how RussellLuo's rate_limit names addresses: {remote.ip}, or
// {remote.ip_prefix.24} for networks.
var addressForm = regexp.MustCompile(`^\{remote\.(ip|host)(?:_prefix\.([0-9]{1,3}))?\}$`)

// exampleDirective returns a directive to copy, with one zone. It takes the readable parts of a line
// such as rate_limit {client_ip} 10r/s 10000 503: the key, the limit and the status.
func exampleDirective(zone string, args []string) string {
	key, limit, status := "{http.vars.client_ip}", "token_bucket 10 1s", ""
	for _, arg := range args {
		if events, window, ok := readRate(arg); ok {
			limit = fmt.Sprintf("sliding_window %s %s", events, window) // which counts as the limiter with such lines
		} else if placeholderForm.MatchString(arg) {
			key = arg
		}
	}
	if len(args) == 4 && args[3] != "429" && isInteger(args[3]) {
		status = "\n\t\tstatus " + args[3]
	}
	if strings.Contains(zone, " ") {
		zone = strconv.Quote(zone)
	}
	return fmt.Sprintf("rate_limit {\n\tzone %s {\n\t\tkey %s\n\t\t%s%s\n\t}\n}", zone, exampleKey(key), limit, status)
}

// exampleKey returns the values of key for a placeholder, and the prefixes if it is an address.
func exampleKey(key string) string {
	bits := 0
	if form := addressForm.FindStringSubmatch(key); form != nil {
		key = map[string]string{"ip": "{client_ip}", "host": "{remote_host}"}[form[1]]
		bits, _ = strconv.Atoi(form[2]) // 0 if there is no prefix
	}
	key = shortenPlaceholders(key)
	switch {
	case key != "{client_ip}" && key != "{remote_host}":
		return key
	case bits > 32 && bits <= 128:
		return fmt.Sprintf("%s\n\t\tipv6_prefix %d", key, bits)
	case bits > 0 && bits <= 32:
		return fmt.Sprintf("%s\n\t\tipv4_prefix %d\n\t\tipv6_prefix 64", key, bits)
	}
	return key + "\n\t\tipv6_prefix 64"
}

// shortenPlaceholders returns the short form of placeholders, as in a Caddyfile. Caddy replaces
// the short form before it calls this module.
func shortenPlaceholders(text string) string {
	return strings.NewReplacer("{http.vars.client_ip}", "{client_ip}", "{http.request.remote.host}", "{remote_host}",
		"{http.request.header.", "{header.", "{http.request.uri.query.", "{query.", "{http.request.uri.path.", "{path.",
		"{http.request.cookie.", "{cookie.", "{remote.port}", "{remote_port}").Replace(text)
}
