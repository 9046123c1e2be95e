package routes

import (
	"testing"

	"github.com/caddyserver/caddy/v2"
)

func TestMatchAddress(t *testing.T) {
	for _, test := range []struct {
		address, host string
		port          uint
		want          AddressMatch
	}{
		{":8000-8002", "a.example", 7999, noAddress},
		{":8000-8002", "a.example", 8000, AnyHost},
		{":8000-8002", "a.example", 8002, AnyHost},
		{":8000-8002", "a.example", 8003, noAddress},
		{":80", "a.example", 80, AnyHost},
		{"0.0.0.0:80", "a.example", 80, AnyHost},
		{"[::]:80", "a.example", 80, AnyHost},
		{"A.example:80", "a.example", 80, SameHost},
		{"b.example:80", "a.example", 80, otherHost},
		{"b.example:80", "a.example", 81, noAddress},
		{"unix//run/caddy.sock", "a.example", 80, PortlessAddress},
		{"fd/3", "a.example", 80, PortlessAddress},
	} {
		address, err := caddy.ParseNetworkAddress(test.address)
		if err != nil {
			t.Fatal(err)
		}
		if got := MatchAddress(address, test.host, test.port); got != test.want {
			t.Errorf("%s for %s:%d: %d, want %d", test.address, test.host, test.port, got, test.want)
		}
	}
}
