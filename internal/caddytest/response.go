package caddytest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
)

// WantWait checks that Retry-After is at most so many seconds, and more than 100 less.
func (r Response) WantWait(t *testing.T, most int) {
	t.Helper()
	if wait, err := strconv.Atoi(r.Field("Retry-After")); err != nil || wait > most || wait <= most-100 {
		t.Errorf("Retry-After %q, want %d or a little less", r.Field("Retry-After"), most)
	}
}

// Response is a response with its body read.
type Response struct {
	*http.Response
	Text string
}

// String returns what a failure shows of a response.
func (r Response) String() string {
	if r.Response == nil {
		return "no response"
	}
	return fmt.Sprintf("status %d, header %v, body %q", r.StatusCode, r.Header, r.Text)
}

// WantSpan checks that a field is a number of seconds with three decimals, the
// wanted one or up to a minute less.
func (r Response) WantSpan(t *testing.T, field string, want float64) {
	t.Helper()
	got, err := strconv.ParseFloat(r.Field(field), 64)
	if err != nil || got > want || got < want-Patient.Seconds() || !regexp.MustCompile(`^\d+\.\d{3}$`).MatchString(r.Field(field)) {
		t.Errorf("%s: %q, want %.3f", field, r.Field(field), want)
	}
}

// WantFields checks, with a parser that isn't ours, that a response carries the
// fields of all forms, each of them well-formed, for these zones.
func (r Response) WantFields(t *testing.T, zones ...string) {
	t.Helper()
	for field, parameters := range map[string][]string{"RateLimit-Policy": {"q", "w"}, "RateLimit": {"r"}} {
		list, err := httpsfv.UnmarshalList(r.Header.Values(field))
		if err != nil || len(list) != len(zones) {
			t.Errorf("status %d: %s: %q, %v; want zones %q", r.StatusCode, field, r.Header.Values(field), err, zones)
			continue
		}
		for i, member := range list {
			item, ok := member.(httpsfv.Item)
			if !ok || item.Value != zones[i] {
				t.Errorf("%s: %+v, want zone %q", field, member, zones[i])
				continue
			}
			for _, name := range parameters {
				if n, there := item.Params.Get(name); !there || fmt.Sprintf("%T", n) != "int64" {
					t.Errorf("%s: %q: %s is %v", field, zones[i], name, n)
				}
			}
		}
	}
	r.WantFamilies(t)
}

// WantFamilies checks that the fields with one value are well-formed.
func (r Response) WantFamilies(t *testing.T) {
	t.Helper()
	for _, field := range []string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "X-RateLimit-Remaining", "X-RateLimit-Clear"} {
		if item, err := httpsfv.UnmarshalItem(r.Header.Values(field)); err != nil || len(r.Header.Values(field)) != 1 {
			t.Errorf("status %d: %s: %q %v %v", r.StatusCode, field, r.Header.Values(field), item.Value, err)
		}
	}
}

// WantItems is [WantItems] for a field of the response.
func (r Response) WantItems(t *testing.T, field string, want []string) {
	t.Helper()
	WantItems(t, r.Header, field, want)
}

// WantItems checks that a field is a list of these items, with these parameters in this
// order, all of which are integers or tokens.
func WantItems(t *testing.T, h http.Header, field string, want []string) {
	t.Helper()
	list, err := httpsfv.UnmarshalList(h.Values(field))
	var got []string
	for _, member := range list {
		item, ok := member.(httpsfv.Item)
		if !ok {
			t.Errorf("%s: %+v is no item", field, member)
			continue
		}
		text := fmt.Sprintf("%q", item.Value)
		for _, name := range item.Params.Names() {
			v, _ := item.Params.Get(name)
			text += fmt.Sprintf(" %s=%v", name, v)
		}
		got = append(got, text)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s: %q is %q, %v; want %q", field, h.Values(field), got, err, want)
	}
}

// Field returns a header field's values, joined.
func (r Response) Field(name string) string { return strings.Join(r.Header.Values(name), ", ") }

// Want checks the status and fields, given as pairs of name and value.
func (r Response) Want(t *testing.T, status int, fields ...string) {
	t.Helper()
	if r.StatusCode != status {
		t.Errorf("status %d, want %d", r.StatusCode, status)
	}
	for i := 0; i < len(fields); i += 2 {
		WantText(t, fields[i], r.Field(fields[i]), fields[i+1])
	}
}

// WantText compares two texts. Numbers of 60 and more may be up to 5 less than
// wanted, and those of 300 and more up to a minute: they are seconds, and some have passed.
func WantText(t *testing.T, what, got, want string) {
	t.Helper()
	number := regexp.MustCompile(`\d+`)
	same := number.ReplaceAllString(got, "0") == number.ReplaceAllString(want, "0")
	if same {
		gots, wants := number.FindAllString(got, -1), number.FindAllString(want, -1)
		for i := range wants {
			g, _ := strconv.Atoi(gots[i])
			w, _ := strconv.Atoi(wants[i])
			passed := 5
			if w >= 300 {
				passed = int(Patient.Seconds())
			}
			same = same && (g == w || w >= 60 && g < w && g >= w-passed)
		}
	}
	if !same {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// WantProblem checks the body of a denial.
func (r Response) WantProblem(t *testing.T, status int, kind string, policies ...any) {
	t.Helper()
	r.Want(t, status, "Content-Type", "application/problem+json")
	if got := r.Field("Content-Length"); got != strconv.Itoa(len(r.Text)) {
		t.Errorf("Content-Length %q for %d bytes", got, len(r.Text))
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(r.Text), &got); err != nil {
		t.Fatalf("%v in %q", err, r.Text)
	}
	id, ok := got["denial"].(string)
	if ok != (kind != "temporary-reduced-capacity") || ok && !regexp.MustCompile(`^[0-9a-z]{10}$`).MatchString(id) {
		t.Errorf("the ID of the denial is %v", got["denial"])
	}
	delete(got, "denial")
	want := map[string]any{"type": "https://iana.org/assignments/http-problem-types#" + kind, "title": got["title"], "status": float64(status)}
	if policies != nil {
		wait, _ := strconv.ParseFloat(r.Field("Retry-After"), 64)
		want["violated-policies"], want["retry-after"] = policies, wait
		want["reason"] = map[string]string{"quota-exceeded": "limit", "abnormal-usage-detected": "ban"}[kind]
	}
	if !reflect.DeepEqual(got, want) || got["title"] == "" {
		t.Errorf("body %v, want %v", got, want)
	}
	if strings.ContainsAny(r.Text, "<>&") {
		t.Errorf("a browser could read the body as HTML: %s", r.Text)
	}
}
