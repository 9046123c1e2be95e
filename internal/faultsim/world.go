package faultsim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/cost"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/telemetry"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// world is a scenario that runs.
type world struct {
	scenario  *scenario
	began     time.Time
	network   *simredis.Network
	nodes     []*simredis.Server // those that serve now
	cluster   *simredis.Cluster
	sentinel  *simredis.Sentinel
	instances []*instance
	addresses int // given to servers so far

	redis redisstore.Options // of the next instance
	dead  []*instance

	mu       sync.Mutex
	failures []failure
	charges  map[string]int // by key: how often a Redis may have charged it
}

// failure is an error that an instance has reported.
type failure struct {
	at       time.Time
	instance int
	what     string
	err      error
}

// shed is the report of an instance about a request that it did not send in time.
const shed = "a request that was shed"

// timeout is the timeout of a message to Redis.
const timeout = 100 * time.Millisecond

// newWorld starts the servers and the instances.
func newWorld(s *scenario) *world {
	w := &world{scenario: s, began: time.Now(), network: simredis.NewNetwork(), charges: make(map[string]int)}
	o := redisstore.Options{Timeout: timeout}
	switch s.topology {
	case "cluster":
		w.cluster = w.network.NewCluster(w.newAddress(), w.newAddress(), w.newAddress())
		w.nodes = slices.Clone(w.cluster.Nodes)
		o.Cluster = true
	case "sentinel":
		w.nodes = []*simredis.Server{w.network.NewServer(w.newAddress())}
		const address = "10.0.0.100:26379"
		w.sentinel = w.network.NewSentinel(address, "main", w.nodes[0])
		o.Address, o.MasterName = address, "main"
	default:
		w.nodes = []*simredis.Server{w.network.NewServer(w.newAddress())}
		o.Address = w.nodes[0].Address()
	}
	w.redis = o
	for i := range s.instances {
		w.instances = append(w.instances, w.newInstance(i))
	}
	return w
}

// kill ends an instance, and lets another one take its place. Nothing that the old one sends arrives any more.
func (w *world) kill(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.instances[n]
	old.client.SetDead()
	for q := range old.serving {
		q.ended, q.killed = time.Now(), true
	}
	old.serving = nil
	w.dead = append(w.dead, old)
	w.instances[n] = w.newInstance(n)
}

// instanceOf returns the instance that serves a request that begins now, and its limiter.
func (w *world) instanceOf(q *record) (*instance, *limiter.Limiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.instances[q.instance]
	i.serving[q] = true
	q.limits = i.zones
	return i, i.limiter
}

func (w *world) newAddress() string {
	w.addresses++
	return fmt.Sprintf("10.0.0.%d:6379", w.addresses)
}

func (w *world) setDelay(delay time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range w.instances {
		i.client.SetDelay(delay, 2*delay)
	}
}

// replace lets a new server with some data take over. If tells is false, the message of the Sentinel about this is lost.
func (w *world) replace(old *simredis.Server, data simredis.Snapshot, tells bool) {
	address := w.newAddress()
	var by *simredis.Server
	if w.cluster != nil {
		by = w.cluster.Add(w.network, address)
	} else {
		by = w.network.NewServer(address)
	}
	by.Start(data)
	w.nodes[slices.Index(w.nodes, old)] = by
	if w.cluster != nil {
		w.cluster.Replace(old, by)
	} else {
		w.sentinel.Switch(by, tells)
	}
}

// moveSlotOf moves the slot of a key to a node, in some time.
func (w *world) moveSlotOf(key string, to *simredis.Server, lasts time.Duration) {
	slot := wire.Names{}.HashSlot(key)
	w.cluster.BeginMove(slot, to)
	time.Sleep(lasts / 2)
	w.cluster.MoveKeys(slot, 1)
	time.Sleep(lasts / 2)
	w.cluster.EndMove(slot)
}

