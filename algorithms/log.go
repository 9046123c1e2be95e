package algorithms

// Log is a queue of instants, oldest first, in one ring that grows as it fills,
// never past what its limit can hold, and shrinks when little of it is left. A
// nil or zero Log is empty.
type Log struct {
	ring []Micros
	head int64
	held int64
}

// Len is how many instants are held.
func (g *Log) Len() int64 {
	if g == nil {
		return 0
	}
	return g.held
}

// Cap is how many instants there is room for.
func (g *Log) Cap() int64 {
	if g == nil {
		return 0
	}
	return int64(len(g.ring))
}

// At returns the i-th oldest instant, from 0.
func (g *Log) At(i int64) Micros { return g.ring[(g.head+i)%int64(len(g.ring))] }

func (g *Log) set(i int64, t Micros) { g.ring[(g.head+i)%int64(len(g.ring))] = t }

// cut removes n instants, from the i-th oldest on. It moves the fewer of the others.
func (g *Log) cut(i, n int64) {
	if i < (g.held-n)/2 {
		for i--; i >= 0; i-- {
			g.set(i+n, g.At(i))
		}
		g.drop(n)
		return
	}
	for ; i+n < g.held; i++ {
		g.set(i, g.At(i+n))
	}
	g.held -= n
}

// drop forgets the oldest n.
func (g *Log) drop(n int64) {
	g.held -= n
	if g.held == 0 {
		g.head = 0
		return
	}
	g.head = (g.head + n) % int64(len(g.ring))
}

// push appends n times the instant t; most is the largest number that is ever held.
func (g *Log) push(t Micros, n, most int64) {
	const small = 64
	need, room := g.held+n, g.Cap()
	if need > room || room > small && need <= room/4 {
		ring := make([]Micros, min(max(need, min(2*need, 2*max(room, 1))), max(most, need)))
		for i := range g.held {
			ring[i] = g.At(i)
		}
		g.ring, g.head = ring, 0
	}
	size := int64(len(g.ring))
	for range n {
		g.ring[(g.head+g.held)%size] = t
		g.held++
	}
}
