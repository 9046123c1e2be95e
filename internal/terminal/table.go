// Package terminal writes for people who read a terminal: tables, colors, and texts of others that must not
// control the terminal. It never decides what is written.
package terminal

import (
	"slices"
	"strings"
)

// Style adds colors, if the output has any.
type Style struct{ Colored bool }

// The colors, as parameters of terminals.
const (
	Red    = "31"
	Green  = "32"
	Yellow = "33"
	Bold   = "1"
	Faint  = "2"
)

// Paint returns a text in a color. An empty color changes nothing.
func (s Style) Paint(text, color string) string {
	if !s.Colored || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// Cell is a cell of a table. Its text must be printable.
type Cell struct{ Text, Color string }

// Table is a table with aligned columns. A title that begins with > has a column that is aligned to
// the right.
type Table struct {
	titles []string
	rows   [][]Cell
}

// NewTable returns a table with these titles. A column with an empty title is left out, and one with a title that begins
// with ?, if all its cells are empty.
func NewTable(titles ...string) *Table { return &Table{titles: titles} }

// Add adds a row. A cell is a text, or a [Cell].
func (t *Table) Add(cells ...any) {
	row := make([]Cell, len(cells))
	for i, c := range cells {
		if text, is := c.(string); is {
			row[i] = Plain(text)
		} else {
			row[i] = c.(Cell)
		}
	}
	t.rows = append(t.rows, row)
}

// Text returns the table, or "" if it has no rows.
func (t *Table) Text(s Style) string {
	if len(t.rows) == 0 {
		return ""
	}
	header, titles := make([]Cell, len(t.titles)), make([]string, len(t.titles))
	widths := make([]int, len(t.titles))
	last := 0
	for i, title := range t.titles {
		title, optional := strings.CutPrefix(title, "?")
		if optional && !slices.ContainsFunc(t.rows, func(row []Cell) bool { return row[i].Text != "" }) {
			title = ""
		}
		if titles[i] = title; title != "" {
			last = i
		}
		header[i] = Cell{strings.TrimPrefix(title, ">"), Faint}
		for _, row := range append(t.rows, header) {
			widths[i] = max(widths[i], Columns(row[i].Text))
		}
	}
	var b strings.Builder
	for _, row := range append([][]Cell{header}, t.rows...) {
		line, gap := "", ""
		for i, title := range titles {
			if title == "" {
				continue
			}
			padding := strings.Repeat(" ", widths[i]-Columns(row[i].Text))
			text := s.Paint(row[i].Text, row[i].Color)
			switch {
			case strings.HasPrefix(title, ">"):
				line += gap + padding + text
			case i == last:
				line += gap + text
			default:
				line += gap + text + padding
			}
			gap = "  "
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// Plain returns a cell without a color.
func Plain(text string) Cell { return Cell{Text: text} }

// Colored returns a cell in a color.
func Colored(text, color string) Cell { return Cell{Text: text, Color: color} }
