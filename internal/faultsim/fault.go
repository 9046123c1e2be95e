package faultsim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
)

// fault is something that goes wrong.
type fault struct {
	kind  string
	at    time.Duration // since the beginning
	lasts time.Duration
	// These say how much the promises allow.
	disturbs bool          // requests can fail while it lasts, and until it is over
	over     time.Duration // after its end, all works again; 0: after recovery
	loses    bool          // budgets may begin again
	partly   bool          // some of them continue from an old state
	kills    bool          // an instance, whose slots stay taken
	untold   bool          // no Sentinel tells that another server has taken over
	by       time.Duration // by which the clock of Redis steps

	seed uint64 // determines what the fault draws
	do   func(w *world, f *fault)
}

func (f *fault) String() string {
	text := fmt.Sprintf("%v %s", f.at.Round(time.Millisecond), f.kind)
	if f.lasts > 0 {
		text += fmt.Sprintf(" for %v", f.lasts.Round(time.Millisecond))
	}
	if f.by != 0 {
		text += fmt.Sprintf(" by %v", f.by)
	}
	return text
}

// random returns the random numbers of the fault, which are the same in each run.
func (f *fault) random() *rand.Rand { return rand.New(rand.NewPCG(f.seed, 29)) }

// node returns the node that the fault is about.
func (f *fault) node(w *world) *simredis.Server { return w.nodes[f.seed%uint64(len(w.nodes))] }

// faultKinds has all kinds of faults. A fault with lasts ends when do returns.
var faultKinds = []*fault{
	{kind: "freeze", lasts: 3 * time.Second, disturbs: true, do: func(w *world, f *fault) { freeze(f.node(w), f.lasts) }},
	{kind: "connections cut", disturbs: true, do: func(w *world, f *fault) { w.network.Cut(f.node(w)) }},
	{kind: "calls in trouble", lasts: 2 * time.Second, disturbs: true, do: func(w *world, f *fault) {
		r, node := f.random(), f.node(w)
		part := 2 + r.IntN(10) // one of so many calls
		node.SetTrouble(func([]string) simredis.Trouble {
			if r.IntN(part) > 0 {
				return simredis.Trouble{}
			}
			t := simredis.Trouble{Lost: simredis.Loss(r.IntN(4))}
			if r.IntN(3) == 0 {
				t.Before = span(r, 0, 300*time.Millisecond)
			}
			return t
		})
		time.Sleep(f.lasts)
		node.SetTrouble(nil)
	}},
	// A request that waits in vain behind the lost call opens the breaker. Redis is checked half a second later.
	{kind: "one call lost", lasts: 200 * time.Millisecond, disturbs: true, over: timeout + 600*time.Millisecond, do: func(w *world, f *fault) {
		loseNext(f.node(w), f.random())
		time.Sleep(f.lasts)
		f.node(w).SetTrouble(nil)
	}},
	{kind: "no packets", lasts: 3 * time.Second, disturbs: true, do: func(w *world, f *fault) {
		client, address := w.instances[f.seed%uint64(len(w.instances))].client, f.node(w).Address()
		client.SetSilent(address, true)
		time.Sleep(f.lasts)
		client.SetSilent(address, false)
	}},
	{kind: "far away", lasts: 5 * time.Second, do: func(w *world, f *fault) { // not too far for the timeout
		w.setDelay(span(f.random(), time.Millisecond, 5*time.Millisecond))
		time.Sleep(f.lasts)
		w.setDelay(w.scenario.delay)
	}},
	{kind: "SCRIPT FLUSH", do: func(w *world, f *fault) { f.node(w).ForgetScripts() }},
	{kind: "FLUSHALL", loses: true, do: func(w *world, f *fault) { f.node(w).Flush() }},
	{kind: "restart without data", lasts: 2 * time.Second, disturbs: true, loses: true, do: func(w *world, f *fault) {
		node := f.node(w)
		node.Kill()
		time.Sleep(f.lasts)
		node.Start(nil)
	}},
	{kind: "restart with data", lasts: 2 * time.Second, disturbs: true, do: func(w *world, f *fault) {
		node := f.node(w)
		node.Kill()
		data := node.Snapshot()
		time.Sleep(f.lasts)
		node.Start(data)
	}},
	{kind: "restart with old data", lasts: 2 * time.Second, disturbs: true, loses: true, partly: true, do: func(w *world, f *fault) {
		node := f.node(w)
		data := node.Snapshot()
		time.Sleep(f.lasts / 2)
		node.Kill()
		time.Sleep(f.lasts / 2)
		node.Start(data)
	}},
	{kind: "full", lasts: 2 * time.Second, disturbs: true, do: func(w *world, f *fault) {
		f.node(w).SetFull(true)
		time.Sleep(f.lasts)
		f.node(w).SetFull(false)
	}},
	{kind: "loading", lasts: 2 * time.Second, disturbs: true, do: func(w *world, f *fault) {
		f.node(w).SetLoading(true)
		time.Sleep(f.lasts)
		f.node(w).SetLoading(false)
	}},
	{kind: "a replica", lasts: 2 * time.Second, disturbs: true, do: func(w *world, f *fault) {
		f.node(w).SetReplica(true)
		time.Sleep(f.lasts)
		f.node(w).SetReplica(false)
	}},
	{kind: "EVALSHA denied", lasts: 2 * time.Second, disturbs: true, do: func(w *world, f *fault) {
		f.node(w).Deny("EVALSHA")
		time.Sleep(f.lasts)
		f.node(w).Deny("")
	}},
	{kind: "instance killed", kills: true, do: func(w *world, f *fault) { w.kill(int(f.seed % uint64(len(w.instances)))) }},
	{kind: "clock ahead", by: 1, do: func(w *world, f *fault) { f.node(w).StepClock(f.by) }},
	{kind: "clock back", by: -1, do: func(w *world, f *fault) { f.node(w).StepClock(f.by) }},
}

