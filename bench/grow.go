package main

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// growth is the cost of a number of keys in memory.
type growth struct {
	setup
	keyBytes int
	before   int64 // resident bytes without keys
	grown    int64 // resident bytes with them
	took     []time.Duration
}

const growthLimit = "rate_limit {\n\tzone bench {\n\t\tkey {header.X-Key}\n\t\tfixed_window 1000000 24h\n\t}\n}\n"

// grow measures latency under full load and the memory of a key, as the number and the
// length of keys in memory grow.
func grow(caddy, dir string) error {
	growths := []*growth{
		{setup: setup{keys: 20_000}, keyBytes: 12_000},
		{setup: setup{keys: 10_000}, keyBytes: 12},
		{setup: setup{keys: 1_000_000}, keyBytes: 12},
		{setup: setup{keys: 5_000_000}, keyBytes: 12},
	}
	for _, g := range growths {
		g.connections, g.directive, g.status = 64, growthLimit, "200"
		g.options = "\trate_limit {\n\t\tmemory {\n\t\t\tmax_keys 10000000\n\t\t}\n\t}\n"
		stop, err := g.start(caddy, dir)
		if err != nil {
			return err
		}
		if err := g.measure(); err != nil {
			stop()
			return err
		}
		stop() // at once, so that the next server has the machine for itself
	}
	fmt.Printf("%9s %9s %10s %9s %9s %9s %9s %8s %9s\n",
		"keys", "of bytes", "requests/s", "median", "p99", "p99.9", "longest", "RSS", "RSS/key")
	for _, g := range growths {
		slices.Sort(g.took)
		at := func(part float64) time.Duration {
			return g.took[int(part*float64(len(g.took)-1))].Round(10 * time.Microsecond)
		}
		fmt.Printf("%9d %9d %10.0f %9v %9v %9v %9v %5d MB %7d B\n", g.keys, g.keyBytes, quantile(g.rates, 2),
			at(0.5), at(0.99), at(0.999), at(1), g.grown/1_000_000, (g.grown-g.before)/int64(g.keys))
	}
	return nil
}

// measure sends a request for each key, and then measures requests for random keys.
func (g *growth) measure() error {
	err := g.each(func(i int, conn net.Conn) error { return g.fill(conn, 0, 100) }) // warms up
	if err == nil {
		g.before, err = g.resident()
	}
	if err == nil {
		part := (g.keys + g.connections - 1) / g.connections
		err = g.each(func(i int, conn net.Conn) error { return g.fill(conn, i*part, min((i+1)*part, g.keys)) })
	}
	if err == nil {
		g.grown, err = g.resident()
	}
	if err != nil {
		return fmt.Errorf("%d keys: %w", g.keys, err)
	}
	for range *rounds {
		var mu sync.Mutex
		var answered int
		began := time.Now()
		err := g.each(func(i int, conn net.Conn) error {
			took, err := g.time(conn, began.Add(*duration))
			mu.Lock()
			defer mu.Unlock()
			answered += len(took)
			g.took = append(g.took, took...)
			return err
		})
		if err != nil {
			return fmt.Errorf("%d keys: %w", g.keys, err)
		}
		g.rates = append(g.rates, float64(answered)/time.Since(began).Seconds())
	}
	return nil
}

// each calls f with all connections in parallel, and returns the first error of them.
func (g *growth) each(f func(i int, conn net.Conn) error) error {
	errs := make([]error, g.connections)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			conn, err := net.Dial("tcp", g.addr)
			if err == nil {
				defer conn.Close()
				err = f(i, conn)
			}
			errs[i] = err
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (g *growth) appendRequest(b []byte, key int) []byte {
	b = append(b, "GET / HTTP/1.1\r\nHost: "...)
	b = append(b, g.addr...)
	b = append(b, "\r\nX-Key: "...)
	digits := strconv.Itoa(key)
	b = append(b, bytes.Repeat([]byte{'k'}, g.keyBytes-len(digits))...)
	b = append(b, digits...)
	return append(b, "\r\n\r\n"...)
}

// fill sends requests for the keys from first to before last, several at a time.
func (g *growth) fill(conn net.Conn, first, last int) error {
	in := bufio.NewReader(conn)
	for at := first; at < last; {
		var requests []byte
		some := min(last-at, max(1, 10_000/g.keyBytes))
		for range some {
			requests = g.appendRequest(requests, at)
			at++
		}
		if _, err := conn.Write(requests); err != nil {
			return err
		}
		for range some {
			if err := g.answer(in); err != nil {
				return err
			}
		}
	}
	return nil
}

// answer reads one response.
func (g *growth) answer(in *bufio.Reader) error {
	status, err := readResponse(in)
	if err == nil && status != g.status {
		err = fmt.Errorf("status %s, want %s", status, g.status)
	}
	return err
}

// time sends one request after another until the deadline, and returns how long each took.
func (g *growth) time(conn net.Conn, deadline time.Time) (took []time.Duration, err error) {
	in := bufio.NewReader(conn)
	var request []byte
	for began := time.Now(); began.Before(deadline); began = time.Now() {
		request = g.appendRequest(request[:0], rand.IntN(g.keys))
		began = time.Now()
		if _, err := conn.Write(request); err != nil {
			return took, err
		}
		if err := g.answer(in); err != nil {
			return took, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

// resident returns the resident memory of the server, as Linux counts it.
func (g *growth) resident() (int64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(g.pid), "status"))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	kilobytes, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	return kilobytes * 1024, err
}
