package server

// Digest reads the hash of the whole state, and the commit index, between two
// turns of the group's loop. It walks every row: it is for tests and for
// comparing nodes, not for a busy broker.
func (b *Broker) Digest() (digest, commit uint64, err error) {
	err = b.group.Do(func() { digest = b.machine.Load().Digest() })
	return digest, b.group.Status().Commit, err
}

// Preparing is the number of calls that something is looked up for, off the
// loop.
func (b *Broker) Preparing() int {
	b.waiting.Lock()
	defer b.waiting.Unlock()
	return len(b.waiting.calls)
}
