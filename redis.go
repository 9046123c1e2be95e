package ratelimit

import (
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// Redis says which Redis keeps the budgets. All strings may hold {env.NAME} and
// {file./absolute/path}, which keeps secrets out of the configuration.
type Redis struct {
	// One host:port, or one URL redis://[user[:password]@]host[:port][/db].
	Address []string `json:"address,omitempty"`

	// The user to log in as (default: the URL's, or none).
	Username string `json:"username,omitempty"`

	// The password to log in with (default: the URL's, or none).
	Password string `json:"password,omitempty"`

	// The number of the database (default: the URL's, or 0).
	DB int `json:"db,omitempty"`

	// What the name of every key begins with; printable ASCII without braces
	// (default caddy_rl).
	KeyPrefix string `json:"key_prefix,omitempty"`

	// How long a request waits for Redis in all before it is answered with
	// status 503 (default 100ms).
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How long a new connection may take (default 1s).
	DialTimeout caddy.Duration `json:"dial_timeout,omitempty"`
}

// check judges what is known before placeholders are expanded.
func (c *Redis) check() error {
	if len(c.Address) != 1 {
		return fmt.Errorf("redis takes one address, not %d: write for example redis 127.0.0.1:6379", len(c.Address))
	}
	o := c.unexpanded()
	if strings.Contains(o.Address, "{") {
		o.Address = "unknown:1"
	}
	if strings.Contains(o.KeyPrefix, "{") {
		o.KeyPrefix = ""
	}
	_, err := o.Normal()
	return err
}

func (c *Redis) unexpanded() redisstore.Options {
	return redisstore.Options{
		Address: c.Address[0], Username: c.Username, Password: c.Password, DB: c.DB, KeyPrefix: c.KeyPrefix,
		Timeout: time.Duration(c.Timeout), DialTimeout: time.Duration(c.DialTimeout),
	}
}

// options expands the placeholders.
func (c *Redis) options(logger *zap.Logger) (redisstore.Options, error) {
	if err := c.check(); err != nil {
		return redisstore.Options{}, err
	}
	o := c.unexpanded()
	if literal(c.Password) || literal(urlPassword(c.Address[0])) {
		logger.Warn("the password of Redis is readable in the configuration: write {env.NAME} or {file./absolute/path} in its place")
	}
	repl := caddy.NewReplacer()
	for _, s := range []struct {
		name  string
		value *string
	}{{"address", &o.Address}, {"username", &o.Username}, {"password", &o.Password}, {"key_prefix", &o.KeyPrefix}} {
		value, err := repl.ReplaceOrErr(*s.value, true, true)
		if err != nil {
			return o, fmt.Errorf("%s of redis holds a placeholder that is empty or unknown: write {env.NAME} of a variable that is set, or {file./absolute/path} of a file that is not empty", s.name)
		}
		*s.value = value
	}
	return o, nil
}

// urlPassword is what stands where the password of a URL does.
func urlPassword(address string) string {
	_, rest, _ := strings.Cut(address, "://")
	at := strings.LastIndexByte(rest, '@')
	_, password, _ := strings.Cut(rest[:max(at, 0)], ":")
	return password
}

// literal tells whether a text is there and has no placeholders.
func literal(s string) bool { return s != "" && !strings.Contains(s, "{") }
