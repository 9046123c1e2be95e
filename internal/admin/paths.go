package admin

import (
	"cmp"
	"errors"
	"fmt"
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
	Actions    map[string]func(*OperatorRequest) (any, error)
}

// Resources are the endpoints below [Path].
var Resources = []Resource{
	{"status", nil, get((*OperatorRequest).showStatus)},
	{"explain", nil, map[string]func(*OperatorRequest) (any, error){http.MethodPost: (*OperatorRequest).Explain}},
	{"history", nil, get((*OperatorRequest).showHistory)},
	{"zones", nil, get((*OperatorRequest).listZones)},
	{"zones/{zone}", nil, get((*OperatorRequest).showZone)},
	{"zones/{zone}/top", nil, get((*OperatorRequest).listDeniedKeys)},
	{"zones/{zone}/bans", []string{"limit", "cursor"}, get((*OperatorRequest).listBans)},
	{"zones/{zone}/overrides", []string{"limit", "cursor"}, get((*OperatorRequest).listOverrides)},
	{"zones/{zone}/keys", []string{"key"}, map[string]func(*OperatorRequest) (any, error){
		http.MethodGet: (*OperatorRequest).inspectKey, http.MethodDelete: (*OperatorRequest).resetKey,
	}},
	{"zones/{zone}/override", []string{"key"}, map[string]func(*OperatorRequest) (any, error){
		http.MethodPut: (*OperatorRequest).setOverride, http.MethodDelete: (*OperatorRequest).removeOverride,
	}},
	{"zones/{zone}/ban", []string{"key"}, map[string]func(*OperatorRequest) (any, error){
		http.MethodPut: (*OperatorRequest).banKey, http.MethodDelete: (*OperatorRequest).unbanKey,
	}},
}

func get(action func(*OperatorRequest) (any, error)) map[string]func(*OperatorRequest) (any, error) {
	return map[string]func(*OperatorRequest) (any, error){http.MethodGet: action}
}

// readURL returns the resource at a URL, and a request with the values in the URL.
func readURL(u *url.URL) (*Resource, *OperatorRequest, error) {
	if u.RawPath != "" && u.EscapedPath() != u.RawPath { // EscapedPath ignores a RawPath that is not valid
		return nil, nil, Error(http.StatusBadRequest,
			"the path is not percent-encoded as a whole: encode everything in the zone but letters, digits and -_.~")
	}
	a, parts := new(OperatorRequest), strings.Split(strings.TrimPrefix(u.EscapedPath(), Path), "/")
	if len(parts) > 1 && parts[0] == "zones" && parts[1] != "" {
		a.zone, _ = url.PathUnescape(parts[1]) // without an error, as EscapedPath is valid
		parts[1] = "{zone}"
	}
	form := strings.Join(parts, "/")
	for i := range Resources {
		if r := &Resources[i]; r.Form == form {
			if err := r.readQuery(u.RawQuery, a); err != nil {
				return nil, nil, Error(http.StatusBadRequest, "%s: %w", Path+form, err)
			}
			return r, a, nil
		}
	}
	var forms []string
	for _, r := range Resources {
		forms = append(forms, r.Form)
	}
	return nil, nil, Error(http.StatusNotFound, "no such path: write %s and one of %s; "+
		"write each slash in a zone as %%2F, and the key after ?key=, as in zones/api/ban?key=203.0.113.0/24",
		Path, strings.Join(forms, ", "))
}

const (
	// defaultListLimit is how many entries a page of a list has.
	defaultListLimit = 100
	// maxListLimit is the largest limit that a caller can ask for.
	maxListLimit = 1000
)

// readQuery reads the parameters of a request.
func (r *Resource) readQuery(query string, a *OperatorRequest) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return err
	}
	for name, all := range values {
		if !slices.Contains(r.Parameters, name) {
			return fmt.Errorf("there is no parameter %q: it takes %s", name, cmp.Or(strings.Join(r.Parameters, " and "), "none"))
		}
		if len(all) > 1 {
			return fmt.Errorf("parameter %s is given twice: write it once", name)
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
				return fmt.Errorf("limit must be a number from 1 to %d, not %q", maxListLimit, text)
			}
		}
	}
	a.hasKey = slices.Contains(r.Parameters, "key")
	if a.hasKey && !values.Has("key") {
		return errors.New("it takes a key: write ?key= and the key, percent-encoded")
	}
	return nil
}
