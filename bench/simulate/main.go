// Command simulate measures caddy rate-limit simulate over a generated log: lines a second, processor time
// and memory. It builds Caddy from this checkout. Linux only.
//
// With -generate it only writes a log to the standard output.
package main

import (
	"compress/gzip"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/logtest"
)

var (
	lines     = flag.Int("lines", 10_000_000, "how many `lines` the log has")
	clients   = flag.Int("clients", 1_500_000, "how many `clients` there are to choose from")
	perSecond = flag.Float64("rate", 2000, "the mean number of requests a second in the log")
	seed      = flag.Uint64("seed", 1, "of the log")
	generate  = flag.Bool("generate", false, "only write the log to the standard output")
	caddy     = flag.String("caddy", "", "a Caddy `program` to measure instead of one from this checkout")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	if err := run(); err != nil {
		log.Fatal("simulate: ", err)
	}
}

func options() logtest.Options {
	return logtest.Options{Seed: *seed, Requests: *lines, Clients: *clients, PerSecond: *perSecond}
}

// otherConfiguration is compared with that of [logtest.Site].
const otherConfiguration = `example.com {
	rate_limit {
		zone clients {
			key {client_ip}
			ipv6_prefix 64
			fixed_window 600 1m
		}
	}
	reverse_proxy localhost:9000
}
`

func run() error {
	if *generate {
		return logtest.Write(os.Stdout, options())
	}
	dir, err := os.MkdirTemp("", "simulate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := func(name string) string { return filepath.Join(dir, name) }
	program := *caddy
	if program == "" {
		program = path("caddy")
		if output, err := exec.Command("go", "build", "-o", program, "../cmd/caddy").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
	}
	for name, text := range map[string]string{"Caddyfile": logtest.Site, "Caddyfile.other": otherConfiguration} {
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := writeLogs(path); err != nil {
		return err
	}
	fmt.Printf("%-44s %12s %12s %10s\n", "", "lines/s", "CPU µs/line", "MB")
	for _, r := range []struct {
		name       string
		processors int
		args       []string
	}{
		{"plain", 2, []string{"access.log"}},
		{"plain, one processor", 1, []string{"access.log"}},
		{"gzip", 2, []string{"access.log.gz"}},
		{"zstd", 2, []string{"access.log.zst"}},
		{"--propose 0.1%", 2, []string{"--propose", "0.1%", "access.log"}},
		{"--compare", 2, []string{"--compare", "Caddyfile.other", "access.log"}},
		{"--zone 'key {client_ip}'", 2, []string{"--zone", "key {client_ip}", "access.log"}},
	} {
		cmd := exec.Command(program, append([]string{"rate-limit", "simulate"}, r.args...)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), fmt.Sprint("GOMAXPROCS=", r.processors))
		var failure strings.Builder
		cmd.Stderr = &failure
		began := time.Now()
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w: %s", r.name, err, failure.String())
		}
		took, state := time.Since(began), cmd.ProcessState
		used := state.UserTime() + state.SystemTime()
		fmt.Printf("%-44s %12.0f %12.2f %10.0f\n", r.name, float64(*lines)/took.Seconds(),
			used.Seconds()*1e6/float64(*lines), float64(state.SysUsage().(*syscall.Rusage).Maxrss)/1e3)
	}
	return nil
}

// writeLogs writes the log plain and compressed.
func writeLogs(path func(name string) string) error {
	var files []io.Closer
	create := func(name string) (*os.File, error) {
		file, err := os.Create(path(name))
		files = append(files, file)
		return file, err
	}
	plain, err := create("access.log")
	if err != nil {
		return err
	}
	zipped, err := create("access.log.gz")
	if err != nil {
		return err
	}
	zstandard, err := create("access.log.zst")
	if err != nil {
		return err
	}
	gz, _ := gzip.NewWriterLevel(zipped, gzip.BestSpeed)
	zst, err := zstd.NewWriter(zstandard)
	if err != nil {
		return err
	}
	if err := logtest.Write(io.MultiWriter(plain, gz, zst), options()); err != nil {
		return err
	}
	for _, c := range append([]io.Closer{gz, zst}, files...) {
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}
