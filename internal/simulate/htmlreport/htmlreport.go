// Package htmlreport writes the answer of a simulation as one HTML page with plots. The page needs no
// network and no script, so it can be opened, printed and mailed. It never computes an outcome.
package htmlreport

import (
	"crypto/sha256"
	_ "embed" // for the files of the page
	"encoding/base64"
	"html/template"
	"io"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/palette"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

var (
	//go:embed page/report.html
	reportHTML string
	//go:embed page/report.css
	styleSheet string
	//go:embed page/plots.html
	plotsHTML string
)

var reportCSS = palette.Fill(styleSheet)

// policy lets the page use its own style and icon, and nothing else.
var policy = func() string {
	hash := sha256.Sum256([]byte(reportCSS))
	return "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; " +
		"style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
}()

// page has [shown] for all texts from logs and configurations.
var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"shown":    shown,
	"plain":    plain,
	"sentence": sentence,
	"lines":    lines,
	"oneline":  report.OneLine,
	"number":   number,
	"count":    count,
	"share":    shareOf,
	"instant":  instant,
	"style":    func() template.CSS { return template.CSS(reportCSS) },
}).Parse(reportHTML + plotsHTML))

// Write writes a report as an HTML page. The page is the same for the same report.
func Write(w io.Writer, r *report.Report) error {
	return page.Execute(w, newView(r))
}
