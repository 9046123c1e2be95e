package redisstore

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// parseAddress splits the address into its parts. The errors of a URL parser would repeat the
// password of a malformed URL, so they are not used.
func (o *Options) parseAddress() error {
	switch {
	case o.MasterName != "":
		return o.parseHosts("with master_name each redis address is host:port of a Sentinel",
			"26379", ", and username, password, db and tls as options")
	case o.Cluster:
		return o.parseHosts("with cluster each redis address is host:port of a node",
			"6379", ", and username, password and tls as options")
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
			if publicForm.MatchString(o.Address) {
				shown = fmt.Sprintf(" %q", o.Address)
			}
			return fmt.Errorf("redis address%s is not host:port: write %s", shown, cmp.Or(meantHostPort(o.Address, "6379"), otherForm(o.Address)))
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

// publicForm matches addresses that errors may show, because they hold no password.
var publicForm = regexp.MustCompile(`^[\w.:%,\[\] -]*(/[0-9]*)?$`)

// meantHostPort returns what to write instead of an address that is not host:port, or "" if the
// meaning of the address is not clear.
func meantHostPort(address, port string) string {
	host, db, _ := strings.Cut(address, "/")
	bare := strings.TrimSuffix(strings.TrimSuffix(host, ":"), ":"+port)
	addr, err := netip.ParseAddr(strings.Trim(bare, "[]"))
	switch {
	case !publicForm.MatchString(address):
		return ""
	case err == nil && addr.Is6() && !isHostPort(host):
		host = net.JoinHostPort(addr.String(), port)
	case !strings.Contains(bare, ":") && !isHostPort(host):
		host = bare + ":" + port
	}
	if !isHostPort(host) {
		return ""
	}
	if db != "" {
		host += ", and the option db " + db
	}
	return host
}

// otherForm returns what to write instead of an address that is probably not meant as host:port.
func otherForm(address string) string {
	switch {
	case strings.Contains(address, "@"):
		return "for example 127.0.0.1:6379, and username and password as options"
	case strings.HasSuffix(address, ".sock"):
		return "the absolute path of the socket, such as /run/redis/redis.sock"
	case strings.Contains(address, ","):
		return "one address, or for several the option cluster or master_name"
	}
	return "for example 127.0.0.1:6379"
}

var schemeForm = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+.-]*$`)

// parseURL sets the options that a URL holds. Options that are already set take precedence.
func (o *Options) parseURL(scheme, rest string) error {
	form := scheme + "://[user[:password]@]host[:port][/db]"
	if scheme == "unix" {
		form = "unix://[user[:password]@]/path[?db=number]"
	}
	if scheme != "redis" && scheme != "rediss" && scheme != "unix" {
		shown := ""
		if schemeForm.MatchString(scheme) {
			shown = fmt.Sprintf(", not %q", scheme)
		}
		return fmt.Errorf("redis URL must have the scheme redis, rediss or unix%s: write host:port or redis://host:port", shown)
	}
	malformed := errors.New("redis URL is malformed (not shown, because it may hold a password): write " + form)
	user := rest[:max(strings.LastIndexByte(rest, '@'), 0)]
	if u, err := url.Parse("redis://" + user + "@host"); err != nil || u.Host != "host" {
		malformed = errors.New("redis URL is malformed (not shown, because it may hold a password): " +
			"percent-encode special characters of the password, such as %40 for @, %2F for /, %3F for ?, %23 for # and %25 for %, " +
			"or write username and password as options")
		if scheme != "unix" { // whose path can have an @, too
			return malformed
		}
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
			return errors.New("redis URL needs one host, and a port from 1 to 65535: write for example redis://127.0.0.1:6379")
		}
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return errors.New("redis URL has a query or a fragment: write its settings as options of redis instead")
	}
	if db != "" {
		n, err := strconv.ParseUint(db, 10, 31)
		if err != nil && scheme == "unix" {
			return malformed
		}
		if err != nil {
			return errors.New("the path of a redis URL is the number of a database: write for example redis://127.0.0.1:6379/0")
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

// parseHosts parses a list of host:port, in which URLs are not allowed. An error begins with rule.
// If it shows an example, it ends with options.
func (o *Options) parseHosts(rule, port, options string) error {
	all := o.hosts()
	for i, one := range all {
		if all[i] = strings.TrimSpace(one); isHostPort(all[i]) {
			continue
		}
		shown := "one"
		if publicForm.MatchString(one) {
			shown = strconv.Quote(one)
		}
		return fmt.Errorf("%s, but %s is not: write %s", rule, shown,
			cmp.Or(meantHostPort(all[i], port), "for example 127.0.0.1:"+port+options))
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
