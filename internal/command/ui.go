package command

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminclient"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/statuspage"
)

func uiCommand() *cobra.Command {
	var listen string
	cmd := subcommand(Manual{
		Use:   "ui",
		Short: "Serves the status page, with live charts and with buttons for bans and overrides",
		Long: `
Serves the status page on this machine, and prints its address. The page shows
allowed and denied requests as live charts, the stores, the most denied keys,
bans and overrides. It explains requests, and changes single keys.

Open the address as it is printed: it ends with a secret token. The page listens
only on this machine. To open it from another machine, forward the same port, as
in the last example. Ctrl-C ends the command.`,
		Examples: `
  $ caddy rate-limit ui
  $ caddy rate-limit ui --address localhost:2019 --address localhost:2020
  $ ssh -t -L 4567:localhost:4567 server caddy rate-limit ui --listen localhost:4567`,
	}, func(c *call) error {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		var instances []adminclient.Instance
		for _, i := range c.instances {
			instances = append(instances, i.from)
		}
		return statuspage.Run(ctx, listen, instances, func(url string) error {
			if c.json {
				return c.print(string(compactJSON(map[string]string{"url": url})) + "\n")
			}
			return c.print("The status page is at " + url + "\n")
		})
	})
	cmd.Flags().StringVar(&listen, "listen", "localhost:0", "The loopback address of the page; port 0 is any free port")
	return cmd
}
