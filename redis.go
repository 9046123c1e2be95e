package ratelimit

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// Redis is the configuration of the Redis that keeps the budgets. All strings may have the
// placeholders {env.NAME} and {file./absolute/path}, which keep secrets out of the configuration.
type Redis struct {
	// One host:port, the absolute path of a unix socket, or a URL. URLs have the form
	// redis://[user[:password]@]host[:port][/db], the same with rediss:// for TLS, or
	// unix://[user[:password]@]/path[?db=number]. With master_name: one or more host:port of
	// Sentinels. With cluster: one or more host:port of nodes. An address is required.
	Address []string `json:"address,omitempty"`

	// The user to log in as. It needs a password (default: the URL's, or none).
	Username string `json:"username,omitempty"`

	// The password to log in with (default: the URL's, or none).
	Password string `json:"password,omitempty"`

	// The number of the database (default: the URL's, or 0).
	DB int `json:"db,omitempty"`

	// Connect to a Redis Cluster. The module learns the other nodes from the first node that
	// replies. db must be 0 (default false).
	Cluster bool `json:"cluster,omitempty"`

	// In a cluster, name the keys of each script call to Redis. Then each hash slot needs its own call, and a cluster of
	// three nodes carries about as much as one Redis (default: only with servers that deny other calls).
	DeclareKeys bool `json:"declare_keys,omitempty"`

	// The name that Sentinels have for the primary. The module asks the Sentinels for the address
	// of the primary when it connects, and after the primary has failed (default: no Sentinels).
	MasterName string `json:"master_name,omitempty"`

	// The user to log in to Sentinels as. It needs a password (default: none).
	SentinelUsername string `json:"sentinel_username,omitempty"`

	// The password to log in to Sentinels with (default: none).
	SentinelPassword string `json:"sentinel_password,omitempty"`

	// Use TLS for all connections, also to Sentinels (default: TLS only for a rediss:// URL).
	TLS *RedisTLS `json:"tls,omitempty"`

	// The prefix of every key in Redis: printable ASCII without braces (default caddy_rl).
	KeyPrefix string `json:"key_prefix,omitempty"`

	// A secret. With a secret, keys are stored and logged as their HMAC, because keys can be
	// addresses or API keys. Then client addresses are not logged. If you change the secret, all
	// budgets start again (default: keys are stored as they are).
	HashKeys *string `json:"hash_keys,omitempty"`

	// The maximum number of requests that share one script call, 1 to 1000. Fewer requests share a
	// call if their limits take long to decide. More requests of one key share a call that also
	// gives back charges or slots of this key. With 0 each request has its own call (default 128).
	Batch *int `json:"batch,omitempty"`

	// The longest time to wait for a reply of Redis, including the time for a new connection; at
	// least 1ms. After this time on_store_error decides. Above 5s Caddy warns, because requests can
	// wait for twice this time (default 100ms).
	Timeout caddy.Duration `json:"timeout,omitempty" zero:"100ms"`

	// The longest time to wait for a new connection; at least 1ms (default 1s).
	DialTimeout caddy.Duration `json:"dial_timeout,omitempty" zero:"1s"`
}

// RedisTLS is the configuration of TLS connections. Files are read when the configuration is
// loaded, so reload the configuration when the files have changed. Instead of the path of a file, a
// placeholder can give the content in PEM form.
type RedisTLS struct {
	// A file of CA certificates in PEM form. One of them must have signed the certificate of
	// Redis (default: the CAs that this system trusts).
	CA string `json:"ca,omitempty"`

	// A file with the certificate that Caddy shows to Redis, and its intermediate
	// certificates, in PEM form (default: none).
	Cert string `json:"cert,omitempty"`

	// A file with the private key of cert, in PEM form. It is required with cert (default: none).
	Key string `json:"key,omitempty"`

	// The name that the certificate of Redis must have (default: the host of address).
	ServerName string `json:"server_name,omitempty"`

	// Accept any certificate. Then anybody who can redirect the connection can read and change
	// all data (default false).
	InsecureSkipVerify bool `json:"insecure_skip_verify,omitempty"`
}

