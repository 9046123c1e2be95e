package command

import "github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"

// Views are made of these.
type (
	style = terminal.Style
	cell  = terminal.Cell
	table = terminal.Table
)

// The colors.
const (
	red    = terminal.Red
	green  = terminal.Green
	yellow = terminal.Yellow
	bold   = terminal.Bold
)

func newTable(titles ...string) *table { return terminal.NewTable(titles...) }

func plain(text string) cell { return terminal.Plain(text) }

func colored(text, color string) cell { return terminal.Colored(text, color) }
