package algorithms

// Log is a queue of numbers, oldest first. It is one ring. A full ring grows, up to the maximum of
// its limit, and a nearly empty ring shrinks. A nil or zero Log is empty.
type Log struct {
	ring   []Micros
	head   int64
	length int64
}

// Len returns how many numbers the log has.
func (g *Log) Len() int64 {
	if g == nil {
		return 0
	}
	return g.length
}

// Cap returns the length of the ring.
func (g *Log) Cap() int64 {
	if g == nil {
		return 0
	}
	return int64(len(g.ring))
}

// At returns the i-th oldest number, from 0.
func (g *Log) At(i int64) Micros { return g.ring[(g.head+i)%int64(len(g.ring))] }

func (g *Log) set(i int64, t Micros) { g.ring[(g.head+i)%int64(len(g.ring))] = t }

// cut removes n numbers, from the i-th oldest on. It moves the shorter side of the rest.
func (g *Log) cut(i, n int64) {
	if i < (g.length-n)/2 {
		for i--; i >= 0; i-- {
			g.set(i+n, g.At(i))
		}
		g.drop(n)
		return
	}
	for ; i+n < g.length; i++ {
		g.set(i, g.At(i+n))
	}
	g.length -= n
}

// drop removes the n oldest numbers.
func (g *Log) drop(n int64) {
	g.length -= n
	if g.length == 0 {
		g.head = 0
		return
	}
	g.head = (g.head + n) % int64(len(g.ring))
}

// push appends t n times. maxLength is the most that the log ever holds.
func (g *Log) push(t Micros, n, maxLength int64) {
	const small = 64
	need, size := g.length+n, g.Cap()
	if need > size || size > small && need <= size/4 {
		ring := make([]Micros, min(max(need, min(2*need, 2*max(size, 1))), max(maxLength, need)))
		for i := range g.length {
			ring[i] = g.At(i)
		}
		g.ring, g.head = ring, 0
	}
	size = int64(len(g.ring))
	for range n {
		g.ring[(g.head+g.length)%size] = t
		g.length++
	}
}
