// Command bench measures how many requests a second Caddy answers with the rate
// limiter in front, as a part of how many it answers without it, in one run on
// one machine: configurations take turns, each turn is compared with the
// reference's turn of the same round, and the median of these ratios counts.
// Absolute numbers say little, since the load comes from the same machine.
//
// It starts Caddy from this checkout, and redis-server if it is installed.
//
// With -grow it measures latency and the memory of a key instead, as the keys in memory grow
// in number and length. Linux only.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

var (
	rounds   = flag.Int("rounds", 15, "how often each configuration takes its turn")
	duration = flag.Duration("duration", time.Second, "how long a turn lasts")
	keys     = flag.Int("keys", 100_000, "how many keys the requests are spread over")
	growing  = flag.Bool("grow", false, "measure latency and memory as the keys in memory grow")
	binary   = flag.String("caddy", "", "a Caddy to measure instead of one from this checkout")
)

// setup is one configuration under load.
type setup struct {
	name        string
	directive   string // the rate_limit directive
	options     string // further global options
	keys        int
	connections int
	reference   string // the name of the setup it is compared with
	status      string // what responses must be

	addr  string
	pid   int
	rates []float64
}

const limitByKey = "rate_limit {\n\tzone bench {\n\t\tkey {header.X-Key}\n\t\ttoken_bucket 1000000 1s\n\t}\n%s}\n"

const denied = "rate_limit {\n\tzone bench {\n\t\tkey {header.X-Key}\n\t\tgcra 1 365d\n\t}\n%s}\n"

func main() {
	log.SetFlags(0)
	flag.Parse()
	if err := run(); err != nil {
		log.Fatal("bench: ", err)
	}
}

func run() error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	caddy := *binary
	if caddy == "" {
		caddy = filepath.Join(dir, "caddy")
		build := exec.Command("go", "build", "-o", caddy, "./cmd/caddy")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return err
		}
	}
	if *growing {
		return grow(caddy, dir)
	}

	setups := []*setup{
		{name: "no limiter, 64", connections: 64, keys: *keys, status: "200"},
		{name: "memory, 64", directive: fmt.Sprintf(limitByKey, ""), connections: 64, keys: *keys, reference: "no limiter, 64", status: "200"},
		{
			name: "memory, no fields, 64", directive: fmt.Sprintf(limitByKey, "\theaders off\n"),
			connections: 64, keys: *keys, reference: "no limiter, 64", status: "200",
		},
		{
			name:        "memory, denied, 64",
			directive:   fmt.Sprintf(denied, ""),
			connections: 64, keys: 1, reference: "no limiter, 64", status: "429",
		},
	}
	if path, err := exec.LookPath("redis-server"); err == nil {
		redis, _, stop, err := start(path, func(addr string) []string {
			_, port, _ := net.SplitHostPort(addr)
			return []string{"--port", port, "--save", "", "--dir", dir}
		}, nil)
		if err != nil {
			return err
		}
		defer stop()
		option := "\tredis " + redis + " {\n\t\ttimeout 10s\n\t}\n"
		directive := fmt.Sprintf(limitByKey, option)
		setups = append(setups,
			&setup{name: "redis, 64", directive: directive, connections: 64, keys: *keys, reference: "no limiter, 64", status: "200"},
			&setup{name: "redis, denied, 64", directive: fmt.Sprintf(denied, option), connections: 64, keys: 1, reference: "no limiter, 64", status: "429"},
			&setup{name: "no limiter, 256", connections: 256, keys: *keys, status: "200"},
			&setup{name: "redis, 256", directive: directive, connections: 256, keys: *keys, reference: "no limiter, 256", status: "200"},
		)
	} else {
		log.Print("redis-server is not installed: without Redis")
	}

	for _, s := range setups {
		stop, err := s.start(caddy, dir)
		if err != nil {
			return err
		}
		defer stop()
	}
	for round := range *rounds + 1 {
		for _, s := range setups {
			rate, err := s.load()
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if round > 0 { // the first one warms up
				s.rates = append(s.rates, rate)
			}
		}
	}
	report(setups)
	return nil
}

