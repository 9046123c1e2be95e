package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

// WriteJSON writes a report as indented JSON. Characters that could control a terminal are escaped.
func WriteJSON(w io.Writer, r *Report) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return err
	}
	_, err := io.WriteString(w, terminal.PrintableJSON(b.String()))
	return err
}

// csvColumns are the columns of [WriteCSV].
var csvColumns = []string{
	"configuration", "section", "zone", "name", "time", "window", "value",
	"requests", "denied", "denied_share", "delayed", "keys", "keys_denied", "keys_denied_share",
}

// csvRow has the cells of a row of [WriteCSV] by their columns. Columns that a section doesn't have are left out.
type csvRow map[string]string

// withRequests adds a number of requests.
func (r csvRow) withRequests(requests, denied int64) csvRow {
	r["requests"], r["denied"], r["denied_share"] = integer(requests), integer(denied), fraction(denied, requests)
	return r
}

// withKeys adds a number of keys.
func (r csvRow) withKeys(keys, denied int64) csvRow {
	r["keys"], r["keys_denied"], r["keys_denied_share"] = integer(keys), integer(denied), fraction(denied, keys)
	return r
}

// WriteCSV writes a report as one table, for spreadsheets. A row belongs to a section. Filter by the section
// to get one kind of rows:
//
//	section     one row for each                     columns besides configuration, section and zone
//	left_out    zone that the log says too little of name (the reason), requests
//	total       configuration                        requests, denied, denied_share, delayed
//	status      logged status                        name, requests, denied, denied_share
//	path        first segment of the path            name, requests, denied, denied_share
//	zone        zone                                 all counts and shares
//	key         key with most denials                name, time of the first denial, requests, denied, denied_share
//	peak        window of such a key                 name, window, value in events
//	demand      quantile of the demand of keys       name, window, value in events
//	histogram   step of the demand of keys           window, value in events, keys
//	delay       quantile of the delays               name, value in seconds
//	timeline    bucket of all requests or of a zone  time, window, requests, denied, denied_share
//	proposal    proposed limit                       name, all counts and shares except delayed
//	newly       key that the limit newly denies      name, value (the User-Agent), requests, denied, denied_share
//	gap         limit in the widest gap: the least   name, value in events, all counts and shares except delayed
//	            one, the middle one, the largest one
//	curve       tried limit                          name, value in events, all counts and shares except delayed
//	comparison  kind of change                       name, value in clients, requests
//	client      client with such a change            name, value (the kind), requests
//
// Shares are fractions from 0 to 1, windows are seconds, and times are in UTC. A text that a spreadsheet would
// take for a formula begins with an apostrophe.
func WriteCSV(w io.Writer, r *Report) error {
	c := csvReport{Writer: csv.NewWriter(w)}
	_ = c.Write(csvColumns) // errors come with Flush
	for i := range r.Configurations {
		c.configuration(&r.Configurations[i])
	}
	if r.Comparison != nil {
		c.comparison(r.Comparison)
	}
	c.Flush()
	return c.Error()
}

type csvReport struct {
	*csv.Writer
	name string // of the configuration
}

func (c *csvReport) row(section string, r csvRow) {
	r["configuration"], r["section"] = c.name, section
	var cells []string
	for _, column := range csvColumns {
		cells = append(cells, cellText(r[column]))
	}
	_ = c.Write(cells)
}

// cellText returns a text that a spreadsheet doesn't take for a formula, and a terminal for no control. In some
// countries a semicolon begins a new cell, whatever the rest of the file has.
func cellText(text string) string {
	var b strings.Builder
	begins := true
	for _, r := range terminal.Printable(text) {
		if begins && strings.ContainsRune("=+-@＝＋－＠", r) {
			b.WriteByte('\'')
		}
		b.WriteRune(r)
		begins = r == ';' || begins && r == ' '
	}
	return b.String()
}

func integer(n int64) string { return strconv.FormatInt(n, 10) }

func decimal(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// fraction writes a share, or nothing of nothing.
func fraction(part, whole int64) string {
	if whole == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(part)/float64(whole), 'g', 6, 64)
}