// check checks everything that is known before placeholders are expanded.
func (c *Redis) check() error {
	switch {
	case c.MasterName != "" && len(c.Address) == 0:
		return errors.New("redis with master_name takes the addresses of Sentinels: " +
			"write for example redis 10.0.0.1:26379 10.0.0.2:26379 10.0.0.3:26379")
	case len(c.Address) == 0:
		return errors.New("redis takes an address: write for example redis 127.0.0.1:6379 " +
			"({$NAME} is empty if this environment variable is not set)")
	case c.MasterName == "" && !c.Cluster && len(c.Address) > 1:
		return fmt.Errorf("redis takes one address, not %d: write for example redis 127.0.0.1:6379, and options in its block; "+
			"if these are nodes of a cluster, write cluster in its block, and if they are Sentinels, master_name mymaster", len(c.Address))
	}
	if c.TLS != nil && (c.TLS.Cert == "") != (c.TLS.Key == "") {
		return errors.New("cert and key of tls go together: write both, or leave out both")
	}
	if err := checkSet(c.blockOptions()); err != nil {
		return err
	}
	o := c.unexpandedOptions()
	if strings.Contains(o.Address, "{") {
		o.Address, o.Password = "unknown:1", cmp.Or(o.Password, "unknown") // a URL can have the password
	}
	if strings.Contains(o.KeyPrefix, "{") {
		o.KeyPrefix = ""
	}
	_, err := o.Normalized()
	return err
}

func checkBatch(n *int) error { return options.Within(0, 1000)(*n) }

// checkHashKeys returns an error for an empty secret, because it would store keys as they are.
func checkHashKeys(secret *string) error {
	if strings.TrimSpace(*secret) == "" {
		return errors.New("the secret of hash_keys is empty: " +
			"write for example {env.RATE_LIMIT_SECRET}, or leave out hash_keys to store keys as they are")
	}
	return nil
}

// longTimeout is the longest timeout without a warning.
const longTimeout = 5 * time.Second

// warnOfConnection warns about connections that others can read or change, and about a timeout that lets requests wait.
func warnOfConnection(o redisstore.Options, logger *zap.Logger) {
	if o.Timeout > longTimeout {
		logger.Warn("timeout of redis is long: when Redis hangs, requests can wait twice as long; write at most 5s",
			zap.String("address", o.Address), zap.Duration("timeout", o.Timeout))
	}
	if o.TLS.InsecureSkipVerify {
		logger.Warn("insecure_skip_verify accepts any certificate, so anyone between Caddy and Redis can read and change everything: "+
			"write ca and a file of certificates instead",
			zap.String("address", o.Address))
	}
	if (o.Password != "" || o.SentinelPassword != "") && !o.TLS.On && slices.ContainsFunc(strings.Split(o.Address, ","), isRemote) {
		logger.Warn("the password of Redis goes to another host unencrypted: write tls in the redis block",
			zap.String("address", o.Address))
	}
}

// withAdvice adds to the failure of a Redis how to find and give a missing permission. prefix starts the names of
// the keys. Other failures, and nil, stay as they are.
func withAdvice(failure error, prefix string) error {
	if failure == nil || !strings.Contains(failure.Error(), "NOPERM") && !strings.Contains(failure.Error(), "can't run this command") {
		return failure
	}
	return fmt.Errorf("%w; run ACL LOG as an administrator: the user needs ~%s:* and the commands in docs/redis.md", failure, prefix)
}

