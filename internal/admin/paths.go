package admin

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Resource is a kind of path of the admin API, with its actions by method. An action returns the
// body of the response, or nil for none.
type Resource struct {
	Form       string // after [Path]
	Parameters []string
	Actions    map[string]func(*Request) (any, error)
}

// Resources are the endpoints below [Path].
var Resources = []Resource{
	{"status", nil, get((*Request).showStatus)},
	{"explain", nil, map[string]func(*Request) (any, error){http.MethodPost: (*Request).Explain}},
	{"history", nil, get((*Request).showHistory)},
	{"zones", nil, get((*Request).listZones)},
	{"zones/{zone}", nil, get((*Request).showZone)},
	{"zones/{zone}/top", nil, get((*Request).listDeniedKeys)},
	{"zones/{zone}/bans", []string{"limit", "cursor"}, get((*Request).listBans)},
	{"zones/{zone}/overrides", []string{"limit", "cursor"}, get((*Request).listOverrides)},
	{"zones/{zone}/keys/{key}", nil, keyActions},
	{"zones/{zone}/keys", []string{"key"}, keyActions},
	{"zones/{zone}/keys/{key}/override", nil, overrideActions},
	{"zones/{zone}/override", []string{"key"}, overrideActions},
	{"zones/{zone}/keys/{key}/ban", nil, banActions},
	{"zones/{zone}/ban", []string{"key"}, banActions},
}

var (
	keyActions = map[string]func(*Request) (any, error){
		http.MethodGet: (*Request).inspectKey, http.MethodDelete: (*Request).resetKey,
	}
	overrideActions = map[string]func(*Request) (any, error){
		http.MethodPut: (*Request).setOverride, http.MethodDelete: (*Request).removeOverride,
	}
	banActions = map[string]func(*Request) (any, error){
		http.MethodPut: (*Request).banKey, http.MethodDelete: (*Request).unbanKey,
	}
)

func get(action func(*Request) (any, error)) map[string]func(*Request) (any, error) {
	return map[string]func(*Request) (any, error){http.MethodGet: action}
}

// has reports whether {zone} or {key} is in the path of a resource.
func (r *Resource) has(part string) bool { return strings.Contains(r.Form, part) }

// readURL returns the resource at a URL, and a request with the values in the URL.
func readURL(u *url.URL) (*Resource, *Request, error) {
	if u.RawPath != "" && u.EscapedPath() != u.RawPath { // EscapedPath ignores a RawPath that is not valid
		return nil, nil, Error(http.StatusBadRequest,
			"the path is not percent-encoded as a whole: encode everything in zone and key but letters, digits and -_.~")
	}
	path := strings.Split(strings.TrimPrefix(u.EscapedPath(), Path), "/")
	for i := range Resources {
		r, a := &Resources[i], new(Request)
		matches, err := r.matchPath(path, a)
		if err == nil && matches {
			err = r.readQuery(u.RawQuery, a)
		}
		if err != nil {
			return nil, nil, Error(http.StatusBadRequest, "%s: %w", Path+r.Form, err)
		}
		if matches {
			return r, a, nil
		}
	}
	var forms []string
	for _, r := range Resources {
		forms = append(forms, r.Form)
	}
	return nil, nil, Error(http.StatusNotFound, "no such path: write %s and one of %s; "+
		"write each slash in a zone or key as %%2F, such as keys/203.0.113.0%%2F24/ban, "+
		"or write the key behind ?key=, such as ban?key=203.0.113.0/24",
		Path, strings.Join(forms, ", "))
}

// matchPath reports whether a path is of the resource, and reads its zone and key.
func (r *Resource) matchPath(path []string, a *Request) (matches bool, err error) {
	form := strings.Split(r.Form, "/")
	if len(path) != len(form) {
		return false, nil
	}
	for i, part := range form {
		switch part {
		case "{zone}":
			if path[i] == "" {
				return false, nil
			}
			a.zone, err = url.PathUnescape(path[i])
		case "{key}":
			a.hasKey = true
			a.key, err = url.PathUnescape(path[i])
		case path[i]:
		default:
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

const (
	// defaultListLimit is how many entries a page of a list has.
	defaultListLimit = 100
	// maxListLimit is the largest limit that a caller can ask for.
	maxListLimit = 1000
)

// readQuery reads the parameters of a request.
func (r *Resource) readQuery(query string, a *Request) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return err
	}
	for name, all := range values {
		if !slices.Contains(r.Parameters, name) {
			return errors.New("there is no parameter " + strconv.Quote(name) + ": " + r.describeParameters())
		}
		if len(all) > 1 {
			return errors.New("parameter " + name + " is given twice: write it once")
		}
	}
	a.limit = defaultListLimit
	for name, text := range values {
		switch text := text[0]; name {
		case "key":
			a.key = text
		case "cursor":
			a.cursor = text
		case "limit":
			a.limit, err = strconv.Atoi(text)
			if err != nil || a.limit < 1 || a.limit > maxListLimit {
				return errors.New("limit must be a number from 1 to " + strconv.Itoa(maxListLimit) + ", not " + strconv.Quote(text))
			}
		}
	}
	if slices.Contains(r.Parameters, "key") {
		a.hasKey = true
		if !values.Has("key") && strings.HasSuffix(r.Form, "/keys") {
			return errors.New("it takes a key: write keys?key={key} or keys/{key}, percent-encoded")
		}
	}
	return nil
}

func (r *Resource) describeParameters() string {
	if len(r.Parameters) == 0 {
		return "it takes none"
	}
	return "it takes " + strings.Join(r.Parameters, " and ")
}
