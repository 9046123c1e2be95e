package bodies

import (
	"slices"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/jsonvalue"
)

// The placeholders of values in requests begin with one of these.
const (
	JSONPrefix = "http.rate_limit.request.json."
	FormPrefix = "http.rate_limit.request.form."
)

// Kinds says which kinds of bodies have a value. 0 is no kind.
type Kinds uint8

const (
	kindJSON Kinds = 1 << iota
	kindForm
)

// KindOf returns the kind of the bodies that have the value of a placeholder. It is 0 for other placeholders.
func KindOf(placeholder string) Kinds {
	switch {
	case strings.HasPrefix(placeholder, JSONPrefix):
		return kindJSON
	case strings.HasPrefix(placeholder, FormPrefix):
		return kindForm
	}
	return 0
}

// Fields are the values that the zones of a handler read from bodies of requests.
type Fields struct{ all []field }

// field is a value in the bodies of requests.
type field struct {
	placeholder string
	kind        Kinds
	path        jsonvalue.Path // of kindJSON
	name        string         // of kindForm
}

// Add adds the values of those placeholders that are of requests. It ignores errors of their paths, which the
// configuration reports.
func (f *Fields) Add(placeholders ...string) {
	for _, placeholder := range placeholders {
		kind := KindOf(placeholder)
		if kind == 0 || f.index(placeholder) >= 0 {
			continue
		}
		added := field{placeholder: placeholder, kind: kind, name: strings.TrimPrefix(placeholder, FormPrefix)}
		if kind == kindJSON {
			added.path, _ = jsonvalue.ParsePath(strings.TrimPrefix(placeholder, JSONPrefix))
		}
		f.all = append(f.all, added)
	}
}

// index returns the index of a placeholder, or -1.
func (f *Fields) index(placeholder string) int {
	return slices.IndexFunc(f.all, func(known field) bool { return known.placeholder == placeholder })
}
