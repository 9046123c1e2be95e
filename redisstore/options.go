package redisstore

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/defaults"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
)

// Options are the address of a Redis and the settings of its connections and keys. Options are
// comparable: stores with equal options can be shared.
type Options struct {
	// Address is a host:port, the absolute path of a unix socket, or a URL: redis://[user[:password]@]host[:port][/db],
	// rediss://… for TLS, or unix://[user[:password]@]/path[?db=number]. With MasterName it is a comma-separated list of the
	// host:port of Sentinels.
	Address string
	// Cluster reports whether the Redis is a Redis Cluster; see [NewCluster]. Address is then a
	// comma-separated list of the host:port of nodes.
	Cluster bool
	// DeclareKeys reports whether each script call names its keys to the cluster. Then each hash slot needs its own call,
	// which costs the nodes several times as much. Without it, servers that deny other calls are detected.
	DeclareKeys bool
	// Username and Password log in to Redis; both may be empty. They take precedence over those of a URL.
	Username, Password string
	// DB is the number of the database (default: that of the URL, else 0). DB takes precedence over the URL.
	DB int
	// MasterName is the Sentinels' name of the Redis to use. It is empty without Sentinels.
	MasterName string
	// SentinelUsername and SentinelPassword log in to the Sentinels.
	SentinelUsername, SentinelPassword string
	// TLS has the settings of encrypted connections, also to Sentinels. The zero value stands for plain connections.
	TLS TLS
	// KeyPrefix starts the name of every key (default caddy_rl).
	KeyPrefix string
	// HashKeys is a secret. If it is not empty, keys are stored in the form that [HashedKey] returns.
	HashKeys string
	// Timeout is how long a message may take until its reply, including a new connection (default
	// 100 ms). Before that, a take may wait in the queue for up to [MaxQueued], or the timeout if that is longer.
	Timeout time.Duration
	// Batch is how many requests share one script call at most (default 128). Requests that would
	// have to wait for the call's reply don't count. Below 0, each request has its own call.
	Batch int
	// DialTimeout is how long a new connection may take (default 1 s).
	DialTimeout time.Duration
	// SlotExpiry is how long an instance's count of slots lives after the instance has set it (default 30 s).
	SlotExpiry time.Duration
	// Dialer opens connections, without their encryption (default: a [net.Dialer]). Its type must be comparable.
	Dialer Dialer

	maxInFlight int // replaces the constant of that name, unless it is 0; only tests set it
}

// Defaults of the fields of [Options].
const (
	DefaultKeyPrefix = "caddy_rl"
	DefaultBatch     = 128
)

// Normalized returns the options with defaults filled in and a URL taken apart, so that equal
// settings are equal values. No error holds a secret, not even in the text of a parser.
func (o Options) Normalized() (Options, error) {
	o.KeyPrefix = cmp.Or(o.KeyPrefix, DefaultKeyPrefix)
	o.Timeout = cmp.Or(o.Timeout, defaults.Timeout)
	o.DialTimeout = cmp.Or(o.DialTimeout, defaults.DialTimeout)
	o.Batch = cmp.Or(o.Batch, DefaultBatch)
	o.SlotExpiry = cmp.Or(o.SlotExpiry, DefaultSlotExpiry)
	for _, c := range []byte(o.KeyPrefix) {
		if c < ' ' || c > '~' || c == '{' || c == '}' {
			return o, fmt.Errorf("key_prefix %q holds %q: write printable ASCII without braces", o.KeyPrefix, c)
		}
	}
	if o.Timeout < 0 || o.DialTimeout < 0 {
		return o, errors.New("timeout and dial_timeout must be above 0: write a duration such as 100ms")
	}
	if o.DB < 0 || o.DB > math.MaxInt32 {
		return o, fmt.Errorf("db must be from 0 to %d, not %d: write the number of a database", math.MaxInt32, o.DB)
	}
	if o.MasterName == "" && (o.SentinelUsername != "" || o.SentinelPassword != "") {
		return o, errors.New("sentinel_username and sentinel_password need master_name: write the name by which the Sentinels know the primary")
	}
	if o.SentinelUsername != "" && o.SentinelPassword == "" {
		return o, errors.New("sentinel_username needs a password: " +
			"write sentinel_password {env.SENTINEL_PASSWORD}, or leave sentinel_username out")
	}
	if o.Cluster && (o.MasterName != "" || o.DB != 0) {
		return o, errors.New("cluster can't be combined with master_name or db: leave those out")
	}
	if o.DeclareKeys && !o.Cluster {
		return o, errors.New("declare_keys is for a cluster: write cluster, or leave out declare_keys")
	}
	if o.TLS != (TLS{}) {
		o.TLS.On = true
	}
	if err := o.parseAddress(); err != nil {
		return o, err
	}
	if o.Username != "" && o.Password == "" { // the client would not log in at all, and so be the user default
		return o, errors.New("username needs a password: write password {env.REDIS_PASSWORD}, or leave username out")
	}
	return o, nil
}

func (o Options) names() wire.Names { return wire.Names{Prefix: o.KeyPrefix, Secret: o.HashKeys} }

// HashedKey returns the form of a key that must not be stored or shown: its HMAC-SHA256 with a
// secret. A mark distinguishes this form from every key.
func HashedKey(secret, key string) string { return wire.HashedKey(secret, key) }

// TLS has the settings of encrypted connections. The zero value stands for plain connections. The
// fields hold the contents of files, not their names: a changed file is another setting.
type TLS struct {
	// On turns encryption on. Any other setting turns it on, too.
	On bool
	// CA holds the accepted certificate authorities in PEM form (default: those of the system).
	CA string
	// Cert and Key are the client certificate and its key in PEM form (default: none).
	Cert, Key string
	// ServerName is the name that the certificate of Redis must have (default: the host of the address).
	ServerName string
	// InsecureSkipVerify accepts any certificate.
	InsecureSkipVerify bool
}

// Config returns the settings for crypto/tls, or nil for plain connections. No error holds a certificate or a key.
func (t TLS) Config() (*tls.Config, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	config := &tls.Config{ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify, MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(t.CA)) {
			return nil, errors.New("tls: ca holds no certificate in PEM form")
		}
	}
	if t.Cert != "" || t.Key != "" {
		pair, err := tls.X509KeyPair([]byte(t.Cert), []byte(t.Key))
		if err != nil {
			return nil, fmt.Errorf("tls: cert and key are not a pair in PEM form: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// displayAddress returns the address without secrets: host:port, a path, or the name of a primary and its Sentinels.
func (o Options) displayAddress() string {
	switch {
	case o.MasterName != "":
		return fmt.Sprintf("%q by sentinels %s", o.MasterName, o.Address)
	case o.Cluster:
		return "cluster " + o.Address
	}
	return o.Address
}

// identity returns a text that is equal for options with the same budgets, without secrets.
func (o Options) identity() string {
	text := fmt.Sprintf("redis %s db %d key_prefix %q", o.displayAddress(), o.DB, o.KeyPrefix)
	if o.HashKeys != "" {
		text += " with hashed keys " + HashedKey(o.HashKeys, "")[:8]
	}
	return text
}
