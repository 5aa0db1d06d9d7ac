package fsm

import (
	"cmp"
	"slices"
	"sort"
)

// recency holds the partitions of a queue in the order of their last append, so
// that what was written last, or since a time, is found without a look at the
// others. It is derived. An append moves its partition to the end: a slot is
// emptied and another one filled; places with mostly empty slots are joined.
//
// Every partition has a place number that rises along the order, by which a walk
// goes on where it was, whatever has moved meanwhile.
type recency struct {
	blocks []*recencyBlock // none is empty of partitions
	next   uint64          // the next place
}

const recencySlots = 256

type recencyBlock struct {
	parts []*partition // nil: emptied
	live  int
	first uint64 // no place in it is lower, and all in the blocks before are
}

// moved puts a partition that was just appended to at the end.
func (r *recency) moved(p *partition) {
	n := len(r.blocks)
	if n > 0 {
		if last := r.blocks[n-1].parts; last[len(last)-1] == p {
			return // the newest stays the newest
		}
	}
	if p.place != 0 {
		r.remove(p)
		n = len(r.blocks)
	}
	if n == 0 || len(r.blocks[n-1].parts) == recencySlots {
		if n > 0 && r.blocks[n-1].live <= recencySlots/2 {
			r.blocks[n-1].compact()
		} else {
			r.blocks = append(r.blocks, &recencyBlock{parts: make([]*partition, 0, recencySlots), first: r.next + 1})
			n++
		}
	}
	b := r.blocks[n-1]
	r.next++
	p.place, p.block, p.slot = r.next, b, int32(len(b.parts))
	b.parts = append(b.parts, p)
	b.live++
}

func (b *recencyBlock) compact() {
	b.parts = slices.DeleteFunc(b.parts, func(p *partition) bool { return p == nil })
	b.number()
}

func (b *recencyBlock) number() {
	for i, p := range b.parts {
		p.block, p.slot = b, int32(i)
	}
}

// remove takes a partition out of the order.
func (r *recency) remove(p *partition) {
	if p.place == 0 {
		return
	}
	b, place := p.block, p.place
	b.parts[p.slot] = nil
	b.live--
	p.place, p.block = 0, nil
	if b.live > recencySlots/4 && b.parts[len(b.parts)-1] != nil {
		return
	}
	i := sort.Search(len(r.blocks), func(i int) bool { return r.blocks[i].first >= place })
	if i == len(r.blocks) || r.blocks[i].first > place {
		i--
	}
	for n := len(b.parts); n > 0 && b.parts[n-1] == nil; n-- {
		b.parts = b.parts[:n-1] // so that the last slot is never empty
	}
	switch {
	case b.live == 0:
		r.blocks = slices.Delete(r.blocks, i, i+1)
	case b.live <= recencySlots/4:
		r.join(i)
	}
}

// join puts a sparse block together with the one before it, when both fit.
func (r *recency) join(i int) {
	if i == 0 || r.blocks[i-1].live+r.blocks[i].live > recencySlots/2 {
		return
	}
	a, b := r.blocks[i-1], r.blocks[i]
	a.compact()
	b.compact()
	a.parts = append(a.parts, b.parts...)
	a.live += b.live
	a.number()
	r.blocks = slices.Delete(r.blocks, i, i+1)
}

// lastPlace is that of the last slot, which is never empty.
func (b *recencyBlock) lastPlace() uint64 { return b.parts[len(b.parts)-1].place }

// ascend visits the partitions with a place above after, in order.
func (r *recency) ascend(after uint64, visit func(*partition) bool) {
	i := sort.Search(len(r.blocks), func(i int) bool { return r.blocks[i].lastPlace() > after })
	for ; i < len(r.blocks); i++ {
		for _, p := range r.blocks[i].parts {
			if p != nil && p.place > after && !visit(p) {
				return
			}
		}
	}
}

// descend visits the partitions with a place below before, the newest first; 0: all.
func (r *recency) descend(before uint64, visit func(*partition) bool) {
	i := len(r.blocks) - 1
	if before != 0 {
		i = min(i, sort.Search(len(r.blocks), func(i int) bool { return r.blocks[i].lastPlace() >= before }))
	}
	for ; i >= 0; i-- {
		for _, p := range slices.Backward(r.blocks[i].parts) {
			if p != nil && (before == 0 || p.place < before) && !visit(p) {
				return
			}
		}
	}
}

// since is the highest place of a partition that was last appended to before t;
// 0: there is none.
func (r *recency) since(t int64) (place uint64) {
	i := sort.Search(len(r.blocks), func(i int) bool {
		parts := r.blocks[i].parts
		return parts[len(parts)-1].lastAppend >= t
	})
	if i > 0 {
		place = r.blocks[i-1].lastPlace()
	}
	if i < len(r.blocks) {
		for _, p := range r.blocks[i].parts {
			if p == nil {
				continue
			}
			if p.lastAppend >= t {
				break
			}
			place = p.place
		}
	}
	return place
}

// build makes the order anew.
func (r *recency) build(parts []*partition) {
	type key struct {
		time int64
		at   int
	}
	keys := make([]key, len(parts))
	for i, p := range parts {
		keys[i] = key{p.lastAppend, i}
	}
	slices.SortFunc(keys, func(a, b key) int { return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.at, b.at)) })
	*r = recency{}
	for _, k := range keys {
		parts[k.at].place = 0
		r.moved(parts[k.at])
	}
}
