// Package simulate is the subcommand simulate of caddy rate-limit, which replays access logs through limits. A Caddy has it
// only if it is built with this package, which brings the handler with it:
//
//	xcaddy build --with github.com/caddy-rate-limit/caddy-rate-limit/simulate
//
// It never asks a running Caddy or a Redis.
package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	_ "github.com/caddy-rate-limit/caddy-rate-limit" // the handler
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/command"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/configuration"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/htmlreport"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/propose"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

func init() { command.Simulate = newCommand }

// reportFormats are the formats of reports, with the functions that write them.
var reportFormats = []struct {
	name, about string
	write       func(io.Writer, *report.Report) error
}{
	{"text", "for people, on a terminal", writeText},
	{"json", "for scripts", report.WriteJSON},
	{"html", "a page with plots", htmlreport.Write},
}

// writeText writes a report that fits the terminal, if it is written to one.
func writeText(w io.Writer, r *report.Report) error {
	var o report.TextOptions
	if file := terminal.Of(w); file != nil {
		o.Color = terminal.IsColored()
		o.Width, _, _ = term.GetSize(int(file.Fd())) // 0 if it is unknown
	}
	return report.WriteText(w, r, o)
}

func newCommand() *cobra.Command {
	cmd := command.NewSubcommand(command.Manual{
		Use:   "simulate <log...>",
		Short: "Replays access logs through limits, and proposes limits",
		Long: `
Replays access logs through the limits of a configuration, in the time of the log.
The report shows who would have been denied, and when. With --propose it also
proposes limits that would deny almost nobody. The command needs no running Caddy
and no Redis, and opens no port.

A log is a file in Caddy's JSON or console format, or in the combined format of nginx
and Apache. It can be compressed with gzip or zstd. Name several files in any order,
or a pattern such as access*.log*. The name - stands for the standard input.

Without --config, the command uses the Caddyfile in the current directory, as
'caddy run' does. With --zone it needs no configuration at all.

With --format html the report is a page with plots.`,
		Examples: `
  $ caddy rate-limit simulate --config Caddyfile /var/log/caddy/access*.log*
  $ caddy rate-limit simulate --config Caddyfile --propose 0.1% access.log
  $ caddy rate-limit simulate --config Caddyfile --compare Caddyfile.new access.log
  $ caddy rate-limit simulate --zone 'key {client_ip} ; ipv6_prefix 64' access.log
  $ caddy rate-limit simulate --format html access.log > report.html
  $ zstdcat access.log.zst | caddy rate-limit simulate -`,
	}, func(cmd *cobra.Command, args []string) error {
		s := simulation{cmd: cmd, names: args}
		return s.run()
	})
	flags := cmd.Flags()
	flags.StringP("config", "c", "", "The configuration with the limits. The default is ./Caddyfile")
	flags.StringP("adapter", "a", "", "The config adapter for --config and --compare. By default the file name decides")
	flags.String("compare", "", "A second configuration. The report shows whose requests it newly denies or no longer denies")
	flags.String("zone", "", "Options of a zone to propose limits for, such as 'key {client_ip} ; ipv6_prefix 64', instead of --config")
	flags.StringArray("without-zone", nil, "A zone to ignore, as if the configuration did not have it. Can be repeated")
	flags.String("propose", "",
		"Propose limits that deny at most this share of the keys, such as 0.1%, or of the requests, such as requests:0.1%")
	flags.String("format", "text", "The format of the report: text, json or html")
	flags.Bool("json", false, "The same as --format json")
	var formats []string
	for _, f := range reportFormats {
		formats = append(formats, cobra.CompletionWithDesc(f.name, f.about))
	}
	for name, words := range map[string][]string{
		"adapter": command.AdapterNames(), "zone": {"key {client_ip}"}, "propose": {"0.1%", "1%", "requests:0.1%"},
		"format": formats,
	} {
		complete := cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
		_ = cmd.RegisterFlagCompletionFunc(name, complete) // an error only without the flag
	}
	cmd.ValidArgsFunction = nil // files, as for the other flags
	return cmd
}

// simulation is one run of the command simulate.
type simulation struct {
	cmd   *cobra.Command
	names []string // of the logs
}

// flag returns the value of a flag.
func (s *simulation) flag(name string) string {
	value, _ := s.cmd.Flags().GetString(name)
	return value
}

func (s *simulation) run() error {
	write, err := s.format()
	if err != nil {
		return err
	}
	target, err := s.target()
	if err != nil {
		return err
	}
	if err := s.checkFlags(); err != nil {
		return err
	}
	if s.names, err = expandPatterns(s.names); err != nil {
		return err
	}
	configurations, err := s.configurations()
	if err != nil {
		return err
	}
	log, err := accesslog.Open(accesslog.Options{Names: s.names, Stdin: s.cmd.InOrStdin()})
	if err != nil {
		return err
	}
	o := simulate.ReplayOptions{Log: log, Files: s.names, Configurations: configurations}
	if target != nil {
		o.NewProposer = func(c simulate.Configuration) simulate.Proposer { return propose.NewRecorder(c, *target) }
	}
	answer, err := simulate.Replay(o)
	if err != nil {
		return err
	}
	if answer.Log.Requests == 0 {
		return noRequests(&answer.Log)
	}
	return write(s.cmd.OutOrStdout(), answer)
}

