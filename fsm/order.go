package fsm

import "github.com/tidwall/btree"

// nameOrder holds the partitions of a queue by name. Nobody but a sweep over all
// partitions needs it, so it is made when the first one comes, a slice with each
// read, and kept from then on. It is derived.
type nameOrder struct {
	tree    btree.Map[string, *partition]
	through int // partitions of the queue's list that are in it
}

// fill takes a slice of the partitions that are not in the order yet; false:
// there are more.
func (q *queue) fillNames() (whole bool) {
	if q.names == nil {
		q.names = &nameOrder{}
	}
	o := q.names
	for n := 0; o.through < len(q.parts) && n < viewSlice; n++ {
		p := q.parts[o.through]
		o.tree.Set(p.name, p)
		o.through++
	}
	return o.through == len(q.parts)
}

// added tells that a partition was put at the end of the queue's list.
func (o *nameOrder) added(p *partition, parts int) {
	if o != nil && o.through == parts-1 {
		o.tree.Set(p.name, p)
		o.through = parts
	}
}

// removed tells that a partition goes.
func (o *nameOrder) removed(p *partition) {
	if o != nil {
		o.tree.Delete(p.name)
	}
}

// shifted tells that partitions of the list in front of to, all behind from, are
// gone from it. What is looked at again is in the order already.
func (o *nameOrder) shifted(from, gone int) {
	if o != nil && o.through > from {
		o.through = max(from, o.through-gone)
	}
}