func (c *csvReport) configuration(r *Configuration) {
	c.name = r.Name
	for _, left := range r.LeftOut {
		c.row("left_out", csvRow{"zone": left.Zone, "name": left.Reason, "requests": integer(left.Requests)})
	}
	c.row("total", csvRow{"delayed": integer(r.Delayed)}.withRequests(r.Requests, r.Denied))
	c.groups("status", r.ByStatus)
	c.groups("path", r.ByPath)
	for i := range r.Zones {
		z := &r.Zones[i]
		row := csvRow{"zone": z.Name, "delayed": integer(z.Delayed)}
		c.row("zone", row.withRequests(z.Requests, z.Denied).withKeys(z.Keys, z.KeysDenied))
	}
	for i := range r.Zones {
		c.zone(&r.Zones[i])
	}
	c.timeline(r, "", r.Timeline)
	for i := range r.Zones {
		c.timeline(r, r.Zones[i].Name, r.Zones[i].Timeline)
	}
}

func (c *csvReport) groups(section string, groups []Group) {
	for _, g := range groups {
		c.row(section, csvRow{"name": g.Name}.withRequests(g.Requests, g.Denied))
	}
}

func (c *csvReport) zone(z *Zone) {
	for _, k := range z.TopKeys {
		row := csvRow{"zone": z.Name, "name": k.Key, "time": csvTime(k.First)}
		c.row("key", row.withRequests(k.Requests, k.Denied))
		for i, d := range z.Demand[:min(len(z.Demand), len(k.Peaks))] {
			c.row("peak", csvRow{"zone": z.Name, "name": k.Key, "window": decimal(d.WindowSeconds), "value": integer(k.Peaks[i])})
		}
	}
	for _, d := range z.Demand {
		window := decimal(d.WindowSeconds)
		c.quantiles("demand", csvRow{"zone": z.Name, "window": window}, d.Quantiles)
		for _, s := range d.Histogram {
			c.row("histogram", csvRow{"zone": z.Name, "window": window, "value": integer(s.UpTo), "keys": integer(s.Keys)})
		}
	}
	if z.Delay != nil {
		c.quantiles("delay", csvRow{"zone": z.Name}, *z.Delay)
	}
	for _, p := range z.Proposals {
		row := csvRow{"zone": z.Name, "name": OneLine(p.Line)}
		c.row("proposal", row.withRequests(p.Requests, p.DeniedRequests).withKeys(p.Keys, p.DeniedKeys))
		if p.Change != nil {
			for _, k := range p.Change.Keys {
				c.row("newly", csvRow{"zone": z.Name, "name": k.Key, "value": k.UserAgent}.withRequests(k.Requests, k.Denied))
			}
		}
		if p.Gap != nil {
			c.points("gap", z, &p, []CurvePoint{p.Gap.Least, p.Gap.Middle, p.Gap.Largest})
		}
		c.points("curve", z, &p, p.Curve)
	}
}

// points adds a row for each of some limits.
func (c *csvReport) points(section string, z *Zone, p *Proposal, points []CurvePoint) {
	for _, point := range points {
		row := csvRow{"zone": z.Name, "name": OneLine(point.Line), "value": integer(point.Events)}
		c.row(section, row.withRequests(p.Requests, point.DeniedRequests).withKeys(p.Keys, point.DeniedKeys))
	}
}

func (c *csvReport) quantiles(section string, r csvRow, q Quantiles) {
	for i, name := range []string{"p50", "p95", "p99", "max"} {
		r["name"], r["value"] = name, decimal([]float64{q.P50, q.P95, q.P99, q.Max}[i])
		c.row(section, r)
	}
}

func (c *csvReport) timeline(r *Configuration, zone string, buckets []Bucket) {
	if r.Begins == nil {
		return
	}
	for i, b := range buckets {
		begins := r.Begins.Add(time.Duration(float64(i) * r.BucketSeconds * 1e9))
		row := csvRow{"zone": zone, "time": csvTime(begins), "window": decimal(r.BucketSeconds)}
		c.row("timeline", row.withRequests(b.Requests, b.Denied))
	}
}

func csvTime(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

func (c *csvReport) comparison(r *Comparison) {
	c.name = ""
	for _, kind := range []struct {
		name     string
		requests int64
		count    string
		clients  []ClientChange
	}{
		{"newly_denied", r.NewlyDenied, integer(r.ClientCountNewlyDenied), r.ClientsNewlyDenied},
		{"no_more_denied", r.NoMoreDenied, integer(r.ClientCountNoMoreDenied), r.ClientsNoMoreDenied},
		{"denied_by_both", r.DeniedByBoth, "", nil},
	} {
		c.row("comparison", csvRow{"name": kind.name, "value": kind.count, "requests": integer(kind.requests)})
		for _, client := range kind.clients {
			c.row("client", csvRow{"name": client.Client, "value": kind.name, "requests": integer(client.Requests)})
		}
	}
}
