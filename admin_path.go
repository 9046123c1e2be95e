package ratelimit

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// adminResource is a kind of path of the admin API, with its actions by method. An action returns the
// body of the response, or nil for none.
type adminResource struct {
	form       string // after adminPath
	parameters []string
	actions    map[string]func(*adminRequest) (any, error)
}

var adminResources = []adminResource{
	{"status", nil, adminGet((*adminRequest).showStatus)},
	{"explain", nil, map[string]func(*adminRequest) (any, error){http.MethodPost: (*adminRequest).explain}},
	{"zones", nil, adminGet((*adminRequest).listZones)},
	{"zones/{zone}", nil, adminGet((*adminRequest).showZone)},
	{"zones/{zone}/top", nil, adminGet((*adminRequest).listDeniedKeys)},
	{"zones/{zone}/bans", []string{"limit", "cursor"}, adminGet((*adminRequest).listBans)},
	{"zones/{zone}/overrides", []string{"limit", "cursor"}, adminGet((*adminRequest).listOverrides)},
	{"zones/{zone}/keys/{key}", nil, adminKeyActions},
	{"zones/{zone}/keys", []string{"key"}, adminKeyActions},
	{"zones/{zone}/keys/{key}/override", nil, adminOverrideActions},
	{"zones/{zone}/override", []string{"key"}, adminOverrideActions},
	{"zones/{zone}/keys/{key}/ban", nil, adminBanActions},
	{"zones/{zone}/ban", []string{"key"}, adminBanActions},
}

var (
	adminKeyActions = map[string]func(*adminRequest) (any, error){
		http.MethodGet: (*adminRequest).inspectKey, http.MethodDelete: (*adminRequest).resetKey,
	}
	adminOverrideActions = map[string]func(*adminRequest) (any, error){
		http.MethodPut: (*adminRequest).setOverride, http.MethodDelete: (*adminRequest).removeOverride,
	}
	adminBanActions = map[string]func(*adminRequest) (any, error){
		http.MethodPut: (*adminRequest).banKey, http.MethodDelete: (*adminRequest).unbanKey,
	}
)

func adminGet(action func(*adminRequest) (any, error)) map[string]func(*adminRequest) (any, error) {
	return map[string]func(*adminRequest) (any, error){http.MethodGet: action}
}

// has reports whether {zone} or {key} is in the path of a resource.
func (r *adminResource) has(part string) bool { return strings.Contains(r.form, part) }

// readAdminURL returns the resource at a URL, and a request with the values in the URL.
func readAdminURL(u *url.URL) (*adminResource, *adminRequest, error) {
	if u.RawPath != "" && u.EscapedPath() != u.RawPath { // EscapedPath ignores a RawPath that is not valid
		return nil, nil, adminError(http.StatusBadRequest,
			"the path is not percent-encoded as a whole: encode everything in zone and key but letters, digits and -_.~")
	}
	path := strings.Split(strings.TrimPrefix(u.EscapedPath(), adminPath), "/")
	for i := range adminResources {
		r, a := &adminResources[i], new(adminRequest)
		matches, err := r.matchPath(path, a)
		if err == nil && matches {
			err = r.readQuery(u.RawQuery, a)
		}
		if err != nil {
			return nil, nil, adminError(http.StatusBadRequest, "%s: %w", adminPath+r.form, err)
		}
		if matches {
			return r, a, nil
		}
	}
	var forms []string
	for _, r := range adminResources {
		forms = append(forms, r.form)
	}
	return nil, nil, adminError(http.StatusNotFound, "no such path: write %s and one of %s; "+
		"write each slash in a zone or key as %%2F, such as keys/203.0.113.0%%2F24/ban, "+
		"or write the key behind ?key=, such as ban?key=203.0.113.0/24",
		adminPath, strings.Join(forms, ", "))
}

// matchPath reports whether a path is of the resource, and reads its zone and key.
func (r *adminResource) matchPath(path []string, a *adminRequest) (matches bool, err error) {
	form := strings.Split(r.form, "/")
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
func (r *adminResource) readQuery(query string, a *adminRequest) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return err
	}
	for name, all := range values {
		if !slices.Contains(r.parameters, name) {
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
	if slices.Contains(r.parameters, "key") {
		a.hasKey = true
		if !values.Has("key") && strings.HasSuffix(r.form, "/keys") {
			return errors.New("it takes a key: write keys?key={key} or keys/{key}, percent-encoded")
		}
	}
	return nil
}

func (r *adminResource) describeParameters() string {
	if len(r.parameters) == 0 {
		return "it takes none"
	}
	return "it takes " + strings.Join(r.parameters, " and ")
}
