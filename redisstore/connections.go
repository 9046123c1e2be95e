package redisstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"runtime"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// TLS are the settings of encrypted connections; the zero value is that of plain
// ones. They hold what is in files, not the names: a file that has changed is
// another setting.
type TLS struct {
	// On turns encryption on, and any other setting does, too.
	On bool
	// CA holds certificates in PEM form, one of which must vouch for that of Redis
	// (default those of the system).
	CA string
	// Cert and Key, in PEM form, are what this client shows of itself (default
	// nothing).
	Cert, Key string
	// ServerName is the name that the certificate of Redis must have (default the
	// host of the address).
	ServerName string
	// InsecureSkipVerify accepts any certificate.
	InsecureSkipVerify bool
}

// Config returns the settings as the standard library has them, or nil for plain
// connections. No error holds any of the texts.
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
			return nil, fmt.Errorf("tls: cert and key are no pair in PEM form: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// poolSize is how many connections there are at most: enough for all script calls
// that may be under way, and for requests that have one each.
func poolSize() int { return max(10*runtime.GOMAXPROCS(0), 2*maxInFlight) }

// client returns what makes clients for these options, which are normal.
func (o Options) client() (func() *redis.Client, error) {
	config, err := o.TLS.Config()
	if err != nil {
		return nil, err
	}
	if o.MasterName == "" {
		return func() *redis.Client {
			return redis.NewClient(&redis.Options{
				Network: o.network(), Addr: o.Address, Username: o.Username, Password: o.Password, DB: o.DB,
				Dialer: dialer(o.DialTimeout, config), DialTimeout: o.DialTimeout, PoolSize: poolSize(),
				// Take has a deadline of its own, which comes first.
				ReadTimeout: 2 * o.Timeout, WriteTimeout: 2 * o.Timeout, PoolTimeout: 2 * o.Timeout,
				ContextTimeoutEnabled: true,
				// A command that charges is never sent twice: see [noRetryCmd].
				MaxRetries:               -1,
				DialerRetries:            1, // the next request is the next try
				DisableIdentity:          true,
				MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			})
		}, nil
	}
	return func() *redis.Client { // with the settings above; it has no maintenance notifications
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: o.MasterName, SentinelAddrs: o.hosts(), SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword,
			Username: o.Username, Password: o.Password, DB: o.DB,
			Dialer: dialer(o.DialTimeout, config), DialTimeout: o.DialTimeout, PoolSize: poolSize(),
			ReadTimeout: 2 * o.Timeout, WriteTimeout: 2 * o.Timeout, PoolTimeout: 2 * o.Timeout,
			ContextTimeoutEnabled: true,
			MaxRetries:            -1,
			DialerRetries:         1,
			DisableIdentity:       true,
		})
	}, nil
}

// address says where the Redis is, without secrets: host:port, a path, or a name
// and the Sentinels that know it.
func (o Options) address() string {
	switch {
	case o.MasterName != "":
		return fmt.Sprintf("%q by sentinels %s", o.MasterName, o.Address)
	case o.Cluster:
		return "cluster " + o.Address
	}
	return o.Address
}

// identity says whose budgets these are, without secrets.
func (o Options) identity() string {
	text := fmt.Sprintf("redis %s db %d key_prefix %q", o.address(), o.DB, o.KeyPrefix)
	if o.HashKeys != "" {
		text += " with hashed keys " + HashedKey(o.HashKeys, "")[:8]
	}
	return text
}

// Address says where the Redis is, without secrets.
func (s *Store) Address() string { return s.options.address() }

// String says whose budgets these are, without secrets.
func (s *Store) String() string { return s.options.identity() }

// connections are those of one client, which closes when nobody uses it any more
// and nobody will.
type connections struct {
	*redis.Client
	inUse   int
	retired bool
}

// acquire returns the connections, which stay open until release.
func (s *Store) acquire() *connections {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		s.conns = &connections{Client: s.dial()}
	}
	s.conns.inUse++
	return s.conns
}

func (s *Store) release(c *connections) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.inUse--
	s.closeIdleLocked(c)
}

// reconnect lets whoever comes next have new connections, unless that has happened
// already: then a name is resolved again, and a Sentinel asked who is master.
func (s *Store) reconnect(c *connections) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.retired = true
	if s.conns == c {
		s.conns = nil
	}
	s.closeIdleLocked(c)
}

// Close closes the connections once no Take is under way.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.conns != nil {
		s.closeIdleLocked(s.conns)
	}
	return nil
}

func (s *Store) closeIdleLocked(c *connections) {
	if !s.closed && !c.retired || c.inUse > 0 {
		return
	}
	if s.conns == c {
		s.conns = nil
	}
	go c.Client.Close() // it may wait for a dial, and requests for the mutex
}