func (w *world) report(i *instance, what string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i.serving == nil { // it is dead
		return
	}
	w.failures = append(w.failures, failure{time.Now(), i.number, what, err})
}

// instance is a Caddy with one directive.
type instance struct {
	number  int
	client  *simredis.Client
	serving map[*record]bool // the requests in flight; guarded by the mutex of the world
	limiter *limiter.Limiter // of the configuration in force; guarded by the mutex of the world
	zones   []*zonePlan      // of this configuration; guarded by the mutex of the world
	// All configurations share these.
	redis   redisstore.Redis
	backend *backend
	local   *store.Memory // the budgets while Redis fails
	lines   *lines.SlotLines
	places  map[string]*lines.Places // by zone
}

// backend is a Redis as limiters have it.
type backend struct {
	*store.DenyCache
	world  *world
	redis  redisstore.Redis
	counts limiter.OutageCounts
}

// Take implements [store.Store]. It counts what may be charged. In a cluster this is each call: if another
// node denies the request, or other overrides are in force there, what was charged is given back. This can be lost.
func (b *backend) Take(ctx context.Context, requests []store.ZoneRequest) (allowed bool, err error) {
	allowed, err = b.DenyCache.Take(ctx, requests)
	if allowed || err != nil && !store.IsOverridden(err) || b.world.cluster != nil {
		b.world.mu.Lock()
		defer b.world.mu.Unlock()
		for i := range requests {
			b.world.charges[requests[i].Key]++
		}
	}
	return allowed, err
}

func (b *backend) DecidedWithout() *limiter.OutageCounts { return &b.counts }
func (b *backend) Failing() int                          { return b.redis.Stats().Failing }
func (b *backend) IsCluster() bool                       { _, is := b.redis.(*redisstore.Cluster); return is }

func (w *world) newInstance(number int) *instance {
	i := &instance{
		number: number, client: w.network.NewClient(0), serving: make(map[*record]bool), zones: w.scenario.zones,
		local: store.NewMemory(100_000), places: make(map[string]*lines.Places),
	}
	i.client.SetDelay(w.scenario.delay, 2*w.scenario.delay)
	o := w.redis
	o.Dialer = i.client
	if w.cluster != nil {
		o.Address = w.nodes[0].Address() + "," + w.nodes[1].Address()
	}
	var err error
	if i.redis, err = redisstore.Open(o, redisstore.Hooks{HealthChanged: func(_ string, err error) {
		if err != nil {
			w.report(i, "a Redis fails", err)
		}
	}}); err != nil {
		panic(err)
	}
	i.lines = lines.NewSlotLines(lines.SharedPause, i.redis.EndLine)
	go i.checkRedis()
	i.backend = &backend{DenyCache: store.NewDenyCache(i.redis), world: w, redis: i.redis}
	for _, z := range w.scenario.zones {
		i.places[z.name] = limiter.NewDelayPlaces()
	}
	i.limiter = w.load(i, i.zones)
	return i
}

// load makes the limiter of an instance from its configuration, which has these zones.
func (w *world) load(i *instance, zones []*zonePlan) *limiter.Limiter {
	l := &limiter.Limiter{
		Store: i.backend, Backend: i.backend, InRedis: true, SlotLines: i.lines,
		ReportCorrectionFailure: func(err error) { w.report(i, "a correction", err) },
		ProblemJSON:             true,
		Denials:                 denials.NewLog(new(denials.Events)),
		DenialSource:            &denials.Source{Logger: zap.NewNop()},
		Logger:                  zap.NewNop(),
	}
	l.ReportFailure = func(err error) {
		what := "a request"
		if store.IsBusy(err) {
			what = shed
		}
		w.report(i, what, err)
	}
	l.StoreErrorPolicy = limiter.StoreErrorPolicy{Mode: w.scenario.mode, Num: 1, Den: 1}
	switch w.scenario.mode {
	case "share":
		l.StoreErrorPolicy.Mode, l.StoreErrorPolicy.Den = "local", int64(w.scenario.instances)
		fallthrough
	case "local":
		l.Store = store.NewFailover(i.backend, i.local, l.ReportStoreFailure)
	}
	for n, z := range zones {
		l.Zones = append(l.Zones, z.compile(n, l, i.places[z.name]))
	}
	return l
}