func report(setups []*setup) {
	byName := make(map[string]*setup)
	fmt.Printf("%-24s %12s %8s %20s\n", "setup, connections", "requests/s", "ratio", "quartiles of ratio")
	for _, s := range setups {
		byName[s.name] = s
		fmt.Printf("%-24s %12.0f", s.name, quantile(s.rates, 2))
		if reference := byName[s.reference]; reference != nil {
			var ratios []float64
			for i := range s.rates {
				ratios = append(ratios, s.rates[i]/reference.rates[i])
			}
			fmt.Printf(" %8.2f %13.2f to %.2f", quantile(ratios, 2), quantile(ratios, 1), quantile(ratios, 3))
		}
		fmt.Println()
	}
}

// quantile returns the quarter-th quartile; the second one is the median.
func quantile(values []float64, quarter int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)*quarter/4]
}

// start starts a server on a free port and waits until it listens.
func start(path string, args func(addr string) []string, env []string) (addr string, pid int, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", 0, nil, err
	}
	addr = l.Addr().String()
	_ = l.Close()
	process := exec.Command(path, args(addr)...)
	process.Env = append(os.Environ(), env...)
	var output bytes.Buffer
	process.Stdout, process.Stderr = &output, &output
	if err := process.Start(); err != nil {
		return "", 0, nil, err
	}
	stop = func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	}
	for range 500 {
		if conn, err := net.Dial("tcp", addr); err == nil {
			_ = conn.Close()
			return addr, process.Process.Pid, stop, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	return "", 0, nil, fmt.Errorf("%s does not listen: %s", path, output.String())
}

func (s *setup) start(caddy, dir string) (stop func(), err error) {
	file := filepath.Join(dir, "Caddyfile")
	s.addr, s.pid, stop, err = start(caddy, func(addr string) []string {
		config := fmt.Sprintf("{\n\tadmin off\n\tlog {\n\t\tlevel ERROR\n\t}\n%s}\nhttp://%s {\n%srespond ok\n}\n", s.options, addr, s.directive)
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			log.Print(err)
		}
		return []string{"run", "--config", file}
	}, []string{"HOME=" + dir, "XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir})
	return stop, err
}

// load sends requests over all connections for a while and returns how many were
// answered per second.
func (s *setup) load() (float64, error) {
	var answered atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, s.connections)
	began := time.Now()
	deadline := began.Add(*duration)
	for i := range s.connections {
		wg.Go(func() {
			n, err := s.connection(i, deadline)
			answered.Add(n)
			if err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	select {
	case err := <-errs:
		return 0, err
	default:
		return float64(answered.Load()) / took.Seconds(), nil
	}
}

// connection sends one request after another. It reads just enough of HTTP to
// leave the processor to the server.
func (s *setup) connection(i int, deadline time.Time) (answered int64, err error) {
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	var request []byte
	for n := i; time.Now().Before(deadline); n += s.connections {
		request = append(request[:0], "GET / HTTP/1.1\r\nHost: "...)
		request = append(request, s.addr...)
		request = append(request, "\r\nX-Key: key-"...)
		request = strconv.AppendInt(request, int64(n%s.keys), 10)
		request = append(request, "\r\n\r\n"...)
		if _, err := conn.Write(request); err != nil {
			return answered, err
		}
		status, err := readResponse(in)
		if err != nil {
			return answered, err
		}
		if status != s.status && answered > 0 { // the first one of a key is always allowed
			return answered, fmt.Errorf("status %s, want %s", status, s.status)
		}
		answered++
	}
	return answered, nil
}

func readResponse(in *bufio.Reader) (status string, err error) {
	length := 0
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return "", err
		}
		switch {
		case first:
			if len(line) < 12 {
				return "", errors.New("no status line")
			}
			status = string(line[9:12])
		case len(line) <= 2:
			_, err := in.Discard(length)
			return status, err
		case bytes.HasPrefix(line, []byte("Content-Length: ")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[16:]))); err != nil {
				return "", err
			}
		}
		if err == io.EOF {
			return "", err
		}
	}
}
