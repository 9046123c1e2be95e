// Package statuspage serves a page that shows what the zones of running Caddys do, and that changes
// single keys. The page runs in a browser on the operator's machine. Its server listens only there,
// and relays the page's requests to Caddy's admin endpoints.
package statuspage

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

// Command returns the command that serves the page until it is interrupted.
func Command() *cobra.Command {
	listen, addresses := "localhost:0", []string(nil)
	command := &cobra.Command{
		Use:   "ui [--listen <address>] [--address <admin address>]...",
		Short: "Serves a page with live charts, and with buttons for bans and overrides",
		Long: `
Serves a status page on this machine and prints its address. The page shows the zones of one or more
Caddys: allowed and denied requests as live charts, the state of the stores, the most denied keys, and
bans and overrides. It explains requests, and changes single keys.

Open the address as it is printed. It ends with a token, which is new for each run. The page listens
only on a loopback address. To open it from another machine, forward the same port with ssh:

    ssh -L 4567:localhost:4567 server caddy rate-limit ui --listen localhost:4567

The page relays only the requests of the rate limiter to Caddy's admin endpoint.`,
		Example: `  caddy rate-limit ui
  caddy rate-limit ui --address localhost:2019 --address localhost:2020
  caddy rate-limit ui --address unix//run/caddy/admin.sock`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
			defer stop()
			return Run(ctx, cmd.OutOrStdout(), listen, addresses)
		},
	}
	command.Flags().StringVar(&listen, "listen", listen, "the loopback address of the page; port 0 stands for any free port")
	command.Flags().StringArrayVar(&addresses, "address", nil, "the address of an admin endpoint; repeat it for several Caddys (default localhost:2019)")
	return command
}

// Run serves the page at a loopback address until ctx is done, and prints where the page is. It
// relays to the admin endpoints at the addresses; without any, to the default one.
func Run(ctx context.Context, out io.Writer, listen string, addresses []string) error {
	if len(addresses) == 0 {
		address, err := caddycmd.DetermineAdminAPIAddress("", nil, "", "")
		if err != nil {
			return err
		}
		addresses = []string{address}
	}
	s, err := newServer(listen, addresses)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "The status page is at %s\nOpen the whole address, with the token. Ctrl+C ends the page.\n", s.URL()); err != nil {
		_ = s.listener.Close()
		return err
	}
	return s.serve(ctx)
}