// format returns the function that writes the report.
func (s *simulation) format() (func(io.Writer, *report.Report) error, error) {
	name := s.flag("format")
	if asJSON, _ := s.cmd.Flags().GetBool("json"); asJSON {
		if s.cmd.Flags().Changed("format") && name != "json" {
			return nil, command.UsageErrorf("--json and --format %s can't be combined", name)
		}
		name = "json"
	}
	for _, f := range reportFormats {
		if f.name == name {
			return f.write, nil
		}
	}
	return nil, command.UsageErrorf("there is no format %q: write text, json or html", name)
}

// target returns the target of the proposals, or nil if none are asked for.
func (s *simulation) target() (*propose.Target, error) {
	text := s.flag("propose")
	if text == "" && !s.cmd.Flags().Changed("propose") {
		if s.flag("zone") == "" {
			return nil, nil
		}
		return &propose.DefaultTarget, nil
	}
	target, err := propose.ParseTarget(text)
	if err != nil {
		return nil, command.UsageErrorf("--propose: %w", err)
	}
	return &target, nil
}

// checkFlags checks that the flags go together.
func (s *simulation) checkFlags() error {
	flags := s.cmd.Flags()
	if flags.Changed("address") {
		return command.UsageErrorf("simulate asks no running Caddy: leave out --address")
	}
	if flags.Changed("zone") {
		for _, other := range []string{"config", "adapter", "compare", "without-zone"} {
			if flags.Changed(other) {
				return command.UsageErrorf("--zone and --%s can't be combined: the zone replaces a configuration", other)
			}
		}
	}
	if s.flag("config") == "-" || s.flag("compare") == "-" {
		return command.UsageErrorf("a configuration can't be read from the standard input: name its file")
	}
	if n := slices.Index(s.names, "-"); n >= 0 && slices.Contains(s.names[n+1:], "-") {
		return command.UsageErrorf("- is named twice, but there is only one standard input")
	}
	return nil
}

// expandPatterns replaces patterns such as access*.log* by the sorted names of the files that match, because not
// every shell does this. The name of a file that exists is no pattern.
func expandPatterns(names []string) (expanded []string, err error) {
	for _, name := range names {
		files := []string{name}
		if _, err := os.Lstat(name); err != nil && strings.ContainsAny(name, "*?[") {
			matches, err := filepath.Glob(name)
			switch {
			case err == nil && len(matches) == 0:
				return nil, fmt.Errorf("no log file matches %s: check the name, and that you can read its directory", name)
			case err == nil: // otherwise it is no pattern
				files = matches
			}
		}
		expanded = append(expanded, files...)
	}
	return expanded, nil
}

// configurations returns the configurations to simulate: one, or two to compare.
func (s *simulation) configurations() (configurations []simulate.NamedConfiguration, err error) {
	if zone := s.flag("zone"); s.cmd.Flags().Changed("zone") {
		c, err := configuration.LoadZone(zone)
		if err != nil { // which names the flag
			return nil, command.UsageErrorf("%w", err)
		}
		return []simulate.NamedConfiguration{{Name: zone, ZoneOptions: zone, Configuration: c}}, nil
	}
	if s.flag("config") == "" {
		if _, err := os.Stat(defaultConfiguration); errors.Is(err, os.ErrNotExist) {
			return nil, errors.New("there is no Caddyfile in this directory: name a configuration with --config, " +
				"or options of a zone with --zone, such as 'key {client_ip}'")
		}
	}
	for _, file := range s.configurationFiles() {
		c, err := s.loadFile(file)
		if err != nil {
			return nil, err
		}
		configurations = append(configurations, simulate.NamedConfiguration{Name: file, Configuration: c})
	}
	return configurations, nil
}

// defaultConfiguration is the file of the configuration if none is named.
const defaultConfiguration = "Caddyfile"

// configurationFiles returns the names of the configurations. With --zone, no file is read.
func (s *simulation) configurationFiles() []string {
	if s.cmd.Flags().Changed("zone") {
		return nil
	}
	files := []string{cmp.Or(s.flag("config"), defaultConfiguration)}
	if s.cmd.Flags().Changed("compare") {
		files = append(files, s.flag("compare"))
	}
	return files
}

// loadFile loads a configuration file.
func (s *simulation) loadFile(file string) (simulate.Configuration, error) {
	config, err := command.Adapt(file, s.flag("adapter"))
	if err != nil {
		return nil, err
	}
	without, _ := s.cmd.Flags().GetStringArray("without-zone") // an error only for another type
	c, err := configuration.Load(config, without...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

// noRequests returns the error about a log without a request.
func noRequests(log *report.Log) error {
	files := strings.Join(log.Files, ", ")
	var found []string
	if log.OtherLines > 0 {
		found = append(found, lineCount(log.OtherLines, "is not a request", "are not requests")+
			": name an access log. Caddy writes it with the directive log")
	}
	if log.BrokenLines > 0 {
		first := log.Broken[0]
		found = append(found, fmt.Sprintf("%s, the first at %s:%d: %s",
			lineCount(log.BrokenLines, "is broken", "are broken"), first.File, first.Line, first.Error))
	}
	if len(found) == 0 {
		found = []string{"the log is empty: name a log with requests"}
	}
	return fmt.Errorf("there is no request in %s: %s", files, strings.Join(found, "; "))
}

// lineCount returns a sentence about lines. It ends with the text for one line, or for several.
func lineCount(n int64, one, several string) string {
	if n == 1 {
		return "1 line " + one
	}
	return humanize.Comma(n) + " lines " + several
}
