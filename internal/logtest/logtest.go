// Package logtest makes access logs for tests and for the benchmark. Their lines are as Caddy writes them.
package logtest

import (
	"bufio"
	"container/heap"
	"io"
	"math"
	"math/rand/v2"
	"net/netip"
	"strconv"
)

// Site is a Caddyfile with zones of several kinds for the requests of a log.
const Site = `example.com {
	rate_limit {
		zone clients {
			key {client_ip}
			ipv6_prefix 64
			token_bucket 20 1s 100
		}
		zone login {
			match path /login*
			key {client_ip}
			ipv6_prefix 64
			sliding_window 5 1m
		}
		zone customers {
			match path /api/*
			key {header.X-Api-Key}
			gcra 100 1m
		}
	}
	reverse_proxy localhost:9000
}
`

// Options describe a log. The same options always make the same log.
type Options struct {
	Seed      uint64
	Requests  int
	Clients   int     // how many there are; those with a low number send most requests (default 1000)
	PerSecond float64 // the mean rate of requests (default 1000)
	// Began is when the first request begins, in microseconds since the Unix epoch (default
	// 2026-01-01T00:00:00Z).
	Began int64
}

// Defaults of [Options].
const (
	defaultClients   = 1000
	defaultPerSecond = 1000
	defaultBegan     = 1767225600 * 1e6
)

// Write writes a log. Its lines are in the order in which the responses ended, as in a log of Caddy.
// Starts are a Poisson process, and durations a log-normal distribution from a millisecond to a minute.
func Write(w io.Writer, o Options) error {
	if o.Clients == 0 {
		o.Clients = defaultClients
	}
	if o.PerSecond == 0 {
		o.PerSecond = defaultPerSecond
	}
	if o.Began == 0 {
		o.Began = defaultBegan
	}
	r := rand.New(rand.NewPCG(o.Seed, 0))
	clients := rand.NewZipf(r, 1.1, 50, uint64(o.Clients-1))
	var running requests // responses that haven't ended
	buffered := bufio.NewWriterSize(w, 1<<16)
	var line []byte
	start := float64(o.Began)
	for range o.Requests {
		for len(running) > 0 && running[0].end <= int64(start) {
			line = heap.Pop(&running).(request).append(line[:0])
			if _, err := buffered.Write(line); err != nil {
				return err
			}
		}
		heap.Push(&running, newRequest(r, int64(start), clients.Uint64()))
		start += r.ExpFloat64() / o.PerSecond * 1e6
	}
	for len(running) > 0 {
		line = heap.Pop(&running).(request).append(line[:0])
		if _, err := buffered.Write(line); err != nil {
			return err
		}
	}
	return buffered.Flush()
}

// request is a request of the log.
type request struct {
	start, end int64
	client     uint64
	path       int
	item, size uint32
	status     int
}

// The paths of requests, the first ones most often.
var paths = []string{"/api/items/", "/assets/app-", "/api/search?q=", "/product/", "/login?from=", "/events/"}

func newRequest(r *rand.Rand, start int64, client uint64) request {
	duration := int64(min(math.Exp(r.NormFloat64()*1.2+math.Log(20e3)), 60e6))
	q := request{start: start, end: start + duration, client: client, item: r.Uint32N(100_000), size: r.Uint32N(50_000), status: 200}
	for q.path < len(paths)-1 && r.IntN(2) == 0 {
		q.path++
	}
	switch r.IntN(20) {
	case 0:
		q.status = 404
	case 1:
		q.status = 401
	}
	return q
}

// Address returns the address of a client, by its number. A fifth of the clients have IPv6.
func Address(client uint64) netip.Addr {
	mixed := (client + 1) * 0x9e3779b97f4a7c15 // so that neighbors are in other networks
	if client%5 == 4 {
		a := [16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1}
		for i := range 4 {
			a[4+i] = byte(mixed >> (32 + 8*i))
		}
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte{byte(1 + mixed>>56%223), byte(mixed >> 48), byte(mixed >> 40), byte(mixed >> 32)})
}

// append appends the line of the request.
func (q request) append(b []byte) []byte {
	address := Address(q.client).String()
	b = append(b, `{"level":"info","ts":`...)
	b = strconv.AppendFloat(b, float64(q.end)/1e6, 'f', -1, 64)
	b = append(b, `,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":"`...)
	b = append(b, address...)
	b = append(b, `","remote_port":"`...)
	b = strconv.AppendInt(b, 10_000+int64(q.item)%50_000, 10)
	b = append(b, `","client_ip":"`...)
	b = append(b, address...)
	b = append(b, `","proto":"HTTP/2.0","method":"GET","host":"example.com","uri":"`...)
	b = append(b, paths[q.path]...)
	b = strconv.AppendInt(b, int64(q.item), 10)
	b = append(b, `","headers":{"Accept":["*/*"],"X-Api-Key":["customer-`...)
	b = strconv.AppendUint(b, q.client/3, 10)
	b = append(b, `"],"User-Agent":["Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0`...)
	b = append(b, ` Safari/537.36"],"Accept-Language":["en-US,en;q=0.9"],"Accept-Encoding":["gzip, deflate, br, zstd"],`...)
	b = append(b, `"Cookie":["REDACTED"]},"tls":{"resumed":false,"version":772,"cipher_suite":4865,"proto":"h2",`...)
	b = append(b, `"server_name":"example.com","ech":false}},"bytes_read":0,"user_id":"","duration":`...)
	b = strconv.AppendFloat(b, float64(q.end-q.start)/1e6, 'f', -1, 64)
	b = append(b, `,"size":`...)
	b = strconv.AppendUint(b, uint64(q.size), 10)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(q.status), 10)
	b = append(b, `,"resp_headers":{"Alt-Svc":["h3=\":443\"; ma=2592000"],"Cache-Control":["private, max-age=0"],`...)
	b = append(b, `"Content-Type":["application/json"],"Server":["Caddy"]}}`...)
	return append(b, '\n')
}

// requests is a heap by the ends of the requests.
type requests []request

func (r requests) Len() int           { return len(r) }
func (r requests) Less(i, j int) bool { return r[i].end < r[j].end }
func (r requests) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *requests) Push(x any)        { *r = append(*r, x.(request)) }
func (r *requests) Pop() any {
	last := (*r)[len(*r)-1]
	*r = (*r)[:len(*r)-1]
	return last
}
