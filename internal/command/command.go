// Package command is the command caddy rate-limit, which shows, explains and changes limits through
// the admin API of running Caddys. It never opens a Redis, and never changes a configuration.
package command

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminclient"
)

// Register registers the command with Caddy.
func Register() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "rate-limit",
		Usage: "<command>",
		Short: "Shows, explains and changes the rate limits of running Caddys, and simulates limits",
		Long: `
Shows, explains and changes the rate limits of running Caddys, through their admin API.
The command 'simulate' needs no running Caddy: it reads access logs.

Without --address, the commands use the admin endpoint of the configuration file
in --config, or else the default one, as other commands of Caddy do. Repeat
--address for several instances. With limits in memory, make a change in each
instance. With Redis, a change in one instance is enough.

Write a key exactly as its zone does, and an empty key as ''. The shell must pass on
the key unchanged, so quote spaces and other special characters. Write -- before
a key that begins with a dash. With --encoded, the key is percent-encoded.

Exit codes: 0 for success, 1 for an error or if 'status' finds a Redis that fails, 2
for wrong usage, and 3 if the request of 'explain' would be denied.`,
		CobraFunc: configure,
	})
}

// The exit codes besides 0 and 1 (caddy.ExitCodeFailedStartup), which have the same meaning in all
// commands of Caddy.
const (
	exitUsage  = 2
	exitDenied = 3
)

// helpFooter ends the help of all subcommands.
const helpFooter = `
All about this command: https://github.com/caddy-rate-limit/caddy-rate-limit/blob/main/docs/command.md
`

// Simulate makes the subcommand simulate. Package simulate sets it.
var Simulate = missingSimulate

// missingSimulate returns a command that says how to get simulate.
func missingSimulate() *cobra.Command {
	return &cobra.Command{
		Use:                "simulate <log...>",
		Short:              "Replays access logs through limits: not in this Caddy",
		DisableFlagParsing: true, // it has the flags of the missing command
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fail(cmd, errors.New("this Caddy has no simulate: build one with "+
				"xcaddy build --with github.com/caddy-rate-limit/caddy-rate-limit/simulate (caddy upgrade and caddy add-package omit it)"))
		},
	}
}

// configure adds flags and subcommands to the command.
func configure(cmd *cobra.Command) {
	cmd.Long = strings.TrimSpace(cmd.Long)
	cmd.Example = `  $ caddy rate-limit status
  $ caddy rate-limit explain https://example.com/login --client-ip 203.0.113.9
  $ caddy rate-limit top api
  $ caddy rate-limit override api customer-7 'token_bucket 100 1m' --for 24h
  $ caddy rate-limit simulate --config Caddyfile access.log`
	cmd.DisableFlagsInUseLine = true
	plainHelp, _, _ := strings.Cut(cmd.HelpTemplate(), "\nFull documentation") // of Caddy
	cmd.SetHelpTemplate(plainHelp + helpFooter)
	cmd.SuggestionsMinimumDistance = 2
	flags := cmd.PersistentFlags()
	flags.StringArray("address", nil, "The address of the admin endpoint, if not the default; repeat for several instances")
	flags.StringP("config", "c", "", "Configuration file to use to parse the admin address, if --address is not used")
	flags.StringP("adapter", "a", "", "Name of config adapter to apply (when --config is used)")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fail(cmd, UsageErrorf("%w%s", err, flagHint(cmd, err.Error())))
	})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		text := fmt.Sprintf("there is no command %q", args[0])
		if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
			text += ": did you mean " + similar[0] + "?"
		}
		return fail(cmd, usageError{errors.New(text)})
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(
		statusCommand(),
		explainCommand(),
		topCommand(),
		keyCommand(),
		bansCommand(),
		overridesCommand(),
		overrideCommand(),
		banCommand(),
		unbanCommand(),
		resetCommand(),
		uiCommand(),
		Simulate(),
	)
}

// usageError is an error about how a command is written.
type usageError struct{ error }

// UsageErrorf returns an error about how a command is written.
func UsageErrorf(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// These errors end a command with exitDenied or 1. The command has printed everything.
var (
	errDenied     = errors.New("denied")
	errStoreFails = errors.New("a store fails")
)

// fail prints an error, and returns an error for Caddy, which then prints nothing and ends the
// process with the right code.
func fail(cmd *cobra.Command, err error) error {
	cmd.SilenceErrors = true
	switch usage := (usageError{}); {
	case err == nil:
		return nil
	case errors.Is(err, errDenied):
		return exitWith(cmd, exitDenied)
	case errors.Is(err, errStoreFails):
		return err // Caddy ends with 1
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Error: %s\nRun '%s --help' for usage.\n", printable(err.Error()), cmd.CommandPath())
		return exitWith(cmd, exitUsage)
	}
	for line := range strings.Lines(err.Error()) { // of joined errors
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Error: %s\n", printable(strings.TrimSuffix(line, "\n")))
	}
	return err
}

// exitWith returns an error with which Caddy ends the process with this code.
func exitWith(cmd *cobra.Command, code int) error {
	return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return code, nil })(cmd, nil)
}