const demotion = "failover, demotion"

// failovers are faults of a Redis with Sentinels or of a cluster: a replica with old data takes over. The old primary has
// died, or becomes a replica.
var failovers = []*fault{
	{kind: "failover", lasts: 2 * time.Second, disturbs: true, loses: true, partly: true, do: func(w *world, f *fault) {
		f.failOver(w, (*simredis.Server).Kill)
	}},
	{kind: demotion, lasts: 2 * time.Second, disturbs: true, loses: true, partly: true, do: func(w *world, f *fault) {
		f.failOver(w, func(old *simredis.Server) { old.SetReplica(true) })
	}},
}

func (f *fault) failOver(w *world, end func(old *simredis.Server)) {
	old := f.node(w)
	data := old.Snapshot()
	time.Sleep(f.lasts / 2)
	end(old)
	time.Sleep(f.lasts / 2)
	f.untold = w.sentinel != nil && f.seed%3 == 0
	w.replace(old, data, !f.untold)
}

// slotMove is a fault of a cluster: a slot moves, with its keys one after the other. Nobody notices, unless a key has
// several values.
func (s *scenario) slotMove() *fault {
	return &fault{kind: "slots move", lasts: time.Second, disturbs: s.hasSeveralValues(), do: func(w *world, f *fault) {
		r := f.random()
		for _, key := range []string{"k0", "k1", "k2"} {
			w.moveSlotOf(key, w.nodes[r.IntN(len(w.nodes))], f.lasts/3)
		}
	}}
}

// freeze lets a server hang for some simulated time.
func freeze(server *simredis.Server, lasts time.Duration) {
	thaw := server.Freeze()
	time.Sleep(lasts)
	thaw()
}

// loseNext loses the next call of a server.
func loseNext(server *simredis.Server, r *rand.Rand) {
	loss := simredis.Loss(1 + r.IntN(3))
	server.SetTrouble(func([]string) (t simredis.Trouble) {
		t.Lost, loss = loss, simredis.NoLoss
		return t
	})
}

func (s *scenario) drawFaults(r *rand.Rand) {
	kinds := faultKinds
	if s.topology != "single" {
		kinds = append(kinds[:len(kinds):len(kinds)], failovers...)
	}
	if s.topology == "cluster" {
		kinds = append(kinds[:len(kinds):len(kinds)], s.slotMove(), s.slotMove())
	}
	pause := pick(r, 5*time.Second, 10*time.Second, 60*time.Second)
	for at := span(r, 2*time.Second, 10*time.Second); at < s.length; {
		f := *pick(r, kinds...)
		f.at, f.seed = at, r.Uint64()
		if f.lasts > 0 {
			f.lasts = span(r, f.lasts/30, f.lasts)
		}
		if f.by != 0 {
			f.by *= pick(r, span(r, time.Millisecond, time.Second), span(r, time.Second, 20*time.Second))
		}
		s.faults = append(s.faults, &f)
		at += f.lasts + pick(r, span(r, 0, time.Second), span(r, pause/2, pause), span(r, pause/2, pause))
	}
}
