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
	case !strings.HasPrefix(o.Address, "/") && !isHostPort(o.Address):
		return fmt.Errorf("redis address%s is not host:port, with a port from 1 to 65535: write %s, or for a unix socket its absolute path",
			shown(o.Address), meantHostPort(o.Address, "6379"))
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
var publicForm = regexp.MustCompile(`^[\w.:,\[\]-]+$`)

// shown returns the address as errors show it.
func shown(address string) string {
	if publicForm.MatchString(address) {
		return fmt.Sprintf(" %q", address)
	}
	return ""
}

// meantHostPort returns the address with the port, if it lacks only that, and otherwise an example.
func meantHostPort(address, port string) string {
	if addr, err := netip.ParseAddr(address); err == nil && addr.Is6() {
		address = "[" + address + "]"
	}
	if withPort := address + ":" + port; publicForm.MatchString(address) && isHostPort(withPort) {
		return withPort
	}
	return "for example 127.0.0.1:" + port
}

// parseURL sets the options that a URL holds. Options that are already set take precedence.
func (o *Options) parseURL(scheme, rest string) error {
	form := "redis://[user[:password]@]host[:port][/db]"
	switch scheme {
	case "redis", "rediss":
	case "unix":
		form = "unix://[user[:password]@]/path[?db=number]"
	default:
		return errors.New("redis URL must have the scheme redis, rediss or unix: write host:port or " + form)
	}
	malformed := errors.New("redis URL is malformed (not shown, because it may hold a password): write " + form +
		", and percent-encode special characters of the password, such as %40 for @ and %2F for /")
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
	}
	n, err := strconv.ParseUint(cmp.Or(db, "0"), 10, 31)
	if err != nil || u.RawQuery != "" || u.Fragment != "" || scheme != "unix" && !isHostPort(o.Address) {
		return malformed
	}
	o.DB = cmp.Or(o.DB, int(n))
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
		if all[i] = strings.TrimSpace(one); !isHostPort(all[i]) {
			return fmt.Errorf("%s, but%s is not: write %s%s", rule, cmp.Or(shown(one), " one"), meantHostPort(all[i], port), options)
		}
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
