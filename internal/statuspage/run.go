// Package statuspage serves a page that shows what the zones of running Caddys do, and that changes
// single keys. The page runs in a browser on the operator's machine. Its server listens only there,
// and relays the page's requests to Caddy's admin endpoints. It never relays any other request.
package statuspage

import "context"

// Run serves the page at a loopback address, such as localhost:0, until ctx is done. It calls started
// with the address of the page, which has a secret token. The page is about the Caddys with these
// admin endpoints.
func Run(ctx context.Context, listen string, admins []string, started func(url string) error) error {
	s, err := newServer(listen, admins)
	if err != nil {
		return err
	}
	if err := started(s.url()); err != nil {
		_ = s.listener.Close()
		return err
	}
	return s.serve(ctx)
}
