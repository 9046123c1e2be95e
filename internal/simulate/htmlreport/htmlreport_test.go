package htmlreport

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/goldentest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/reporttest"
)

var reports = map[string]func() *report.Report{
	"shop": reporttest.Shop, "compared": reporttest.Compared, "empty": reporttest.Empty, "odd": reporttest.Odd, "many": reporttest.Many,
	"from_nothing": reporttest.FromNothing, "shadow": reporttest.Shadow, "nothing": func() *report.Report { return &report.Report{} },
}

func write(t *testing.T, r *report.Report) string {
	t.Helper()
	var b bytes.Buffer
	errtest.None(t, Write(&b, r))
	return b.String()
}

// The page of a report never changes by chance.
func TestGolden(t *testing.T) {
	for _, name := range []string{"shop", "empty"} {
		goldentest.Want(t, "testdata/"+name+".html", write(t, reports[name]()))
	}
}

// The pages of all reports are well-formed, and have only elements of the templates.
func TestWellFormed(t *testing.T) {
	for name, report := range reports {
		page := write(t, report())
		elements := make(map[string]bool)
		ids, used := make(map[string]bool), make(map[string]bool)
		d := xml.NewDecoder(strings.NewReader(page))
		d.Entity = xml.HTMLEntity
		for {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
			e, isStart := token.(xml.StartElement)
			if !isStart {
				continue
			}
			elements[e.Name.Local] = true
			for _, a := range e.Attr {
				switch a.Name.Local {
				case "id":
					if ids[a.Value] {
						t.Errorf("%s has two elements %s", name, a.Value)
					}
					ids[a.Value] = true
				case "aria-labelledby":
					for _, id := range strings.Fields(a.Value) {
						used[id] = true
					}
				case "href":
					if id, inside := strings.CutPrefix(a.Value, "#"); inside {
						used[id] = true
					} else if !strings.HasPrefix(a.Value, "data:image/svg+xml,") {
						t.Errorf("%s refers to %s", name, a.Value)
					}
				case "src", "srcset", "style", "xlink:href", "action", "formaction", "poster", "background":
					t.Errorf("%s: <%s %s=%q>", name, e.Name.Local, a.Name.Local, a.Value)
				}
				if strings.HasPrefix(a.Name.Local, "on") {
					t.Errorf("%s: <%s %s=%q>", name, e.Name.Local, a.Name.Local, a.Value)
				}
			}
		}
		for id := range used {
			if !ids[id] && name != "empty" && name != "nothing" {
				t.Errorf("%s: nothing has the id %s", name, id)
			}
		}
		for _, e := range []string{"script", "img", "iframe", "object", "embed", "base", "form", "foreignObject"} {
			if elements[e] {
				t.Errorf("%s has an element %s", name, e)
			}
		}
		if match := regexp.MustCompile(`NaN|Inf\b|<nil>|%!|ZgotmplZ|[\x{202a}-\x{202e}\x{2066}-\x{2069}\x{200b}\x00]`).FindString(page); match != "" {
			t.Errorf("%s has %q", name, match)
		}
		if rest := strings.NewReplacer("http://www.w3.org/2000/svg", "").Replace(page); strings.Contains(rest, "//www") || strings.Contains(rest, "@import") || strings.Contains(rest, "url(h") {
			t.Errorf("%s refers to another server", name)
		}
	}
}

// The page shows these parts of reports, which the golden files don't have.
func TestShows(t *testing.T) {
	shadow, dry := reporttest.Shadow(), reporttest.Shadow()
	dry.Configurations[0].Denied = 0
	z := &shadow.Configurations[0].Zones[0]
	z.Limits[0] = "fixed_window 20 10s {\n\talign clock\n}"
	z.Proposals[0].Line = "fixed_window 46 10s {\n\talign clock\n}"
	for _, test := range []struct {
		report *report.Report
		wants  []string
	}{
		{reporttest.Compared(), []string{`<td class="number">41</td></tr>`, "<code><bdi>198.51.100.77</bdi></code>"}},
		{shadow, []string{
			"<dd>Shadow denied requests pass.</dd>", ` would have been denied (0.96%), and <b class="shadow">4,723</b> more without shadow mode (2.6%).`,
			`<th scope="col" class="number">Shadow denied</th>`, "UTC: 291 requests, 0 denied, 37 shadow denied</title>",
			`class="shadow data" d="M125.0 936.5V927.2`, `class="shadow data" d="M125.0 1000.0V963.0`, "Denied and shadow denied requests alone",
			"<bdi>fixed_window 20 10s { align clock }</bdi>", "<bdi>fixed_window 46 10s {</bdi>\n<bdi>    align clock</bdi>\n<bdi>}</bdi>",
		}},
		{dry, []string{`<b class="shadow">4,723</b> of 179,210 requests would have been denied without shadow mode (2.6%), and none with it.`}},
		{reporttest.FromNothing(), []string{"by limits like <code>token_bucket 1 1m 300</code>", "There is no smaller limit than token_bucket 1 1m 300.", ">recommended: 298</text>"}},
	} {
		page := write(t, test.report)
		for _, want := range test.wants {
			if !strings.Contains(page, want) {
				t.Errorf("the page lacks %s", want)
			}
		}
		if strings.Contains(page, `\n`) {
			t.Error("the page has an escape of a line feed")
		}
	}
}

// The policy allows the style as it is in the page.
func TestPolicy(t *testing.T) {
	page := write(t, reporttest.Shop())
	style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(page)[1]
	hash := sha256.Sum256([]byte(style))
	policy := regexp.MustCompile(`http-equiv="Content-Security-Policy" content="([^"]*)"`).FindStringSubmatch(page)[1]
	for _, want := range []string{"default-src &#39;none&#39;", "sha256-" + strings.ReplaceAll(base64.StdEncoding.EncodeToString(hash[:]), "+", "&#43;")} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy is %s, want %s in it", policy, want)
		}
	}
}
