package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/goldentest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/reporttest"
)

func textOf(t *testing.T, r *report.Report, o report.TextOptions) []byte {
	t.Helper()
	var b bytes.Buffer
	errtest.None(t, report.WriteText(&b, r, o))
	return b.Bytes()
}

func jsonOf(t *testing.T, r *report.Report) []byte {
	t.Helper()
	var b bytes.Buffer
	errtest.None(t, report.WriteJSON(&b, r))
	return b.Bytes()
}

func TestText(t *testing.T) {
	oneKey := reporttest.Shop()
	zone := &oneKey.Configurations[0].Zones[1]
	zone.Keys, zone.KeysDenied, zone.ShadowDenied = 1, 1, 12
	oneKey.Log.To = new(oneKey.Log.To.Add(30 * time.Hour))
	same := reporttest.Compared()
	same.Comparison = &report.Comparison{DeniedByBoth: 1}
	for _, test := range []struct {
		name    string
		report  *report.Report
		options report.TextOptions
	}{
		{"shop.txt", reporttest.Shop(), report.TextOptions{}},
		{"shop_colors.txt", reporttest.Shop(), report.TextOptions{Width: 60, Color: true}},
		{"shadow.txt", reporttest.Shadow(), report.TextOptions{Width: 120}},
		{"compared.txt", reporttest.Compared(), report.TextOptions{Width: 120}},
		{"compared_same.txt", same, report.TextOptions{Width: 80}},
		{"odd.txt", reporttest.Odd(), report.TextOptions{Width: 100}},
		{"one_key.txt", oneKey, report.TextOptions{Width: 80}},
		{"from_nothing.txt", reporttest.FromNothing(), report.TextOptions{Width: 80}},
		{"empty.txt", reporttest.Empty(), report.TextOptions{Width: 80}},
	} {
		goldentest.Want(t, "testdata/"+test.name+".golden", string(textOf(t, test.report, test.options)))
	}
}

// appendToTexts appends a text to all texts of a value, which must be addressable.
func appendToTexts(v reflect.Value, text string) {
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
	case v.Kind() == reflect.String:
		v.SetString(v.String() + text)
	case v.Kind() == reflect.Pointer && !v.IsNil():
		appendToTexts(v.Elem(), text)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			appendToTexts(v.Field(i), text)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			appendToTexts(v.Index(i), text)
		}
	}
}

// Nothing that a terminal could execute, hide or turn around is written, wherever it is in a report.
func TestReportsAreSafeOnTerminals(t *testing.T) {
	odd := reporttest.Odd()
	odd.Configurations = append(odd.Configurations, reporttest.Compared().Configurations[1])
	odd.Comparison = reporttest.Compared().Comparison
	for _, r := range []*report.Report{odd, reporttest.FromNothing(), reporttest.Empty()} {
		appendToTexts(reflect.ValueOf(r), "\x1b[31m\u202e\u200b\xff\u0085\r\t")
		plain := textOf(t, r, report.TextOptions{Width: 70})
		for format, text := range map[string][]byte{"text": plain, "json": jsonOf(t, r)} {
			for line := range bytes.Lines(text) {
				if bytes.ContainsFunc(bytes.TrimSuffix(line, []byte("\n")), func(r rune) bool {
					return r == unicode.ReplacementChar && format != "json" || !unicode.IsPrint(r)
				}) {
					t.Errorf("%s has the line %q", format, line)
				}
			}
		}
		colored := textOf(t, r, report.TextOptions{Width: 70, Color: true})
		if !bytes.Equal(regexp.MustCompile("\x1b\\[[0-9]+m").ReplaceAll(colored, nil), plain) {
			t.Error("colors change the text")
		}
	}
}

// No line is wider than the terminal, except what can't be broken.
func TestTextFits(t *testing.T) {
	for _, r := range []*report.Report{reporttest.Shadow(), reporttest.Compared(), reporttest.Many()} {
		for _, width := range []int{50, 61, 80} {
			for line := range strings.Lines(string(textOf(t, r, report.TextOptions{Width: width}))) {
				if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > width {
					t.Errorf("%d columns in a terminal of %d: %s", n, width, line)
				}
			}
		}
	}
}

// The JSON of a report means the report, and keeps its names.
func TestJSONIsTheReport(t *testing.T) {
	names := make(map[string]bool)
	for _, want := range []*report.Report{reporttest.Shop(), reporttest.Shadow(), reporttest.Compared(), reporttest.Empty(), reporttest.FromNothing()} {
		for _, name := range regexp.MustCompile(`"(\w+)": `).FindAllString(string(jsonOf(t, want)), -1) {
			names[name] = true
		}
		var got report.Report
		decoder := json.NewDecoder(bytes.NewReader(jsonOf(t, want)))
		decoder.DisallowUnknownFields()
		errtest.None(t, decoder.Decode(&got))
		if !reflect.DeepEqual(&got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	goldentest.Want(t, "testdata/names.golden", strings.Join(slices.Sorted(maps.Keys(names)), "\n"))
}

// A reader that goes away is an error.
func TestWriteErrors(t *testing.T) {
	for name, write := range map[string]func(io.Writer, *report.Report) error{
		"text": func(w io.Writer, r *report.Report) error { return report.WriteText(w, r, report.TextOptions{}) },
		"json": report.WriteJSON,
	} {
		reader, writer := io.Pipe()
		_ = reader.Close()
		if err := write(writer, reporttest.Shop()); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%s: %v, want %v", name, err, io.ErrClosedPipe)
		}
	}
}