// Manual is the help of a command. Use has its name and its arguments, such as "ban <zone> <key>".
type Manual struct{ Use, Short, Long, Examples string }

// subcommand returns a command that asks running Caddys.
func subcommand(m Manual, run func(*call) error) *cobra.Command {
	cmd := NewSubcommand(m, func(cmd *cobra.Command, args []string) error {
		c, err := newCall(cmd, args)
		if err != nil {
			return err
		}
		return run(c)
	})
	cmd.Flags().Bool("json", false, "Print the JSON of the admin API, for scripts")
	return cmd
}

// NewSubcommand returns a command that runs with the arguments in its manual.
// Arguments in brackets can be left out. An argument with ... can be repeated.
func NewSubcommand(m Manual, run func(*cobra.Command, []string) error) *cobra.Command {
	arguments := strings.Fields(m.Use)[1:]
	minArguments, maxArguments := 0, len(arguments)
	for _, a := range arguments {
		if !strings.HasPrefix(a, "[") {
			minArguments++
		}
		if strings.Contains(a, "...") {
			maxArguments = manyArguments
		}
	}
	return &cobra.Command{
		Use:     m.Use,
		Short:   m.Short,
		Long:    strings.TrimSpace(m.Long),
		Example: strings.Trim(m.Examples, "\n"),
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) < minArguments:
				return fail(cmd, UsageErrorf("%s is missing: write %s", arguments[len(args)], usageOf(cmd, m.Use)))
			case len(args) > maxArguments:
				return fail(cmd, UsageErrorf("%q is one argument too many: write %s, and quotes around an argument with spaces",
					args[maxArguments], usageOf(cmd, m.Use)))
			case len(args) > 0 && args[0] == "" && strings.Contains(arguments[0], "zone"):
				return fail(cmd, UsageErrorf("the name of the zone is empty: write %s", usageOf(cmd, m.Use)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return fail(cmd, run(cmd, args))
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

// manyArguments bounds how many limits or log files a command line can have.
const manyArguments = 10_000

func usageOf(cmd *cobra.Command, use string) string {
	return cmd.Parent().CommandPath() + " " + use
}

// keySubcommand returns a command about a key of a zone, which are its first two arguments.
func keySubcommand(m Manual, run func(*call) error) *cobra.Command {
	cmd := subcommand(m, func(c *call) (err error) {
		c.zone, c.key = c.args[0], c.args[1]
		if boolFlag(c.cmd, "encoded") {
			if c.key, err = url.PathUnescape(c.key); err != nil {
				return UsageErrorf("the key %q is not percent-encoded (%w): write %%25 for each %%, or leave out --encoded", c.args[1], err)
			}
		}
		return run(c)
	})
	cmd.Flags().Bool("encoded", false, "The key is percent-encoded, as in --json")
	return cmd
}

// addresses returns the instances that the flags name, without duplicates.
func addresses(cmd *cobra.Command) (instances []target, err error) {
	given, _ := cmd.Flags().GetStringArray("address")
	if len(given) == 0 {
		address, err := addressOfConfig(stringFlag(cmd, "config"), stringFlag(cmd, "adapter"))
		if err != nil {
			return nil, err
		}
		given = []string{address}
	}
	for _, address := range given {
		instance, err := adminclient.Parse(address)
		if err != nil {
			return nil, usageError{err}
		}
		if t := (target{from: instance}); !slices.Contains(instances, t) {
			instances = append(instances, t)
		}
	}
	return instances, nil
}

// addressOfConfig returns the admin endpoint of a configuration file, or the default one without a file.
func addressOfConfig(file, adapter string) (string, error) {
	if hasNoAdmin(file, adapter) {
		return "", fmt.Errorf("the configuration in %s has no admin endpoint: remove admin off", file)
	}
	address, err := caddycmd.DetermineAdminAPIAddress("", nil, file, adapter)
	if err != nil {
		return "", fmt.Errorf("the admin endpoint in %s: %w", file, err)
	}
	return address, nil
}

// flagHint returns what to write instead of a flag that doesn't exist: the flag with two dashes, or
// the key that begins with a dash.
func flagHint(cmd *cobra.Command, err string) string {
	if !strings.HasPrefix(err, "unknown") {
		return ""
	}
	written := err[strings.LastIndex(err, " ")+1:]
	name, _, _ := strings.Cut(strings.TrimLeft(written, "-"), "=")
	switch {
	case cmd.Flags().Lookup(name) != nil:
		return ": write --" + name
	case cmd.Flags().Lookup("encoded") != nil: // the command has a key
		return ": write -- before a key that begins with a dash, and flags before the --"
	}
	return ""
}
