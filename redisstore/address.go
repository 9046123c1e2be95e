package redisstore

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// parseAddress splits the address into its parts. The errors of a URL parser would repeat the
// password of a malformed URL, so they are not used.
func (o *Options) parseAddress() error {
	switch {
	case o.MasterName != "":
		return o.parseHosts("with master_name each redis address is host:port of a Sentinel",
			"127.0.0.1:26379, and username, password, db and tls as options")
	case o.Cluster:
		return o.parseHosts("with cluster each redis address is host:port of a node", "127.0.0.1:6379, and username, password and tls as options")
	}
	scheme, rest, isURL := strings.Cut(o.Address, "://")
	switch {
	case isURL:
		if err := o.parseURL(scheme, rest); err != nil {
			return err
		}
	case !strings.HasPrefix(o.Address, "/"):
		if !isHostPort(o.Address) {
			shown := ""
			if !strings.ContainsAny(o.Address, "@/") { // else it may hold a password
				shown = fmt.Sprintf(" %q", o.Address)
			}
			return fmt.Errorf("redis address%s is not host:port: write for example 127.0.0.1:6379", shown)
		}
	}
	if o.network() == "unix" && o.TLS.On {
		return errors.New("tls and a unix socket don't go together: leave tls out, or write host:port")
	}
	return nil
}

// network returns the network of the parsed address, for [net.Dial].
func (o *Options) network() string {
	if strings.HasPrefix(o.Address, "/") {
		return "unix"
	}
	return "tcp"
}

// parseURL sets the options that a URL holds. Options that are already set take precedence.
func (o *Options) parseURL(scheme, rest string) error {
	form := scheme + "://[user[:password]@]host[:port][/db]"
	if scheme == "unix" {
		form = "unix://[user[:password]@]/path[?db=number]"
	}
	malformed := errors.New("redis URL is malformed (not shown, because it may hold a password): " +
		"write " + form + ", special characters of the password percent-encoded")
	if scheme != "redis" && scheme != "rediss" && scheme != "unix" {
		return errors.New("redis URL must have the scheme redis, rediss or unix: write host:port or redis://host:port")
	}
	u, err := url.Parse("redis://" + rest)
	if err != nil || (u.Hostname() == "") != (scheme == "unix") {
		return malformed
	}
	db := strings.Trim(u.Path, "/")
	if scheme == "unix" {
		o.Address, db = u.Path, ""
		if n, found := strings.CutPrefix(u.RawQuery, "db="); found {
			db, u.RawQuery = n, ""
		}
		if u.Host != "" || len(u.Path) < 2 || strings.HasSuffix(rest, "?db=") {
			return malformed
		}
	} else {
		o.Address = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "6379"))
		if !isHostPort(o.Address) {
			return errors.New("redis address is not host:port: write for example 127.0.0.1:6379")
		}
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return errors.New("redis URL has a query or a fragment: write its settings as options of redis instead")
	}
	if db != "" {
		n, err := strconv.ParseUint(db, 10, 31)
		if err != nil {
			return malformed
		}
		if o.DB == 0 {
			o.DB = int(n)
		}
	}
	if o.Username == "" {
		o.Username = u.User.Username()
	}
	if password, _ := u.User.Password(); o.Password == "" {
		o.Password = password
	}
	if scheme == "rediss" {
		o.TLS.On = true
	}
	return nil
}

// parseHosts parses a list of host:port, in which URLs are not allowed. rule is the beginning of an
// error.
func (o *Options) parseHosts(rule, example string) error {
	all := o.hosts()
	for i, one := range all {
		if all[i] = strings.TrimSpace(one); isHostPort(all[i]) {
			continue
		}
		shown := "one" // it may hold a password
		if !strings.ContainsAny(one, "@/") {
			shown = strconv.Quote(one)
		}
		return fmt.Errorf("%s, and %s is not: write for example %s", rule, shown, example)
	}
	o.Address = strings.Join(all, ",")
	return nil
}

func (o *Options) hosts() []string { return strings.Split(o.Address, ",") }

func isHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	n, notNumber := strconv.ParseUint(port, 10, 16)
	return err == nil && notNumber == nil && n > 0 && host != "" && !strings.ContainsAny(host, "@/, ")
}
