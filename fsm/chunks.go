package fsm

// chunks is a list that grows without being copied: where a million rows have
// changed, one more must not hold the loop.
type chunks[T any] struct{ list [][]T }

const chunkLen = 1024

func (c *chunks[T]) add(v T) {
	if n := len(c.list); n == 0 || len(c.list[n-1]) == cap(c.list[n-1]) {
		c.list = append(c.list, make([]T, 0, chunkLen))
	}
	last := &c.list[len(c.list)-1]
	*last = append(*last, v)
}

// chunkPos is a place in the walk over a list.
type chunkPos struct{ chunk, at int }

// next gives the element at a place and moves it on; false: there is none.
func (c *chunks[T]) next(p *chunkPos) (v T, ok bool) {
	for ; p.chunk < len(c.list); p.chunk, p.at = p.chunk+1, 0 {
		if p.at < len(c.list[p.chunk]) {
			p.at++
			return c.list[p.chunk][p.at-1], true
		}
	}
	return v, false
}

// before puts the elements of another list in front; the list takes them over.
func (c *chunks[T]) before(o chunks[T]) { c.list = append(o.list, c.list...) }
