package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a process that was started here.
type server struct {
	addr string
	pid  int
	stop func()
}

// start starts a program with the arguments for a free address, and waits until it listens.
func start(program string, args func(addr string) ([]string, error), env ...string) (*server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	all, err := args(addr)
	if err != nil {
		return nil, err
	}
	process := exec.Command(program, all...)
	process.Env = append(os.Environ(), env...)
	var output bytes.Buffer
	process.Stdout, process.Stderr = &output, &output
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // so that none is left over
	if err := process.Start(); err != nil {
		return nil, err
	}
	stop := func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	}
	for range 1000 {
		if conn, err := net.Dial("tcp", addr); err == nil {
			_ = conn.Close()
			return &server{addr: addr, pid: process.Process.Pid, stop: stop}, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	return nil, fmt.Errorf("%s does not listen: %s", program, output.String())
}

// freeAddr returns an address whose port is free, and also the port 10,000 above, where a
// node of a cluster listens for the others.
func freeAddr() (string, error) {
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		addr := l.Addr().(*net.TCPAddr)
		_ = l.Close()
		if bus, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", addr.Port+10_000)); err == nil {
			_ = bus.Close()
			return addr.String(), nil
		}
	}
	return "", errors.New("no port is free")
}

// startCaddy starts a Caddy with a configuration. A halved one uses half of the processors. So it is the bottleneck, not the
// load generator: a Caddy that waits for requests spends processor time on looking for work, which hides what a handler costs.
func startCaddy(program, dir string, halved bool, config func(addr string) string, env ...string) (*server, error) {
	if halved {
		env = append(env, fmt.Sprint("GOMAXPROCS=", max(runtime.NumCPU()/2, 1)))
	}
	args := func(addr string) ([]string, error) {
		file := filepath.Join(dir, "Caddyfile-"+addr)
		return []string{"run", "--adapter", "caddyfile", "--config", file}, os.WriteFile(file, []byte(config(addr)), 0o600)
	}
	return start(program, args, append(env, "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)...)
}

func startRedis(dir string, more ...string) (*server, error) {
	return start("redis-server", func(addr string) ([]string, error) {
		_, port, err := net.SplitHostPort(addr)
		dir := filepath.Join(dir, port)
		err = errors.Join(err, os.MkdirAll(dir, 0o700))
		return append([]string{"--port", port, "--save", "", "--dir", dir}, more...), err
	})
}

// startCluster starts a cluster of primaries, and waits until all of them know it.
func startCluster(ctx context.Context, dir string, primaries int) (nodes []*server, err error) {
	var clients []*redis.Client
	for i := range primaries {
		node, err := startRedis(dir, "--cluster-enabled", "yes")
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, node)
		client := redis.NewClient(&redis.Options{Addr: node.addr})
		defer client.Close()
		clients = append(clients, client)
		host, port, _ := net.SplitHostPort(nodes[0].addr)
		err = errors.Join(
			client.Do(ctx, "cluster", "set-config-epoch", i+1).Err(),
			client.ClusterAddSlotsRange(ctx, i*16384/primaries, (i+1)*16384/primaries-1).Err(),
			client.ClusterMeet(ctx, host, port).Err(),
		)
		if err != nil {
			return nodes, err
		}
	}
	for began := time.Now(); time.Since(began) < 30*time.Second; time.Sleep(50 * time.Millisecond) {
		ready := 0
		for _, client := range clients {
			info := client.ClusterInfo(ctx).Val()
			if strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", primaries)) {
				ready++
			}
		}
		if ready == len(clients) {
			return nodes, nil
		}
	}
	return nodes, errors.New("the nodes do not become a cluster")
}

// cpuTime returns the processor time that a server has taken, its own and the system's.
func cpuTime(s *server) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid))
	if err != nil {
		return 0, err
	}
	const perSecond = 100 // USER_HZ, the same on all machines that Go runs on
	ticks, err := parseStat(string(text))
	return time.Duration(ticks) * time.Second / perSecond, err
}

// parseStat returns utime and stime together. The name of the process, in parentheses, may
// hold spaces and parentheses.
func parseStat(text string) (ticks int64, err error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("%q is no stat of a process", text)
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	return user + system, err
}

// resident returns the resident bytes of a process.
func resident(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, after, found := strings.Cut(string(text), "VmRSS:")
	if !found {
		return 0, fmt.Errorf("no VmRSS of process %d", pid)
	}
	kilobytes, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	return kilobytes * 1024, err
}