// isRemote reports whether an address is neither this host nor a unix socket.
func isRemote(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "localhost" {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return err != nil || !addr.Unmap().IsLoopback()
}

// unexpandedOptions returns the options with their placeholders, and without the content of files.
func (c *Redis) unexpandedOptions() redisstore.Options {
	o := redisstore.Options{
		Address: strings.Join(c.Address, ","), Username: c.Username, Password: c.Password, DB: c.DB, KeyPrefix: c.KeyPrefix,
		Cluster: c.Cluster, DeclareKeys: c.DeclareKeys,
		MasterName: c.MasterName, SentinelUsername: c.SentinelUsername, SentinelPassword: c.SentinelPassword,
		Timeout: time.Duration(c.Timeout), DialTimeout: time.Duration(c.DialTimeout),
	}
	if c.HashKeys != nil {
		o.HashKeys = *c.HashKeys
	}
	if c.Batch != nil {
		o.Batch = *c.Batch
		if o.Batch == 0 {
			o.Batch = -1
		}
	}
	if c.TLS != nil {
		o.TLS = redisstore.TLS{On: true, ServerName: c.TLS.ServerName, InsecureSkipVerify: c.TLS.InsecureSkipVerify}
	}
	return o
}

// expandedOptions returns the options with their placeholders expanded, and with the content of files.
func (c *Redis) expandedOptions(logger *zap.Logger) (redisstore.Options, error) {
	if err := c.check(); err != nil {
		return redisstore.Options{}, err
	}
	o := c.unexpandedOptions()
	if isLiteral(c.Password) || isLiteral(c.SentinelPassword) || isLiteral(urlPassword(c.Address[0])) {
		logger.Warn("the password of Redis is readable in the configuration: write {env.NAME} or {file./absolute/path} instead")
	}
	if isLiteral(o.HashKeys) {
		logger.Warn("the secret of hash_keys is readable in the configuration: write {env.NAME} or {file./absolute/path} instead")
	}
	if c.TLS != nil && isPEM(c.TLS.Key) {
		logger.Warn("the private key for Redis is readable in the configuration: write the path of a file instead")
	}
	for _, t := range []struct {
		option string
		value  *string
	}{
		{"address", &o.Address},
		{"username", &o.Username},
		{"password", &o.Password},
		{"key_prefix", &o.KeyPrefix},
		{"hash_keys", &o.HashKeys},
		{"master_name", &o.MasterName},
		{"sentinel_username", &o.SentinelUsername},
		{"sentinel_password", &o.SentinelPassword},
		{"server_name of tls", &o.TLS.ServerName},
	} {
		if err := expandRedisOption(t.option, t.value); err != nil {
			return o, err
		}
	}
	if c.HashKeys != nil {
		if err := checkHashKeys(&o.HashKeys); err != nil {
			return o, err
		}
	}
	if c.TLS == nil {
		return o, nil
	}
	var errs [3]error
	o.TLS.CA, errs[0] = readPEM("ca", c.TLS.CA)
	o.TLS.Cert, errs[1] = readPEM("cert", c.TLS.Cert)
	o.TLS.Key, errs[2] = readPEM("key", c.TLS.Key)
	if err := cmp.Or(errs[:]...); err != nil {
		return o, err
	}
	if _, err := (redisstore.TLS{CA: o.TLS.CA}).Config(); err != nil {
		return o, fmt.Errorf("ca of tls of redis: %s holds no certificate: write a file of certificates in PEM form", quoteTLSOption(c.TLS.CA))
	}
	if _, err := o.TLS.Config(); err != nil {
		return o, fmt.Errorf("cert and key of tls of redis: %s and %s do not belong together: "+
			"write a certificate and its private key in PEM form (%w)", quoteTLSOption(c.TLS.Cert), quoteTLSOption(c.TLS.Key), err)
	}
	return o, nil
}

// expandRedisOption expands the placeholders of an option in place. A placeholder without a value is
// an error.
func expandRedisOption(name string, value *string) error {
	expanded, err := caddy.NewReplacer().ReplaceFunc(*value, func(placeholder string, replacement any) (any, error) {
		if caddy.ToString(replacement) == "" {
			return nil, emptyPlaceholderError(placeholder)
		}
		return replacement, nil
	})
	if err != nil {
		return fmt.Errorf("%s of redis: %w", name, err)
	}
	*value = expanded
	return nil
}

// emptyPlaceholderError returns the error for a placeholder without a value. It doesn't show other
// text in braces, which may be part of a password.
func emptyPlaceholderError(placeholder string) error {
	if variable, ok := strings.CutPrefix(placeholder, "env."); ok {
		return fmt.Errorf("the environment variable %q is not set, or empty: set it where Caddy runs", variable)
	}
	if file, ok := strings.CutPrefix(placeholder, "file."); ok {
		return fmt.Errorf("the file %q can't be read, or is empty: write an absolute path, as in {file./absolute/path}", file)
	}
	return errors.New("it holds a placeholder that is empty or unknown: write {env.NAME} or {file./absolute/path}")
}

// readPEM returns the content of the file that an option of tls names, or the value of its
// placeholder if that is in PEM form. An error shows only the option as it was written, because
// the value of a placeholder may be a private key.
func readPEM(name, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	value := file
	if err := expandRedisOption(name+" of tls", &value); err != nil || isPEM(value) {
		return value, err
	}
	text, err := os.ReadFile(value)
	if failed, ok := errors.AsType[*os.PathError](err); ok {
		err = failed.Err
	}
	if err == nil && !isPEM(string(text)) {
		err = errors.New("it holds nothing in PEM form")
	}
	if err != nil {
		return "", fmt.Errorf("%s of tls of redis: can't use %q: %w; write the path of a file in PEM form", name, file, err)
	}
	return string(text), nil
}

func isPEM(text string) bool { return strings.Contains(text, "-----BEGIN ") }

// quoteTLSOption returns an option of tls in the form that an error may show.
func quoteTLSOption(option string) string {
	if isPEM(option) {
		return "the text there"
	}
	return strconv.Quote(option)
}

// urlPassword returns the password of a URL, even if the URL is malformed.
func urlPassword(address string) string {
	_, rest, _ := strings.Cut(address, "://")
	at := strings.LastIndexByte(rest, '@')
	_, password, _ := strings.Cut(rest[:max(at, 0)], ":")
	return password
}

// isLiteral reports whether a text is not empty and has no placeholders.
func isLiteral(s string) bool { return s != "" && !strings.Contains(s, "{") }

// unmarshalRedis reads redis [<address>...] { <options> }.
func unmarshalRedis(d *caddyfile.Dispenser) (*Redis, error) {
	c := &Redis{Address: d.RemainingArgs()}
	return c, readBlock(d, "redis", c.blockOptions(), c.check)
}

// blockOptions returns the options of the block redis.
func (c *Redis) blockOptions() []options.Option {
	return []options.Option{
		{Name: "address", Example: "127.0.0.1:6379", Read: func(d *caddyfile.Dispenser) error {
			c.Address = append(c.Address, d.RemainingArgs()...)
			return nil
		}},
		options.Single("username", "caddy", &c.Username, options.Text, nil),
		options.Single("password", "{env.REDIS_PASSWORD}", &c.Password, options.Text, nil),
		options.Single("db", "0", &c.DB, options.SmallInteger, nil),
		options.Single("key_prefix", "caddy_rl", &c.KeyPrefix, options.Text, nil),
		options.Single("hash_keys", "{env.RATE_LIMIT_SECRET}", &c.HashKeys, options.Pointer(options.Text), checkHashKeys),
		options.Single("batch", "128", &c.Batch, options.Pointer(options.SmallInteger), checkBatch),
		options.Single("timeout", "100ms", &c.Timeout, options.Duration, options.AtLeast(time.Millisecond)),
		options.Single("dial_timeout", "1s", &c.DialTimeout, options.Duration, options.AtLeast(time.Millisecond)),
		options.Flag("cluster", &c.Cluster),
		options.Flag("declare_keys", &c.DeclareKeys),
		options.Single("master_name", "mymaster", &c.MasterName, options.Text, nil),
		options.Single("sentinel_username", "caddy", &c.SentinelUsername, options.Text, nil),
		options.Single("sentinel_password", "{env.SENTINEL_PASSWORD}", &c.SentinelPassword, options.Text, nil),
		options.Made("tls", "", &c.TLS, func(d *caddyfile.Dispenser) (*RedisTLS, error) {
			t := new(RedisTLS)
			return t, readBlock(d, "tls", t.blockOptions(), nil)
		}, nil),
	}
}

// blockOptions returns the options of the block tls.
func (c *RedisTLS) blockOptions() []options.Option {
	return []options.Option{
		options.Single("ca", "/etc/redis/ca.pem", &c.CA, options.Text, nil),
		options.Single("cert", "/etc/redis/client.pem", &c.Cert, options.Text, nil),
		options.Single("key", "/etc/redis/client.key", &c.Key, options.Text, nil),
		options.Single("server_name", "redis.internal", &c.ServerName, options.Text, nil),
		options.Flag("insecure_skip_verify", &c.InsecureSkipVerify),
	}
}

// simulatedSecret returns the secret of hash_keys for a simulation; empty without the option. If the secret is not
// known to this process, operators see keys as HMACs with a random secret.
func (c *Redis) simulatedSecret() string {
	if c.HashKeys == nil {
		return ""
	}
	secret := *c.HashKeys
	if err := expandRedisOption("hash_keys", &secret); err != nil || secret == "" {
		return rand.Text()
	}
	return secret
}
