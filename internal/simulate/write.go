package simulate

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

// csvRow is a row of [WriteCSV]. Empty texts stand for what a section doesn't have.
type csvRow struct {
	section, zone, name, time, window, value, requests, denied, share, delayed, keys, keysDenied, keysShare string
}

// WriteCSV writes a report as one table, for spreadsheets. A row belongs to a section. Filter by the section
// to get one kind of rows:
//
//	section     one row for each                     columns besides configuration, section and zone
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

func (c *csvReport) row(r csvRow) {
	_ = c.Write([]string{
		cellText(c.name), r.section, cellText(r.zone), cellText(r.name), r.time, r.window, r.value,
		r.requests, r.denied, r.share, r.delayed, r.keys, r.keysDenied, r.keysShare,
	})
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

func (c *csvReport) configuration(r *ConfigurationReport) {
	c.name = r.Name
	c.row(csvRow{
		section: "total", requests: integer(r.Requests), denied: integer(r.Denied), share: fraction(r.Denied, r.Requests),
		delayed: integer(r.Delayed),
	})
	c.groups("status", r.ByStatus)
	c.groups("path", r.ByPath)
	for i := range r.Zones {
		z := &r.Zones[i]
		c.row(csvRow{
			section: "zone", zone: z.Zone, requests: integer(z.Requests), denied: integer(z.Denied), share: fraction(z.Denied, z.Requests),
			delayed: integer(z.Delayed), keys: integer(z.Keys), keysDenied: integer(z.KeysDenied), keysShare: fraction(z.KeysDenied, z.Keys),
		})
	}
	for i := range r.Zones {
		c.zone(&r.Zones[i])
	}
	c.timeline(r, "", r.Timeline)
	for i := range r.Zones {
		c.timeline(r, r.Zones[i].Zone, r.Zones[i].Timeline)
	}
}

func (c *csvReport) groups(section string, groups []Group) {
	for _, g := range groups {
		c.row(csvRow{
			section: section, name: g.Name, requests: integer(g.Requests), denied: integer(g.Denied), share: fraction(g.Denied, g.Requests),
		})
	}
}

func (c *csvReport) zone(z *ZoneReport) {
	for _, k := range z.TopKeys {
		c.row(csvRow{
			section: "key", zone: z.Zone, name: k.Key, time: k.First.UTC().Format(time.RFC3339Nano),
			requests: integer(k.Requests), denied: integer(k.Denied), share: fraction(k.Denied, k.Requests),
		})
		for i, d := range z.Demand[:min(len(z.Demand), len(k.Peaks))] {
			c.row(csvRow{section: "peak", zone: z.Zone, name: k.Key, window: decimal(d.WindowSeconds), value: integer(k.Peaks[i])})
		}
	}
	for _, d := range z.Demand {
		c.quantiles(csvRow{section: "demand", zone: z.Zone, window: decimal(d.WindowSeconds)}, d.Quantiles)
		for _, s := range d.Histogram {
			c.row(csvRow{section: "histogram", zone: z.Zone, window: decimal(d.WindowSeconds), value: integer(s.UpTo), keys: integer(s.Keys)})
		}
	}
	if z.Delay != nil {
		c.quantiles(csvRow{section: "delay", zone: z.Zone}, *z.Delay)
	}
	for _, p := range z.Proposals {
		c.row(csvRow{
			section: "proposal", zone: z.Zone, name: OneLine(p.Line),
			requests: integer(p.Requests), denied: integer(p.DeniedRequests), share: fraction(p.DeniedRequests, p.Requests),
			keys: integer(p.Keys), keysDenied: integer(p.DeniedKeys), keysShare: fraction(p.DeniedKeys, p.Keys),
		})
		for _, point := range p.Curve {
			c.row(csvRow{
				section: "curve", zone: z.Zone, name: OneLine(point.Line), value: integer(point.Events),
				requests: integer(p.Requests), denied: integer(point.DeniedRequests), share: fraction(point.DeniedRequests, p.Requests),
				keys: integer(p.Keys), keysDenied: integer(point.DeniedKeys), keysShare: fraction(point.DeniedKeys, p.Keys),
			})
		}
	}
}

func (c *csvReport) quantiles(r csvRow, q Quantiles) {
	for i, name := range []string{"p50", "p95", "p99", "max"} {
		r.name, r.value = name, decimal([]float64{q.P50, q.P95, q.P99, q.Max}[i])
		c.row(r)
	}
}

func (c *csvReport) timeline(r *ConfigurationReport, zone string, buckets []Bucket) {
	if r.Begins == nil {
		return
	}
	for i, b := range buckets {
		begins := r.Begins.Add(time.Duration(float64(i) * r.BucketSeconds * 1e9))
		c.row(csvRow{
			section: "timeline", zone: zone, time: begins.UTC().Format(time.RFC3339Nano), window: decimal(r.BucketSeconds),
			requests: integer(b.Requests), denied: integer(b.Denied), share: fraction(b.Denied, b.Requests),
		})
	}
}

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
		c.row(csvRow{section: "comparison", name: kind.name, value: kind.count, requests: integer(kind.requests)})
		for _, client := range kind.clients {
			c.row(csvRow{section: "client", name: client.Client, value: kind.name, requests: integer(client.Requests)})
		}
	}
}
