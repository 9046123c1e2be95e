package simulate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// maxPathGroups bounds the memory for segments of paths, which clients choose.
const maxPathGroups = 50_000

// shownPathGroups is how many segments of paths a report shows.
const shownPathGroups = 20

// other is the name of the group of all requests that are in no other group.
const other = "other"

// pathGroups counts requests by the first segment of their paths. It counts the first maxPathGroups segments
// separately, and all others together.
type pathGroups struct {
	numbers map[string]int
	groups  []report.Group
	rest    report.Group
}

func (p *pathGroups) group(path string) *report.Group {
	segment := firstSegment(path)
	if i, ok := p.numbers[segment]; ok {
		return &p.groups[i]
	}
	if len(p.groups) == maxPathGroups {
		return &p.rest
	}
	if p.numbers == nil {
		p.numbers = make(map[string]int)
	}
	segment = strings.Clone(segment)
	p.numbers[segment] = len(p.groups)
	p.groups = append(p.groups, report.Group{Name: segment})
	return &p.groups[len(p.groups)-1]
}

// firstSegment returns a path up to its second slash.
func firstSegment(path string) string {
	if path == "" {
		return "/"
	}
	if slash := strings.IndexByte(path[1:], '/'); slash >= 0 {
		return path[:1+slash]
	}
	return path
}

// report returns the groups with most denied requests, then those with most requests. The rest is one
// more group.
func (p *pathGroups) report() []report.Group {
	groups := slices.SortedFunc(slices.Values(p.groups), func(a, b report.Group) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Name, b.Name))
	})
	rest := p.rest
	rest.Name = other
	for len(groups) > shownPathGroups {
		last := groups[len(groups)-1]
		groups = groups[:len(groups)-1]
		rest.Add(last.Bucket)
	}
	return withRest(groups, rest)
}

func withRest(groups []report.Group, rest report.Group) []report.Group {
	if rest.Requests > 0 {
		groups = append(groups, rest)
	}
	return append([]report.Group{}, groups...) // never nil: JSON has an array
}

// statusGroups counts requests by the logged status.
type statusGroups [1000]report.Group

func (s *statusGroups) group(status int) *report.Group {
	if status < 0 || status >= len(s) {
		status = 0
	}
	return &s[status]
}

// report returns the groups, sorted by status. Requests without a valid status are the last group.
func (s *statusGroups) report() []report.Group {
	var groups []report.Group
	for status, g := range s[1:] {
		if g.Requests > 0 {
			g.Name = strconv.Itoa(status + 1)
			groups = append(groups, g)
		}
	}
	rest := s[0]
	rest.Name = "none"
	return withRest(groups, rest)
}
