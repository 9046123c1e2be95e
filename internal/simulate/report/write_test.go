package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/reporttest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

var update = flag.Bool("update", false, "write the reports into testdata")

// wantGolden compares a text with a file of testdata.
func wantGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func textOf(t *testing.T, r *report.Report, o report.TextOptions) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := report.WriteText(&b, r, o); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func jsonOf(t *testing.T, r *report.Report) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := report.WriteJSON(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestText(t *testing.T) {
	oneKey := reporttest.Shop()
	zone := &oneKey.Configurations[0].Zones[1]
	zone.Keys, zone.KeysDenied, zone.DeniedByShadow = 1, 1, 12
	later := oneKey.Log.To.Add(30 * time.Hour)
	oneKey.Log.To = &later
	same := reporttest.Compared()
	same.Comparison = &report.Comparison{DeniedByBoth: 1}
	for _, test := range []struct {
		name    string
		report  *report.Report
		options report.TextOptions
	}{
		{"shop.txt", reporttest.Shop(), report.TextOptions{}},
		{"shop_colors.txt", reporttest.Shop(), report.TextOptions{Width: 60, Color: true}},
		{"compared.txt", reporttest.Compared(), report.TextOptions{Width: 120}},
		{"compared_same.txt", same, report.TextOptions{Width: 80}},
		{"odd.txt", reporttest.Odd(), report.TextOptions{Width: 100}},
		{"one_key.txt", oneKey, report.TextOptions{Width: 80}},
		{"from_nothing.txt", reporttest.FromNothing(), report.TextOptions{Width: 80}},
		{"empty.txt", reporttest.Empty(), report.TextOptions{Width: 80}},
	} {
		wantGolden(t, test.name, textOf(t, test.report, test.options))
	}
}

// A report that was computed, from the visits to its text.
func TestReportOfVisits(t *testing.T) {
	r := computedReport(t)
	wantGolden(t, "computed.txt", textOf(t, r, report.TextOptions{Width: 100}))
	wantGolden(t, "computed.json", jsonOf(t, r))
}

type fixedConfiguration struct{ zones []simulate.Zone }

func (c fixedConfiguration) Zones() []simulate.Zone { return c.zones }
func (c fixedConfiguration) Notes() []string        { return []string{"A note."} }

func (c fixedConfiguration) LeftOut() []report.LeftOut { return nil }

func (c fixedConfiguration) ShownKey(_ int, key string) string { return key }
func (c fixedConfiguration) MaxKeys() int64                    { return 1000 }

func (c fixedConfiguration) Visit(*accesslog.Request) (*simulate.Visit, error) {
	return nil, errors.New("the visits are made up")
}

// computedReport lets two configurations decide an hour of requests: twenty clients that are polite, and one
// that repeats its login.
func computedReport(t *testing.T) *report.Report {
	t.Helper()
	began := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	limits := func(events int64) []*algorithms.Limit {
		l, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "fixed_window", Events: events, Window: 60_000_000, Align: "clock"})
		if err != nil {
			t.Fatal(err)
		}
		return []*algorithms.Limit{l}
	}
	var configurations [2]fixedConfiguration
	var statistics [2]*simulate.Statistics
	var deciders [2]*simulate.Decider
	for i, events := range []int64{10, 4} {
		configurations[i].zones = []simulate.Zone{
			{Name: "all", Key: []string{"{client_ip}"}, Sets: []simulate.LimitSet{{Limits: limits(events * 5)}}},
			{Name: "login", Key: []string{"{client_ip}"}, Sets: []simulate.LimitSet{{Limits: limits(events)}}},
		}
	}
	comparer := simulate.NewComparer(configurations[0], configurations[1])
	for i, side := range []simulate.Observer{comparer.First(), comparer.Second()} {
		statistics[i] = simulate.NewStatistics(configurations[i])
		deciders[i] = simulate.NewDecider(configurations[i], statistics[i], side)
	}
	var last time.Time
	for number := range int64(3000) {
		at := began.Add(time.Duration(number) * 1200 * time.Millisecond)
		client, isLogin := fmt.Sprintf("198.51.100.%d", number%20), false
		if minute := number / 50; number%3 == 0 && minute >= 20 && minute < 30 {
			client, isLogin = "203.0.113.9", true
		}
		last = at
		for i, d := range deciders {
			v := &simulate.Visit{Number: number, Start: at.UnixMicro(), End: at.UnixMicro() + 20_000, Client: client}
			for zone, z := range configurations[i].zones {
				if z.Name == "login" && !isLogin {
					continue
				}
				l := store.NewLimit(z.Name, "", z.Sets[0].Limits[0])
				v.Handlers = append(v.Handlers, simulate.HandlerVisit{
					Requests: []store.Request{{Zone: z.Name, Key: client, Cost: 1, Limits: []store.Limit{l}}}, Zones: []simulate.ZoneVisit{{Zone: zone}},
				})
			}
			d.Decide(v)
		}
	}
	r := &report.Report{
		Log:        report.Log{Files: []string{"access.log"}, Lines: 3000, Requests: 3000, From: &began, To: &last},
		Comparison: comparer.Report(),
	}
	for i, d := range deciders {
		d.Finish()
		report := statistics[i].Report()
		report.Name = []string{"Caddyfile", "Caddyfile.strict"}[i]
		r.Configurations = append(r.Configurations, report)
	}
	return r
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
	for _, r := range []*report.Report{reporttest.Shop(), reporttest.Compared(), reporttest.Many()} {
		for _, width := range []int{50, 61, 80} {
			for line := range strings.Lines(string(textOf(t, r, report.TextOptions{Width: width}))) {
				if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > width {
					t.Errorf("%d columns in a terminal of %d: %s", n, width, line)
				}
			}
		}
	}
}

// The JSON of a report means the report.
func TestJSONIsTheReport(t *testing.T) {
	for _, want := range []*report.Report{reporttest.Shop(), reporttest.Compared(), reporttest.Empty(), computedReport(t)} {
		var got report.Report
		decoder := json.NewDecoder(bytes.NewReader(jsonOf(t, want)))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(&got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
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
