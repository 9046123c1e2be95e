package report

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

// WriteJSON writes a report as indented JSON. Characters that could control a terminal are escaped.
func WriteJSON(w io.Writer, r *Report) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return err
	}
	_, err := io.WriteString(w, terminal.PrintableJSON(b.String()))
	return err
}