// inForce returns the limiter of the configuration in force.
func (w *world) inForce(i *instance) *limiter.Limiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	return i.limiter
}

// checkRedis checks the Redis, as Caddy does when it starts. In a cluster, an instance knows all nodes from then on.
func (i *instance) checkRedis() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = i.redis.Check(ctx) // the failure is reported
}

// compile makes the zone of an instance.
func (z *zonePlan) compile(number int, l *limiter.Limiter, places *lines.Places) *limiter.Zone {
	key := "{sim.key}"
	if number == 0 {
		key = "{sim.number}"
	}
	compiled := &limiter.Zone{
		Name: z.name, Logger: zap.NewNop(), Keys: []keys.Template{keys.NewKey(key, keys.Form{})}, Enforce: 100,
		Matchers: caddyhttp.MatcherSets{caddyhttp.MatcherSet{zoneMatcher(number)}},
		Ban:      z.ban, Concurrency: z.slots, Cost: must(cost.Parse("{sim.cost}", nil)),
		Status:  http.StatusTooManyRequests,
		Metrics: telemetry.ZoneMetrics{Disabled: true}, DeniedKeys: denials.NewTopKeys(),
		RuntimeOverrides: z.overridden,
	}
	compiled.CompileOverride = func(text string) (*limiter.LimitSet, time.Time, error) {
		return z.overriddenBy(text).compileSet(l, compiled.Keys), time.Time{}, nil
	}
	compiled.LimitSets = &limiter.LimitSets{DefaultSet: z.compileSet(l, compiled.Keys)}
	if z.settles {
		compiled.Settle = limiter.NewSettlePolicy(z.name, nil, must(cost.Parse("{sim.true_cost}", nil)))
	}
	if z.delay > 0 || z.wait > 0 {
		compiled.Delay = &lines.DelayPolicy{
			MaxDelay: z.delay.Microseconds(), MaxReserved: z.wait.Microseconds(), MaxPlaces: 1000, Places: places,
		}
	}
	if len(z.weights) > 0 {
		compiled.Share = &limiter.SharePolicy{
			By: keys.NewTemplate("{sim.tenant." + z.name + "}"), Weight: must(cost.Parse("{sim.weight."+z.name+"}", nil)),
		}
	}
	compiled.BodyNeeds.Keys = make([]bodies.Kinds, 1)
	compiled.KeyWarnings = limiter.NewKeyWarnings(compiled.Keys, nil)
	return compiled
}

