package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Certificates has the paths of PEM files in one directory: ca.pem is an authority, and cert.pem with key.pem
// is a certificate signed by the authority. The certificate is for servers and clients, at 127.0.0.1 and
// redis.internal.
type Certificates struct {
	CA, Cert, Key string
}

// NewCertificates creates an authority and a certificate.
func NewCertificates(t testing.TB) Certificates {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	write := func(name, kind string, content []byte) string {
		file := filepath.Join(dir, name)
		must(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600))
		return file
	}
	template := func(n int64, name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(n), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			BasicConstraintsValid: true,
		}
	}
	authority, leaf := template(1, "a test's authority"), template(2, "a test's Redis")
	authority.IsCA, authority.KeyUsage = true, x509.KeyUsageCertSign
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	leaf.IPAddresses, leaf.DNSNames = []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"redis.internal"}

	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	ca, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	must(err)
	cert, err := x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), authorityKey)
	must(err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	return Certificates{
		CA: write("ca.pem", "CERTIFICATE", ca), Cert: write("cert.pem", "CERTIFICATE", cert), Key: write("key.pem", "PRIVATE KEY", secret),
	}
}

// Config returns the settings of a client with the certificate.
func (c Certificates) Config(t testing.TB) *tls.Config {
	t.Helper()
	ca, err := os.ReadFile(c.CA)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{pair}}
	config.RootCAs.AppendCertsFromPEM(ca)
	return config
}

// StartTLS starts a Redis that accepts only TLS, from clients with a certificate of the same authority.
func StartTLS(t testing.TB, c Certificates, args ...string) *Server {
	t.Helper()
	for range 5 {
		port := FreePort(t)
		s := &Server{Addr: net.JoinHostPort("127.0.0.1", port)}
		s.args = serverArgs(t.TempDir(), args, "--port", "0", "--tls-port", port,
			"--tls-ca-cert-file", c.CA, "--tls-cert-file", c.Cert, "--tls-key-file", c.Key, "--tls-auth-clients", "yes")
		if s.start(t, &redis.Options{Addr: s.Addr, TLSConfig: c.Config(t)}) {
			return s
		}
	}
	t.Fatal("redis-server did not start")
	return nil
}
