package command

import "strings"

// style adds colors, if the output has any.
type style struct{ colored bool }

// The colors, as parameters of terminals.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
	faint  = "2"
)

func (s style) paint(text, color string) string {
	if !s.colored || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// cell is a cell of a table. Its text must be printable.
type cell struct{ text, color string }

// table is a table with aligned columns. A title that begins with > has a column that is aligned to
// the right.
type table struct {
	titles []string
	rows   [][]cell
}

// newTable returns a table with these titles. Empty titles are left out, also in add: they are
// columns that this table doesn't need.
func newTable(titles ...string) *table { return &table{titles: titles} }

func (t *table) add(cells ...cell) { t.rows = append(t.rows, cells) }

// text returns the table, or "" if it has no rows.
func (t *table) text(s style) string {
	if len(t.rows) == 0 {
		return ""
	}
	header := make([]cell, len(t.titles))
	widths := make([]int, len(t.titles))
	last := 0
	for i, title := range t.titles {
		if title != "" {
			last = i
		}
		header[i] = cell{strings.TrimPrefix(title, ">"), faint}
		for _, row := range append(t.rows, header) {
			widths[i] = max(widths[i], columns(row[i].text))
		}
	}
	var b strings.Builder
	for _, row := range append([][]cell{header}, t.rows...) {
		line, gap := "", ""
		for i, title := range t.titles {
			if title == "" {
				continue
			}
			padding := strings.Repeat(" ", widths[i]-columns(row[i].text))
			text := s.paint(row[i].text, row[i].color)
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

// plain returns a cell without a color.
func plain(text string) cell { return cell{text: text} }