// compileSet makes the limits of the zone.
func (z *zonePlan) compileSet(l *limiter.Limiter, keys []keys.Template) *limiter.LimitSet {
	set := &limiter.LimitSet{Ban: z.ban}
	if z.quota.Algorithm != "" {
		limit := must(algorithms.NewLimit(z.quota))
		set.Limits = []*algorithms.Limit{limit}
		if p := l.StoreErrorPolicy; p.Den > 1 {
			set.Shares = []*algorithms.Limit{must(limit.Share(p.Num, p.Den))}
		}
	}
	if z.slots > 0 {
		set.Slots = &store.Slots{Limit: z.slots, Share: l.StoreErrorPolicy.SlotShare(z.slots)}
	}
	set.NameBudgets(z.name, keys)
	return set
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

type recordKey struct{}

// zoneMatcher matches the requests that belong to a zone.
type zoneMatcher int

// MatchWithError implements [caddyhttp.RequestMatcherWithError].
func (m zoneMatcher) MatchWithError(r *http.Request) (bool, error) {
	return r.Context().Value(recordKey{}).(*record).belongs(int(m)), nil
}

// Match implements [caddyhttp.RequestMatcher].
func (m zoneMatcher) Match(r *http.Request) bool { is, _ := m.MatchWithError(r); return is }

// serve lets an instance serve a request.
func (w *world) serve(q *record) {
	i, l := w.instanceOf(q)
	repl := caddy.NewEmptyReplacer()
	repl.Set("sim.key", q.key)
	for _, z := range w.scenario.zones {
		if n := z.tenantOf(q); len(z.weights) > 0 {
			repl.Set("sim.tenant."+z.name, n)
			repl.Set("sim.weight."+z.name, z.weights[n])
		}
	}
	repl.Set("sim.number", fmt.Sprint("n", q.number))
	repl.Set("sim.cost", q.cost)
	repl.Set("sim.true_cost", q.trueCost)
	ctx, leave := context.WithCancel(context.WithValue(context.WithValue(context.Background(), caddy.ReplacerCtxKey, repl), recordKey{}, q))
	defer leave()
	if q.patience > 0 {
		stop := time.AfterFunc(q.patience, leave)
		defer stop.Stop()
	}
	r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
	answer := httptest.NewRecorder()
	q.sent = time.Now()
	q.at = q.sent.Sub(w.began)
	alive := func(do func()) { // does something unless the instance is dead
		w.mu.Lock()
		defer w.mu.Unlock()
		if i.serving != nil {
			do()
		}
	}
	err := l.Serve(answer, r, caddyhttp.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) error {
		alive(func() { q.passed = time.Now() })
		select {
		case <-time.After(q.takes):
		case <-r.Context().Done(): // a proxy gives up when the client disconnects
			return caddyhttp.Error(499, r.Context().Err())
		}
		if q.length != "" {
			answer.Header().Set("Content-Length", q.length)
		}
		answer.WriteHeader(http.StatusOK)
		if q.length == "5" {
			_, _ = answer.Write([]byte("hello"))
		}
		return nil
	}))
	status := answer.Code
	if err != nil {
		status = 500
		if known, ok := err.(caddyhttp.HandlerError); ok {
			status = known.StatusCode
		}
	}
	var problem struct {
		Policies []string `json:"violated-policies"`
	}
	if status == http.StatusTooManyRequests {
		_ = json.Unmarshal(answer.Body.Bytes(), &problem)
	}
	alive(func() {
		delete(i.serving, q)
		q.ended, q.status, q.left, q.denied = time.Now(), status, ctx.Err() != nil, problem.Policies
	})
}

// drain is how long the simulation continues after the last request and the last fault. Slots of lost messages have
// expired by then.
const drain = 45 * time.Second

// run runs the scenario, and lets the oracle look at it.
func (s *scenario) run() *verdict {
	time.Sleep(s.starts)
	w := newWorld(s)
	var all sync.WaitGroup
	for _, f := range s.faults {
		all.Go(func() {
			time.Sleep(f.at)
			f.do(w, f)
		})
	}
	all.Go(func() {
		for _, op := range s.operated {
			time.Sleep(time.Until(w.began.Add(op.at)))
			w.operate(op)
		}
	})
	for _, first := range s.clients {
		all.Go(func() {
			time.Sleep(first.at)
			for q := first; q != nil; q = q.next {
				w.serve(q)
				time.Sleep(q.pause)
			}
		})
	}
	all.Wait()
	time.Sleep(drain)
	v := w.judge()
	for _, i := range append(w.instances, w.dead...) {
		if err := i.redis.Close(); err != nil {
			v.add("an instance ends: %v", err)
		}
	}
	time.Sleep(recovery)
	if n := w.network.Connections(); n > 0 && len(w.dead) == 0 {
		v.add("%d connections are open in the end", n)
	}
	w.network.CloseAll()
	return v
}
